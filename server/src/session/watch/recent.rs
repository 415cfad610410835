//! The recent changes of all locks, for watches that go on where an earlier one ended.
//!
//! Every node keeps them, whether it leads or not and whether anybody watches: the one that leads next has to
//! know what its clients missed meanwhile. A log entry has the same changes on every node, so an index means the
//! same everywhere.
//!
//! # Invariants
//!
//! - All changes of the entries after `reaches` are there, in the order of the log; of earlier entries some may be.
//! - It keeps at most `watch_recent_changes` changes and `watch_recent_bytes` bytes.

use std::collections::VecDeque;
use std::sync::Arc;

use holdfast_core::LogIndex;
use holdfast_mutants::mutant;
use prometheus_client::metrics::gauge::Gauge;

use super::change::Change;
use super::news::Length;

/// Changes that are looked at in one go, at most: whoever applies the log waits meanwhile.
const LOOKED_AT: usize = 1_024;

/// The recent changes.
#[derive(Debug)]
pub(super) struct RecentChanges {
    /// `watch_recent_changes` and `watch_recent_bytes`.
    bounds: Length,
    changes: VecDeque<Arc<Change>>,
    bytes: u64,
    /// How many were added before the first of `changes`.
    gone: u64,
    /// From where on it has everything; `None` before the first entry.
    reaches: Option<LogIndex>,
    /// The last entry.
    applied: LogIndex,
    /// What was added since the last mark.
    unmarked: Length,
    shown_bytes: Gauge,
}

/// A position among them: so many changes were added before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Position(u64);

/// Not all changes after the index that was asked for are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Compacted {
    /// From where on it has everything.
    pub(super) reaches: LogIndex,
}

/// A part of them.
#[derive(Debug)]
pub(super) struct Part {
    pub(super) changes: Vec<Arc<Change>>,
    /// All changes of the entries up to this one are in this part and those before it.
    pub(super) complete: LogIndex,
    /// Where the next part begins; `None`: this was the last.
    pub(super) next: Option<Position>,
}

impl RecentChanges {
    pub(super) fn new(bounds: Length, shown_bytes: Gauge) -> Self {
        Self {
            bounds,
            changes: VecDeque::new(),
            bytes: 0,
            gone: 0,
            reaches: None,
            applied: LogIndex::new(0),
            unmarked: Length::default(),
            shown_bytes,
        }
    }

    /// Whether it keeps anything.
    pub(super) fn is_on(&self) -> bool {
        self.bounds.changes > 0
    }

    /// The state was replaced by one as of `index`, and nobody knows the changes up to there.
    pub(super) fn restart(&mut self, index: LogIndex) {
        self.gone += self.changes.len() as u64;
        self.changes.clear();
        self.bytes = 0;
        self.reaches = self.is_on().then_some(index);
        self.applied = index;
        self.shown_bytes.set(0);
    }

    /// The changes that follow are those of this entry.
    pub(super) fn begin(&mut self, index: LogIndex) {
        if self.is_on() {
            // What came before the first entry was applied before this node listened.
            let before = LogIndex::new(index.get().saturating_sub(1));
            self.reaches.get_or_insert(before);
            self.applied = index;
        }
    }

    pub(super) fn push(&mut self, change: Arc<Change>) {
        if !self.is_on() {
            return;
        }
        let bytes = change.bytes();
        self.bytes += bytes;
        self.unmarked.changes += 1;
        self.unmarked.bytes += bytes;
        self.changes.push_back(change);
        while self.changes.len() as u64 > self.bounds.changes || self.bytes > self.bounds.bytes {
            let Some(oldest) = self.changes.pop_front() else { break };
            self.bytes -= oldest.bytes();
            self.gone += 1;
            self.reaches = Some(oldest.index);
        }
        self.shown_bytes.set(i64::try_from(self.bytes).unwrap_or(i64::MAX));
    }

    /// Whether a quarter of it is new since this last was true. Watchers are told then how far they have come, so
    /// that a watch of a quiet prefix can go on all the same.
    pub(super) fn wants_mark(&mut self) -> bool {
        let Length { changes, bytes } = self.unmarked;
        let is_due =
            changes > 0 && (changes > self.bounds.changes / 4 || bytes > self.bounds.bytes / 4);
        if is_due {
            self.unmarked = Length::default();
        }
        is_due
    }

