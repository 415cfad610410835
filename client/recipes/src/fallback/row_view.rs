//! What one process knows of the authority row, and what follows from it, without I/O.
//!
//! It has no settings: W and V are those of the row that was read last. W counts only as long as the row, including W
//! and V, stays unchanged. Each read gives a hold the V that it shows, even if that is less than the hold had: no
//! process or leader of this project changes V while the row is at `cassandra` or `draining`.

use holdfast_keyspace::authority::{AuthorityRow, Buckets, Durations, EPOCH_MAX, Look, Mode};
use holdfast_mutants::mutant;
use holdfast_runtime::Instant;

#[derive(Debug, Default)]
pub(super) struct RowView {
    /// Of the last row that was read, also after `forget`: it determines how often to read.
    pace: Option<Durations>,
    seen: Option<Seen>,
}

#[derive(Clone, Copy, Debug)]
struct Seen {
    row: AuthorityRow,
    durations: Durations,
    /// Before that read was sent: holds count from here.
    began: Instant,
    /// After the answer to the first of the consecutive reads that showed exactly this row.
    since: Instant,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Permit {
    pub(super) epoch: u16,
    pub(super) until: Instant,
    /// In which of so many partitions the lease of a name lies. The same for every permit of an epoch.
    pub(super) buckets: Buckets,
}

impl RowView {
    /// How often to read: by the defaults until a row was read.
    pub(super) fn pace(&self) -> Durations {
        self.pace.unwrap_or_default()
    }

    pub(super) fn row(&self) -> Option<AuthorityRow> {
        self.seen.map(|seen| seen.row)
    }

    pub(super) fn looked(&mut self, look: &Look) {
        let Some(row) = look.row else { return self.seen = None };
        let before = self.seen.filter(|seen| is_unchanged(seen.row, row));
        let ended = if mutant!(WaitFromReadStart) { look.began } else { look.ended };
        let since = before.map_or(ended, |seen| seen.since);
        let began = if mutant!(HoldFromReadEnd) { look.ended } else { look.began };
        // `DurationsOfTheRow`: not those of a row that was read earlier.
        let old = self.pace.filter(|_| mutant!(DurationsOfFirstRow));
        let durations = old.unwrap_or(row.durations);
        self.pace = Some(durations);
        self.seen = Some(Seen { row, durations, began, since });
    }

    /// Drops what is known of the row, until the next read.
    pub(super) fn forget(&mut self) {
        self.seen = None;
    }

    /// Permission to request new locks. It does not check the age of the read; the hold does.
    pub(super) fn permit(&self) -> Option<Permit> {
        let Seen { row, durations, began, .. } = self.seen?;
        let enters = match row.mode {
            Mode::Cassandra => true,
            Mode::Draining => mutant!(EntryWhileDraining),
            Mode::Preparing | Mode::Native | Mode::Retired => false,
        };
        let until = began + durations.hold();
        enters.then_some(Permit { epoch: row.epoch, until, buckets: row.buckets })
    }

    /// Until when the last read covers a hold under a token of `epoch`; `None`: the hold is over.
    pub(super) fn covers(&self, epoch: u16) -> Option<Instant> {
        let Seen { row, durations, began, .. } = self.seen?;
        let serves = matches!(row.mode, Mode::Cassandra | Mode::Draining);
        let extends = row.extends(epoch) || (serves && mutant!(ReadOfAnyEpoch));
        extends.then(|| began + durations.hold())
    }

    /// When the scope may be taken over, if the row is still the same then.
    pub(super) fn take_over_at(&self) -> Option<Instant> {
        let Seen { row, durations, since, .. } = self.seen?;
        let waits = match row.mode {
            Mode::Native => !mutant!(TakeOverAtOnce),
            Mode::Draining if mutant!(NoTakeOverFromDraining) => return None,
            Mode::Draining => !mutant!(DrainTakenOverAtOnce),
            Mode::Preparing | Mode::Cassandra | Mode::Retired => return None,
        };
        // An epoch never wraps.
        (row.epoch < EPOCH_MAX)
            .then(|| if waits { since + durations.take_over_wait() } else { since })
    }

