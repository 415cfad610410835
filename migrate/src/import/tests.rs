//! Imports into a store in memory: lost answers, killed runs, slow answers.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use holdfast::{FencingToken, ImportGroup, ImportOutcome, ImportedState, RefusalReason};
use holdfast_runtime::{Runtime, simulated};
use tokio::sync::mpsc;

use super::*;
use crate::layout::{Cell, ColumnCell, LeaseRow, LockRows, Raw, Said};
use crate::plan::Rules;
use crate::scan::ScanMessage;

/// The fate of a request.
#[derive(Clone, Debug)]
enum Fate {
    /// The request takes effect, and its answer arrives.
    Answered,
    /// The request takes effect, and its answer is lost.
    AnswerLost,
    /// This many of its groups take effect, and no answer arrives.
    Torn(usize),
    /// The request does not arrive.
    Lost,
    /// The store refuses it.
    Refused,
}

/// For each lock the owners: its holder, then its queue in order.
type Lines = BTreeMap<String, Vec<String>>;

/// A store in memory that answers like the real one, and fails as a test plans it.
#[derive(Debug, Default)]
struct Memory(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    lines: Lines,
    /// The fates of the next requests; [`Fate::Answered`] when none is left.
    fates: VecDeque<Fate>,
    /// All groups that took effect, with the lease that each brought.
    leases: Vec<(String, u64)>,
    token: u64,
    requests: usize,
}

impl Memory {
    fn with(fates: impl IntoIterator<Item = Fate>) -> Self {
        let state = State { fates: fates.into_iter().collect(), ..State::default() };
        Self(Mutex::new(state))
    }

    fn plan_fates(&self, fates: impl IntoIterator<Item = Fate>) {
        self.lock().fates = fates.into_iter().collect();
    }

    fn lines(&self) -> Lines {
        self.lock().lines.clone()
    }

    fn leases(&self) -> Vec<(String, u64)> {
        self.lock().leases.clone()
    }

    fn requests(&self) -> usize {
        self.lock().requests
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn apply(&mut self, groups: &[ImportGroup]) -> Vec<Vec<ImportOutcome>> {
        groups.iter().map(|group| self.apply_group(group)).collect()
    }

    fn apply_group(&mut self, group: &ImportGroup) -> Vec<ImportOutcome> {
        let remaining_ms = u64::try_from(group.remaining.as_millis()).unwrap();
        self.leases.push((group.owner.clone(), remaining_ms));
        let mut outcomes = Vec::new();
        for row in &group.rows {
            let line = self.lines.entry(row.name.clone()).or_default();
            outcomes.push(match (line.first(), &row.has) {
                _ if line.contains(&group.owner) => ImportOutcome::Known,
                (None, ImportedState::Place) => refused("nobody holds it".into()),
                (Some(holder), ImportedState::Hold { .. }) => refused(format!("held by {holder}")),
                (None, ImportedState::Hold { .. }) => {
                    line.push(group.owner.clone());
                    self.token += 1;
                    ImportOutcome::Held { token: FencingToken::from_raw(self.token) }
                }
                (Some(_), ImportedState::Place) => {
                    line.push(group.owner.clone());
                    ImportOutcome::Queued { place: 0 }
                }
            });
        }
        outcomes
    }
}

fn refused(message: String) -> ImportOutcome {
    ImportOutcome::Refused { reason: RefusalReason::Invalid, message }
}

impl Importer for &Memory {
    async fn cluster(&self) -> Result<String, Fault> {
        Ok("memory".into())
    }