    /// Where the changes after `index` begin. `applied` is the last entry that the table has.
    ///
    /// # Errors
    ///
    /// [`Compacted`] if some of them are gone, or will be, because nothing is kept, or if the index is none of
    /// this log.
    pub(super) fn after(&self, index: LogIndex, applied: LogIndex) -> Result<Position, Compacted> {
        let reaches = self.reaches.unwrap_or(applied);
        let has_all = index >= reaches || mutant!(WatchResumesOverGap);
        if index > applied || !has_all || !self.is_on() {
            return Err(Compacted { reaches });
        }
        let before = self.changes.partition_point(|change| change.index <= index);
        Ok(Position(self.gone + before as u64))
    }

    /// The changes of names that begin with `prefix`, from a position on: as many as one message may have, or as
    /// many as are found in one go.
    ///
    /// # Errors
    ///
    /// [`Compacted`] if changes from there on are gone.
    pub(super) fn part(
        &self,
        from: Position,
        prefix: &str,
        enough: Length,
    ) -> Result<Part, Compacted> {
        let begin = from.0.checked_sub(self.gone).and_then(|begin| usize::try_from(begin).ok());
        let begin = begin.ok_or(Compacted { reaches: self.reaches.unwrap_or(self.applied) })?;
        let (mut changes, mut length) = (Vec::new(), Length::default());
        let mut at = begin;
        while let Some(change) = self.changes.get(at) {
            if at - begin >= LOOKED_AT
                || length.changes >= enough.changes
                || length.bytes >= enough.bytes
            {
                // This entry may have begun before.
                let complete = LogIndex::new(change.index.get().saturating_sub(1));
                let next = Some(Position(self.gone + at as u64));
                return Ok(Part { changes, complete, next });
            }
            if change.name.as_str().starts_with(prefix) {
                length.changes += 1;
                length.bytes += change.bytes();
                changes.push(change.clone());
            }
            at += 1;
        }
        Ok(Part { changes, complete: self.applied, next: None })
    }
}

#[cfg(test)]
mod tests {
    use super::super::change::made::change;
    use super::*;

    const ENOUGH: Length = Length { changes: 100, bytes: 1 << 20 };

    fn index(number: u64) -> LogIndex {
        LogIndex::new(number)
    }

    fn keeping(changes: u64) -> RecentChanges {
        RecentChanges::new(Length { changes, bytes: 1 << 20 }, Gauge::default())
    }

    fn add(recent: &mut RecentChanges, at: u64, names: &[&str]) {
        recent.begin(index(at));
        for name in names {
            recent.push(change(at, name));
        }
    }

    /// All parts after an index, as `(index, name)`, and what they are complete up to.
    fn read(recent: &RecentChanges, after: u64, enough: Length) -> (Vec<(u64, String)>, Vec<u64>) {
        let mut next = Some(recent.after(index(after), recent.applied).expect("it reaches"));
        let (mut all, mut complete) = (Vec::new(), Vec::new());
        while let Some(from) = next {
            let part = recent.part(from, "j/", enough).expect("it reaches");
            let told = |change: &Arc<Change>| (change.index.get(), change.name.as_str().to_owned());
            all.extend(part.changes.iter().map(told));
            complete.push(part.complete.get());
            next = part.next;
        }
        (all, complete)
    }

    #[test]
    fn it_has_the_changes_of_a_prefix_after_an_index_in_their_order() {
        let mut recent = keeping(10);
        add(&mut recent, 5, &["j/1", "k/1"]);
        add(&mut recent, 7, &["j/2", "j/3"]);
        add(&mut recent, 8, &["k/2"]);

        let names = |after| read(&recent, after, ENOUGH).0;
        let all = [(5, "j/1"), (7, "j/2"), (7, "j/3")].map(|(at, name)| (at, name.to_owned()));
        assert_eq!(names(4), all);
        assert_eq!(names(5), all[1..]);
        assert_eq!(names(6), all[1..]);
        assert_eq!(names(7), []);
        assert_eq!(names(8), []);
    }

