//! A client without a stream and without our library: it opens a session, keeps it alive, acquires,
//! holds and releases by unary calls, one request and one answer at a time.
//!
//! It believes what the wire format promises such a client, and no more: a hold is certain until
//! the send time of the last answered keepalive, plus the lease, less a tenth and 20 ms. A call
//! that ended without an answer is sent again under its number, to the leader.

mod imports;
mod session;

pub(super) use imports::Board;
pub(super) use session::Line;

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::{self, Either};
use holdfast_proto::v1::set_value::Change as Wanted;
use holdfast_proto::v1::{
    Acquire, AcquireOn, AcquireRequest, Cancel, CancelRequest, Granted, Item, Mode, Release,
    ReleaseRequest, SetValue, SetValueRequest,
};
use holdfast_runtime::Runtime;
use tokio::sync::watch;
use tonic::{Code, Status};

use crate::draw::Draw;
use crate::history::{Asked, Change, ClientId, LostCause, Recorder, Shown, What};
use crate::traffic::{self, Write};
use session::Session;

/// The pause before a call without an answer is sent again.
const AGAIN: Duration = Duration::from_millis(50);
/// The timeout of any call but a wait.
const ANSWERED_WITHIN: Duration = Duration::from_secs(1);
/// The interval between two checks of a hold.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// A client of unary calls.
pub(super) struct Caller {
    pub(super) line: Line,
    /// The label of its sessions.
    pub(super) label: String,
    pub(super) id: ClientId,
    pub(super) recorder: Recorder,
    pub(super) runtime: Runtime,
    pub(super) traffic: traffic::Plan,
    pub(super) draw: Draw,
    pub(super) grants: Arc<AtomicU64>,
    pub(super) stopped: watch::Receiver<bool>,
    /// Unique over all its sessions, so that a history can tell its requests apart.
    pub(super) next_request: u64,
}

/// What one request asks for.
struct Wish {
    items: Vec<Asked>,
    wait: bool,
    /// The owner of the import that it claims.
    owner: Option<String>,
}

/// What the client holds under one token.
struct Holding {
    token: u64,
    items: Vec<Asked>,
}

impl Caller {
    /// Runs one session after the other until the client has to stop; closes the last one.
    pub(super) async fn work(mut self) {
        while let Some(session) = self.next_session().await {
            while session.is_safe() && !*self.stopped.borrow() {
                match self.ask(&session).await {
                    Some(holding) => self.hold(&session, holding).await,
                    None => {
                        self.runtime.sleep(Duration::from_millis(1 + self.draw.below(20))).await;
                    }
                }
            }
            self.leave(session).await;
        }
    }

    /// `None` once the client has to stop.
    async fn next_session(&self) -> Option<Session> {
        while !*self.stopped.borrow() {
            let asked = (self.traffic.ttl, self.label.as_str());
            if let Some(session) = Session::open(&self.line, &self.runtime, asked).await {
                self.write(What::Opened { ttl_ms: session.ttl_ms() });
                return Some(session);
            }
            self.runtime.sleep(AGAIN).await;
        }
        None
    }

    /// Closes a session that has not ended by itself.
    async fn leave(&self, session: Session) {
        if session.is_safe() {
            self.write(What::Close);
            session.close(&self.line).await;
        }
    }

    fn write(&self, what: What) {
        self.recorder.write(self.id, what);
    }

    fn number(&mut self) -> u64 {
        self.next_request += 1;
        self.next_request
    }

    /// One lock exclusive or shared, or a set of two.
    fn wish(&mut self) -> Vec<Asked> {
        let first = self.draw.below(self.traffic.names);
        let name = |number: u64| format!("traffic/{number}");
        let mut items = vec![Asked::read_if(self.draw.below(4) == 0, name(first))];
        let second = (first + 1 + self.draw.below(2)) % self.traffic.names;
        if second != first && self.draw.below(3) == 0 {
            items.push(Asked::read_if(self.draw.below(3) == 0, name(second)));
        }
        items
    }

    async fn ask(&mut self, session: &Session) -> Option<Holding> {
        let (request, items, wait) = (self.number(), self.wish(), self.draw.below(5) != 0);
        let within_ms = wait.then(|| self.recorder.ms_of(self.traffic.within));
        let asked = items.clone();
        self.write(What::Acquire { request, items: asked, any: None, wait, within_ms });
        self.get(session, request, Wish { items, wait, owner: None }).await
    }

    /// Asks until there is an answer, the request's own limit has passed, or its session may be
    /// over.
    async fn get(&mut self, session: &Session, request: u64, wish: Wish) -> Option<Holding> {
        let until = self.runtime.clock.now() + self.traffic.within;
        while session.is_safe() {
            let left = until.saturating_since(self.runtime.clock.now());
            if left.is_zero() {
                self.give_up(session, request).await;
                return None;
            }
            match self.acquire(session, (request, &wish), left).await {
                Ok(granted) => return Some(self.granted(session, request, wish.items, &granted)),
                Err(status) => match after(&status, request, wish.wait) {
                    // An earlier call of this request had a shorter limit.
                    Some(What::Denied { .. }) if wish.wait && self.runtime.clock.now() < until => {
                        self.write(What::Unknown { request });
                        return None;
                    }
                    Some(what) => {
                        self.write(what);
                        return None;
                    }
                    None => self.runtime.sleep(AGAIN).await,
                },
            }
        }
        self.write(What::SessionLost { request });
        None
    }

