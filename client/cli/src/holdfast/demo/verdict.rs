//! The turns of the workers, the checks of them, and the closing table.

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{FILES, PROCESSES, WORKERS};
use crate::bench::jain;
use crate::show;

/// The longest hand-over that the histogram distinguishes: one minute.
const HANDOVER_MAX_US: u64 = 60_000_000;

/// One worker's turn at one file. Instants are nanoseconds of the machine's boot clock, so those of
/// different processes are comparable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Turn {
    pub(crate) worker: u32,
    pub(crate) file: u32,
    /// The grant's fencing token; 0 without locks.
    pub(crate) token: u64,
    /// When the worker requested the lock.
    pub(crate) asked: u64,
    /// When it got the lock.
    pub(crate) entered: u64,
    /// When it was about to release the lock.
    pub(crate) left: u64,
    /// The number it wrote; `None`: the file contained no number, or the lock was not safe any more
    /// before the write.
    pub(crate) wrote: Option<u64>,
}

/// The figures of the closing table.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Verdict {
    /// Turns in which a number was written.
    pub(crate) made: u64,
    /// The sum of the numbers in the files.
    pub(crate) found: u64,
    pub(crate) grants: u64,
    /// Turns that overlap another one of the same file.
    pub(crate) overlaps: u64,
    /// Turns whose token is not above all earlier ones at the same file.
    pub(crate) tokens_back: u64,
    /// Turns in which the file held no number or the lock was lost.
    pub(crate) unwritten: u64,
    pub(crate) handovers: u64,
    pub(crate) handover_p50_us: u64,
    pub(crate) handover_p99_us: u64,
    /// The longest time without a grant after each kill, milliseconds.
    pub(crate) gaps_ms: Vec<u64>,
    /// Fairness among workers: 1 is perfect, 1/n means that one worker got all.
    pub(crate) jain: f64,
    pub(crate) fewest_by_worker: u64,
}

impl Verdict {
    /// Checks `turns`, in any order. `kills` are instants as in [`Turn`].
    pub(crate) fn of(mut turns: Vec<Turn>, found: u64, workers: u32, kills: &[u64]) -> Self {
        turns.sort_by_key(|turn| turn.entered);
        let mut handovers = handover_histogram();
        let (mut overlaps, mut tokens_back) = (0, 0);
        let files = turns.iter().map(|turn| turn.file).max().map_or(0, |file| file + 1);
        for file in 0..files {
            let at_file = || turns.iter().filter(move |turn| turn.file == file);
            overlaps += overlapping(at_file());
            tokens_back += going_back(at_file());
            record_handovers(at_file(), &mut handovers);
        }
        let of_worker = |worker| count(turns.iter().filter(|turn| turn.worker == worker));
        let by_worker: Vec<u64> = (0..workers).map(of_worker).collect();
        Self {
            made: count(turns.iter().filter(|turn| turn.wrote.is_some())),
            found,
            grants: count(turns.iter()),
            overlaps,
            tokens_back,
            unwritten: count(turns.iter().filter(|turn| turn.wrote.is_none())),
            handovers: handovers.len(),
            handover_p50_us: handovers.value_at_quantile(0.5),
            handover_p99_us: handovers.value_at_quantile(0.99),
            gaps_ms: gaps(&turns, kills),
            jain: jain(&by_worker),
            fewest_by_worker: by_worker.iter().copied().min().unwrap_or(0),
        }
    }

    pub(crate) fn violations(&self) -> u64 {
        self.overlaps + self.tokens_back + self.unwritten
    }

    pub(crate) fn lost_increments(&self) -> u64 {
        self.made.saturating_sub(self.found)
    }

    pub(crate) fn longest_gap_ms(&self) -> u64 {
        self.gaps_ms.iter().copied().max().unwrap_or(0)
    }
}

fn handover_histogram() -> Histogram<u64> {
    // Bounds and digits are constants that the library accepts.
    #[expect(clippy::expect_used, reason = "a constant that fails, fails in every test")]
    Histogram::new_with_max(HANDOVER_MAX_US, 3).expect("the bounds are valid")
}

fn count<T>(things: impl Iterator<Item = T>) -> u64 {
    u64::try_from(things.count()).unwrap_or(u64::MAX)
}

/// Turns, sorted by entry, that began before an earlier one had ended.
fn overlapping<'a>(turns: impl Iterator<Item = &'a Turn>) -> u64 {
    let mut latest_end = 0;
    let mut overlaps = 0;
    for turn in turns {
        overlaps += u64::from(turn.entered < latest_end);
        latest_end = latest_end.max(turn.left);
    }
    overlaps
}

/// Turns, sorted by entry, with a token that is not the largest so far.
fn going_back<'a>(turns: impl Iterator<Item = &'a Turn>) -> u64 {
    let mut largest = None;
    let mut back = 0;
    for turn in turns.filter(|turn| turn.token != 0) {
        back += u64::from(largest.is_some_and(|largest| turn.token <= largest));
        largest = largest.max(Some(turn.token));
    }
    back
}

/// Records the time from each turn's end to the next one's start, if the next worker was waiting
/// already.
fn record_handovers<'a>(turns: impl Iterator<Item = &'a Turn>, into: &mut Histogram<u64>) {
    let mut before: Option<&Turn> = None;
    for turn in turns {
        if let Some(before) = before.filter(|before| turn.asked < before.left) {
            into.saturating_record(turn.entered.saturating_sub(before.left) / 1_000);
        }
        before = Some(turn);
    }
}

