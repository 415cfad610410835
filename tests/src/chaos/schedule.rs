//! Decides which fault begins when, and when it is undone.

use std::collections::BTreeMap;
use std::time::Duration;

use holdfast_runtime::{Instant, Runtime};

use super::faults::{self, Broken};
use super::kind::{Kind, Takes};
use super::progress::Progress;
use super::pulse::Tenure;
use super::stage::{HeldBack, Stage};
use crate::draw::Draw;

/// The largest number of faults at a time, each of another kind.
const AT_ONCE: usize = 2;
/// Longest time until every fault is undone.
const UNDONE_WITHIN: Duration = Duration::from_mins(3);
/// The interval between two checks for what is due.
const TICK: Duration = Duration::from_millis(50);
/// The interval between two progress lines.
const PROGRESS_EVERY: Duration = Duration::from_secs(10);
/// If killing the leader is the only kind of a run, each kill waits until a new node has led for so
/// long: so the run measures each kill by itself.
const SETTLED_FOR: Duration = Duration::from_millis(1_500);

/// A fault that is over.
#[derive(Clone, Debug)]
pub struct Span {
    /// Its kind.
    pub kind: Kind,
    /// When it began.
    pub from_ns: u64,
    /// When it was undone.
    pub until_ns: u64,
}

/// What was observed of a run besides the histories.
#[derive(Clone, Debug, Default)]
pub struct Observed {
    /// Every fault, in the order in which they ended.
    pub faults: Vec<Span>,
    /// Every leader.
    pub tenures: Vec<Tenure>,
    /// Spans without a node that led and served.
    pub leaderless: Vec<(u64, u64)>,
    /// The packets that were held back.
    pub held: Vec<HeldBack>,
    /// The results of faults with several possible results, and how often each occurred.
    pub outcomes: BTreeMap<(Kind, String), usize>,
    /// How often each kind was drawn and had no target at that moment.
    pub without_target: BTreeMap<Kind, usize>,
    /// The time in which faults came and went.
    pub chaos: (u64, u64),
}

/// The faults of a run.
#[derive(Debug)]
pub struct Schedule {
    kinds: Vec<Kind>,
    draw: Draw,
    under_way: Vec<(Kind, Broken, Instant, u64)>,
    next: Instant,
    observed: Observed,
    runtime: Runtime,
}

impl Schedule {
    /// Faults of these kinds, the first one soon.
    pub fn new(kinds: Vec<Kind>, stage: &mut Stage) -> Self {
        let runtime = Runtime::system();
        let draw = Draw::new(stage.draw.below(u64::MAX));
        let next = runtime.clock.now() + Duration::from_secs(2);
        let observed = Observed { chaos: (stage.recorder.now_ns(), 0), ..Observed::default() };
        Self { kinds, draw, under_way: Vec::new(), next, observed, runtime }
    }

    /// Lets faults come and go until `ends`, then undoes the remaining ones.
    pub async fn work(&mut self, stage: &mut Stage, ends: Instant, say: &dyn Fn(&str)) {
        let mut progress = Progress::default();
        let mut next_line = self.runtime.clock.now() + PROGRESS_EVERY;
        while self.runtime.clock.now() < ends {
            self.undo_what_is_due(stage);
            stage.watch_processes();
            if self.runtime.clock.now() >= self.next {
                self.begin_one(stage).await;
            }
            if self.runtime.clock.now() >= next_line {
                next_line = next_line + PROGRESS_EVERY;
                say(&progress.line(stage, self.observed.faults.len() + self.under_way.len()));
            }
            self.runtime.sleep(TICK).await;
        }
        self.undo_all(stage).await;
        self.observed.chaos.1 = stage.recorder.now_ns();
    }

