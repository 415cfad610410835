//! Keepalives that go to the server together with those of other sessions, beside this session's stream.
//!
//! A keepalive on the stream is answered behind everything that the server sent before: when the deadline
//! moves, the client has read of every hold that it lost. An answer that comes beside the stream may come
//! first. So it lists what the session holds, as of one state of the store, and the client takes it only
//! if it relies on nothing else:
//!
//! - Each hold that this client has handed out, or may hand out as soon as it is covered, is listed
//!   (I6). Otherwise the answer moves nothing, and a keepalive goes out on the stream at once.
//! - Holds that it names as closed are given up first, and scopes bound the others, as with every answer
//!   (I35, I24). All of the answer is of one state.
//! - A grant that is read later, of an entry up to that state, is believed only if it is listed: the
//!   stream would tell its loss next, but what if the stream breaks before? The client leaves the stream
//!   instead, and State tells.
//!
//! Only the send times count, as always (DESIGN §5.4). If the server does not take such keepalives, or
//! does not answer one, the next goes out on the stream.

use std::collections::BTreeSet;
use std::time::Duration;

use holdfast_mutants::mutant;
use holdfast_proto::v1::{Granted, KeptSession, SessionKey};
use holdfast_runtime::{Instant, Renewed};

use super::{Machine, Stream};
use crate::FencingToken;
use crate::session::request::Phase;

/// Where the keepalives of a stream go out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Keepalives {
    /// On it.
    OnStream,
    /// Beside it, together with those of other sessions.
    Apart,
    /// The next one on it, the others beside it.
    ApartAfterNext,
}

impl Keepalives {
    /// The next one goes out on the stream in any case: the server waits for it there behind State.
    pub(super) fn next_on_stream(&mut self) {
        if *self == Self::Apart {
            *self = Self::ApartAfterNext;
        }
    }

    /// One went out on the stream.
    pub(super) fn went_on_stream(&mut self) {
        if *self == Self::ApartAfterNext {
            *self = Self::Apart;
        }
    }
}

/// What the session held as of an answer that was taken.
#[derive(Debug)]
pub(super) struct Listed {
    index: u64,
    tokens: BTreeSet<FencingToken>,
}

impl Machine {
    /// The session is attached to a stream whose server takes keepalives of many sessions together, or does
    /// not.
    pub(super) fn keep_apart(&mut self, keeps_many: bool) {
        if keeps_many && self.config.keeps_together {
            self.keepalives = Keepalives::Apart;
            self.lease.align();
        }
    }

    /// A keepalive that is due, to be sent beside the stream now: whose, and its number.
    pub(in crate::session) fn keepalive_apart(&mut self) -> Option<(SessionKey, u64)> {
        let is_apart = self.keepalives == Keepalives::Apart && self.is_ready();
        is_apart.then(|| self.due_keepalive()).flatten()
    }

    /// A keepalive that is due while the client waits for its turn to resume the session.
    pub(in crate::session) fn keepalive_away(&mut self) -> Option<(SessionKey, u64)> {
        let may = self.config.keeps_together && !self.closing;
        let is_away = may && matches!(self.stream, Stream::None);
        is_away.then(|| self.due_keepalive()).flatten()
    }

    /// The client waits for its turn, and learns of a server that serves: its next keepalive is due there at
    /// once. It waits for no answer of another server.
    pub(in crate::session) fn keep_alive_anew(&mut self) {
        self.lease.forget_unanswered();
        self.lease.hurry(self.clock.now());
    }

    fn due_keepalive(&mut self) -> Option<(SessionKey, u64)> {
        // Read before the keepalive is queued (DESIGN §5.4).
        let now = self.clock.now();
        if now < self.lease.next_due() {
            return None;
        }
        let identity = self.identity.as_ref()?;
        let (session_id, secret) = (identity.session, identity.secret.clone());
        Some((SessionKey { session_id, secret }, self.lease.send_keepalive(now)))
    }

