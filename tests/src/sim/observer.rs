//! What must hold of the nodes at every moment, observed from outside.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use holdfast_core::{
    EndCause, Event, HEAD_START_MAX_MS, Items, LockTable, LogIndex, LossCause, Mode, RequestId,
    Rules, SessionId, TERMS_SINCE, Verb,
};
use holdfast_runtime::{Clock, Instant};
use holdfast_server::consensus::Consensus as _;
use holdfast_server::storage::StoredVote;

use sha2::{Digest as _, Sha256};

use super::node::Parts;

/// The number of state hashes that are kept, by index.
const HASHES: usize = 4_096;

/// Every so many entries the whole content of a table is compared, not only its hash.
const CONTENT_EVERY: u64 = 32;
/// A table with up to so many sessions and locks is checked after every entry; a larger one is
/// checked as much more rarely.
const LOOKED_AT_UP_TO: u64 = 512;
/// So many waiters of a lock are compared with a request that is granted.
const OVERTAKEN_LOOKED_AT: usize = 16;

/// Compares what nodes show, over all their processes.
pub(super) struct Observer {
    clock: Arc<dyn Clock>,
    seen: Mutex<Seen>,
}

#[derive(Debug, Default)]
struct Seen {
    /// The node and process that led each term.
    leaders: BTreeMap<u64, (u64, u64)>,
    /// The highest term of each process of a node.
    terms: BTreeMap<(u64, u64), u64>,
    /// The last vote of each process of a node.
    votes: BTreeMap<(u64, u64), StoredVote>,
    /// The state hash after an index, and which node showed it first.
    hashes: BTreeMap<u64, ([u8; 32], u64)>,
    /// The latest index that was applied anywhere, and the stamp after it.
    stamp: (u64, u64),
    /// The content after an index, and which node showed it first.
    contents: BTreeMap<u64, ([u8; 32], u64)>,
    /// The labels of the clients of sessions.
    labels: BTreeMap<SessionId, String>,
    /// The tokens that each session was granted.
    granted: BTreeMap<SessionId, BTreeSet<u64>>,
    /// When each token was granted first, true time.
    granted_at: BTreeMap<u64, Instant>,
    /// Sessions that were revoked, as first observed on some node: true time, and the label of the client.
    revoked: BTreeMap<SessionId, (Instant, String)>,
    /// Sessions that were expired, as first observed on some node.
    expired: BTreeMap<SessionId, Expiry>,
    /// When a command of each version was applied first, true time.
    versions: BTreeMap<u16, Instant>,
    /// The rules after the newest entry that changed them.
    rules: (u64, Rules),
    /// Requests that stood in a queue: they may be granted whatever the rules say then.
    queued: BTreeSet<(SessionId, RequestId)>,
    /// The number of states that were taken over whole from a leader.
    restored: u64,
    /// The times during which a command had left work for later ones: from, and until; and the newest index.
    work_left: Vec<(Instant, Option<Instant>)>,
    work_index: u64,
    /// When each request came that waits, or is granted at once.
    came: BTreeMap<(SessionId, RequestId), Came>,
    /// The sessions of imports. One that ends in the entry in which it is claimed is in no table afterwards.
    imports: BTreeSet<SessionId>,
    /// The newest entry by which the order was judged.
    ordered: u64,
    violations: Vec<String>,
}

/// When a request came, as it was first applied.
#[derive(Clone, Copy, Debug)]
struct Came {
    /// The table's age then, less its head start, and 10 minutes; 0: the table had no age yet, and nobody overtakes it.
    rank_ms: u64,
}

/// A session that a leader expired.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expiry {
    /// True time, when the first node applied it.
    pub at: Instant,
    /// The label of its client.
    pub label: String,
    /// Every token that it was ever granted.
    pub tokens: Vec<u64>,
    /// Its number at the store.
    pub session: u64,
}

impl Observer {
    pub(super) fn new(clock: Arc<dyn Clock>) -> Self {
        Self { clock, seen: Mutex::default() }
    }

