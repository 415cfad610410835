//! Authority over scopes: how long a hold of a name in a scope with fallback is safe, whatever its
//! session's lease says (DESIGN §10).
//!
//! # Invariants
//!
//! - The rest of an authority counts from the *send* time of the answered keepalive, less the
//!   allowance for clock rates and [`DEADLINE_MARGIN`] (`CoverFromSendTime`).
//! - It counts for tokens of its own epoch, and for no others (`CoverOfOwnEpoch`). Epochs only
//!   rise.
//! - A scope bounds holds until an answer to a later keepalive leaves it out.

use std::collections::BTreeMap;
use std::time::Duration;

use holdfast_mutants::mutant;
use holdfast_proto::v1::ScopeAuthority;
use holdfast_runtime::Instant;

use crate::FencingToken;
use crate::lease::{DEADLINE_MARGIN, LeaseTiming};

/// The longest rest of an authority that counts; a server that reports more is wrong.
const LEFT_MAX: Duration = Duration::from_hours(24);

/// All scopes that the store has reported: at most 16.
#[derive(Debug, Default)]
pub(crate) struct Covers {
    scopes: BTreeMap<String, Cover>,
}

#[derive(Clone, Copy, Debug)]
struct Cover {
    epoch: u64,
    /// How long the authority of that epoch is certain, as far as reported; `None`: it never was.
    until: Option<Instant>,
    /// Send time of the keepalive whose answer reported it last.
    told: Instant,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Covered {
    /// None of its names is in a scope.
    Free,
    /// An authority of its token's epoch covers it until this instant, which may have passed.
    Until(Instant),
    /// No authority covers it, as far as reported; one still may.
    NotYet,
    /// No authority ever will: its epoch is over.
    Over,
}

impl Covers {
    /// Applies the answer to a frame sent at `sent`; it names *all* scopes of the store.
    pub(crate) fn told(&mut self, sent: Instant, named: &[ScopeAuthority], timing: LeaseTiming) {
        self.scopes.retain(|scope, cover| {
            sent <= cover.told || named.iter().any(|told| told.scope == *scope)
        });
        for told in named {
            let left = Duration::from_millis(told.remaining_ms).min(LEFT_MAX);
            let until = (!left.is_zero()).then(|| sent + timing.covered(left));
            let new = Cover { epoch: u64::from(told.epoch), until, told: sent };
            let cover = self.scopes.entry(told.scope.clone()).or_insert(new);
            cover.take_in(new);
        }
    }

    /// Whether the store names this scope.
    pub(crate) fn name(&self, scope: &str) -> bool {
        self.scopes.contains_key(scope)
    }

    /// What the scopes mean for a hold of these names under `token`.
    pub(crate) fn of<'a>(
        &self,
        names: impl Iterator<Item = &'a str> + Clone,
        token: FencingToken,
    ) -> Covered {
        let mut covered = Covered::Free;
        for cover in self.bounding(names) {
            covered = match (covered, cover.of(token.epoch())) {
                (Covered::Over, _) | (_, Covered::Over) => Covered::Over,
                (Covered::NotYet, _) | (_, Covered::NotYet) => Covered::NotYet,
                (Covered::Until(one), Covered::Until(other)) => Covered::Until(one.min(other)),
                (Covered::Free, other) | (other, Covered::Free) => other,
            };
        }
        covered
    }

    /// Whether the store may grant these names at `now`, as far as reported.
    pub(crate) fn are_served<'a>(
        &self,
        names: impl Iterator<Item = &'a str> + Clone,
        now: Instant,
    ) -> bool {
        self.bounding(names).all(|cover| cover.until.is_some_and(|until| now < until))
    }

    /// The scopes that contain any of the names.
    fn bounding<'a>(
        &self,
        names: impl Iterator<Item = &'a str> + Clone,
    ) -> impl Iterator<Item = &Cover> {
        self.scopes.iter().filter_map(move |(scope, cover)| {
            names.clone().any(|name| name.starts_with(scope.as_str())).then_some(cover)
        })
    }

    /// Drops all scopes at the end of a session; the next session learns them again.
    pub(crate) fn forget(&mut self) {
        self.scopes.clear();
    }
}

impl Cover {
    fn take_in(&mut self, new: Self) {
        self.told = self.told.max(new.told);
        if new.epoch > self.epoch {
            *self = new;
        } else if new.epoch == self.epoch {
            // The earlier report was true: a later one does not shorten it.
            self.until = self.until.max(new.until);
        }
    }

