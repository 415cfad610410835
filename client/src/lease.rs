//! How long a hold is certain: the safe deadline and its rules.
//!
//! # Invariants
//!
//! - A deadline counts from the *send* time of a keepalive that was answered, less the allowance
//!   for clock rates and [`DEADLINE_MARGIN`] (I6, DESIGN §5.4).
//! - No two keepalives have the same seq (DESIGN §5.4).

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use holdfast_guard::Span;
use holdfast_mutants::mutant;
use holdfast_runtime::{Clock, Instant};

/// The TTL that a server gives a session without a TTL of its own, until the server reports it.
pub(crate) const TTL_DEFAULT: Duration = Duration::from_secs(10);

/// Taken off every safe deadline for the time between a clock read and what it decides.
pub(crate) const DEADLINE_MARGIN: Duration = Duration::from_millis(20);

/// The lengths that follow from a session's TTL.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct LeaseTiming {
    ttl: Duration,
    /// Largest relative difference of rate between this clock and any server's, 0 to 1.
    allowance: f64,
}

impl LeaseTiming {
    pub(crate) fn new(ttl: Duration, allowance: f64) -> Self {
        Self { ttl, allowance: allowance.clamp(0.0, 1.0) }
    }

    pub(crate) fn ttl(&self) -> Duration {
        self.ttl
    }

    /// The safe deadline that an answer to a keepalive sent at `sent` gives.
    pub(crate) fn safe_until(&self, sent: Instant) -> Instant {
        sent + self.certain(self.ttl).saturating_sub(DEADLINE_MARGIN)
    }

    /// The part of a length measured by a server that is certain on this clock.
    pub(crate) fn certain(&self, length: Duration) -> Duration {
        let allowance = if mutant!(DeadlineWithoutAllowance) { 0.0 } else { self.allowance };
        length.mul_f64(1.0 - allowance)
    }

    /// How long after one keepalive the next is sent.
    pub(crate) fn keepalive_every(&self) -> Duration {
        self.ttl / 4
    }

    /// The instant at which a keepalive is unanswered for TTL/2, if the last answered one was sent
    /// at `sent`: the next one was due a quarter of the TTL after it, whether the client could send
    /// it or not.
    pub(crate) fn jeopardy_from(&self, sent: Instant) -> Instant {
        sent + self.keepalive_every() + self.ttl / 2
    }

    /// How long a keepalive may stay unanswered before the client leaves the stream for another.
    pub(crate) fn silence_limit(&self) -> Duration {
        self.keepalive_every().max(Duration::from_millis(500))
    }
}

/// Keepalives and the deadlines that follow from their answers.
#[derive(Debug)]
pub(crate) struct Lease {
    timing: LeaseTiming,
    span: Arc<Span>,
    /// Send time of the last keepalive that was answered.
    renewed: Option<Instant>,
    /// Sent on this stream and not answered, oldest first. At most one per quarter of the TTL, and
    /// dropped with the stream, so a handful.
    unanswered: VecDeque<(u64, Instant)>,
    next_seq: u64,
    next_due: Instant,
    /// Keepalives are due at instants that all sessions of this process with the same TTL share.
    is_aligned: bool,
}

impl Lease {
    pub(crate) fn new(timing: LeaseTiming) -> Self {
        Self {
            timing,
            span: Span::ended(),
            renewed: None,
            unanswered: VecDeque::new(),
            next_seq: 1,
            next_due: Instant::from_origin(Duration::ZERO),
            is_aligned: false,
        }
    }

    /// Makes keepalives due at instants that the sessions of this process share, so that they can be sent
    /// together: multiples of half their distance. Each is at most that much earlier than it need be, and
    /// only the first is earlier at all.
    pub(crate) fn align(&mut self) {
        self.is_aligned = true;
    }

    /// When the keepalive after one sent at `sent` is due.
    fn due_after(&self, sent: Instant) -> Instant {
        let due = sent + self.timing.keepalive_every();
        let step = self.timing.keepalive_every() / 2;
        if !self.is_aligned || step.is_zero() {
            return due;
        }
        let past = due.since_origin().as_nanos() % step.as_nanos();
        due - Duration::from_nanos(u64::try_from(past).unwrap_or_default())
    }

    pub(crate) fn timing(&self) -> LeaseTiming {
        self.timing
    }

    /// Takes over the TTL from the server, which may be the server's default.
    pub(crate) fn set_ttl(&mut self, ttl: Duration) {
        self.timing = LeaseTiming::new(ttl, self.timing.allowance);
    }

    pub(crate) fn span(&self) -> &Arc<Span> {
        &self.span
    }

    pub(crate) fn next_due(&self) -> Instant {
        self.next_due
    }

