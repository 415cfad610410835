//! Authority over scopes: hands out grants that it covers, and ends holds that it covers no more.

use holdfast_mutants::mutant;
use holdfast_proto::v1::{self, ScopeAuthority};
use holdfast_runtime::Instant;

use super::{Intent, Machine};
use crate::hold::Hold;
use crate::info::PlaceReport;
use crate::session::cover::Covered;
use crate::session::request::{GivingBack, Key, Phase, Uncovered};
use crate::{Error, FencingToken, LostReason, Place};

impl Machine {
    /// Whether the store may grant this name now, as far as reported.
    pub(crate) fn serves(&self, name: &str) -> bool {
        self.is_ready() && self.covers.are_served([name].into_iter(), self.clock.now())
    }

    /// Whether the store named this scope in its last report.
    pub(crate) fn names_scope(&self, scope: &str) -> bool {
        self.covers.name(scope)
    }

    /// Applies the answer to a keepalive that was sent at `sent`.
    pub(super) fn cover(&mut self, sent: Instant, scopes: &[ScopeAuthority]) {
        let sent = if mutant!(CoverFromReceipt) { self.clock.now() } else { sent };
        self.covers.told(sent, scopes, self.lease.timing());
        let reason = LostReason::AuthorityPassed;
        self.lose_holds_that(|machine, hold| !machine.cover_hold(hold), reason);
        self.hand_out_covered();
        self.note_cover_ends();
        self.hurry(sent);
    }

    /// Hands out grants that waited for authority and have it now. Not before State has come after
    /// a resume: the store may have ended them meanwhile, and the scope with them.
    fn hand_out_covered(&mut self) {
        if !self.is_ready() {
            return;
        }
        for key in self.requests.uncovered() {
            let request = self.requests.get_mut(key);
            if let Some(Phase::Uncovered(uncovered)) = request.map(|request| &request.phase) {
                let granted = uncovered.granted.clone();
                self.hand_out(key, granted);
            }
        }
    }

    /// Bounds a hold by the scopes of its names; false if it cannot be safe any more.
    pub(super) fn cover_hold(&self, hold: &Hold) -> bool {
        let names = hold.held().map(|lock| lock.name.as_ref());
        let safety = &hold.safety;
        match self.covers.of(names, hold.token) {
            // A hold in no scope, or in one that is gone.
            Covered::Free => safety.cover(None, &*self.clock),
            Covered::Until(until) => safety.cover(Some(until), &*self.clock),
            // Its cover from before ends by itself; a scope that is new to this client covers
            // nothing.
            Covered::NotYet => safety.covered_until().is_some(),
            Covered::Over => false,
        }
    }

    /// Ends the holds whose cover has passed, for ever.
    pub(super) fn lose_uncovered(&mut self) {
        if self.cover_ends.is_none_or(|ends| self.clock.now() < ends) {
            return;
        }
        let passed = |machine: &Self, hold: &Hold| !hold.safety.is_in_time(&*machine.clock);
        self.lose_holds_that(passed, LostReason::AuthorityPassed);
        self.note_cover_ends();
    }

    pub(super) fn note_cover_ends(&mut self) {
        let ends = self.requests.holds().filter_map(|(_, hold)| hold.safety.covered_until());
        self.cover_ends = ends.min();
    }

