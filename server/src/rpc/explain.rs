//! Why a lock is waited for: who holds it, what they wait for themselves, and so on to the end, or round in a
//! circle (DESIGN §16).
//!
//! The store knows sessions, not what goes on in them: that a session which holds one lock waits for another
//! does not prove that it gives back the one only after it got the other. It is the best guess there is.
//!
//! # Bounds
//!
//! The answer is made under the table's lock, from what is looked at here and no more: [`LOCKS_SHOWN`] locks, of
//! which no other name is remembered, [`HOLDERS_SHOWN`] holders of each, [`WAITS_SHOWN`] waits of each session,
//! [`REQUESTS_LOOKED`] requests and [`TEXT_BYTES_SHOWN`] bytes of texts in all.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use holdfast_core::{
    Caller, HolderView, LockName, LockTable, LockView, RequestState, RequestView, SessionId,
};
use holdfast_proto::v1::{
    ExplainRequest, ExplainResponse, ExplainedHolder, ExplainedLock, ExplainedWait,
};
use tonic::Status;

use super::reads::linearizable;
use super::status;
use crate::session::Hub;
use crate::session::answers::holder_of;

/// Most locks of an answer.
const LOCKS_SHOWN: usize = 100;
/// Most holders of each.
const HOLDERS_SHOWN: usize = 10;
/// Most requests of a session that wait.
const WAITS_SHOWN: usize = 10;
/// Most requests that are looked at, whatever their state.
const REQUESTS_LOOKED: usize = 2_000;
/// Most bytes of the labels and names of waits: the answer has to stay below what a client takes.
const TEXT_BYTES_SHOWN: usize = 1 << 20;
/// What a text takes beside its own bytes, about.
const WORD: usize = 8;

/// The lock, and what stands behind it. Only a caller that may read all locks sees it.
pub(super) async fn explain(
    hub: &Hub,
    caller: &Caller,
    request: &ExplainRequest,
) -> Result<ExplainResponse, Status> {
    let name = LockName::parse(&request.name)
        .map_err(|error| status::of_text_error("lock name", &error))?;
    linearizable(hub, (caller, ""), |table, index, now_ms| {
        let mut chain = Chain::of(table, name, now_ms);
        let locks = chain.locks();
        ExplainResponse { index: index.get(), locks, more: chain.more }
    })
    .await
}

struct Chain<'a> {
    table: &'a LockTable,
    now_ms: u64,
    /// Locks that are to be shown, the nearest first, and all that are or will be.
    next: VecDeque<LockName>,
    met: BTreeSet<LockName>,
    /// What each session waits for that was met, and whether that is all.
    waits: BTreeMap<SessionId, (Vec<ExplainedWait>, bool)>,
    requests_left: usize,
    text_bytes_left: usize,
    /// Something was left out.
    more: bool,
}

impl<'a> Chain<'a> {
    fn of(table: &'a LockTable, first: LockName, now_ms: u64) -> Self {
        Self {
            table,
            now_ms,
            next: VecDeque::from([first.clone()]),
            met: BTreeSet::from([first]),
            waits: BTreeMap::new(),
            requests_left: REQUESTS_LOOKED,
            text_bytes_left: TEXT_BYTES_SHOWN,
            more: false,
        }
    }

    /// The lock and those that stand behind it.
    fn locks(&mut self) -> Vec<ExplainedLock> {
        let mut shown = Vec::new();
        while let Some(name) = self.next.pop_front() {
            if let Some(lock) = self.table.lock(&name) {
                shown.push(self.lock(&lock));
            }
        }
        shown
    }

    fn lock(&mut self, lock: &LockView<'_>) -> ExplainedLock {
        let (held_by, waiting) = (lock.held_by, lock.waiting);
        let holders: Vec<_> =
            lock.holders().take(HOLDERS_SHOWN).map(|holder| self.holder(&holder)).collect();
        self.more |= held_by > holders.len() as u64;
        let next = lock.waiters().next().filter(|_| held_by == 0);
        let kept_for = next.and_then(|waiter| {
            let request = self.table.request(waiter.session, waiter.request)?;
            let wait = self.wait(waiter.session, &request)?;
            self.has_room_for(&wait).then_some(wait)
        });
        ExplainedLock { name: lock.name.as_str().to_owned(), held_by, waiting, holders, kept_for }
    }

    fn holder(&mut self, holder: &HolderView<'_>) -> ExplainedHolder {
        let session = holder.grant.session;
        if !self.waits.contains_key(&session) {
            let waits = self.look_at(session);
            self.waits.insert(session, waits);
        }
        let (found, is_all) = self.waits.get(&session).cloned().unwrap_or_default();
        let all = found.len();
        let waits: Vec<_> = found.into_iter().take_while(|wait| self.has_room_for(wait)).collect();
        let may_wait_for_more = !is_all || waits.len() < all;
        self.more |= may_wait_for_more;
        ExplainedHolder { holder: Some(holder_of(holder, self.now_ms)), waits, may_wait_for_more }
    }