    /// The change of the row that takes the scope over now, if that is due.
    pub(super) fn take_over(&self, now: Instant) -> Option<(AuthorityRow, AuthorityRow)> {
        let at = self.take_over_at()?;
        let from = self.row()?;
        // It keeps its durations: a leader that comes back waits by that V.
        let to = AuthorityRow { mode: Mode::Cassandra, epoch: from.epoch + 1, beat: 0, ..from };
        (at <= now).then_some((from, to))
    }
}

/// Whether no process wrote the row in between: beats and epochs rise, whatever else changes.
fn is_unchanged(before: AuthorityRow, now: AuthorityRow) -> bool {
    before
        == AuthorityRow {
            beat: if mutant!(BeatNotCompared) { before.beat } else { now.beat },
            ..now
        }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use holdfast_mutants::{Mutant, while_armed};

    fn at(seconds: u64) -> Instant {
        Instant::from_origin(Duration::from_secs(seconds))
    }

    /// With W 30 s and V 15 s.
    fn row(mode: Mode, epoch: u16, beat: i64) -> AuthorityRow {
        let (durations, buckets) = (Durations::default(), Buckets::default());
        AuthorityRow { mode, epoch, beat, durations, cluster: None, buckets }
    }

    fn lasting(w_s: u64, v_s: u64, row: AuthorityRow) -> AuthorityRow {
        let durations = Durations::new(Duration::from_secs(w_s), Duration::from_secs(v_s));
        AuthorityRow { durations: durations.unwrap(), ..row }
    }

    /// After these reads, each a second long.
    fn after(reads: &[(u64, AuthorityRow)]) -> RowView {
        let mut view = RowView::default();
        for (began, row) in reads {
            view.looked(&Look { began: at(*began), ended: at(began + 1), row: Some(*row) });
        }
        view
    }

    #[test]
    fn w_counts_from_the_end_of_the_first_read_since_which_the_row_stood_still() {
        let native = row(Mode::Native, 3, 7);
        let view = after(&[(10, native), (15, native), (20, native)]);

        assert_eq!(view.take_over_at(), Some(at(11 + 30)));
        assert_eq!(view.take_over(at(40)), None);
        let to = row(Mode::Cassandra, 4, 0);
        assert_eq!(view.take_over(at(41)), Some((native, to)));
    }

    #[test]
    fn a_beat_an_epoch_or_another_mode_begins_w_anew() {
        for next in [row(Mode::Native, 3, 8), row(Mode::Native, 4, 7), row(Mode::Draining, 3, 7)] {
            let view = after(&[(10, row(Mode::Native, 3, 7)), (15, next)]);
            assert_eq!(view.take_over_at(), Some(at(16 + 30)), "{next}");
        }
    }

    #[test]
    fn nobody_takes_over_what_is_prepared_retired_or_cassandras_or_past_the_last_epoch() {
        for mode in [Mode::Preparing, Mode::Retired, Mode::Cassandra] {
            assert_eq!(after(&[(10, row(mode, 3, 7))]).take_over_at(), None, "{mode}");
        }
        let last = row(Mode::Native, EPOCH_MAX, 0);
        assert_eq!(after(&[(10, last)]).take_over(at(10_000)), None);
        let mut view = after(&[(10, row(Mode::Native, 3, 7))]);
        view.looked(&Look { began: at(20), ended: at(21), row: None });
        assert_eq!(view.take_over_at(), None, "a scope without a row has no fallback");
    }

    #[test]
    fn locks_are_asked_for_under_cassandra_alone_and_last_from_the_start_of_the_read() {
        let permit = after(&[(10, row(Mode::Cassandra, 4, 0))]).permit();
        let until = at(10) + Duration::from_millis(13_500);
        assert_eq!(permit, Some(Permit { epoch: 4, until, buckets: Buckets::default() }));
        for mode in [Mode::Preparing, Mode::Native, Mode::Draining, Mode::Retired] {
            assert_eq!(after(&[(10, row(mode, 4, 0))]).permit(), None, "{mode}");
        }
    }

    #[test]
    fn a_read_covers_holds_of_its_own_epoch_or_of_the_one_it_drains() {
        let until = Some(at(10) + Duration::from_millis(13_500));
        assert_eq!(after(&[(10, row(Mode::Cassandra, 4, 0))]).covers(4), until);
        assert_eq!(after(&[(10, row(Mode::Draining, 5, 0))]).covers(4), until);
        assert_eq!(after(&[(10, row(Mode::Cassandra, 6, 0))]).covers(4), None);
        assert_eq!(after(&[(10, row(Mode::Native, 6, 0))]).covers(4), None);
    }

    /// `DurationsOfTheRow`: leaders may have changed them, and go by what the row has now.
    #[test]
    fn w_and_v_are_those_of_the_row_that_was_read_last() {
        let native = row(Mode::Native, 3, 7);
        let longer = lasting(60, 20, row(Mode::Native, 3, 8));
        let view = after(&[(10, native), (15, longer), (30, longer)]);
        assert_eq!(view.take_over_at(), Some(at(16 + 60)));
        let (_, to) = view.take_over(at(76)).unwrap();
        assert_eq!(to, lasting(60, 20, row(Mode::Cassandra, 4, 0)), "it keeps them");

        let shorter = lasting(4, 2, row(Mode::Cassandra, 6, 0));
        let view = after(&[(10, native), (20, shorter)]);
        let until = at(20) + Duration::from_millis(1_800);
        assert_eq!(view.permit(), Some(Permit { epoch: 6, until, buckets: Buckets::default() }));
        assert_eq!(view.covers(6), Some(until));
    }

    /// No process of this project does that while a hold is safe: the row's values count, as for leaders.
    #[test]
    fn a_read_that_shows_a_shorter_v_gives_less() {
        let serves = row(Mode::Cassandra, 4, 0);
        let view = after(&[(10, serves), (11, lasting(30, 1, serves))]);
        assert_eq!(view.covers(4), Some(at(11) + Duration::from_millis(900)));
    }

    #[test]
    fn other_durations_under_the_same_beat_begin_w_anew() {
        let native = row(Mode::Native, 3, 7);
        let view = after(&[(10, native), (15, lasting(40, 15, native))]);
        assert_eq!(view.take_over_at(), Some(at(16 + 40)));
    }

    #[test]
    fn after_a_change_of_the_row_nothing_is_known_until_it_is_read() {
        let mut view = after(&[(10, row(Mode::Cassandra, 4, 0))]);
        view.forget();

        assert_eq!((view.permit(), view.covers(4), view.take_over_at()), (None, None, None));
    }

    #[test]
    fn each_of_the_rules_is_missed_when_it_is_broken() {
        let cases: [(Mutant, fn()); 9] = [
            (
                Mutant::TakeOverAtOnce,
                w_counts_from_the_end_of_the_first_read_since_which_the_row_stood_still,
            ),
            (
                Mutant::WaitFromReadStart,
                w_counts_from_the_end_of_the_first_read_since_which_the_row_stood_still,
            ),
            (Mutant::DrainTakenOverAtOnce, a_beat_an_epoch_or_another_mode_begins_w_anew),
            (Mutant::NoTakeOverFromDraining, a_beat_an_epoch_or_another_mode_begins_w_anew),
            (Mutant::BeatNotCompared, a_beat_an_epoch_or_another_mode_begins_w_anew),
            (
                Mutant::HoldFromReadEnd,
                locks_are_asked_for_under_cassandra_alone_and_last_from_the_start_of_the_read,
            ),
            (
                Mutant::EntryWhileDraining,
                locks_are_asked_for_under_cassandra_alone_and_last_from_the_start_of_the_read,
            ),
            (Mutant::DurationsOfFirstRow, w_and_v_are_those_of_the_row_that_was_read_last),
            (Mutant::ReadOfAnyEpoch, a_read_covers_holds_of_its_own_epoch_or_of_the_one_it_drains),
        ];
        for (mutant, test) in cases {
            let run = while_armed(mutant, || std::panic::catch_unwind(test));
            assert!(run.is_err(), "nothing showed that {mutant} was armed");
        }
    }
}