    fn of(self, epoch: u64) -> Covered {
        let own = epoch == self.epoch || mutant!(CoverOfAnyEpoch);
        match self.until {
            Some(until) if own => Covered::Until(until),
            _ if epoch < self.epoch => Covered::Over,
            _ => Covered::NotYet,
        }
    }
}

impl LeaseTiming {
    /// The certain part of an authority's rest, counted from the send time of the keepalive.
    fn covered(&self, left: Duration) -> Duration {
        self.certain(left).saturating_sub(DEADLINE_MARGIN)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Instant {
        Instant::from_origin(Duration::from_millis(ms))
    }

    fn told(scope: &str, epoch: u32, remaining_ms: u64) -> ScopeAuthority {
        ScopeAuthority { scope: scope.to_owned(), epoch, remaining_ms }
    }

    fn token(epoch: u64) -> FencingToken {
        FencingToken::from_raw(epoch << 48 | 7)
    }

    struct World(Covers);

    impl World {
        fn hears(&mut self, sent: Instant, named: &[ScopeAuthority]) {
            self.0.told(sent, named, LeaseTiming::new(Duration::from_secs(10), 0.1));
        }

        fn of(&self, name: &str, epoch: u64) -> Covered {
            self.0.of([name].into_iter(), token(epoch))
        }
    }

    fn world() -> World {
        World(Covers::default())
    }

    #[test]
    fn an_authority_counts_from_the_send_time_less_allowance_and_margin_and_only_in_its_scope() {
        let mut world = world();
        world.hears(at(1_000), &[told("orders/", 3, 10_000)]);

        assert_eq!(world.of("orders/1", 3), Covered::Until(at(1_000 + 9_000 - 20)));
        assert_eq!(world.of("jobs", 3), Covered::Free);
    }

    #[test]
    fn it_counts_for_tokens_of_its_own_epoch() {
        let mut world = world();
        world.hears(at(0), &[told("orders/", 3, 10_000)]);

        assert_eq!(world.of("orders/1", 2), Covered::Over);
        assert_eq!(world.of("orders/1", 4), Covered::NotYet, "it may have been told late");
    }

    #[test]
    fn one_without_anything_left_covers_nothing_and_takes_nothing_back() {
        let mut world = world();
        world.hears(at(0), &[told("orders/", 3, 0)]);
        assert_eq!(world.of("orders/1", 3), Covered::NotYet);

        world.hears(at(1_000), &[told("orders/", 3, 10_000)]);
        world.hears(at(2_000), &[told("orders/", 3, 0)]);
        assert_eq!(world.of("orders/1", 3), Covered::Until(at(9_980)));
    }

    #[test]
    fn an_earlier_epoch_told_late_covers_nothing() {
        let mut world = world();
        world.hears(at(0), &[told("orders/", 5, 10_000)]);
        world.hears(at(1_000), &[told("orders/", 3, 10_000)]);

        assert_eq!(world.of("orders/1", 3), Covered::Over);
        assert_eq!(world.of("orders/1", 5), Covered::Until(at(8_980)));
    }

    #[test]
    fn a_scope_bounds_until_an_answer_to_a_later_keepalive_leaves_it_out() {
        let mut world = world();
        world.hears(at(1_000), &[told("orders/", 3, 10_000)]);
        world.hears(at(1_000), &[]);
        assert_ne!(world.of("orders/1", 3), Covered::Free);

        world.hears(at(1_001), &[]);
        assert_eq!(world.of("orders/1", 3), Covered::Free);
    }

    /// The core grants no such set; a set from before the scopes were made may still be held.
    #[test]
    fn a_set_over_two_scopes_is_covered_while_both_cover_it() {
        let mut world = world();
        world.hears(at(0), &[told("a/", 3, 10_000), told("b/", 3, 5_000)]);
        let set = ["a/1", "b/1"];

        let covered = world.0.of(set.into_iter(), token(3));
        assert_eq!(covered, Covered::Until(at(4_480)));
        assert!(world.0.are_served(set.into_iter(), at(4_479)));
        assert!(!world.0.are_served(set.into_iter(), at(4_480)));
        world.hears(at(100), &[told("a/", 3, 10_000), told("b/", 4, 5_000)]);
        assert_eq!(world.0.of(set.into_iter(), token(3)), Covered::Over);
    }

    #[test]
    fn numbers_beyond_reason_do_no_harm() {
        let mut world = world();
        world.hears(at(0), &[told("", u32::MAX, u64::MAX)]);

        assert_eq!(world.of("any", 1), Covered::Over);
    }
}