/// The longest time without a grant between each kill and the next, or the end.
fn gaps(turns: &[Turn], kills: &[u64]) -> Vec<u64> {
    let until = kills.iter().skip(1).copied().chain([u64::MAX]);
    let gap = |(kill, until): (&u64, u64)| {
        let pairs = turns.windows(2).filter_map(|pair| match pair {
            [a, b] => Some((a.entered, b.entered)),
            _ => None,
        });
        let around = pairs.filter(|(_, to)| to > kill).filter(|(from, _)| *from < until);
        around.map(|(from, to)| (to - from) / 1_000_000).max().unwrap_or(0)
    };
    kills.iter().zip(until).map(gap).collect()
}

/// For programs.
pub(crate) fn json(verdict: &Verdict) -> Value {
    json!({
        "violations": verdict.violations(),
        "increments_made": verdict.made,
        "increments_found": verdict.found,
        "grants": verdict.grants,
        "handovers": verdict.handovers,
        "handover_p50_us": verdict.handover_p50_us,
        "handover_p99_us": verdict.handover_p99_us,
        "gaps_ms": verdict.gaps_ms,
        "longest_gap_ms": verdict.longest_gap_ms(),
        "jain": verdict.jain,
    })
}

/// The closing table.
pub(crate) fn print(verdict: &Verdict, no_locks: bool) {
    let rows = rows(verdict, no_locks).into_iter();
    let table = show::table(&[], rows.map(|(what, figure)| [what.to_owned(), figure]));
    show::line(table);
    show::line(conclusion(verdict, no_locks));
}

fn rows(verdict: &Verdict, no_locks: bool) -> Vec<(&'static str, String)> {
    let workers = PROCESSES * WORKERS;
    let who = format!("{workers} in {PROCESSES} processes, one client each; {FILES} files");
    let mut rows = vec![
        ("workers", who),
        ("increments made", verdict.made.to_string()),
        ("increments found in the files", verdict.found.to_string()),
        ("increments lost", verdict.lost_increments().to_string()),
        (
            "violations",
            format!(
                "{} ({} overlaps, {} tokens not above the last, {} turns without a write)",
                verdict.violations(),
                verdict.overlaps,
                verdict.tokens_back,
                verdict.unwritten
            ),
        ),
    ];
    if !no_locks {
        rows.push(("grants", verdict.grants.to_string()));
        rows.push((
            "hand-over p50 / p99",
            format!("{} µs / {} µs", verdict.handover_p50_us, verdict.handover_p99_us),
        ));
        let gaps: Vec<_> = verdict.gaps_ms.iter().map(|gap| format!("{gap} ms")).collect();
        rows.push(("longest gap at each kill of the leader", gaps.join(", ")));
        rows.push(("fairness (Jain's index)", format!("{:.4}", verdict.jain)));
    }
    rows
}

fn conclusion(verdict: &Verdict, no_locks: bool) -> String {
    match (no_locks, verdict.lost_increments()) {
        (true, 0) => "no increment was lost this time; without locks that is luck".into(),
        (true, lost) => format!("without locks, {lost} increments were lost"),
        (false, 0) if verdict.violations() == 0 => {
            "every increment is there, and no two workers ever held the same lock".into()
        }
        (false, _) => "something is off: see above".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turn(worker: u32, token: u64, asked: u64, entered: u64, left: u64) -> Turn {
        Turn { worker, file: 0, token, asked, entered, left, wrote: Some(1) }
    }

    #[test]
    fn turns_one_after_the_other_with_rising_tokens_are_no_violation() {
        let turns = vec![turn(1, 8, 5, 20, 30), turn(0, 7, 0, 10, 20)];
        let verdict = Verdict::of(turns, 2, 2, &[]);

        assert_eq!((verdict.violations(), verdict.lost_increments()), (0, 0));
        assert!((verdict.jain - 1.0).abs() < 1e-9);
    }

    #[test]
    fn a_turn_inside_another_is_an_overlap_also_if_a_short_one_lies_between() {
        let turns = vec![turn(0, 1, 0, 0, 100), turn(1, 2, 0, 10, 20), turn(2, 3, 0, 30, 40)];

        assert_eq!(Verdict::of(turns, 3, 3, &[]).overlaps, 2);
    }

    #[test]
    fn turns_at_different_files_may_overlap() {
        let mut other = turn(1, 2, 0, 10, 20);
        other.file = 1;

        assert_eq!(Verdict::of(vec![turn(0, 1, 0, 0, 100), other], 2, 2, &[]).overlaps, 0);
    }

    #[test]
    fn a_token_that_repeats_or_goes_back_is_a_violation() {
        let turns = vec![turn(0, 5, 0, 0, 1), turn(1, 5, 0, 2, 3), turn(0, 4, 0, 4, 5)];

        assert_eq!(Verdict::of(turns, 3, 2, &[]).tokens_back, 2);
    }

    #[test]
    fn a_handover_counts_only_if_the_next_was_waiting() {
        let (ms, waiting) = (1_000_000, 0);
        let turns = vec![
            turn(0, 1, waiting, 0, ms),
            turn(1, 2, waiting, 3 * ms, 4 * ms),
            turn(0, 3, 90 * ms, 95 * ms, 96 * ms),
        ];
        let verdict = Verdict::of(turns, 3, 2, &[]);

        assert_eq!(verdict.handovers, 1);
        assert!((1_990..=2_010).contains(&verdict.handover_p50_us), "{}", verdict.handover_p50_us);
    }

    #[test]
    fn each_kill_has_the_longest_gap_up_to_the_next() {
        let s = 1_000_000_000;
        let entered = [0, 1, 4, 5, 11, 12];
        let turns = entered.map(|at| turn(0, at + 1, 0, at * s, at * s)).to_vec();

        assert_eq!(Verdict::of(turns, 6, 1, &[2 * s, 6 * s]).gaps_ms, [6_000, 6_000]);
    }
}
