//! A history, retold as requests, holds, states and looks.

use std::collections::{BTreeMap, BTreeSet};

use super::{Tally, Violation, violation};
use crate::history::{ClientId, Kept, LostCause, Record, What};

/// Refusals that are about a copy of a request and say nothing about the request itself.
const ABOUT_A_COPY: [&str; 2] = ["request_gone", "request_reused"];

/// The whole run.
#[derive(Default)]
pub(super) struct Story {
    pub(super) requests: Vec<Request>,
    pub(super) holds: Vec<Hold>,
    pub(super) states: Vec<State>,
    pub(super) reads: Vec<Look>,
    pub(super) clients: BTreeMap<ClientId, Client>,
    /// From here on nothing was broken; `None` if something was at the end.
    pub(super) healed_ns: Option<u64>,
    /// What is wrong before any question is asked: things told about what was never asked (I23).
    pub(super) contradictions: Vec<Violation>,
    request_of: BTreeMap<(ClientId, u64), usize>,
    hold_of: BTreeMap<(ClientId, u64), usize>,
}

/// One acquire by one client, with all that was said about it.
pub(super) struct Request {
    pub(super) client: ClientId,
    pub(super) number: u64,
    pub(super) name: String,
    pub(super) wait: bool,
    /// When it was asked first.
    pub(super) called_ns: u64,
    /// When its own limit passes.
    pub(super) limit_ns: Option<u64>,
    /// When it was first acknowledged as waiting, before it was granted.
    pub(super) queued: Option<Queued>,
    pub(super) granted: Option<Grant>,
    /// Everything said about it, in order.
    pub(super) answers: Vec<(u64, Answer)>,
    /// When its client asked to end it.
    pub(super) cancel_ns: Option<u64>,
    /// The last answer that ended the call.
    pub(super) ended_ns: Option<u64>,
}

#[derive(Clone, Copy)]
pub(super) struct Queued {
    pub(super) at_ns: u64,
    pub(super) index: Option<u64>,
}

#[derive(Clone, Copy)]
pub(super) struct Grant {
    pub(super) at_ns: u64,
    pub(super) token: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    Queued,
    Granted(u64),
    Denied,
    Refused(String),
    Cancelled,
    SessionLost,
    Unknown,
}

