//! Random histories: the core against a model written as plainly as possible, a second replica, and
//! a replica that is restored from a snapshot from time to time.
//!
//! `HOLDFAST_SEED=n cargo test -p holdfast-core --test properties` repeats a run. The seed is
//! printed first, so that a failure shows it.
//!
//! After every command: outcome and events equal the model's, and every invariant holds (in debug
//! builds inside the batch as well). After every batch: the views show the model's state.

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "what cannot be unwrapped fails the test, and what is printed explains the failure"
)]

use std::collections::{BTreeMap, BTreeSet};

use holdfast_core::{
    Ask, Batch, Command, Counters, Counts, Event, FencingToken, Limits, LockName, LockTable,
    LogIndex, Outcome, Rejection, RequestId, RequestState, SessionId, Tenure,
};
use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt, SeedableRng};

mod met;
mod model;
mod rule_traffic;
mod traffic;

use met::Met;
use model::{Model, State, What};

const HISTORIES: u64 = 400;
const COMMANDS_PER_HISTORY: u64 = 500;
#[test]
fn random_histories_go_as_in_the_model_on_every_replica() {
    let seed = seed();
    println!("HOLDFAST_SEED={seed}");
    let mut met = Met::default();
    for number in 0..HISTORIES {
        println!("history {number}");
        History::new(seed.wrapping_add(number)).run(&mut met);
    }
    met.judge();
}

#[expect(clippy::disallowed_methods, reason = "a switch of the test, not of the core")]
fn seed() -> u64 {
    match std::env::var("HOLDFAST_SEED") {
        Ok(seed) => seed.parse().unwrap(),
        Err(_) => rand::random(),
    }
}

struct History {
    rng: Xoshiro256PlusPlus,
    model: Model,
    table: LockTable,
    /// Applies the same batches; is restored from a snapshot from time to time.
    other: LockTable,
    index: u64,
    tenure: u64,
    /// The last token of each name, of each scope that ever existed, and of the names in none.
    last_tokens: BTreeMap<String, FencingToken>,
    last_counter: u64,
    /// The age of the table when each request came, with its head start.
    came: BTreeMap<(SessionId, RequestId), (u64, u64)>,
}