    async fn import(&self, groups: &[ImportGroup]) -> Result<Vec<Vec<ImportOutcome>>, Fault> {
        let mut state = self.lock();
        state.requests += 1;
        let lost = || Err(Fault::Unknown("no answer".into()));
        match state.fates.pop_front().unwrap_or(Fate::Answered) {
            Fate::Answered => Ok(state.apply(groups)),
            Fate::AnswerLost => {
                state.apply(groups);
                lost()
            }
            Fate::Torn(at) => {
                state.apply(&groups[..at.min(groups.len())]);
                lost()
            }
            Fate::Lost => lost(),
            Fate::Refused => Err(Fault::Refused("not now".into())),
        }
    }
}

fn lease(lock: &str, owner: &str, left_s: i32) -> LockRows {
    let value = Raw::Text(owner.into());
    let owner = Some(Cell { value, left_s: Some(left_s), written_us: None });
    LockRows { lock: Raw::Text(lock.into()), said: Said::Lease(LeaseRow { owner, value: None }) }
}

/// A lock held by `h`, with this many waiters.
fn queue(lock: &str, waiters: usize) -> LockRows {
    let cell = |column: String| ColumnCell {
        column: Raw::Text(column),
        cell: Some(Cell { value: Raw::Text("x".into()), left_s: Some(600), written_us: None }),
    };
    let waiting = (0..waiters).map(|at| cell(format!("{at:020}w{at}"))).collect();
    let said = Said::Queue { main: vec![cell("h".into())], queue: waiting };
    LockRows { lock: Raw::Text(lock.into()), said }
}

fn runtime() -> Runtime {
    simulated::runtime(1, 0)
}

fn rules() -> Rules {
    Rules::new("", Duration::from_mins(3))
}

/// Records the ranges that are done, and ends the import after `killed_after` of them.
#[derive(Default)]
struct Recorded {
    done: BTreeSet<usize>,
    killed_after: Option<usize>,
}

impl Recorded {
    fn note(&mut self, report: ImportReport) -> Result<(), String> {
        let ImportReport::Range { index: range } = report else { return Ok(()) };
        self.done.insert(range);
        match self.killed_after {
            Some(ranges) if self.done.len() >= ranges => Err("killed".into()),
            _ => Ok(()),
        }
    }
}

/// Runs an import of ranges of locks, two locks per [`ScanMessage`], without the ranges that are done.
async fn run(
    memory: &Memory,
    ranges: &[Vec<LockRows>],
    recorded: &mut Recorded,
    at_once: usize,
    runtime: &Runtime,
) -> Result<Sum, SendError> {
    let (tell, told) = mpsc::channel(2);
    let read_at = runtime.clock.now();
    let done = recorded.done.clone();
    let telling = async move {
        for (range, locks) in ranges.iter().enumerate().filter(|(range, _)| !done.contains(range)) {
            let mut news = 0;
            for locks in locks.chunks(2) {
                news += 1;
                let _ =
                    tell.send(ScanMessage::Locks { range, locks: locks.to_vec(), read_at }).await;
            }
            let _ = tell.send(ScanMessage::Done { range, news }).await;
        }
    };
    let import = Import::new(memory, rules(), Pace::new(None), at_once, runtime.clone());
    let mut note = |report| recorded.note(report);
    let (sum, ()) = futures_util::future::join(import.run(told, &mut note), telling).await;
    sum
}

fn ranges() -> Vec<Vec<LockRows>> {
    let range = |range: usize| {
        let leases = (0..5).map(|at| lease(&format!("{range}/{at}"), &format!("o{}", at % 2), 60));
        leases.chain([queue(&format!("{range}/q"), 3)]).collect()
    };
    (0..4).map(range).collect()
}

fn expected_lines() -> BTreeSet<(String, Vec<String>)> {
    let owners = |owners: &[&str]| owners.iter().map(|owner| (*owner).to_owned()).collect();
    let of_range = |range: usize| {
        let leases = (0..5).map(move |at| (format!("{range}/{at}"), vec![format!("o{}", at % 2)]));
        leases.chain([(format!("{range}/q"), owners(&["h", "w0", "w1", "w2"]))])
    };
    (0..4).flat_map(of_range).collect()
}

fn lines(memory: &Memory) -> BTreeSet<(String, Vec<String>)> {
    memory.lines().into_iter().collect()
}

#[tokio::test(start_paused = true)]
async fn rows_become_holds_and_lines_and_again_nothing_more() {
    let memory = Memory::default();
    let (mut recorded, runtime) = (Recorded::default(), runtime());
    let sum = run(&memory, &ranges(), &mut recorded, 4, &runtime).await.unwrap();

    assert_eq!((sum.imported, sum.queued, sum.already_there, sum.refused), (24, 12, 0, 0));
    assert_eq!(lines(&memory), expected_lines());
    assert_eq!(recorded.done, BTreeSet::from([0, 1, 2, 3]));

    let again = run(&memory, &ranges(), &mut Recorded::default(), 4, &runtime).await.unwrap();
    assert_eq!((again.imported, again.queued, again.already_there), (0, 0, 36));
    assert_eq!(lines(&memory), expected_lines());
}

/// Each request meets each fate, twice in a row; the line has more rows than a request takes.
#[tokio::test(start_paused = true)]
async fn a_request_without_an_answer_is_sent_again_and_doubles_nothing() {
    let fates = [Fate::AnswerLost, Fate::Lost, Fate::Torn(1), Fate::Torn(3), Fate::Torn(700)];
    let ranges = vec![vec![queue("long", 1_250), lease("short", "o", 600)]];
    for fate in fates {
        for before in 0..4 {
            let fates = (0..before).map(|_| Fate::Answered).chain([fate.clone(), fate.clone()]);
            let (memory, runtime) = (Memory::with(fates), runtime());
            let sum = run(&memory, &ranges, &mut Recorded::default(), 4, &runtime).await.unwrap();
            let line = &memory.lines()["long"];
            let in_order = line[0] == "h"
                && line[1..].iter().enumerate().all(|(at, owner)| *owner == format!("w{at}"));
            assert!(in_order && line.len() == 1_251, "{fate:?} after {before}: {line:?}");
            assert_eq!(sum.imported + sum.queued + sum.already_there, 1_252, "{fate:?} {before}");
            assert_eq!(memory.lines()["short"], ["o"]);
        }
    }
}

/// A run ends when a request is lost for good, or after a range; the next one starts with the
/// ranges that are done.
#[tokio::test(start_paused = true)]
async fn a_run_that_is_killed_anywhere_and_begun_again_ends_as_one_that_was_not() {
    let whole = Memory::default();
    let runtime = runtime();
    run(&whole, &ranges(), &mut Recorded::default(), 1, &runtime).await.unwrap();
    for at in 0..whole.requests() {
        for fate in [Fate::Refused, Fate::Torn(1)] {
            let memory = Memory::with((0..at).map(|_| Fate::Answered).chain(vec![fate; 100]));
            let mut recorded = Recorded::default();
            run(&memory, &ranges(), &mut recorded, 3, &runtime).await.unwrap_err();
            memory.plan_fates([]);
            run(&memory, &ranges(), &mut recorded, 3, &runtime).await.unwrap();
            assert_eq!(lines(&memory), expected_lines(), "{at}");
        }
    }
    for ranges_done in 1..=4 {
        let memory = Memory::default();
        let mut recorded = Recorded { killed_after: Some(ranges_done), ..Recorded::default() };
        let ended = run(&memory, &ranges(), &mut recorded, 3, &runtime).await;
        assert_eq!(ended, Err(SendError::Progress("killed".into())));
        let done = recorded.done.clone();
        let there = lines(&memory);
        let is_done = |lock: &str| done.iter().any(|range| lock.starts_with(&format!("{range}/")));
        for line in expected_lines().into_iter().filter(|(lock, _)| is_done(lock)) {
            assert!(there.contains(&line), "{line:?} is said to be done");
        }
        let requests = memory.requests();
        let mut again = Recorded { done, killed_after: None };
        run(&memory, &ranges(), &mut again, 3, &runtime).await.unwrap();
        assert_eq!(lines(&memory), expected_lines());
        let most = whole.requests() / 4 * (4 - ranges_done);
        assert!(memory.requests() - requests <= most, "what is done is not sent again");
    }
}

/// The store does not answer for a second: the passed time is subtracted, and rows that have ended
/// are not sent.
#[tokio::test(start_paused = true)]
async fn what_is_left_is_counted_down_while_the_store_does_not_answer() {
    let memory = Memory::with([Fate::Lost, Fate::Lost, Fate::Lost]);
    let runtime = runtime();
    let ranges = vec![vec![lease("short", "a", 1), lease("long", "b", 60)]];
    let sum = run(&memory, &ranges, &mut Recorded::default(), 1, &runtime).await.unwrap();

    // 50 + 200 + 800 ms, less a tenth.
    assert_eq!(memory.leases(), [("a".to_owned(), 55), ("b".to_owned(), 59_055)]);
    assert_eq!((sum.imported, sum.over), (2, 0));

    let memory = Memory::with([Fate::Lost, Fate::Lost, Fate::Lost, Fate::Lost]);
    let sum = run(&memory, &ranges, &mut Recorded::default(), 1, &runtime).await.unwrap();
    assert_eq!(memory.leases(), [("b".to_owned(), 57_255)]);
    assert_eq!((sum.imported, sum.over), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn a_store_that_never_answers_ends_the_import_and_says_that_it_can_be_begun_again() {
    let memory = Memory::with(vec![Fate::Lost; 100]);
    let ranges = vec![vec![lease("a", "o", 600)]];
    let mut recorded = Recorded::default();
    let ended = run(&memory, &ranges, &mut recorded, 1, &runtime()).await.unwrap_err();

    let expected = SendError::NoAnswer { rows: 1, attempts: 8, last: "no answer".into() };
    assert_eq!((ended, recorded.done), (expected, BTreeSet::new()));
}

#[tokio::test(start_paused = true)]
async fn a_row_that_is_refused_is_named_and_the_others_go_on() {
    let memory = Memory::default();
    let runtime = runtime();
    let first = vec![vec![lease("job", "somebody", 60)]];
    run(&memory, &first, &mut Recorded::default(), 1, &runtime).await.unwrap();
    let second = vec![vec![lease("job", "a", 60), lease("free", "a", 60)]];
    let sum = run(&memory, &second, &mut Recorded::default(), 1, &runtime).await.unwrap();

    assert_eq!((sum.imported, sum.refused), (1, 1));
    let refusal = ("job".to_owned(), "a".to_owned(), "held by somebody".to_owned());
    assert_eq!(sum.refusals, [refusal]);
}

/// The first place of the queue has no TTL, and the main row is empty.
#[tokio::test(start_paused = true)]
async fn no_place_behind_one_that_cannot_be_imported_becomes_a_holder() {
    let LockRows { lock, said } = queue("job", 3);
    let Said::Queue { queue: mut places, .. } = said else { panic!("a queue was made") };
    places[0].cell.as_mut().expect("each place has a cell").left_s = None;
    let rows = LockRows { lock, said: Said::Queue { main: Vec::new(), queue: places } };
    let memory = Memory::default();
    let ranges = vec![vec![rows, lease("other", "o", 60)]];
    let sum = run(&memory, &ranges, &mut Recorded::default(), 1, &runtime()).await.unwrap();

    assert_eq!((sum.imported, sum.queued, sum.left_out), (1, 0, 3));
    assert_eq!(memory.lines().keys().collect::<Vec<_>>(), ["other"]);
}