    /// Node `id` has applied an entry; `table` is the state after it.
    pub(super) fn applied(&self, id: u64, index: LogIndex, events: &[Event], table: &LockTable) {
        let mut seen = self.lock();
        seen.state(index.get(), table.state_hash(), id);
        seen.content(index, table, id);
        seen.stamped(index.get(), table.stamp_ms(), id);
        seen.left_work(index.get(), table.has_work_left(), self.clock.now());
        seen.versions.entry(table.applied_version()).or_insert_with(|| self.clock.now());
        // Another node with the same hash came to the same state by the same commands.
        if seen.showed_first(index.get(), id) {
            seen.checked(index.get(), table, id);
            seen.allowed(index.get(), events, table);
            seen.order(index.get(), events, table);
        }
        for (at, event) in events.iter().enumerate() {
            match event {
                Event::SessionOpened { session } => {
                    let label = table.session(*session).map(|view| view.label.as_str().to_owned());
                    seen.labels.insert(*session, label.unwrap_or_default());
                }
                Event::SessionRevoked { session, .. } => {
                    let label = seen.labels.get(session).cloned().unwrap_or_default();
                    let now = self.clock.now();
                    seen.revoked.entry(*session).or_insert((now, label));
                }
                Event::SessionEnded { session, cause: EndCause::Expired | EndCause::Revoked } => {
                    let label = seen.labels.get(session).cloned().unwrap_or_default();
                    let tokens = seen.granted.get(session).into_iter().flatten().copied().collect();
                    let at = self.clock.now();
                    let number = session.get();
                    let expiry = Expiry { at, label, tokens, session: number };
                    seen.expired.entry(*session).or_insert(expiry);
                }
                Event::Lost {
                    items,
                    cause: LossCause::Expired | LossCause::Revoked | LossCause::Forced,
                    ..
                } => {
                    seen.doubted(index.get(), items, &events[at..], table, id);
                }
                Event::Granted { session, token, .. } => {
                    seen.granted.entry(*session).or_default().insert(token.get());
                    let now = self.clock.now();
                    seen.granted_at.entry(token.get()).or_insert(now);
                }
                _ => {}
            }
        }
    }

    /// Node `id` has taken over a whole state.
    pub(super) fn restored(&self, id: u64, index: LogIndex, table: &LockTable) {
        let mut seen = self.lock();
        seen.restored += 1;
        seen.state(index.get(), table.state_hash(), id);
        seen.checked(index.get(), table, id);
    }

    /// The sessions that were expired so far.
    pub(super) fn expiries(&self) -> Vec<Expiry> {
        self.lock().expired.values().cloned().collect()
    }

    /// The versions of the commands in the log, and when the first one of each was applied, true
    /// time.
    pub(super) fn versions(&self) -> Vec<(u16, Instant)> {
        self.lock().versions.iter().map(|(version, at)| (*version, *at)).collect()
    }

    /// When a token was granted, true time.
    pub(super) fn granted_at(&self, token: u64) -> Option<Instant> {
        self.lock().granted_at.get(&token).copied()
    }

    /// When each session that was revoked was, true time, and the label of its client.
    pub(super) fn revoked(&self) -> Vec<(Instant, String)> {
        self.lock().revoked.values().cloned().collect()
    }

    /// When each token was granted, true time.
    pub(super) fn grants(&self) -> Vec<(u64, Instant)> {
        self.lock().granted_at.iter().map(|(token, at)| (*token, *at)).collect()
    }

    /// How many states were taken over whole from a leader.
    pub(super) fn taken_over(&self) -> u64 {
        self.lock().restored
    }

    /// From when until when, true time, a command had left work for later ones.
    pub(super) fn work_left(&self) -> Vec<(Instant, Option<Instant>)> {
        self.lock().work_left.clone()
    }

    /// Looks at process `process` of node `id`.
    pub(super) fn look(&self, id: u64, process: u64, parts: &Parts) {
        let mut seen = self.lock();
        let (term, tenure) = (parts.replica.status().term, parts.replica.role().borrow().tenure());
        if let Some(tenure) = tenure {
            seen.led(tenure.get(), id, process);
        }
        seen.in_term(term, id, process);
        if let Some(vote) = parts.log.vote() {
            seen.voted(vote, id, process);
        }
        seen.purged(id, parts);
    }

    pub(super) fn violations(&self) -> Vec<String> {
        self.lock().violations.clone()
    }