    /// Makes one call, or two. Some requests are given up early: their place, and their grant, stay
    /// (DESIGN §6). Before some, the client has sent one with a shorter limit, as a proxy does that
    /// retries a slow call: the limit of that call ends the wait, never a grant (I13).
    async fn acquire(
        &mut self,
        session: &Session,
        (request, wish): (u64, &Wish),
        left: Duration,
    ) -> Result<Granted, Status> {
        let wait = match self.draw.below(4) {
            0 => Duration::from_millis(self.draw.below(500)),
            _ => left + ANSWERED_WITHIN,
        };
        let short = Duration::from_millis(1 + self.draw.below(400)).min(left);
        let twice = wish.wait && self.draw.below(3) == 0;
        let late = self.call(acquire_of(session, request, wish, left), wait);
        if !twice {
            return late.await;
        }
        let early = self.call(acquire_of(session, request, wish, short), short + ANSWERED_WITHIN);
        match future::select(pin!(early), pin!(late)).await {
            Either::Left((Err(_), late)) => late.await,
            Either::Right((Err(_), early)) => early.await,
            Either::Left((granted, _)) | Either::Right((granted, _)) => granted,
        }
    }

    async fn call(&self, asked: AcquireRequest, wait: Duration) -> Result<Granted, Status> {
        let call =
            self.line.ask(wait, |calls, node| async move { calls.acquire(&node, asked).await });
        let answer = call.await?;
        answer.granted.ok_or_else(|| Status::internal("an answer without a grant"))
    }

    /// Ends a request whatever its state, and does not return before that is certain.
    async fn give_up(&self, session: &Session, request: u64) {
        self.write(What::Cancel { request });
        self.write(What::Unknown { request });
        while session.is_safe() {
            let cancel = Some(Cancel { request_id: request });
            let asked = CancelRequest { session: Some(session.key()), done_below: request, cancel };
            let call = self.line.ask(ANSWERED_WITHIN, |calls, node| async move {
                calls.cancel(&node, asked).await
            });
            match call.await {
                Err(status) if may_be_asked_again(&status) => self.runtime.sleep(AGAIN).await,
                _ => return,
            }
        }
    }

    fn granted(
        &self,
        session: &Session,
        request: u64,
        mut items: Vec<Asked>,
        granted: &Granted,
    ) -> Holding {
        let names: Vec<String> = granted.names.iter().map(text).collect();
        let values = granted.values.iter().filter_map(|named| {
            let value = named.value.as_ref()?;
            let (name, shown) = (text(&named.name), text(&value.value));
            Some(Shown { name, value: shown, token: value.token, suspect: value.suspect })
        });
        let (token, values) = (granted.token, values.collect());
        items.retain(|item| names.contains(&item.name));
        self.write(What::Granted { request, token, names, values });
        let holding = Holding { token, items };
        self.note(session, &holding);
        self.grants.fetch_add(1, Ordering::Relaxed);
        holding
    }

    /// Records what the client believes of a hold; returns whether it believes that it is safe.
    fn note(&self, session: &Session, holding: &Holding) -> bool {
        let (token, at_ns) = (holding.token, self.recorder.now_ns());
        let safe = session.safe_until();
        if let Some(until) = safe {
            self.write(What::Safe { until_ns: self.recorder.ns_of(until) });
        } else {
            let cause = if session.is_unknown() { LostCause::Gone } else { LostCause::Deadline };
            self.write(What::Lost { token, cause });
        }
        let names = holding.items.iter().map(|item| item.name.clone()).collect();
        let look = What::IsSafe { token, safe: safe.is_some(), names };
        self.recorder.write_at(at_ns, self.id, look);
        safe.is_some()
    }

    async fn hold(&mut self, session: &Session, holding: Holding) {
        let longest_ms = u64::try_from(self.traffic.hold.as_millis()).unwrap_or(u64::MAX);
        let length = Duration::from_millis(self.draw.below(longest_ms + 1));
        let writes = self.writes_of(&holding);
        writes.iter().for_each(Write::now);
        let until = self.runtime.clock.now() + length;
        while self.note(session, &holding) {
            let left = until.saturating_since(self.runtime.clock.now());
            if left.is_zero() {
                break;
            }
            self.runtime.sleep(left.min(LOOK_EVERY)).await;
        }
        // Safe or not: the resource decides.
        writes.iter().for_each(Write::now);
        if self.draw.below(3) == 0 {
            self.set_values(session, &holding).await;
        }
        self.release(session, &holding).await;
    }

    fn writes_of(&self, holding: &Holding) -> Vec<Write> {
        let alone = holding.items.iter().filter(|item| !item.shared);
        let names = alone.map(|item| item.name.clone()).collect();
        Write::all(&self.traffic, &self.runtime, (self.id, holding.token), names)
    }