    /// Takes the bytes of its texts, if there are so many left. A session is shown with each lock that it holds.
    fn has_room_for(&mut self, wait: &ExplainedWait) -> bool {
        let texts = wait.names.iter().chain([&wait.label]);
        let left = self.text_bytes_left.checked_sub(texts.map(|text| text.len() + WORD).sum());
        self.more |= left.is_none();
        self.text_bytes_left = left.unwrap_or(0);
        left.is_some()
    }

    /// What a session waits for, and whether that is all.
    fn look_at(&mut self, session: SessionId) -> (Vec<ExplainedWait>, bool) {
        let mut waits = Vec::new();
        for request in self.table.requests(session) {
            if self.requests_left == 0 || waits.len() == WAITS_SHOWN {
                return (waits, false);
            }
            self.requests_left -= 1;
            waits.extend(self.wait(session, &request));
        }
        (waits, true)
    }

    /// A request, if it waits; its locks are looked at too.
    fn wait(&mut self, session: SessionId, request: &RequestView) -> Option<ExplainedWait> {
        let RequestState::Waiting { since_ms, .. } = request.state else { return None };
        for item in request.items.iter() {
            if self.met.contains(&item.lock) {
                continue;
            }
            if self.met.len() == LOCKS_SHOWN {
                self.more = true;
                break;
            }
            self.met.insert(item.lock.clone());
            self.next.push_back(item.lock.clone());
        }
        let label = self.table.session(session).map_or("", |found| found.label.as_str()).to_owned();
        Some(ExplainedWait {
            session_id: session.get(),
            label,
            names: request.items.iter().map(|item| item.lock.as_str().to_owned()).collect(),
            waiting_ms: self.now_ms.saturating_sub(since_ms),
        })
    }
}

#[cfg(test)]
mod tests {
    use holdfast_core::{
        Batch, Command, Item, Label, LogIndex, NAMES_MAX, Need, RequestId, Tenure,
    };
    use prost::Message as _;

    use super::*;

    /// What a client takes of an answer.
    const TAKEN: usize = 4 << 20;

    fn name(text: &str) -> LockName {
        LockName::parse(text).expect("a name")
    }

    fn table_of(commands: Vec<Command>) -> LockTable {
        let mut table = LockTable::new();
        let batch = Batch { commands, ..Batch::default() };
        table
            .apply_batch(LogIndex::new(1), Tenure::new(1), &batch, &mut Vec::new())
            .expect("a log");
        table
    }

    fn open() -> Command {
        let label = Label::parse(&"l".repeat(200)).expect("a label");
        Command::OpenSession { ttl_ms: 10_000, label, secret_hash: [0; 32] }
    }

    /// A request of a session for these locks, which waits if they are held.
    fn asks(session: u64, request: u64, names: impl IntoIterator<Item = String>) -> Command {
        Command::Acquire {
            session: SessionId::new(session),
            done_below: RequestId::new(0),
            request: RequestId::new(request),
            items: names.into_iter().map(|text| Item::exclusive(name(&text))).collect(),
            need: Need::All,
            wait: true,
        }
    }

    fn explained(table: &LockTable, first: &str) -> ExplainResponse {
        let mut chain = Chain::of(table, name(first), 0);
        let locks = chain.locks();
        ExplainResponse { index: 1, locks, more: chain.more }
    }

    /// The longest names there are, and a session that is shown with each of a hundred locks.
    fn long(number: usize) -> String {
        format!("{number:0>512}")
    }

    #[test]
    fn an_answer_stays_below_what_a_client_takes_whatever_is_held_and_waited_for() {
        let mut commands = vec![open(), open()];
        let sets = || (0..20).map(|set| (set * NAMES_MAX..(set + 1) * NAMES_MAX).map(long));
        // Each holds what the other waits for, ten sets of the largest size each.
        for (request, set) in (1..).zip(sets()) {
            commands.push(asks(1 + request % 2, request, set));
        }
        for (request, set) in (1..).zip(sets()) {
            commands.push(asks(2 - request % 2, 100 + request, set));
        }
        let table = table_of(commands);
        assert!(table.counts().waiting > 0 && table.counts().held == 1_280);

        let answer = explained(&table, &long(0));
        assert!(answer.locks.len() <= LOCKS_SHOWN && answer.more);
        assert!(answer.encoded_len() < TAKEN / 2, "{} bytes", answer.encoded_len());
        let cut = answer.locks.iter().flat_map(|lock| &lock.holders);
        assert!(cut.filter(|holder| holder.may_wait_for_more).count() > 0);
    }

    #[test]
    fn of_a_session_with_more_requests_than_are_looked_at_it_is_not_said_that_it_waits_for_nothing()
    {
        let held = (1..=6).map(|number| asks(1, number, [format!("held/{number}")]));
        let table = table_of([open()].into_iter().chain(held).collect());
        let looking_at = |requests| {
            let mut chain = Chain::of(&table, name("held/1"), 0);
            chain.requests_left = requests;
            ExplainResponse { index: 1, locks: chain.locks(), more: chain.more }
        };
        let whole = looking_at(6);
        assert!(!whole.more && !whole.locks[0].holders[0].may_wait_for_more);
        let beyond = looking_at(5);
        assert!(beyond.more && beyond.locks[0].holders[0].may_wait_for_more);
    }
}