    /// When the next keepalive is due.
    pub(in crate::session) fn keepalive_due(&self) -> Instant {
        self.lease.next_due()
    }

    /// Takes the answer to keepalive `seq`; `None`: there is none.
    pub(in crate::session) fn kept_apart(&mut self, seq: u64, renewed: Option<Renewed>) {
        self.lose_overdue();
        let is_answered = renewed.is_some();
        if renewed.is_some_and(|renewed| self.renew_apart(seq, renewed)) {
            return;
        }
        if matches!(self.stream, Stream::None) {
            return;
        }
        // Another one goes out on the stream instead.
        let keepalives =
            if is_answered { Keepalives::ApartAfterNext } else { Keepalives::OnStream };
        self.keepalives = keepalives;
        self.lease.send_again(seq, self.clock.now());
    }

    /// False if the answer does not renew.
    fn renew_apart(&mut self, seq: u64, renewed: Renewed) -> bool {
        let KeptSession { refused, tokens, closed, .. } = renewed.session;
        if refused.is_some() {
            return false;
        }
        self.give_up_closed(&closed);
        self.spread = Duration::from_millis(renewed.spread_ms);
        let tokens = tokens.into_iter().map(FencingToken::from_raw).collect();
        if !self.relies_only_on(&tokens) {
            return false;
        }
        let Some(sent) = self.lease.answered(seq) else { return true };
        self.listed = Some(Listed { index: renewed.index, tokens });
        self.renew(sent, &renewed.scopes);
        true
    }

    fn relies_only_on(&self, tokens: &BTreeSet<FencingToken>) -> bool {
        let held = self.requests.holds().map(|(_, hold)| hold.token);
        let uncovered = self.requests.uncovered();
        let uncovered = uncovered.into_iter().filter_map(|key| match self.requests.phase(key) {
            Some(Phase::Uncovered(uncovered)) => Some(uncovered.token),
            _ => None,
        });
        let mut relied_on = held.chain(uncovered);
        relied_on.all(|token| tokens.contains(&token) || mutant!(UnlistedHoldKept))
    }

