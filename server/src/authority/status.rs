//! The status of a scope, for people and for metrics.

use std::time::Duration;

use holdfast_core::ScopeState;
use holdfast_keyspace::authority::AuthorityRow;
use holdfast_runtime::Instant;

use super::machine::AuthorityMachine;
use super::step::{Tally, Trouble};

/// The status of a scope at its leader.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuthorityStatus {
    /// The row as the leader knows it; `None` while it is unknown.
    pub row: Option<AuthorityRow>,
    /// What is left of the leader's authority, if that is of the scope's epoch.
    pub authority: Option<Duration>,
    /// Time since the last bump was sent that was answered as applied.
    pub beat_age: Option<Duration>,
    /// Changes of the row's mode that this leader has seen.
    pub switches: u64,
    /// Switches that it refused, because the epochs are used up.
    pub refused_switches: u64,
    /// What an operator has to repair.
    pub trouble: Option<&'static str>,
}

impl AuthorityStatus {
    pub(super) fn of(machine: &AuthorityMachine, now: Instant, core: Option<ScopeState>) -> Self {
        let right =
            machine.authority().filter(|right| core.is_some_and(|core| core.epoch == right.epoch));
        let left = right.map(|right| right.until.saturating_since(now));
        let Tally { switches, refused } = machine.tally();
        Self {
            row: machine.row(),
            authority: left.filter(|left| !left.is_zero()),
            beat_age: machine.bumped_at().map(|at| now.saturating_since(at)),
            switches,
            refused_switches: refused,
            trouble: machine.trouble().map(|trouble| match trouble {
                Trouble::EpochsEnd => "its epochs are used up: it stays where it is",
                Trouble::RowGone => "its row in the table authority is gone; put it back as it was",
                Trouble::RowOdd => {
                    "its row in the table authority cannot be used; the leader's log says why"
                }
            }),
        }
    }
}
