//! What a run measured, from its histories and what the harness saw, and the table of it.

mod lateness;
mod silence;

use std::collections::BTreeMap;

use comfy_table::{Table, presets};

use super::kind::Kind;
use super::schedule::Observed;
use crate::check::{Report, Tally};
use crate::history::{LostCause, Record, What};
use lateness::Late;

/// Nanoseconds of a millisecond.
const MS: u64 = 1_000_000;

/// What a run measured.
#[derive(Clone, Debug)]
pub struct Figures {
    /// What the judge looked at.
    pub tally: Tally,
    /// How many faults of each kind there were.
    pub faults: BTreeMap<Kind, usize>,
    /// How often somebody else led, or the same one anew.
    pub changes_of_leader: usize,
    /// Holds whose clients were told that their lease had run out.
    pub holds_expired: usize,
    /// Times without any grant after a leader was killed while nothing else was broken,
    /// milliseconds, in order.
    pub silences_ms: Vec<u64>,
    /// How late the locks of killed clients passed on.
    late: Vec<Late>,
    /// For how long faults came and went, seconds.
    seconds: u64,
}

impl Figures {
    /// Of a run that was judged.
    pub fn of(history: &[Record], report: &Report, observed: &Observed) -> Self {
        let mut faults = BTreeMap::new();
        for fault in &observed.faults {
            *faults.entry(fault.kind).or_default() += 1;
        }
        let expired = |record: &&Record| {
            matches!(record.what, What::Lost { cause: LostCause::Expired | LostCause::Gone, .. })
        };
        Self {
            tally: report.tally,
            faults,
            changes_of_leader: observed.tenures.len().saturating_sub(1),
            holds_expired: history.iter().filter(expired).count(),
            silences_ms: silence::after_kills(history, observed),
            late: lateness::of_killed_clients(history, observed),
            seconds: (observed.chaos.1.saturating_sub(observed.chaos.0)) / (1_000 * MS),
        }
    }

    /// How many faults there were.
    pub fn faults(&self) -> usize {
        self.faults.values().sum()
    }

    /// Locks of dead clients that passed on later than DESIGN §5.3 allows (I7).
    pub fn too_late(&self) -> Vec<String> {
        self.late.iter().filter(|late| late.is_too_late()).map(ToString::to_string).collect()
    }

    /// The table.
    pub fn table(&self, violations: usize) -> String {
        let mut table = Table::new();
        table.load_style(presets::NOTHING);
        for (what, figure) in self.rows() {
            table.add_row([what, figure]);
        }
        table.add_row(["violations".to_owned(), violations.to_string()]);
        table.trim_fmt()
    }

    fn rows(&self) -> Vec<(String, String)> {
        let row = |what: &str, figure: String| (what.to_owned(), figure);
        let per_second = self.tally.grants as u64 / self.seconds.max(1);
        let mut rows = vec![
            row("grants", format!("{} ({per_second} a second)", self.tally.grants)),
            row("looked at", format!("{:?}", self.tally)),
        ];
        rows.extend(self.faults.iter().map(|(kind, count)| (kind.name(), count.to_string())));
        rows.extend([
            row("changes of leader", self.changes_of_leader.to_string()),
            row("holds whose lease ran out, told", self.holds_expired.to_string()),
            row("locks of killed clients that passed on", self.late.len().to_string()),
            row("without grants after a leader's death", silence::told(&self.silences_ms)),
            row("lateness of expiry", lateness::told(&self.late)),
        ]);
        rows
    }
}