    /// Whether a grant of the entry `index`, which would be handed out, was over in the state of an answer
    /// that was taken.
    pub(super) fn is_over(&self, granted: &Granted, index: u64) -> bool {
        let Some(listed) = &self.listed else { return false };
        let key = self.requests.with_id(granted.request_id);
        let phase = key.and_then(|key| self.requests.phase(key));
        let waits = matches!(phase, Some(Phase::Sent | Phase::Queued | Phase::Uncovered(_)));
        let token = FencingToken::from_raw(granted.token);
        let is_over = index <= listed.index && !listed.tokens.contains(&token);
        waits && is_over && !mutant!(OverGrantDelivered)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use holdfast_fuzz::on_virtual_time;
    use holdfast_mutants::{Mutant, while_armed};
    use holdfast_proto::v1::server_frame::Body as Said;
    use holdfast_proto::v1::{self, Opened};
    use holdfast_runtime::{Runtime, simulated};

    use super::*;
    use crate::LockItem;
    use crate::hold::Hold;
    use crate::items::{AcquireRequest, Need};
    use crate::session::machine::{PendingAcquire, SessionConfig, StreamEnd};

    const TTL: Duration = Duration::from_secs(10);

    /// A session whose keepalives go out beside its stream.
    struct World {
        runtime: Runtime,
        machine: Machine,
    }

    impl World {
        fn new() -> Self {
            let runtime = simulated::runtime(1, 0);
            let (ttl, label) = (Some(TTL), "tester".to_owned());
            let config = SessionConfig { ttl, label, allowance: 0.1, keeps_together: true };
            let mut machine = Machine::new(config, runtime.clock.clone(), runtime.rng.clone());
            let _ = machine.open();
            let opened =
                Opened { session_id: 7, ttl_ms: 10_000, keeps_many: true, ..Opened::default() };
            let mut world = Self { runtime, machine };
            assert_eq!(world.said(1, Said::Opened(opened)), None);
            world
        }

        fn said(&mut self, index: u64, body: Said) -> Option<StreamEnd> {
            let frame = v1::ServerFrame { index, body: Some(body) };
            self.machine.handle(v1::ServerFrames { frames: vec![frame] })
        }

        fn asks(&mut self, name: &str) -> PendingAcquire {
            let asked = AcquireRequest::new(vec![LockItem::from(name)], Need::All, true);
            let asked = self.machine.ask(asked).unwrap();
            let _ = self.machine.take_output();
            asked
        }

        fn granted(&mut self, request_id: u64, token: u64, index: u64) -> Option<StreamEnd> {
            let names = vec![if request_id == 1 { "jobs" } else { "two" }.into()];
            let granted = Granted { request_id, token, names, values: Vec::new() };
            self.said(index, Said::Granted(granted))
        }

        fn holds(&mut self) -> Arc<Hold> {
            let mut asked = self.asks("jobs");
            assert_eq!(self.granted(1, 41, 10), None);
            asked.answer.try_recv().unwrap().unwrap()
        }

        /// A keepalive goes out beside the stream, and its answer lists these tokens.
        async fn kept(&mut self, index: u64, tokens: &[u64]) {
            self.runtime.sleep(TTL / 4).await;
            let (_, seq) = self.machine.keepalive_apart().expect("it is due");
            let session = KeptSession { tokens: tokens.to_vec(), ..KeptSession::default() };
            let renewed = Renewed { index, session, ..Renewed::default() };
            self.machine.kept_apart(seq, Some(renewed));
        }
    }

    fn an_answer_without_the_hold() {
        on_virtual_time(async {
            let mut world = World::new();
            let hold = world.holds();
            let before = world.machine.lease.span().deadline();
            world.kept(20, &[40]).await;
            assert_eq!(world.machine.lease.span().deadline(), before);
            assert!(world.machine.keepalive_apart().is_none(), "the stream decides");
            assert!(world.machine.take_output().is_some(), "at once");
            world.runtime.sleep(TTL).await;
            assert!(!hold.safety.is_safe(&*world.runtime.clock));
        });
    }

    fn a_grant_that_is_over() {
        on_virtual_time(async {
            let mut world = World::new();
            let _hold = world.holds();
            let mut asked = world.asks("two");
            world.kept(20, &[41]).await;
            assert!(world.granted(2, 42, 19).is_some(), "the client leaves the stream");
            assert!(asked.answer.try_recv().is_err());
        });
    }

    #[test]
    fn an_answer_that_lists_every_hold_renews_and_later_grants_are_handed_out() {
        on_virtual_time(async {
            let mut world = World::new();
            let hold = world.holds();
            let mut asked = world.asks("two");
            for index in 20..30 {
                world.kept(index, &[41, 43]).await;
                assert!(hold.safety.is_safe(&*world.runtime.clock));
            }
            assert_eq!(world.granted(2, 42, 30), None);
            assert!(asked.answer.try_recv().unwrap().is_ok());
        });
    }

    #[test]
    fn an_answer_that_does_not_list_a_hold_renews_nothing() {
        an_answer_without_the_hold();
    }

    #[test]
    fn a_grant_of_an_earlier_state_that_the_answer_does_not_list_is_not_handed_out() {
        a_grant_that_is_over();
    }

    #[test]
    fn each_of_the_rules_of_answers_beside_the_stream_is_missed_when_it_is_broken() {
        let cases: [(Mutant, fn()); 2] = [
            (Mutant::UnlistedHoldKept, an_answer_without_the_hold),
            (Mutant::OverGrantDelivered, a_grant_that_is_over),
        ];
        for (mutant, scenario) in cases {
            let run = while_armed(mutant, || std::panic::catch_unwind(scenario));
            assert!(run.is_err(), "nothing showed that {mutant} was armed");
        }
    }
}
