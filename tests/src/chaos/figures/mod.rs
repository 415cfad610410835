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
/// A run of at least so many minutes has to see each kind of fault.
const LONG_MINUTES: f64 = 60.0;

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
    /// Kinds that were drawn and never had a target, and how often.
    never_possible: BTreeMap<Kind, usize>,
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
            never_possible: never_possible(observed),
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

    /// The kinds of faults that a run of `minutes` had to see and never saw. In an hour each kind that a
    /// machine supports comes several times: one that is drawn again and again and never has a target
    /// waits for something that no longer happens.
    pub fn missed(&self, minutes: f64) -> Vec<String> {
        let long = minutes >= LONG_MINUTES;
        let told = |(kind, times): (&Kind, &usize)| {
            format!("{} was drawn {times} times and was never possible", kind.name())
        };
        self.never_possible.iter().filter(|_| long).map(told).collect()
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
        let never = |(kind, times): (&Kind, &usize)| {
            (kind.name(), format!("never possible, drawn {times} times"))
        };
        rows.extend(self.never_possible.iter().map(never));
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

/// The kinds that were drawn, but never began.
fn never_possible(observed: &Observed) -> BTreeMap<Kind, usize> {
    let began = |kind: &Kind| observed.faults.iter().any(|fault| fault.kind == *kind);
    let drawn = observed.without_target.iter();
    drawn.filter(|(kind, _)| !began(kind)).map(|(kind, times)| (*kind, *times)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chaos::schedule::Span;
    use crate::check;

    #[test]
    fn a_kind_that_never_had_a_target_is_told_and_fails_a_run_of_an_hour() {
        let observed = Observed {
            faults: vec![Span { kind: Kind::KillLeader, from_ns: 0, until_ns: MS }],
            without_target: BTreeMap::from([(Kind::KillLeader, 3), (Kind::HungDisk, 40)]),
            ..Observed::default()
        };

        let report = check::check(&[], check::Options::default());
        let figures = Figures::of(&[], &[], &report, &observed);

        let never = "never possible, drawn 40 times".to_owned();
        assert!(figures.rows().contains(&("hung-disk".into(), never)));
        assert_eq!(figures.missed(60.0), ["hung-disk was drawn 40 times and was never possible"]);
        assert!(figures.missed(20.0).is_empty());
    }
}
