//! Which W and V a bump writes: those of the leader's settings, as soon as that is safe for all clients.
//!
//! Clients go by the row and have no settings of their own. Leaders have settings, and these may differ:
//! after a change of the settings they do, for as long as it takes to restart the leaders one by one.
//!
//! # Invariants
//!
//! - A leader counts its authority by its own W, and the row after one of its bumps has no shorter W.
//! - All existing authority was counted by a W that is no longer than the row's.
//! - While a hold in Cassandra may be safe, the row has the V by which that hold was counted.
//!
//! # Why they hold
//!
//! - **A longer W** is in force from the bump on that writes it. A client that waits by the shorter W
//!   has read the row before, and changes it only if it is still what that client read.
//! - **A shorter W** is written one longer W after the first of the leader's own consecutive bumps, each
//!   of which found what the one before had written. Other leaders got their authority by bumps before
//!   that first one, so it is over; no other leader has got any since; and this leader has counted its
//!   own by the shorter W throughout.
//! - **V** changes only where row and core are in one epoch. The core came to that epoch after a leader
//!   had waited for all earlier holds, and there are none since: holds begin with a take-over, in a
//!   higher epoch.

use holdfast_core::ScopeState;
use holdfast_keyspace::authority::{AuthorityRow, Durations};
use holdfast_mutants::mutant;
use holdfast_runtime::Instant;

/// Decides which W and V the next bump writes; see the module.
#[derive(Debug)]
pub(super) struct Changing {
    own: Durations,
    /// The end of the first of this leader's consecutive bumps: since then no other process has written
    /// the row.
    alone_since: Option<Instant>,
}

impl Changing {
    /// Begins without knowing which other processes write the row.
    pub(super) fn new(own: Durations) -> Self {
        Self { own, alone_since: None }
    }

    /// A bump was answered as applied: the row was as this leader knew it.
    pub(super) fn bumped(&mut self, ended: Instant) {
        self.alone_since.get_or_insert(ended);
    }

    /// The row had to be read: another process may have written it. (`ShorterWAlone`)
    pub(super) fn not_alone(&mut self) {
        if !mutant!(ShorterWBesideOthers) {
            self.alone_since = None;
        }
    }

    /// W and V of a bump that is sent now to follow `row`.
    pub(super) fn in_a_bump(&self, now: Instant, core: ScopeState, row: AuthorityRow) -> Durations {
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

    /// Whether no authority is left that was counted by a W longer than this leader's. (`ShorterWWaits`)
    fn longer_is_over(&self, now: Instant, longer: Durations) -> bool {
        let over = self.alone_since.map(|since| since + longer.take_over_wait());
        over.is_some_and(|over| over <= now) || mutant!(ShorterWAtOnce)
    }
}