    async fn begin_one(&mut self, stage: &mut Stage) {
        let free: Vec<Kind> =
            self.kinds.iter().copied().filter(|kind| self.may_begin(*kind, stage)).collect();
        if self.under_way.len() >= AT_ONCE || !self.is_settled(stage) {
            return;
        }
        let Some(kind) = self.draw.one_of(&free) else { return };
        let from_ns = stage.recorder.now_ns();
        let Some(broken) = faults::begin(stage, kind).await else {
            *self.observed.without_target.entry(kind).or_default() += 1;
            return;
        };
        stage.note(&format!("{}: {}", kind.name(), broken.note));
        let until = self.runtime.clock.now() + broken.lasts;
        self.under_way.push((kind, broken, until, from_ns));
        let pause = Duration::from_millis(self.draw.between(500, 4_000));
        self.next = self.runtime.clock.now() + pause;
    }

    /// Only one fault of each kind is active at a time, and only one that needs the same thing for
    /// itself; a majority is left unless the fault is meant to leave none.
    fn may_begin(&self, kind: Kind, stage: &Stage) -> bool {
        let minority = stage.minority();
        let taken = |kind: Kind| match kind.takes() {
            Takes::Nobody => 0,
            Takes::One => 1,
            // No further node is taken besides those.
            Takes::Minority | Takes::Majority => minority,
        };
        let others = self.under_way.iter().map(|(other, ..)| *other);
        let alone = others
            .clone()
            .all(|other| other != kind && (kind.sole().is_none() || other.sole() != kind.sole()));
        let down: usize = others.map(taken).sum();
        alone && (taken(kind) == 0 || down + taken(kind) <= minority)
    }

    /// Where only leaders are killed, one kill has to be over before the next.
    fn is_settled(&self, stage: &Stage) -> bool {
        if self.kinds != [Kind::KillLeader] {
            return true;
        }
        let settled = u64::try_from(SETTLED_FOR.as_nanos()).unwrap_or(u64::MAX);
        let leads_since = stage.pulse.tenures().last().map_or(u64::MAX, |tenure| tenure.from_ns);
        let undone = self.observed.faults.last().map_or(0, |span| span.until_ns);
        self.under_way.is_empty()
            && leads_since.max(undone).saturating_add(settled) < stage.recorder.now_ns()
    }

    fn undo_what_is_due(&mut self, stage: &mut Stage) {
        let now = self.runtime.clock.now();
        for fault in
            self.under_way.extract_if(.., |(.., until, _)| *until <= now).collect::<Vec<_>>()
        {
            self.undo(stage, fault);
        }
    }

    async fn undo_all(&mut self, stage: &mut Stage) {
        stage.is_ending = true;
        let give_up = self.runtime.clock.now() + UNDONE_WITHIN;
        for fault in std::mem::take(&mut self.under_way) {
            self.undo(stage, fault);
        }
        while !self.under_way.is_empty() {
            let left: Vec<&Broken> = self.under_way.iter().map(|(_, broken, ..)| broken).collect();
            assert!(self.runtime.clock.now() < give_up, "never undone: {left:?}");
            self.undo_what_is_due(stage);
            self.runtime.sleep(TICK).await;
        }
    }

    fn undo(&mut self, stage: &mut Stage, fault: (Kind, Broken, Instant, u64)) {
        let (kind, broken, _, from_ns) = fault;
        let note = broken.note.clone();
        if let Some(broken) = faults::undo(stage, broken) {
            let again = self.runtime.clock.now() + broken.lasts;
            self.under_way.push((kind, broken, again, from_ns));
            return;
        }
        stage.note(&format!("over: {}: {note}", kind.name()));
        let until_ns = stage.recorder.now_ns();
        self.observed.faults.push(Span { kind, from_ns, until_ns });
    }

    /// Adds what `stage` observed of leaders and of the results of the faults.
    pub fn note_what_was_seen(&mut self, stage: &Stage) {
        self.observed.held.clone_from(&stage.held);
        self.observed.outcomes.clone_from(&stage.outcomes);
        self.observed.tenures = stage.pulse.tenures();
        self.observed.leaderless = stage.pulse.leaderless();
    }

    /// The observations.
    pub fn observed(&self) -> &Observed {
        &self.observed
    }
}