    /// When the oldest unanswered keepalive, or else the next one, has been unanswered for too
    /// long.
    pub(crate) fn silent_from(&self) -> Instant {
        let oldest = self.unanswered.front().map_or(self.next_due, |(_, sent)| *sent);
        oldest + self.timing.silence_limit()
    }

    /// When the watchdog has to check again: jeopardy, then the safe deadline.
    pub(crate) fn next_alarm(&self, now: Instant) -> Option<Instant> {
        let deadline = self.span.deadline()?;
        let jeopardy = self.renewed.map(|sent| self.timing.jeopardy_from(sent));
        Some(jeopardy.filter(|at| *at > now).map_or(deadline, |at| at.min(deadline)))
    }

    /// Whether a keepalive has been unanswered for TTL/2.
    pub(crate) fn in_jeopardy(&self, now: Instant) -> bool {
        self.renewed.is_some_and(|sent| now >= self.timing.jeopardy_from(sent))
    }

    /// Records a keepalive that is about to be queued. `now` is its send time, so the caller reads
    /// the clock before it queues the keepalive (DESIGN §5.4). Returns its seq.
    pub(crate) fn send_keepalive(&mut self, now: Instant) -> u64 {
        let again = if mutant!(SeqSentAgain) { self.unanswered.pop_front() } else { None };
        let seq = again.map_or(self.next_seq, |(seq, _)| seq);
        self.next_seq = self.next_seq.max(seq + 1);
        self.unanswered.push_back((seq, now));
        self.next_due = self.due_after(now);
        seq
    }

    /// Keepalive `seq` gets no answer: another one is due at once, under a number of its own.
    pub(crate) fn send_again(&mut self, seq: u64, now: Instant) {
        let before = self.unanswered.len();
        self.unanswered.retain(|(sent, _)| *sent != seq);
        if self.unanswered.len() < before {
            self.next_due = self.next_due.min(now);
        }
    }

    /// The send time of keepalive `seq`. Its answer also answers all earlier keepalives. `None` for
    /// a seq that is not outstanding.
    pub(crate) fn answered(&mut self, seq: u64) -> Option<Instant> {
        let at = self.unanswered.iter().position(|(sent, _)| *sent == seq)?;
        let (_, sent) = self.unanswered.drain(..=at).next_back()?;
        Some(sent)
    }

    /// Drops the unanswered keepalives: their stream is gone.
    pub(crate) fn forget_unanswered(&mut self) {
        self.unanswered.clear();
    }

    /// Moves the next keepalive to `at`, if it is due later. Does nothing while a keepalive is
    /// under way.
    pub(crate) fn hurry(&mut self, at: Instant) {
        if self.unanswered.is_empty() {
            self.next_due = self.next_due.min(at);
        }
    }

    /// Records the answer to an Open sent at `sent`, which counts as a keepalive.
    pub(crate) fn opened(&mut self, sent: Instant) {
        self.next_due = self.due_after(sent);
    }

    /// Applies an answer to a frame sent at `sent`. If the span is over, a new one begins; holds of
    /// the old one stay lost.
    pub(crate) fn renew(&mut self, sent: Instant, clock: &dyn Clock) {
        let sent = if mutant!(DeadlineFromReceipt) { clock.now() } else { sent };
        self.renewed = self.renewed.max(Some(sent));
        let safe_until = self.timing.safe_until(sent);
        if !self.span.extend(safe_until, clock) && clock.now() < safe_until {
            self.span = Span::new(safe_until);
        }
    }

    /// Ends the session's lease: nothing is safe, and the next session starts without one.
    pub(crate) fn end(&mut self) {
        self.span.end();
        self.renewed = None;
        self.unanswered.clear();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    const TTL: Duration = Duration::from_secs(10);

    fn at(ms: u64) -> Instant {
        Instant::from_origin(Duration::from_millis(ms))
    }

    struct SetClock(AtomicU64);

    impl Clock for SetClock {
        fn now(&self) -> Instant {
            at(self.0.load(Ordering::Relaxed))
        }
        fn wall_ms(&self) -> u64 {
            0
        }
        fn sleep_until(&self, _at: Instant) -> holdfast_runtime::BoxFuture<'static, ()> {
            Box::pin(std::future::pending())
        }
        fn watchdog(&self, _on_due: Arc<dyn Fn() + Send + Sync>) -> holdfast_runtime::Watchdog {
            unreachable!("no test here needs one")
        }
    }

    fn clock(ms: u64) -> SetClock {
        SetClock(AtomicU64::new(ms))
    }

    /// DESIGN §5.4 with its defaults: 10 s less a tenth less 20 ms.
    #[test]
    fn the_safe_deadline_is_the_send_time_plus_the_ttl_less_allowance_and_margin() {
        let timing = LeaseTiming::new(TTL, 0.1);

        assert_eq!(timing.safe_until(at(1_000)), at(1_000 + 9_000 - 20));
        assert_eq!(LeaseTiming::new(TTL, 0.25).safe_until(at(0)), at(7_480));
    }