/// One grant as its client saw it.
pub(super) struct Hold {
    pub(super) client: ClientId,
    pub(super) request: usize,
    pub(super) token: u64,
    /// When the client was told.
    pub(super) from_ns: u64,
    /// Up to when it was certainly believed safe; `None`: not even at once.
    pub(super) until_ns: Option<u64>,
    /// When the client itself gave it up, or was told that it is over.
    pub(super) over: Option<(u64, Over)>,
    /// How often its client asked to give it back.
    pub(super) releases: usize,
    /// What was said of its release.
    pub(super) release_told: Option<(u64, ReleaseTold)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Over {
    /// Its client gave it back, cancelled it or closed its session.
    GivenUp,
    /// The client was told.
    Told(LostCause),
    /// Its safe deadline passed without news.
    Lapsed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReleaseTold {
    Released,
    NotHolder,
    Unknown,
}

pub(super) struct State {
    pub(super) client: ClientId,
    pub(super) at_ns: u64,
    pub(super) kept: BTreeMap<u64, Kept>,
    pub(super) next_request: u64,
}

pub(super) struct Look {
    pub(super) client: ClientId,
    number: u64,
    pub(super) name: String,
    pub(super) called_ns: u64,
    pub(super) done: Option<Seen>,
}

#[derive(Clone, Copy)]
pub(super) struct Seen {
    pub(super) at_ns: u64,
    pub(super) token: Option<u64>,
}

#[derive(Default)]
pub(super) struct Client {
    pub(super) closed_ns: Option<u64>,
    pub(super) killed_ns: Option<u64>,
    pub(super) ended_ns: Option<u64>,
    /// Its lease is certain until then, as last written.
    pub(super) safe_until_ns: Option<u64>,
    open_holds: BTreeSet<usize>,
}

impl Hold {
    /// Up to when it was certainly believed safe; `from_ns` if never.
    pub(super) fn safe_end_ns(&self) -> u64 {
        let until = self.until_ns.unwrap_or(self.from_ns);
        self.over.map_or(until, |(at, _)| until.min(at)).max(self.from_ns)
    }

    pub(super) fn was_safe(&self) -> bool {
        self.safe_end_ns() > self.from_ns
    }
}

impl Story {
    pub(super) fn tell(records: &[Record]) -> Self {
        let mut story = Self::default();
        for record in records {
            story.take(record);
        }
        story
    }

    pub(super) fn tally(&self) -> Tally {
        let is_unknown = |request: &&Request| {
            matches!(request.answers.last(), Some((_, Answer::Unknown)) | None)
        };
        Tally {
            requests: self.requests.len(),
            grants: self.requests.iter().filter(|request| request.granted.is_some()).count(),
            waits: self.requests.iter().filter(|request| request.queued.is_some()).count(),
            safe_holds: self.holds.iter().filter(|hold| hold.was_safe()).count(),
            unknown: self.requests.iter().filter(is_unknown).count(),
            states: self.states.len(),
            reads: self.reads.iter().filter(|look| look.done.is_some()).count(),
        }
    }

    /// The hold that `request` became, if it was granted.
    pub(super) fn hold_of(&self, request: &Request) -> Option<&Hold> {
        let token = request.granted?.token;
        self.hold_of.get(&(request.client, token)).map(|&hold| &self.holds[hold])
    }

    pub(super) fn name_of(&self, hold: &Hold) -> &str {
        &self.requests[hold.request].name
    }

    fn take(&mut self, record: &Record) {
        let (at_ns, client) = (record.at_ns, record.client);
        match &record.what {
            What::Acquire { .. } => self.asked(record),
            What::Queued { request, index, .. } => {
                self.answered(at_ns, client, *request, Answer::Queued);
                self.queued(at_ns, client, *request, *index);
            }
            What::Granted { request, token } => {
                self.answered(at_ns, client, *request, Answer::Granted(*token));
                self.granted(at_ns, client, *request, *token);
            }
            What::Denied { request } => self.answered(at_ns, client, *request, Answer::Denied),
            What::Refused { request, reason } => {
                self.answered(at_ns, client, *request, Answer::Refused(reason.clone()));
            }
            What::Cancelled { request } => {
                self.answered(at_ns, client, *request, Answer::Cancelled);
            }
            What::SessionLost { request } => {
                self.answered(at_ns, client, *request, Answer::SessionLost);
            }
            What::Unknown { request } => self.answered(at_ns, client, *request, Answer::Unknown),
            What::Cancel { request } => self.cancelling(at_ns, client, *request),
            What::Moved { request, .. } => self.must_be_asked(client, *request, "moved"),
            _ => self.take_rest(record),
        }
    }

    /// What is not about a request of an acquire.
    fn take_rest(&mut self, record: &Record) {
        let (at_ns, client) = (record.at_ns, record.client);
        match &record.what {
            What::Release { token } => self.releasing(at_ns, client, *token),
            What::Released { token } => {
                self.release_told(at_ns, client, *token, ReleaseTold::Released);
            }
            What::NotHolder { token } => {
                self.release_told(at_ns, client, *token, ReleaseTold::NotHolder);
            }
            What::ReleaseUnknown { token } => {
                self.release_told(at_ns, client, *token, ReleaseTold::Unknown);
            }
            What::Lost { token, cause } => {
                self.must_be_told(client, *token, "lost");
                self.over(at_ns, client, *token, Over::Told(*cause));
            }
            What::Contended { token } => self.must_be_told(client, *token, "contended"),
            What::Safe { until_ns } => self.safe(at_ns, client, *until_ns),
            What::IsSafe { token, safe: true } => self.seen_safe(at_ns, client, *token),
            What::Close => self.closing(at_ns, client),
            What::SessionEnded { cause } => self.session_ended(at_ns, client, *cause),
            What::State { requests, next_request } => {
                self.state(at_ns, client, requests, *next_request);
            }
            What::Killed => self.client(client).killed_ns = Some(at_ns),
            What::Fault { .. } => self.healed_ns = None,
            What::Healed => self.healed_ns = Some(at_ns),
            _ => self.take_look(record),
        }
    }

    fn take_look(&mut self, record: &Record) {
        match &record.what {
            What::Read { read, name } => self.reads.push(Look {
                client: record.client,
                number: *read,
                name: name.clone(),
                called_ns: record.at_ns,
                done: None,
            }),
            What::ReadDone { read, token, .. } => {
                let look = self.reads.iter_mut().rev().find(|look| {
                    look.client == record.client && look.number == *read && look.done.is_none()
                });
                if let Some(look) = look {
                    look.done = Some(Seen { at_ns: record.at_ns, token: *token });
                }
            }
            _ => {}
        }
    }

    fn client(&mut self, client: ClientId) -> &mut Client {
        self.clients.entry(client).or_default()
    }

    fn asked(&mut self, record: &Record) {
        let What::Acquire { request, name, wait, within_ms } = &record.what else { return };
        let key = (record.client, *request);
        if let Some(&known) = self.request_of.get(&key) {
            let request = &mut self.requests[known];
            // The same again is a retry: the call is open again. Another payload under a used
            // number is no request at all.
            if request.name == *name && request.wait == *wait && request.granted.is_none() {
                request.ended_ns = None;
            }
            return;
        }
        let limit_ns =
            within_ms.map(|ms| record.at_ns.saturating_add(ms.saturating_mul(1_000_000)));
        self.request_of.insert(key, self.requests.len());
        self.requests.push(Request {
            client: record.client,
            number: *request,
            name: name.clone(),
            wait: *wait,
            called_ns: record.at_ns,
            limit_ns,
            queued: None,
            granted: None,
            answers: Vec::new(),
            cancel_ns: None,
            ended_ns: None,
        });
    }

    fn answered(&mut self, at_ns: u64, client: ClientId, number: u64, answer: Answer) {
        self.must_be_asked(client, number, "answered");
        let Some(&known) = self.request_of.get(&(client, number)) else { return };
        let request = &mut self.requests[known];
        if matches!(&answer, Answer::Refused(reason) if ABOUT_A_COPY.contains(&reason.as_str())) {
            // The call with the copy is over; the request is as it was.
            request.ended_ns = request.ended_ns.or(Some(at_ns));
            return;
        }
        if answer != Answer::Queued {
            request.ended_ns = Some(at_ns);
        }
        request.answers.push((at_ns, answer));
    }

    fn queued(&mut self, at_ns: u64, client: ClientId, number: u64, index: Option<u64>) {
        let Some(&known) = self.request_of.get(&(client, number)) else { return };
        let request = &mut self.requests[known];
        if request.queued.is_none() && request.granted.is_none() {
            request.queued = Some(Queued { at_ns, index });
        }
    }

    fn granted(&mut self, at_ns: u64, client: ClientId, number: u64, token: u64) {
        let Some(&known) = self.request_of.get(&(client, number)) else { return };
        let request = &mut self.requests[known];
        if request.granted.is_some() {
            return;
        }
        request.granted = Some(Grant { at_ns, token });
        let given_up = request.cancel_ns.is_some();
        let teller = self.clients.entry(client).or_default();
        let hold = self.holds.len();
        self.hold_of.insert((client, token), hold);
        if !given_up {
            teller.open_holds.insert(hold);
        }
        self.holds.push(Hold {
            client,
            request: known,
            token,
            from_ns: at_ns,
            until_ns: teller.safe_until_ns.filter(|until| *until > at_ns),
            over: given_up.then_some((at_ns, Over::GivenUp)),
            releases: 0,
            release_told: None,
        });
    }

    fn cancelling(&mut self, at_ns: u64, client: ClientId, number: u64) {
        let Some(&known) = self.request_of.get(&(client, number)) else { return };
        let request = &mut self.requests[known];
        request.cancel_ns = request.cancel_ns.or(Some(at_ns));
        if let Some(grant) = request.granted {
            self.over(at_ns, client, grant.token, Over::GivenUp);
        }
    }

    fn releasing(&mut self, at_ns: u64, client: ClientId, token: u64) {
        self.over(at_ns, client, token, Over::GivenUp);
        if let Some(&hold) = self.hold_of.get(&(client, token)) {
            self.holds[hold].releases += 1;
        }
    }

    fn release_told(&mut self, at_ns: u64, client: ClientId, token: u64, told: ReleaseTold) {
        let Some(&hold) = self.hold_of.get(&(client, token)) else {
            if told == ReleaseTold::Released {
                self.must_be_told(client, token, "released");
            }
            return;
        };
        let hold = &mut self.holds[hold];
        if hold.release_told.is_none_or(|(_, before)| before == ReleaseTold::Unknown) {
            hold.release_told = Some((at_ns, told));
        }
    }

    fn over(&mut self, at_ns: u64, client: ClientId, token: u64, over: Over) {
        if let Some(&hold) = self.hold_of.get(&(client, token)) {
            self.end_hold(at_ns, hold, over);
        }
    }

    fn end_hold(&mut self, at_ns: u64, hold: usize, over: Over) {
        let ended = &mut self.holds[hold];
        ended.over = ended.over.or(Some((at_ns, over)));
        let client = ended.client;
        self.client(client).open_holds.remove(&hold);
    }

    fn safe(&mut self, at_ns: u64, client: ClientId, until_ns: u64) {
        let client = self.clients.entry(client).or_default();
        client.safe_until_ns = Some(until_ns);
        let mut lapsed = Vec::new();
        for &index in &client.open_holds {
            let hold = &mut self.holds[index];
            match hold.until_ns {
                // Passing the deadline ends a hold for ever, whatever is learned later (§5.6).
                Some(until) if until < at_ns => lapsed.push((until, index)),
                Some(until) => hold.until_ns = Some(until.max(until_ns)),
                None => hold.until_ns = Some(until_ns),
            }
        }
        for (until, index) in lapsed {
            self.end_hold(until, index, Over::Lapsed);
        }
    }

    fn seen_safe(&mut self, at_ns: u64, client: ClientId, token: u64) {
        let Some(&hold) = self.hold_of.get(&(client, token)) else { return };
        let hold = &mut self.holds[hold];
        hold.until_ns = Some(hold.until_ns.map_or(at_ns, |until| until.max(at_ns)));
    }

    fn closing(&mut self, at_ns: u64, client: ClientId) {
        let closing = self.client(client);
        closing.closed_ns = closing.closed_ns.or(Some(at_ns));
        let holds = std::mem::take(&mut closing.open_holds);
        for hold in holds {
            self.end_hold(at_ns, hold, Over::GivenUp);
        }
    }

    fn session_ended(&mut self, at_ns: u64, client: ClientId, cause: LostCause) {
        let ending = self.client(client);
        ending.ended_ns = ending.ended_ns.or(Some(at_ns));
        let holds = std::mem::take(&mut ending.open_holds);
        for hold in holds {
            self.end_hold(at_ns, hold, Over::Told(cause));
        }
    }

    fn state(&mut self, at_ns: u64, client: ClientId, kept: &[Kept], next_request: u64) {
        for kept in kept {
            self.must_be_asked(client, kept.request, "kept");
        }
        let kept = kept.iter().map(|kept| (kept.request, *kept)).collect();
        self.states.push(State { client, at_ns, kept, next_request });
    }

    /// Nothing is told about a request that was never asked (I23).
    fn must_be_asked(&mut self, client: ClientId, number: u64, told: &str) {
        if !self.request_of.contains_key(&(client, number)) {
            let message = format!("{client} was told of request {number} ({told}), never asked");
            self.contradictions.push(violation(23, message));
        }
    }

    /// Nothing is told about a grant that its client was never given (I23).
    fn must_be_told(&mut self, client: ClientId, token: u64, told: &str) {
        if !self.hold_of.contains_key(&(client, token)) {
            let message = format!("{client} was told of token {token} ({told}), never granted");
            self.contradictions.push(violation(23, message));
        }
    }
}
