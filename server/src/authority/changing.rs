//! Which W and V a bump writes: those of the leader's settings, as soon as that harms nobody.
//!
//! Clients go by the row, and have no settings of their own. Leaders have, and may differ: after a change
//! of the settings they do, for as long as it takes to restart them one by one.
//!
//! # Invariants
//!
//! - A leader counts its authority by its own W, and the row that a bump of its leaves has no shorter one.
//! - All authority there is was counted by a W that is no longer than the row's.
//! - While a hold in Cassandra may be safe, the row has the V that it was counted by.
//!
//! # Why they hold
//!
//! - **A longer W** stands from the bump on that writes it. Whoever waits by the shorter one has read the
//!   row before, and changes it only if it is still what was read.
//! - **A shorter W** is written a longer W after the first of the leader's own bumps in a row, each of which
//!   found what the one before had written. What others had of authority is of bumps before that first one,
//!   and over; nobody has had any since; and the leader has counted its own by the shorter one throughout.
//! - **V** changes where row and core are in one epoch. The core came to it when a leader had waited for all
//!   holds of before, and there are none since: they begin with a take-over, in an epoch above.

use holdfast_cassandra::authority::{AuthorityRow, Durations};
use holdfast_core::ScopeState;
use holdfast_mutants::mutant;
use holdfast_seams::Moment;

/// See the module.
#[derive(Debug)]
pub(super) struct Changing {
    own: Durations,
    /// When the first of the bumps in a row was answered, since which nobody else wrote.
    alone_since: Option<Moment>,
}

impl Changing {
    /// Nothing is known of who else writes.
    pub(super) fn new(own: Durations) -> Self {
        Self { own, alone_since: None }
    }

    /// A bump was answered as applied: it found what this leader knew.
    pub(super) fn bumped(&mut self, ended: Moment) {
        self.alone_since.get_or_insert(ended);
    }

    /// The row had to be read: somebody else may have written it. (`ShorterWAlone`)
    pub(super) fn not_alone(&mut self) {
        if !mutant!(ShorterWBesideOthers) {
            self.alone_since = None;
        }
    }

    /// W and V of a bump that is sent now to follow `row`.
    pub(super) fn in_a_bump(&self, now: Moment, core: ScopeState, row: AuthorityRow) -> Durations {
        let (own, was) = (self.own, row.durations);
        // `VStands`.
        let may_change_v = row.epoch == core.epoch || mutant!(VChangesAnyTime);
        let v = if may_change_v { own } else { was };
        let w = if own.take_over_wait() >= was.take_over_wait() {
            // `RowWCoversAuthority`.
            if mutant!(RowWBelowAuthority) { was } else { own }
        } else if self.longer_is_over(now, was) {
            own
        } else {
            was
        };
        Durations::of(w, v)
    }

    /// Whether no authority is left that was counted by a W above the own one. (`ShorterWWaits`)
    fn longer_is_over(&self, now: Moment, longer: Durations) -> bool {
        let over = self.alone_since.map(|since| since + longer.take_over_wait());
        over.is_some_and(|over| over <= now) || mutant!(ShorterWAtOnce)
    }
}