    #[test]
    fn an_answer_counts_from_when_its_keepalive_was_sent_not_from_when_it_came() {
        let clock = clock(1_000);
        let mut lease = Lease::new(LeaseTiming::new(TTL, 0.1));
        let seq = lease.send_keepalive(at(1_000));
        clock.0.store(4_000, Ordering::Relaxed);

        let sent = lease.answered(seq).expect("it is outstanding");
        lease.renew(sent, &clock);

        assert_eq!(lease.span().deadline(), Some(at(9_980)));
    }

    #[test]
    fn no_seq_is_given_out_twice_not_even_over_streams() {
        let mut lease = Lease::new(LeaseTiming::new(TTL, 0.1));
        let first = lease.send_keepalive(at(1));
        lease.forget_unanswered();
        let second = lease.send_keepalive(at(2));
        lease.end();
        let third = lease.send_keepalive(at(3));

        assert!(first < second && second < third);
        assert_eq!(lease.answered(first), None, "the answer of an older stream counts for nothing");
    }

    #[test]
    fn the_highest_answered_seq_answers_all_before_it() {
        let mut lease = Lease::new(LeaseTiming::new(TTL, 0.1));
        let first = lease.send_keepalive(at(1));
        let second = lease.send_keepalive(at(2));

        assert!(first < second, "the first is not answered, and its number is not sent again");
        assert_eq!(lease.answered(second), Some(at(2)));
        assert_eq!(lease.answered(first), None);
    }

    #[test]
    fn a_late_answer_begins_a_new_span_and_leaves_the_old_one_over() {
        let clock = clock(1_000);
        let mut lease = Lease::new(LeaseTiming::new(TTL, 0.1));
        lease.renew(at(1_000), &clock);
        let old = lease.span().clone();
        clock.0.store(9_990, Ordering::Relaxed);

        lease.renew(at(3_500), &clock);

        assert!(!old.is_alive(&clock));
        assert_eq!(lease.span().deadline(), Some(at(3_500 + 8_980)));
    }

    #[test]
    fn an_answer_older_than_the_last_one_takes_nothing_back() {
        let clock = clock(3_000);
        let mut lease = Lease::new(LeaseTiming::new(TTL, 0.1));
        lease.renew(at(3_000), &clock);
        lease.renew(at(500), &clock);

        assert_eq!(lease.span().deadline(), Some(at(11_980)));
    }

    /// Sessions that were opened at any time send their keepalives at the same instants, and as often as
    /// others.
    #[test]
    fn aligned_keepalives_of_all_sessions_are_due_together_and_no_later_than_else() {
        for opened in [0, 17, 1_249, 1_250, 1_251, 2_499, 7_777] {
            let mut lease = Lease::new(LeaseTiming::new(TTL, 0.1));
            lease.align();
            lease.opened(at(opened));
            assert!(lease.next_due() <= at(opened + 2_500), "{opened}");
            assert!(lease.next_due() > at(opened + 1_249), "{opened}");
            for _ in 0..5 {
                let due = lease.next_due();
                assert_eq!(due.as_millis() % 1_250, 0);
                // The timer is a little late.
                lease.send_keepalive(due + Duration::from_millis(3));
                assert_eq!(lease.next_due(), due + Duration::from_millis(2_500));
            }
        }
    }

    #[test]
    fn a_keepalive_without_an_answer_is_followed_by_another_at_once() {
        let mut lease = Lease::new(LeaseTiming::new(TTL, 0.1));
        let first = lease.send_keepalive(at(1_000));
        lease.send_again(first, at(1_100));
        assert_eq!((lease.next_due(), lease.answered(first)), (at(1_100), None));
        let second = lease.send_keepalive(at(1_100));
        lease.send_again(first, at(1_200));
        assert_eq!(lease.next_due(), at(3_600), "it was followed already");
        assert_eq!(lease.answered(second), Some(at(1_100)));
    }

    #[test]
    fn jeopardy_begins_when_a_keepalive_is_unanswered_for_half_the_ttl() {
        let clock = clock(0);
        let mut lease = Lease::new(LeaseTiming::new(TTL, 0.1));
        lease.renew(at(0), &clock);
        lease.send_keepalive(at(2_500));

        assert!(!lease.in_jeopardy(at(7_499)));
        assert!(lease.in_jeopardy(at(7_500)));
        assert_eq!(lease.next_alarm(at(0)), Some(at(7_500)));
        assert_eq!(lease.next_alarm(at(7_500)), Some(at(8_980)));
    }
}