    /// Keeps a grant until authority covers it, and reports that as its place; false if it need not
    /// wait.
    pub(super) fn waits_for_cover(
        &mut self,
        key: Key,
        token: FencingToken,
        granted: &v1::Granted,
    ) -> bool {
        let now = self.clock.now();
        let Some(request) = self.requests.get_mut(key) else { return false };
        let items = request.asked.granted(&granted.names);
        let names = items.iter().map(|item| item.name.as_ref());
        // A store that was restored may not know that Cassandra serves these names, or know them as part of another
        // scope, whose authority is none over this one (DESIGN §15).
        let is_named = request.asked.scope.as_ref().is_none_or(|scope| self.covers.name(scope));
        let covered = is_named
            && match self.covers.of(names, token) {
                Covered::Free => true,
                Covered::Until(until) => now < until,
                Covered::NotYet | Covered::Over => false,
            };
        // Without a lease it is late and will be released, whatever covers it.
        if covered || !self.lease.span().is_alive(&*self.clock) {
            return false;
        }
        request.phase = Phase::Uncovered(Uncovered { token, granted: granted.clone() });
        let place = Place { awaits_authority: true, ..Place::new(0, Vec::new(), None) };
        request.place.send_if_modified(|told| {
            let changes = told.as_ref().is_none_or(|told| told.place != place);
            *told = Some(PlaceReport { place: place.clone(), at: now });
            changes
        });
        self.lease.hurry(now);
        true
    }

    /// The store ended a grant that waits for cover: the request goes on waiting, at the end of the
    /// queue.
    pub(super) fn waits_on(&mut self, key: Key) -> bool {
        let request = self.requests.get_mut(key);
        let Some(Phase::Uncovered(uncovered)) = request.map(|request| &request.phase) else {
            return false;
        };
        let token = uncovered.token;
        self.requests.forget_token(token);
        self.ask_anew(key);
        true
    }

    /// Releases a grant that waits for cover and fails its acquire: authority will hardly come in
    /// time.
    pub(super) fn give_up_uncovered(&mut self, key: Key, reason: LostReason) {
        let Some(request) = self.requests.get_mut(key) else { return };
        let Phase::Uncovered(uncovered) = &request.phase else { return };
        let giving = GivingBack::sound(uncovered.token, None);
        request.phase = Phase::GivingBack(giving);
        request.answer(Err(Error::SessionLost { reason }));
        self.queue(Intent::Release(key));
    }