    async fn set_values(&mut self, session: &Session, holding: &Holding) {
        let alone: Vec<&Asked> = holding.items.iter().filter(|item| !item.shared).collect();
        for Asked { name, .. } in alone {
            let (request, token) = (self.number(), holding.token);
            let value = format!("{token} {}", self.draw.below(1_000_000));
            let change = Change::Set(value.clone());
            self.write(What::SetValue { request, token, name: name.clone(), change });
            let set = SetValue {
                request_id: request,
                token,
                name: name.clone().into_bytes().into(),
                change: Some(Wanted::Value(value.into_bytes().into())),
            };
            let what = self.set_value(session, &set).await;
            self.write(what);
        }
    }

    /// Asks for a change of a value until there is an answer, or the session may be over.
    async fn set_value(&self, session: &Session, set: &SetValue) -> What {
        let request = set.request_id;
        let mut unanswered = false;
        while session.is_safe() {
            let asked = SetValueRequest {
                session: Some(session.key()),
                done_below: request,
                set_value: Some(set.clone()),
            };
            let call = self.line.ask(ANSWERED_WITHIN, |calls, node| async move {
                calls.set_value(&node, asked).await
            });
            match call.await {
                Ok(_) => return What::ValueSet { request },
                Err(status) if may_be_asked_again(&status) => {
                    unanswered = true;
                    self.runtime.sleep(AGAIN).await;
                }
                Err(status) if unanswered && is_of_one_copy(&status) => break,
                Err(status) if status.code() == Code::NotFound => break,
                Err(status) => return What::Refused { request, reason: reason(&status) },
            }
        }
        What::Unknown { request }
    }

    /// Releases until there is an answer, or the session may be over. The first of several calls
    /// may have done it. What is lost by then is released as lost.
    async fn release(&self, session: &Session, holding: &Holding) {
        let token = holding.token;
        let lost = !self.note(session, holding);
        loop {
            self.write(What::Release { token, names: Vec::new() });
            let release = Some(Release { token, lost, ..Release::default() });
            let asked = ReleaseRequest { session: Some(session.key()), done_below: 0, release };
            let call = self.line.ask(ANSWERED_WITHIN, |calls, node| async move {
                calls.release(&node, asked).await
            });
            let told = match call.await {
                Ok(_) => What::Released { token, names: Vec::new() },
                Err(status) if status.code() == Code::FailedPrecondition => {
                    What::NotHolder { token }
                }
                Err(status) if may_be_asked_again(&status) && session.is_safe() => {
                    self.runtime.sleep(AGAIN).await;
                    continue;
                }
                Err(_) => What::ReleaseUnknown { token },
            };
            self.write(told);
            return;
        }
    }
}

fn acquire_of(session: &Session, request_id: u64, wish: &Wish, limit: Duration) -> AcquireRequest {
    let items = wish.items.iter().map(|item| Item {
        name: item.name.clone().into_bytes().into(),
        mode: match item.permits {
            Some(_) => Mode::Permits,
            None if item.shared => Mode::Shared,
            None => Mode::Exclusive,
        }
        .into(),
        permits: item.permits.map_or(0, |permits| permits.count),
        limit: item.permits.map_or(0, |permits| permits.limit),
    });
    let (mut items, claim_owner): (Vec<Item>, _) = (items.collect(), wish.owner.clone());
    let wait = wish.wait;
    let head_start_ms = wish.items.iter().map(|item| item.head_start_ms).max().unwrap_or(0);
    let on = (head_start_ms > 0).then(|| AcquireOn {
        items: std::mem::take(&mut items),
        head_start_ms,
        ..AcquireOn::default()
    });
    let acquire = Acquire { request_id, items, wait, claim_owner, on, ..Acquire::default() };
    AcquireRequest {
        session: Some(session.key()),
        done_below: request_id,
        acquire: Some(acquire),
        wait_ms: wait.then(|| u64::try_from(limit.as_millis()).unwrap_or(u64::MAX)),
    }
}

/// What a status means for a request; `None`: nothing, the client has to ask again.
fn after(status: &Status, request: u64, wait: bool) -> Option<What> {
    match status.code() {
        Code::FailedPrecondition if !wait => Some(What::Denied { request }),
        // Its own limit passed at the node that served it, or at an earlier one.
        Code::DeadlineExceeded | Code::Cancelled => Some(What::Denied { request }),
        Code::NotFound => Some(What::SessionLost { request }),
        _ if may_be_asked_again(status) || is_of_one_copy(status) => None,
        _ => Some(What::Refused { request, reason: reason(status) }),
    }
}

/// Whether the same call may succeed at another node, or later.
fn may_be_asked_again(status: &Status) -> bool {
    matches!(status.code(), Code::Unavailable | Code::Unknown | Code::Internal)
}

/// Whether the refusal concerns this copy alone: an earlier copy whose answer was lost may have
/// been applied, or may still be.
fn is_of_one_copy(status: &Status) -> bool {
    status.code() == Code::ResourceExhausted
}

fn reason(status: &Status) -> String {
    format!("{:?}", status.code()).to_lowercase()
}

fn text(bytes: &Bytes) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