    /// An entry that goes in two parts counts as sent with the second.
    #[test]
    fn parts_are_complete_up_to_the_entry_before_the_one_that_goes_on() {
        let mut recent = keeping(10);
        add(&mut recent, 5, &["j/1"]);
        add(&mut recent, 7, &["j/2", "j/3"]);
        add(&mut recent, 9, &["k/1"]);

        let (all, complete) = read(&recent, 4, Length { changes: 2, bytes: 1 << 20 });
        assert_eq!((all.len(), complete), (3, vec![6, 9]));
        let (all, complete) = read(&recent, 4, Length { changes: 100, bytes: 1 });
        assert_eq!((all.len(), complete), (3, vec![6, 6, 8, 9]));
    }

    #[test]
    fn what_is_older_than_its_bounds_is_compacted() {
        let mut recent = keeping(3);
        add(&mut recent, 5, &["j/1"]);
        add(&mut recent, 7, &["j/2", "j/3"]);
        let begun = recent.after(index(4), index(7)).expect("all of it is there");
        add(&mut recent, 8, &["j/4"]);

        let compacted = Compacted { reaches: index(5) };
        assert_eq!(recent.after(index(4), index(8)), Err(compacted));
        assert!(recent.after(index(5), index(8)).is_ok());
        let part = recent.part(begun, "", ENOUGH);
        assert_eq!(part.map(|part| part.complete), Err(compacted), "it went on too late");
        // Half of entry 7 is gone.
        add(&mut recent, 9, &["j/5"]);
        assert_eq!(recent.after(index(6), index(9)), Err(Compacted { reaches: index(7) }));
        assert!(recent.after(index(7), index(9)).is_ok());
    }

    #[test]
    fn its_bytes_are_bounded_too() {
        let each = change(1, "j/1").bytes();
        let shown = Gauge::default();
        let mut recent =
            RecentChanges::new(Length { changes: 100, bytes: 3 * each }, shown.clone());
        for at in 1..=5 {
            add(&mut recent, at, &["j/1"]);
        }

        assert_eq!(recent.changes.len(), 3);
        assert_eq!(u64::try_from(shown.get()), Ok(3 * each));
        assert_eq!(recent.after(index(1), index(5)), Err(Compacted { reaches: index(2) }));
        assert_eq!(read(&recent, 2, ENOUGH).0.len(), 3);
    }

    /// A node that has just started, one whose state was replaced, an index of another log.
    #[test]
    fn nothing_is_gone_on_with_from_where_it_never_was() {
        let mut recent = keeping(10);
        assert_eq!(recent.after(index(3), index(5)), Err(Compacted { reaches: index(5) }));
        assert!(recent.after(index(5), index(5)).is_ok(), "nothing was missed");
        add(&mut recent, 7, &["j/1"]);
        assert_eq!(recent.after(index(5), index(7)), Err(Compacted { reaches: index(6) }));
        assert!(recent.after(index(8), index(7)).is_err(), "ahead of this log");

        recent.restart(index(20));
        add(&mut recent, 21, &["j/2"]);
        assert_eq!(recent.after(index(19), index(21)), Err(Compacted { reaches: index(20) }));
        assert_eq!(read(&recent, 20, ENOUGH).0, [(21, "j/2".to_owned())]);
    }

    #[test]
    fn without_room_nothing_is_kept_and_nothing_gone_on_with() {
        let mut recent = keeping(0);
        add(&mut recent, 7, &["j/1"]);

        assert!(recent.changes.is_empty() && !recent.wants_mark());
        assert!(recent.after(index(7), index(7)).is_err(), "what comes next would be missed");
    }

    #[test]
    fn a_mark_is_due_each_time_that_a_quarter_is_new() {
        let mut recent = keeping(8);
        let mut marks = Vec::new();
        for at in 1..=9 {
            add(&mut recent, at, &["j/1"]);
            marks.extend(recent.wants_mark().then_some(at));
        }

        assert_eq!(marks, [3, 6, 9]);
    }
}