impl History {
    fn new(seed: u64) -> Self {
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed);
        let mut counters = Counters { epoch: rng.random_range(0..3), ..Counters::default() };
        if rng.random_bool(0.1) {
            counters.epoch = rng.random_range(31_990..32_010);
        }
        if rng.random_bool(0.1) {
            counters.token = FencingToken::COUNTER_MAX - rng.random_range(0..60);
        }
        Self {
            rng,
            model: Model::new(counters),
            table: LockTable::with_counters(counters),
            other: LockTable::with_counters(counters),
            index: 0,
            tenure: 1,
            last_tokens: BTreeMap::new(),
            last_counter: counters.token,
            came: BTreeMap::new(),
        }
    }

    fn run(&mut self, met: &mut Met) {
        let limits = Limits { max_sessions: 8, max_requests_per_session: 16, ..Limits::default() };
        self.step(vec![Command::Configure { limits }], met);
        if self.rng.random_bool(0.3) {
            self.step(traffic::idle_scopes(), met);
        }
        if self.rng.random_bool(0.4) {
            self.step(rule_traffic::first_rules(), met);
        }
        let mut left = COMMANDS_PER_HISTORY;
        while left > 0 {
            let size = if self.rng.random_bool(0.8) { 1 } else { self.rng.random_range(0..=4) };
            left = left.saturating_sub(size);
            let tenure = Tenure::new(self.tenure);
            let draw = |_| traffic::draw(&mut self.rng, &self.model, tenure);
            let commands = (0..size).map(draw).collect();
            self.step(commands, met);
        }
        self.compare_replicas();
    }

    fn step(&mut self, commands: Vec<Command>, met: &mut Met) {
        self.skip_ahead();
        let stamp_ms = self.model.stamp_ms.saturating_add(self.rng.random_range(0..100));
        let stamp_ms = stamp_ms.saturating_sub(self.rng.random_range(0..50));
        let witness = self.table.latest_witness();
        // As a leader does it: not before every member knows of it.
        let aged_ms = if self.model.knows_terms { self.rng.random_range(0..300) } else { 0 };
        let batch = Batch { stamp_ms, witness, aged_ms, commands };
        assert_eq!(Batch::decode(&batch.encode()).as_ref(), Ok(&batch));

        let (index, tenure) = (LogIndex::new(self.index), Tenure::new(self.tenure));
        let mut applied = Vec::new();
        self.table.apply_batch(index, tenure, &batch, &mut applied).unwrap();
        let mut elsewhere = Vec::new();
        self.other.apply_batch(index, tenure, &batch, &mut elsewhere).unwrap();
        assert_eq!(applied, elsewhere);

        self.model.stamp_ms = self.model.stamp_ms.max(stamp_ms);
        self.model.knows_owners |= batch.version() >= 6;
        self.model.knows_terms |= batch.version() >= 9;
        self.model.age_ms += aged_ms;
        assert_eq!(applied.len(), batch.commands.len());
        for (command, applied) in batch.commands.iter().zip(&applied) {
            let (outcome, events) = self.model.apply(tenure, command);
            assert_eq!(plain(&applied.outcome), plain(&outcome), "{command:?}");
            assert_eq!(applied.events, events, "{command:?}");
            self.tokens_rise(&applied.events);
            self.nobody_is_overtaken_for_long(command, &applied.events);
            met.note(command, applied);
            met.note_state(command, applied, &self.model);
        }
        self.table.check().unwrap();
        self.compare_with_model();
        if self.rng.random_bool(0.1) {
            self.compare_replicas();
        }
    }

    /// Moves on in the log, sometimes over entries without a batch, sometimes into a new tenure.
    fn skip_ahead(&mut self) {
        self.index += 1;
        if self.rng.random_bool(0.02) {
            self.tenure += 1;
            self.index += self.rng.random_range(1..2_000);
            self.table.note_index(LogIndex::new(self.index));
            self.other.note_index(LogIndex::new(self.index));
            self.index += 1;
        }
    }

    /// I3: tokens rise in the order of the grants, for every name and over all of a scope; their
    /// counters rise over all grants.
    fn tokens_rise(&mut self, events: &[Event]) {
        for event in events {
            let Event::Granted { token, items, .. } = event else { continue };
            assert!(self.last_counter < token.counter());
            self.last_counter = token.counter();
            let scope = self.model.scope_of(&items[0].lock);
            let scope = scope.map_or("none".into(), |(scope, _)| format!("scope {scope}"));
            let names = items.iter().map(|item| format!("name {}", item.lock));
            for of in names.chain([scope]) {
                let last = self.last_tokens.insert(of.clone(), *token);
                assert!(last < Some(*token), "{of}: {last:?} {token:?}");
            }
        }
    }

    /// I9: nobody who waits is overtaken by a request that came more than its head start later.
    fn nobody_is_overtaken_for_long(&mut self, command: &Command, events: &[Event]) {
        let head_start = match command {
            Command::AcquireOn(Ask { terms, .. }) => u64::from(terms.head_start_ms),
            _ => 0,
        };
        let is_acquire = matches!(command, Command::Acquire { .. } | Command::AcquireOn(_));
        for event in events.iter().filter(|_| is_acquire) {
            if let Event::Queued { session, request, .. }
            | Event::Granted { session, request, .. } = event
            {
                self.came.entry((*session, *request)).or_insert((self.model.age_ms, head_start));
            }
        }
        for event in events {
            let Event::Granted { session, request, items, .. } = event else { continue };
            // An imported one came with its import.
            let Some(&(came, head_start)) = self.came.get(&(*session, *request)) else { continue };
            for passed in items.iter().flat_map(|item| self.model.queue(&item.lock)) {
                let Some(&(before, _)) = self.came.get(&(passed.session, passed.id)) else {
                    continue;
                };
                assert!(came <= before + head_start, "{event:?} after {:?}", passed.id);
            }
        }
    }

    fn compare_with_model(&self) {
        let (model, table) = (&self.model, &self.table);
        assert_eq!(table.stamp_ms(), model.stamp_ms);
        assert_eq!(table.limits(), model.limits);
        let usages = table.usages().map(|(identity, usage)| (identity.clone(), usage));
        assert_eq!(usages.collect::<Vec<_>>(), model.usages());
        assert_eq!(table.max_table_bytes(), model.max_table_bytes);
        assert_eq!(table.counters().epoch, model.epoch);
        let mut scopes = model.scopes.clone();
        scopes.sort_by(|(a, _), (b, _)| a.cmp(b));
        let shown: Vec<_> = table.scopes().map(|view| (view.scope.clone(), view.state)).collect();
        assert_eq!(shown, scopes);
        let frozen = table.freezes().map(|(prefix, freeze)| (prefix, &freeze.message, &freeze.by));
        let mut frozen: Vec<_> = frozen.collect();
        frozen.sort();
        let known = model.freezes.iter();
        let mut known: Vec<_> =
            known.map(|one| (&one.prefix, &one.message, &one.caller.identity)).collect();
        known.sort();
        assert_eq!(frozen, known);
        let mut numbered: Vec<_> =
            model.sequences.iter().map(|known| (&known.name, known.last)).collect();
        numbered.sort();
        assert_eq!(table.sequences_after("", None).collect::<Vec<_>>(), numbered);
        self.compare_rules();
        for session in &model.sessions {
            let view = table.session(session.id).unwrap();
            assert_eq!((view.ttl_ms, view.done_below), (session.ttl_ms, session.done_below));
            assert_eq!(*view.caller, session.caller);
            assert_eq!(view.revoked, session.revoked.as_ref());
            let mut closed: Vec<_> =
                session.closed.iter().map(|(token, why)| (*token, why)).collect();
            closed.sort();
            assert_eq!(table.closed_holds(session.id).collect::<Vec<_>>(), closed);
            let mut own: Vec<&model::Request> =
                model.requests.iter().filter(|request| request.session == session.id).collect();
            own.sort_by_key(|request| request.id);
            assert_eq!(view.requests, own.len() as u64);
            for (view, request) in table.requests(session.id).zip(own) {
                assert_eq!((view.request, &*view.items), (request.id, request.items()));
                assert_eq!(view.state, self.state_in_model(request));
                assert_eq!(table.request(session.id, request.id), Some(view));
            }
        }
        let held = model.requests.iter().flat_map(model::Request::holds);
        let held: BTreeSet<&LockName> = held.map(|item| &item.lock).collect();
        let counts = Counts {
            sessions: model.sessions.len() as u64,
            held: held.len() as u64,
            waiting: model.requests.iter().filter(|r| r.arrival().is_some()).count() as u64,
            values: model.values.len() as u64,
            value_bytes: model.value_bytes(),
            table_bytes: model.bytes(),
        };
        assert_eq!(table.counts(), counts);
        self.compare_locks();
    }

    fn compare_rules(&self) {
        let (model, rules) = (&self.model.rules, self.table.rules());
        assert_eq!(rules.are_on(), model.on);
        assert!(rules.roles().eq(model.roles.iter().map(|(role, rights)| (role, rights))));
        let identities = model.identities.iter().map(|(identity, roles)| (identity, roles));
        assert!(rules.identities().eq(identities));
        assert!(rules.tokens().eq(model.tokens.iter().map(|(name, token)| (name, token))));
        for (name, token) in &model.tokens {
            assert_eq!(rules.token_of(&token.hash), Some((name, token)));
        }
        assert_eq!(rules.token_of(&[9; 32]), None);
    }

    fn state_in_model(&self, request: &model::Request) -> RequestState {
        match &request.state {
            State::Waiting { since_ms, .. } => {
                RequestState::Waiting { place: self.model.place(request), since_ms: *since_ms }
            }
            State::Held { token, since_ms, holds } => {
                let items = holds.iter().cloned().collect();
                let is_ending = self.model.is_ending(request.session, *token);
                RequestState::Held { token: *token, items, since_ms: *since_ms, is_ending }
            }
            State::Denied(rejection) => RequestState::Denied { rejection: rejection.clone() },
            State::Over if matches!(request.what, What::Write { .. }) => RequestState::Wrote,
            State::Over => RequestState::Ended,
        }
    }

    /// The listing shows exactly the locks that are held, waited for, closed or carry a value, each as it
    /// is.
    fn compare_locks(&self) {
        let (model, table) = (&self.model, &self.table);
        let waiting = model.requests.iter().filter(|r| r.arrival().is_some());
        let waited = waiting.flat_map(model::Request::items);
        let held = model.requests.iter().flat_map(model::Request::holds);
        let mut names: BTreeSet<&LockName> = waited.chain(held).map(|item| &item.lock).collect();
        names.extend(model.values.iter().map(|(name, _)| name));
        names.extend(model.kept_limits.iter().map(|kept| &kept.lock));
        names.extend(model.closed_locks.iter().map(|closed| &closed.lock));
        let views: Vec<_> = table.locks_after("", None, usize::MAX).collect();
        assert_eq!(views.iter().map(|view| view.name).collect::<Vec<_>>(), Vec::from_iter(names));
        for view in views {
            let holders = model.holders(view.name);
            let shown: Vec<_> = view.holders().map(|held| (held.grant, held.mode)).collect();
            assert_eq!((&shown, view.held_by), (&holders, holders.len() as u64));
            for (grant, _) in holders {
                let ending = model.is_ending(grant.session, grant.token);
                assert_eq!(table.grant_is_current(view.name, grant.token), !ending);
            }
            assert_eq!(view.frozen().is_some(), model.is_frozen(view.name));
            let closed = model.closed_locks.iter().find(|closed| closed.lock == *view.name);
            assert_eq!(view.closed.map(|closed| closed.token), closed.map(|closed| closed.token));
            assert_eq!(view.value, model.value(view.name));
            let scope = table.scope_of(view.name).map(|view| (view.scope, view.state));
            assert_eq!(scope, model.scope_of(view.name).map(|(scope, state)| (scope, *state)));
            let queue = model.queue(view.name);
            let places = view.waiters().zip(0..);
            let places: Vec<_> = places.map(|(w, place)| (w.session, w.request, place)).collect();
            let expected: Vec<_> =
                (0..).zip(&queue).map(|(place, r)| (r.session, r.id, place)).collect();
            assert_eq!(places, expected);
            assert_eq!(view.waiting, queue.len() as u64);
            let shown: Vec<_> = view.waiters().map(|w| (w.head_start_ms, w.note)).collect();
            assert_eq!(shown, queue.iter().map(|r| r.said()).collect::<Vec<_>>());
            let shown: Vec<_> = view.waiters().map(|waiter| waiter.mode).collect();
            let items = queue.iter().flat_map(|r| r.items());
            let here = items.filter(|item| item.lock == *view.name).map(|item| item.mode);
            assert_eq!(shown, here.collect::<Vec<_>>());
        }
    }

    /// Equal bytes (I16), and the same bytes again after a restore (I17). The restored table
    /// replaces the second replica.
    fn compare_replicas(&mut self) {
        let bytes = bytes_of(&self.table);
        assert_eq!(self.table.state_hash(), self.other.state_hash());
        assert_eq!(bytes, bytes_of(&self.other));
        let restored = LockTable::read_from(&mut bytes.as_slice()).unwrap();
        assert_eq!(bytes, bytes_of(&restored));
        self.other = restored;
    }
}

/// The outcome without the text that is only for people.
fn plain(outcome: &Outcome) -> Outcome {
    match outcome {
        Err(Rejection::UnusableLimits { .. }) => {
            Err(Rejection::UnusableLimits { reason: String::new() })
        }
        other => other.clone(),
    }
}

fn bytes_of(table: &LockTable) -> Vec<u8> {
    let mut bytes = Vec::new();
    table.freeze().write_to(&mut bytes).unwrap();
    bytes
}