    fn lock(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn is_import(session: SessionId, table: &LockTable) -> bool {
    table.session(session).is_some_and(|session| session.imported)
}

/// The interval, in entries, at which a table is checked as a whole.
fn rarely(table: &LockTable) -> u64 {
    let counts = table.counts();
    1 + (counts.sessions + counts.held + counts.values) / LOOKED_AT_UP_TO
}

fn came_now((session, request): (SessionId, RequestId), table: &LockTable) -> Came {
    let said = table.request(session, request).map(|view| view.terms.head_start_ms.into());
    // A request that came and ended in this entry: no event says its head start.
    let head_start_ms: u64 = said.unwrap_or(HEAD_START_MAX_MS);
    let has_age = table.applied_version() >= TERMS_SINCE;
    let rank_ms = if has_age { table.age_ms() + HEAD_START_MAX_MS - head_start_ms } else { 0 };
    Came { rank_ms }
}

impl Seen {
    /// The first node has applied an entry, or another one has: then it says nothing new.
    fn left_work(&mut self, index: u64, is_left: bool, now: Instant) {
        if index <= self.work_index {
            return;
        }
        self.work_index = index;
        match self.work_left.last_mut() {
            Some((_, until @ None)) => *until = (!is_left).then_some(now),
            _ if is_left => self.work_left.push((now, None)),
            _ => {}
        }
    }

    /// I9: nobody who waits is overtaken by a request that came more than its head start later, by the table's age.
    fn order(&mut self, index: u64, events: &[Event], table: &LockTable) {
        // A node that was restarted applies entries again.
        if index <= self.ordered {
            return;
        }
        self.ordered = index;
        let mut last = None;
        for event in events {
            let before = last.replace(event);
            match event {
                Event::SessionOpened { session } if is_import(*session, table) => {
                    self.imports.insert(*session);
                }
                Event::Queued { session, request, items, .. } => {
                    let place = before.and_then(|left| self.claimed_place(left, items, table));
                    let came = place.unwrap_or_else(|| came_now((*session, *request), table));
                    self.came.insert((*session, *request), came);
                }
                Event::Granted { session, request, items, .. } => {
                    let who = (*session, *request);
                    if before.is_some_and(|left| self.is_claimed_hold(left, items, table)) {
                        continue;
                    }
                    let waited = self.came.remove(&who);
                    let came = waited.unwrap_or_else(|| came_now(who, table));
                    self.passed(index, who, came, items, table);
                }
                _ => {}
            }
        }
    }

    /// A restored table has sessions that no entry opened.
    fn was_imported(&self, session: SessionId, table: &LockTable) -> bool {
        self.imports.contains(&session) || is_import(session, table)
    }

    /// Whether the event after this one is a claim of the imported hold, which passes to nobody else.
    fn is_claimed_hold(&self, released: &Event, claimed: &Items, table: &LockTable) -> bool {
        let Event::Released { session, items, .. } = released else { return false };
        items == claimed && self.was_imported(*session, table)
    }

    /// The place of an import that the next event has claimed.
    fn claimed_place(&self, left: &Event, claimed: &Items, table: &LockTable) -> Option<Came> {
        let Event::Left { session, request, items } = left else { return None };
        let is_claimed = items == claimed && self.was_imported(*session, table);
        self.came.get(&(*session, *request)).copied().filter(|_| is_claimed)
    }

    /// A request was granted locks that others wait for.
    fn passed(
        &mut self,
        index: u64,
        (session, request): (SessionId, RequestId),
        came: Came,
        items: &Items,
        table: &LockTable,
    ) {
        let locks = items.iter().filter_map(|item| table.lock(&item.lock));
        let waiters = locks.flat_map(|lock| lock.waiters().take(OVERTAKEN_LOOKED_AT));
        let waiters: Vec<_> = waiters.map(|one| (one.session, one.request)).collect();
        for who in waiters {
            let Some(before) = self.came.get(&who).copied() else { continue };
            if came.rank_ms > before.rank_ms {
                self.wrong(format!(
                    "I9: at index {index} request {request} of session {session}, {came:?}, was granted before {who:?}, {before:?}"
                ));
            }
        }
    }

    fn wrong(&mut self, what: String) {
        if !self.violations.contains(&what) {
            self.violations.push(what);
        }
    }

    /// A tenure is one term led by one process from start to end.
    fn led(&mut self, term: u64, id: u64, process: u64) {
        let first = *self.leaders.entry(term).or_insert((id, process));
        if first != (id, process) {
            self.wrong(format!(
                "I20: term {term} is led by node {id} (process {process}), and by node {} (process {})",
                first.0, first.1
            ));
        }
    }

    fn in_term(&mut self, term: u64, id: u64, process: u64) {
        let highest = self.terms.entry((id, process)).or_insert(term);
        if *highest > term {
            let before = *highest;
            self.wrong(format!("I20: node {id} went back from term {before} to {term}"));
        } else {
            *highest = term;
        }
    }

    fn voted(&mut self, vote: StoredVote, id: u64, process: u64) {
        let before = self.votes.insert((id, process), vote);
        if let Some(before) = before.filter(|before| !vote.covers(before)) {
            self.wrong(format!("I20: node {id} went back from vote {before:?} to {vote:?}"));
        }
    }

    fn purged(&mut self, id: u64, parts: &Parts) {
        let Some(purged) = parts.log.purged() else { return };
        let snapshot = parts.snapshots.newest().and_then(|newest| newest.last);
        if snapshot.is_none_or(|last| last.index < purged.index) {
            self.wrong(format!(
                "I30: node {id} purged its log up to {}, its newest snapshot ends at {:?}",
                purged.index,
                snapshot.map(|last| last.index)
            ));
        }
    }

    /// I8: the stamp never goes back from one state to a later one.
    fn stamped(&mut self, index: u64, stamp_ms: u64, id: u64) {
        let (latest, before_ms) = self.stamp;
        if index <= latest {
            return;
        }
        if stamp_ms < before_ms {
            self.wrong(format!(
                "I8: the stamp went back from {before_ms} to {stamp_ms} at index {index} (node {id})"
            ));
        }
        self.stamp = (index, stamp_ms);
    }

    /// DESIGN §4: the values of locks that were lost with a lease are suspect. Of the next holders
    /// of such a lock only an imported one can have vouched for it in the same entry: it brings its
    /// value. A client that asks does not know its token yet.
    fn doubted(&mut self, index: u64, lost: &Items, since: &[Event], table: &LockTable, id: u64) {
        for item in lost.iter().filter(|item| item.mode == Mode::Exclusive) {
            let value = table.lock(&item.lock).and_then(|lock| lock.value);
            let Some(value) = value.filter(|value| !value.suspect) else { continue };
            let brings_it = |event: &Event| {
                matches!(event, Event::Granted { token, items, .. }
                    if *token == value.set_by && items.iter().any(|held| held.lock == item.lock))
            };
            if !since.iter().any(brings_it) {
                let name = item.lock.as_str();
                self.wrong(format!(
                    "I19: the holder of {name} was lost at index {index}, and its value is not \
                     suspect (node {id})"
                ));
            }
        }
    }

    /// I34: a new request is taken only if the rules at its place in the entry grant it. Between two changes in one entry they are not known
    /// here.
    fn allowed(&mut self, index: u64, events: &[Event], table: &LockTable) {
        let times = events.iter().filter(|event| **event == Event::RulesChanged).count();
        let mut passed = 0;
        for event in events {
            passed += usize::from(*event == Event::RulesChanged);
            let (Event::Queued { session, request, items, .. }
            | Event::Granted { session, request, items, .. }) = event
            else {
                continue;
            };
            let is_new = self.queued.insert((*session, *request));
            let Some(view) = table.session(*session).filter(|view| is_new && !view.imported) else {
                continue;
            };
            let rules = match passed {
                _ if passed == times => table.rules(),
                0 => &self.rules.1,
                _ => continue,
            };
            let names = || items.iter().map(|item| item.lock.as_str());
            if let Err(missing) = rules.allows(view.caller, Verb::Acquire, names()) {
                self.wrong(format!(
                    "I34: request {request} of session {session} was taken at index {index} without a right: {missing}"
                ));
            }
        }
        if times > 0 && index > self.rules.0 {
            self.rules = (index, table.rules().clone());
        }
    }

    /// I2, I11, I15, I33 and the other invariants of every state.
    fn checked(&mut self, index: u64, table: &LockTable, id: u64) {
        if index.is_multiple_of(rarely(table))
            && let Err(violation) = table.check()
        {
            self.wrong(format!("{violation} (node {id}, index {index})"));
        }
    }

    /// I16, I17: two nodes hold the same content, whether it came from a snapshot or from the log.
    fn content(&mut self, index: LogIndex, table: &LockTable, id: u64) {
        if !index.get().is_multiple_of(CONTENT_EVERY * rarely(table)) {
            return;
        }
        let mut bytes = Vec::new();
        if let Err(error) = table.freeze().write_to(&mut bytes) {
            return self.wrong(format!("I17: node {id} cannot be written down: {error}"));
        }
        let digest: [u8; 32] = Sha256::digest(&bytes).into();
        let (first, by) = *self.contents.entry(index.get()).or_insert((digest, id));
        if first != digest {
            self.wrong(format!(
                "I17: nodes {by} and {id} hold different things after index {}",
                index.get()
            ));
        }
        while self.contents.len() > HASHES {
            self.contents.pop_first();
        }
    }

    fn showed_first(&self, index: u64, id: u64) -> bool {
        self.hashes.get(&index).is_none_or(|(_, first)| *first == id)
    }

    fn state(&mut self, index: u64, hash: [u8; 32], id: u64) {
        let (first, by) = *self.hashes.entry(index).or_insert((hash, id));
        if first != hash {
            self.wrong(format!("I16: nodes {by} and {id} differ after index {index}"));
        }
        while self.hashes.len() > HASHES {
            self.hashes.pop_first();
        }
    }
}

#[cfg(test)]
mod tests {
    use holdfast_core::{
        Ask, Batch, Caller, Command, Deed, FencingToken, Has, Identity, ImportRow, Item, Items,
        Label, LockName, Need, RuleChange, Tenure, Terms,
    };

    use super::*;

    const SESSION: SessionId = SessionId::new(1);
    const TENURE: Tenure = Tenure::new(1);

    /// A table whose rules were turned on with its last entry; they give its one session no right.
    fn table_with_rules() -> LockTable {
        let admin = Caller { identity: Identity::parse("cn:admin").unwrap(), is_admin: true };
        let caller = Caller { identity: Identity::parse("cn:other").unwrap(), is_admin: false };
        let label = Label::parse("session").unwrap();
        let (secret_hash, knows_closed) = ([7; 32], true);
        let opens = Deed::OpenSession { ttl_ms: 10_000, label, secret_hash, knows_closed };
        let turns = Deed::Rule { change: RuleChange::Turn { on: true } };
        let commands =
            vec![Command::By { caller, deed: opens }, Command::By { caller: admin, deed: turns }];
        let batch = Batch { stamp_ms: 1_000, commands, ..Batch::default() };
        let mut table = LockTable::new();
        let mut applied = Vec::new();
        table.apply_batch(LogIndex::new(1), Tenure::new(1), &batch, &mut applied).unwrap();
        assert!(applied.iter().all(|applied| applied.outcome.is_ok()), "{applied:?}");
        assert!(table.session(SESSION).is_some() && table.rules().are_on());
        table
    }

    fn opens(text: &str) -> Command {
        let (label, secret_hash) = (Label::parse(text).unwrap(), [7; 32]);
        Command::OpenSession { ttl_ms: 10_000, label, secret_hash }
    }

    /// Applies an entry, and has its events judged; the table is 1 s older with it.
    fn observe(seen: &mut Seen, table: &mut LockTable, index: u64, commands: Vec<Command>) {
        let batch = Batch { aged_ms: 1_000, commands, ..Batch::default() };
        let mut applied = Vec::new();
        table.apply_batch(LogIndex::new(index), TENURE, &batch, &mut applied).unwrap();
        assert!(applied.iter().all(|applied| applied.outcome.is_ok()), "{applied:?}");
        let events: Vec<Event> = applied.into_iter().flat_map(|applied| applied.events).collect();
        seen.order(index, &events, table);
    }

    /// I9, I25. Seed 9900001416: an imported hold was claimed, and its lease ran out in the same entry. The
    /// claimer has the lock before the waiter, which came earlier.
    #[test]
    fn a_claim_overtakes_nobody_though_the_import_ends_in_the_same_entry() {
        let lock = LockName::parse("imports/4").unwrap();
        let owner = Label::parse("owner").unwrap();
        let done_below = RequestId::new(1);
        let rows = vec![ImportRow { lock: lock.clone(), has: Has::Hold(None) }];
        let imports = Command::Import { owner: owner.clone(), ttl_ms: 500, rows };
        let (import, waiter, claimer) = (SessionId::new(1), SessionId::new(2), SessionId::new(3));
        let waits = Command::Acquire {
            session: waiter,
            done_below,
            request: RequestId::new(1),
            items: vec![Item::exclusive(lock.clone())],
            need: Need::All,
            wait: true,
        };
        let claims = Command::Claim {
            session: claimer,
            done_below,
            request: RequestId::new(1),
            lock,
            owner,
        };
        let runs_out = Command::ExpireSession { session: import, tenure: TENURE };
        let (mut seen, mut table) = (Seen::default(), LockTable::new());
        observe(&mut seen, &mut table, 1, vec![imports, opens("waiter"), opens("claimer"), waits]);
        observe(&mut seen, &mut table, 2, vec![claims, runs_out]);
        assert!(table.session(import).is_none() && table.session(waiter).is_some());
        assert_eq!(seen.violations, Vec::<String>::new());
    }

    /// I9. Seed 9900001393: a request with a head start was granted and given back, and its session was done with it, all in one entry: then the
    /// table that is judged by does not know its head start.
    #[test]
    fn a_head_start_counts_though_its_request_is_forgotten_in_the_same_entry() {
        let lock = LockName::parse("traffic/2").unwrap();
        let ask = |session: u64, request, head_start_ms| {
            let terms = Terms { head_start_ms, ..Terms::default() };
            Command::AcquireOn(Ask {
                session: SessionId::new(session),
                done_below: RequestId::new(request),
                request: RequestId::new(request),
                items: vec![Item::exclusive(lock.clone())],
                need: Need::All,
                wait: true,
                terms,
            })
        };
        let gives_back = |session: u64, token: u64| Command::Release {
            session: SessionId::new(session),
            done_below: RequestId::new(1),
            token: FencingToken::from_raw(token),
            locks: Vec::new(),
        };
        let (mut seen, mut table) = (Seen::default(), LockTable::new());
        let sessions = ["holder", "early", "late", "urgent"].map(opens).to_vec();
        observe(&mut seen, &mut table, 1, sessions);
        observe(&mut seen, &mut table, 2, vec![ask(1, 1, 0)]);
        observe(&mut seen, &mut table, 3, vec![ask(2, 1, 0), ask(3, 1, 0)]);
        let first = table.lock(&lock).unwrap().holders().next().unwrap().grant.token.get();
        let urgent =
            vec![ask(4, 1, 5_000), gives_back(1, first), gives_back(4, first + 1), ask(4, 2, 0)];
        observe(&mut seen, &mut table, 4, urgent);
        assert!(table.request(SessionId::new(4), RequestId::new(1)).is_none());
        assert_eq!(table.lock(&lock).unwrap().waiters().count(), 2);
        assert_eq!(seen.violations, Vec::<String>::new());
    }

    fn queued() -> Event {
        let item = Item { lock: LockName::parse("traffic/1").unwrap(), mode: Mode::Exclusive };
        let items = Items::from(item);
        Event::Queued { session: SESSION, request: RequestId::new(1), items, place: 1 }
    }

    /// I34. Without rules, as before the entry, everybody may; by those after it the session may not.
    #[test]
    fn a_request_is_judged_by_the_rules_at_its_place_in_the_entry() {
        let table = table_with_rules();
        let cases = [
            (vec![queued()], false),
            (vec![Event::RulesChanged, queued()], false),
            (vec![queued(), Event::RulesChanged], true),
            // Seed 9700015879: the rules in between allowed it, and those before and after did not.
            (vec![Event::RulesChanged, queued(), Event::RulesChanged], true),
        ];
        for (events, may_be_right) in cases {
            let mut seen = Seen::default();
            seen.allowed(2, &events, &table);
            assert_eq!(seen.violations.is_empty(), may_be_right, "{events:?}: {seen:?}");
        }
    }
}