    /// Speeds up keepalives where authority needs it. Authority may be far shorter than a session's
    /// lease: holds under it, and grants that wait for it, need a shorter keepalive interval.
    fn hurry(&mut self, sent: Instant) {
        let shortest = self.lease.timing().keepalive_every() / 8;
        if let Some(ends) = self.cover_ends {
            let third = ends.saturating_since(sent) / 3;
            self.lease.hurry(sent + third.max(shortest));
        }
        if !self.requests.uncovered().is_empty() {
            self.lease.hurry(self.clock.now() + shortest);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use holdfast_fuzz::on_virtual_time;
    use holdfast_proto::v1::server_frame::Body as Said;
    use holdfast_runtime::{Runtime, simulated};

    use super::*;
    use crate::items::{AcquireRequest, Need};
    use crate::session::machine::SessionConfig;
    use crate::{GuardState, LockItem};
    use holdfast_mutants::{Mutant, while_armed};

    const TTL: Duration = Duration::from_secs(10);

    /// A session that holds `jobs` under a token of epoch 3, by an authority of ten seconds.
    struct World {
        runtime: Runtime,
        machine: Machine,
        hold: std::sync::Arc<Hold>,
    }

    fn said(machine: &mut Machine, body: Said) {
        let frame = v1::ServerFrame { index: 20, body: Some(body) };
        assert_eq!(machine.handle(v1::ServerFrames { frames: vec![frame] }), None);
    }

    fn told(epoch: u32, remaining_ms: u64) -> Vec<ScopeAuthority> {
        vec![ScopeAuthority { scope: "jo".to_owned(), epoch, remaining_ms }]
    }

    impl World {
        fn new() -> Self {
            let runtime = simulated::runtime(1, 0);
            let config = SessionConfig {
                ttl: Some(TTL),
                label: "tester".to_owned(),
                allowance: 0.1,
                keeps_together: false,
            };
            let mut machine = Machine::new(config, runtime.clock.clone(), runtime.rng.clone());
            let _ = machine.open();
            let (secret, cluster_id) = (vec![9; 16].into(), vec![1; 16].into());
            let scopes = told(3, 10_000);
            let (ttl_ms, lease_unmoved) = (10_000, false);
            let opened = v1::Opened {
                session_id: 7,
                secret,
                cluster_id,
                ttl_ms,
                scopes,
                lease_unmoved,
                ..v1::Opened::default()
            };
            said(&mut machine, Said::Opened(opened));
            let request = AcquireRequest::new(vec![LockItem::from("jobs")], Need::All, true);
            let mut asked = machine.ask(request).unwrap();
            let _ = machine.take_output();
            let names = vec!["jobs".into()];
            let granted =
                v1::Granted { request_id: 1, token: (3 << 48) + 5, names, values: vec![] };
            said(&mut machine, Said::Granted(granted));
            let hold = asked.answer.try_recv().unwrap().unwrap();
            Self { runtime, machine, hold }
        }

        async fn passes(&self, seconds: u64) {
            self.runtime.sleep(Duration::from_secs(seconds)).await;
        }

        fn kept(&mut self, seq: u64, scopes: Vec<ScopeAuthority>) {
            said(
                &mut self.machine,
                Said::KeptAlive(v1::KeptAlive { seq, scopes, ..v1::KeptAlive::default() }),
            );
        }

        fn is_safe(&self) -> bool {
            self.hold.safety.is_safe(&*self.runtime.clock)
        }
    }

    fn a_slow_answer() {
        on_virtual_time(async {
            let mut world = World::new();
            world.passes(3).await;
            assert!(world.machine.take_output().is_some(), "a keepalive is due");
            let sent = world.runtime.clock.now();
            world.passes(4).await;
            world.kept(1, told(3, 5_000));
            // The first answer covers for longer than this one from its send time.
            let covered = world.hold.safety.covered_until().unwrap();
            assert!(covered <= sent + Duration::from_millis(8_980 - 3_000), "{covered:?}");
        });
    }

    fn another_epoch() {
        on_virtual_time(async {
            let mut world = World::new();
            world.passes(3).await;
            let _ = world.machine.take_output();
            world.kept(1, told(6, 10_000));
            assert!(!world.is_safe());
        });
    }

    /// Its state shows the bound before any answered keepalive: a process that plans by it, or is
    /// paused, has no other information.
    #[test]
    fn a_hold_says_from_the_start_that_authority_bounds_it() {
        on_virtual_time(async {
            let mut world = World::new();
            world.machine.cover(world.runtime.clock.now(), &told(5, 2_000));
            let request = AcquireRequest::new(vec![LockItem::from("joint")], Need::All, true);
            let mut asked = world.machine.ask(request).unwrap();
            let _ = world.machine.take_output();
            let (names, token) = (vec!["joint".into()], (5 << 48) + 9);
            let granted = v1::Granted { request_id: 2, token, names, values: vec![] };
            said(&mut world.machine, Said::Granted(granted));
            let hold = asked.answer.try_recv().unwrap().unwrap();

            let covered = hold.safety.covered_until().unwrap();
            let state = hold.safety.state();
            assert_eq!(state, GuardState::Held { safe_until: covered });
            assert!(covered < world.runtime.clock.now() + Duration::from_secs(2));
        });
    }

    #[test]
    fn an_answer_covers_from_when_its_keepalive_was_sent() {
        a_slow_answer();
    }

    #[test]
    fn authority_of_another_epoch_does_not_count() {
        another_epoch();
    }

    #[test]
    fn each_of_the_rules_is_missed_when_it_is_broken() {
        let cases: [(Mutant, fn()); 2] =
            [(Mutant::CoverFromReceipt, a_slow_answer), (Mutant::CoverOfAnyEpoch, another_epoch)];
        for (mutant, scenario) in cases {
            let run = while_armed(mutant, || std::panic::catch_unwind(scenario));
            assert!(run.is_err(), "nothing showed that {mutant} was armed");
        }
    }
}
