//! The measurements of a run, from its histories and the harness's observations, and their table.

mod expiries;
mod held;
mod lateness;
mod service;
mod silence;

use std::collections::BTreeMap;

use comfy_table::{Table, presets};

use super::kind::Kind;
use super::schedule::Observed;
use crate::check::{Report, Tally};
use crate::history::{LostCause, Record, What};
use held::HeldAll;
use lateness::Late;
use service::Service;

/// Nanoseconds of a millisecond.
const MS: u64 = 1_000_000;

/// The measurements of a run.
#[derive(Clone, Debug)]
pub struct Figures {
    /// What the judge looked at.
    pub tally: Tally,
    /// What was served while faults came and went.
    pub service: Service,
    /// The faults of each kind, and what was served meanwhile.
    pub faults: BTreeMap<Kind, Service>,
    /// How often another node led, or the same one in a new term.
    pub changes_of_leader: usize,
    /// Holds whose clients learned, by their own clock or from the store, that the lease was over.
    pub holds_lost: usize,
    /// Times without any grant after a leader was killed while no other fault was active,
    /// milliseconds, in order.
    pub silences_ms: Vec<u64>,
    /// How late the locks of killed clients passed on.
    late: Vec<Late>,
    /// What was held back.
    pub held: HeldAll,
    /// The results of faults with several possible results, and how often each occurred.
    pub outcomes: BTreeMap<(Kind, String), usize>,
    /// How late sessions were expired, milliseconds, in order.
    pub expiries_ms: Vec<u64>,
}

impl Figures {
    /// The figures of a run that was judged, and of its nodes' logs.
    pub fn of(history: &[Record], logs: &[String], report: &Report, observed: &Observed) -> Self {
        let (service, faults) = service::of(history, observed);
        let lost = |record: &&Record| {
            let What::Lost { cause, .. } = record.what else { return false };
            cause != LostCause::Closed
        };
        Self {
            tally: report.tally,
            service,
            faults,
            changes_of_leader: observed.tenures.len().saturating_sub(1),
            holds_lost: history.iter().filter(lost).count(),
            silences_ms: silence::after_kills(history, observed),
            held: HeldAll::of(observed),
            outcomes: observed.outcomes.clone(),
            expiries_ms: expiries::in_logs(logs),
            late: lateness::of_killed_clients(history, observed),
        }
    }

    /// The number of faults.
    pub fn faults(&self) -> usize {
        self.faults.values().map(|service| service.spans).sum()
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
        let mut rows = vec![
            row("grants", self.tally.grants.to_string()),
            row("under faults", self.service.told()),
            row("looked at", format!("{:?}", self.tally)),
        ];
        let fault = |(kind, service): (&Kind, &Service)| {
            (kind.name(), format!("{} times, {}", service.spans, service.told()))
        };
        rows.extend(self.faults.iter().map(fault));
        let outcome = |((kind, what), times): (&(Kind, String), &usize)| {
            (format!("{}: {what}", kind.name()), format!("{times} times"))
        };
        rows.extend(self.outcomes.iter().map(outcome));
        rows.extend([
            row("held back", self.held.told()),
            row("changes of leader", self.changes_of_leader.to_string()),
            row("expiries", expiries::told(&self.expiries_ms)),
            row("holds lost with their lease", self.holds_lost.to_string()),
            row("without grants after a leader's death", silence::told(&self.silences_ms)),
            row("from the end of a dead lease to the next grant", lateness::told(&self.late)),
        ]);
        rows
    }
}
