//! The rules of a machine, each as it is told and asked by hand.

use std::time::Duration;

use holdfast_core::ScopeState;
use holdfast_keyspace::authority::{AuthorityRow, Buckets, Change, Durations, Look, Mode};
use holdfast_mutants::{Mutant, while_armed};
use holdfast_runtime::Instant;

use super::super::FallbackSettings;
use super::super::machine::{AuthorityMachine, CoreStep, Right, RowStep, Trouble};

const FIRST_BEAT: i64 = 77;

/// W 10 s, V 5 s: authority 8 s, a bump every 2.5 s, a suspension 1 s before the end, holds of 4.5 s,
/// a return after 6.5 s.
fn terms() -> FallbackSettings {
    let durations = lasting(10, 5);
    let (drain_limit, switch_every) = (Duration::from_secs(3), Duration::from_mins(1));
    FallbackSettings { durations, drain_limit, switch_every, buckets: None }
}

fn lasting(w_s: u64, v_s: u64) -> Durations {
    Durations::new(Duration::from_secs(w_s), Duration::from_secs(v_s)).expect("they fit")
}

/// All clients know of the scope from second 900 on.
fn machine() -> AuthorityMachine {
    AuthorityMachine::new(terms(), at(900.0), FIRST_BEAT)
}

fn at(seconds: f64) -> Instant {
    Instant::from_origin(Duration::from_secs_f64(1_000.0 + seconds))
}

fn row(mode: Mode, epoch: u16, beat: i64) -> AuthorityRow {
    let (durations, buckets) = (terms().durations, Buckets::default());
    AuthorityRow { mode, epoch, beat, durations, cluster: None, buckets }
}

/// The same with the leases in so many partitions.
fn in_partitions(buckets: Buckets, row: AuthorityRow) -> AuthorityRow {
    AuthorityRow { buckets, ..row }
}

/// A row that leaders of other settings left.
fn of(durations: Durations, row: AuthorityRow) -> AuthorityRow {
    AuthorityRow { durations, ..row }
}

fn core(epoch: u16) -> ScopeState {
    ScopeState { epoch, suspended: true, fresh: false }
}

fn looked(began: f64, ended: f64, row: Option<AuthorityRow>) -> Look {
    Look { began: at(began), ended: at(ended), row }
}

fn done(began: f64, ended: f64) -> Change {
    Change::Done { began: at(began), ended: at(ended) }
}

/// One that has read a native row of the core's epoch at the start, and had its round.
fn ready(epoch: u16) -> AuthorityMachine {
    let mut machine = machine();
    machine.read(looked(0.0, 0.1, Some(row(Mode::Native, epoch, 5))), core(epoch));
    machine.confirmed(true, at(0.2));
    machine
}

/// The change that is to be made.
fn change(
    machine: &mut AuthorityMachine,
    now: f64,
    core: ScopeState,
) -> (AuthorityRow, AuthorityRow) {
    match machine.row_step(at(now), core) {
        RowStep::Change { from, to } => (from, to),
        other => panic!("{other:?} instead of a change"),
    }
}

/// Makes the change that is due, sent and answered then.
fn make(machine: &mut AuthorityMachine, began: f64, ended: f64, core: ScopeState) -> AuthorityRow {
    machine.confirmed(true, at(began));
    let (from, to) = change(machine, began, core);
    machine.writes();
    machine.written(Some(from), to, done(began, ended), at(ended), core);
    to
}

#[test]
fn it_reads_first_and_writes_only_after_a_round() {
    let mut machine = machine();
    assert_eq!(machine.row_step(at(0.0), core(1)), RowStep::Read);
    machine.read(looked(0.0, 0.1, Some(row(Mode::Native, 1, 5))), core(1));
    assert_eq!(machine.row_step(at(0.1), core(1)), RowStep::Confirm);
    machine.confirmed(true, at(0.2));
    assert_eq!(
        change(&mut machine, 0.2, core(1)),
        (row(Mode::Native, 1, 5), row(Mode::Native, 1, 6))
    );
}

/// `RoundBeforeWrite`: the round of one write is not that of the next, whatever came of it.
#[test]
fn every_write_has_a_round_of_its_own() {
    let mut machine = ready(1);
    make(&mut machine, 1.0, 1.1, core(1));
    assert_eq!(machine.row_step(at(3.6), core(1)), RowStep::Confirm);
    machine.confirmed(false, at(3.7));
    assert!(matches!(machine.row_step(at(3.7), core(1)), RowStep::Wait(_)));
    assert_eq!(machine.row_step(at(4.0), core(1)), RowStep::Confirm);
}

/// `AuthorityFromBumpStart`: the answer may have been long under way.
#[test]
fn authority_is_counted_from_the_start_of_the_bump() {
    let mut machine = ready(1);
    make(&mut machine, 1.0, 3.0, core(1));
    assert_eq!(machine.authority(), Some(Right { epoch: 1, until: at(9.0) }));
    assert_eq!(machine.bumped_at(), Some(at(1.0)));
    assert_eq!(machine.row_step(at(3.0), core(1)), RowStep::Wait(at(3.5)));
}

/// `UnknownBumpFails`, `ReadSettlesNoBump`, `ReadGivesNoAuthority`: even if a read shows what the bump
/// would have written, somebody else may have written it.
#[test]
fn a_bump_of_unknown_outcome_gives_nothing_whatever_a_read_shows() {
    let mut machine = ready(1);
    let (from, to) = change(&mut machine, 1.0, core(1));
    machine.writes();
    machine.not_written(Some(from), to, at(2.0), core(1));
    assert_eq!(machine.authority(), None);
    assert_eq!(machine.row_step(at(2.3), core(1)), RowStep::Read);
    machine.read(looked(2.3, 2.4, Some(to)), core(1));
    assert_eq!(machine.authority(), None);
    assert_eq!(machine.core_step(at(2.4), core(1)), CoreStep::Wait(None));
}

#[test]
fn two_bumps_that_fail_in_a_row_leave_the_scope_to_others_for_w() {
    let mut machine = ready(1);
    let was = Some(row(Mode::Native, 1, 5));
    for (sent, answered, rests_until) in [(1.0, 1.5, 1.75), (3.0, 3.5, 13.5)] {
        machine.confirmed(true, at(sent));
        let (from, to) = change(&mut machine, sent, core(1));
        machine.not_written(Some(from), to, at(answered), core(1));
        assert_eq!(machine.row_step(at(answered), core(1)), RowStep::Wait(at(rests_until)));
        machine.read(looked(answered, answered, was), core(1));
    }
    assert_eq!(machine.row_step(at(13.4), core(1)), RowStep::Wait(at(13.5)));
    machine.confirmed(true, at(13.5));
    assert_eq!(change(&mut machine, 13.5, core(1)).1, row(Mode::Native, 1, 6));
}

/// A bump that is answered as not applied is as good as none; the row is read before anything else.
#[test]
fn a_change_that_was_not_applied_is_followed_by_a_read() {
    let mut machine = ready(1);
    let (from, to) = change(&mut machine, 1.0, core(1));
    machine.written(Some(from), to, Change::Otherwise, at(1.1), core(1));
    assert_eq!((machine.row(), machine.authority()), (None, None));
    assert_eq!(machine.row_step(at(1.5), core(1)), RowStep::Read);
}

#[test]
fn a_scope_is_resumed_under_authority_and_suspended_before_that_ends() {
    let mut machine = ready(1);
    assert_eq!(machine.core_step(at(0.5), core(1)), CoreStep::Wait(None));
    let running = ScopeState { suspended: false, ..core(1) };
    assert_eq!(machine.core_step(at(0.5), running), CoreStep::Suspend, "of the leader before");
    make(&mut machine, 1.0, 1.1, core(1));
    assert_eq!(machine.core_step(at(1.1), core(1)), CoreStep::Resume(1));
    assert_eq!(machine.core_step(at(1.1), running), CoreStep::Wait(Some(at(8.0))));
    assert_eq!(machine.core_step(at(8.0), running), CoreStep::Suspend);
    assert_eq!(machine.core_step(at(8.0), core(1)), CoreStep::Wait(None));
}

/// `AnyLeaderWaits`, `ReturnWaits`, `ReturnWaitsToTheEnd`, `ReturnWaitFromEnd`: whoever made it native,
/// somebody may hold in Cassandra still.
#[test]
fn a_leader_that_finds_the_row_native_above_the_core_waits_from_the_end_of_its_read() {
    let mut machine = machine();
    machine.read(looked(0.0, 2.0, Some(row(Mode::Native, 4, 0))), core(1));
    assert_eq!(machine.core_step(at(2.0), core(1)), CoreStep::Wait(Some(at(8.5))));
    assert_eq!(machine.core_step(at(8.4), core(1)), CoreStep::Wait(Some(at(8.5))));
    assert_eq!(machine.core_step(at(8.5), core(1)), CoreStep::Raise(4));
    assert_eq!(machine.core_step(at(8.6), core(4)), CoreStep::Wait(None));
}

/// Meanwhile it bumps, or the scope would be taken over again; that is authority of an epoch that no
/// native hold has yet.
#[test]
fn bumps_during_the_wait_give_authority_of_the_new_epoch_only() {
    let mut machine = machine();
    machine.read(looked(0.0, 0.1, Some(row(Mode::Native, 4, 0))), core(1));
    make(&mut machine, 0.2, 0.3, core(1));
    assert_eq!(machine.authority(), Some(Right { epoch: 4, until: at(8.2) }));
    assert_eq!(
        machine.core_step(at(0.3), core(1)),
        CoreStep::Wait(Some(at(6.6))),
        "the wait goes on"
    );
    assert_eq!(machine.core_step(at(6.6), core(1)), CoreStep::Raise(4));
    assert_eq!(machine.core_step(at(6.7), core(4)), CoreStep::Resume(4));
}

#[test]
fn cassandra_is_left_alone_for_a_while_then_drained_and_the_scope_comes_back() {
    let mut machine = machine();
    machine.read(looked(0.0, 0.1, Some(row(Mode::Cassandra, 2, 0))), core(1));
    assert_eq!(machine.row_step(at(0.2), core(1)), RowStep::Wait(at(60.1)));
    let draining = make(&mut machine, 60.1, 60.2, core(1));
    assert_eq!(draining, row(Mode::Draining, 3, 0));
    assert_eq!(machine.row_step(at(60.3), core(1)), RowStep::Count);
    machine.counted(Some(2), at(60.4));
    assert_eq!(machine.row_step(at(60.4), core(1)), RowStep::Wait(at(61.3)));
    machine.counted(None, at(61.4));
    assert!(matches!(machine.row_step(at(61.5), core(1)), RowStep::Wait(_)), "there may be some");
    machine.counted(Some(0), at(62.0));
    let native = make(&mut machine, 62.1, 62.2, core(1));
    assert_eq!(native, row(Mode::Native, 4, 0));
    assert_eq!(machine.core_step(at(62.2), core(1)), CoreStep::Wait(Some(at(68.7))));
    assert_eq!(machine.tally().switches, 2);
}

#[test]
fn holders_that_do_not_end_are_waited_for_no_longer_than_allowed() {
    let mut machine = machine();
    machine.read(looked(0.0, 0.1, Some(row(Mode::Draining, 3, 0))), core(1));
    machine.counted(Some(1), at(3.0));
    assert_eq!(machine.row_step(at(3.05), core(1)), RowStep::Wait(at(3.1)));
    assert_eq!(make(&mut machine, 3.1, 3.2, core(1)), row(Mode::Native, 4, 0));
}

/// `UnknownReturnFails`: whether and when the row became native is not known; the read that shows it
/// begins the wait.
#[test]
fn a_return_of_unknown_outcome_starts_no_wait() {
    let mut machine = machine();
    machine.read(looked(0.0, 0.1, Some(row(Mode::Draining, 3, 0))), core(1));
    machine.counted(Some(0), at(0.2));
    machine.confirmed(true, at(0.2));
    let (from, to) = change(&mut machine, 0.3, core(1));
    machine.not_written(Some(from), to, at(1.0), core(1));
    assert_eq!(machine.core_step(at(20.0), core(1)), CoreStep::Wait(None));
    machine.read(looked(20.0, 20.1, Some(to)), core(1));
    assert_eq!(machine.core_step(at(20.1), core(1)), CoreStep::Wait(Some(at(26.6))));
}

/// `RowIsRaised`, `AboveTheCore`: after a restore the core may be ahead. At its very epoch nobody would
/// wait for holds in Cassandra.
#[test]
fn a_row_below_the_core_is_raised_above_it_and_waited_for() {
    let mut machine = machine();
    machine.read(looked(0.0, 0.1, Some(row(Mode::Native, 2, 9))), core(7));
    assert_eq!(make(&mut machine, 0.2, 0.3, core(7)), row(Mode::Native, 8, 0));
    assert_eq!(machine.authority(), None, "it was no bump");
    assert_eq!(machine.core_step(at(0.3), core(7)), CoreStep::Wait(Some(at(6.8))));

    let mut machine = self::machine();
    machine.read(looked(0.0, 0.1, Some(row(Mode::Cassandra, 2, 0))), core(7));
    assert_eq!(make(&mut machine, 60.1, 60.2, core(7)), row(Mode::Draining, 8, 0));
}

#[test]
fn a_switch_beyond_the_last_epoch_is_refused_and_told() {
    let mut machine = machine();
    machine.read(looked(0.0, 0.1, Some(row(Mode::Cassandra, 32_000, 0))), core(31_999));
    machine.confirmed(true, at(60.0));
    assert!(matches!(machine.row_step(at(60.2), core(31_999)), RowStep::Wait(_)));
    assert_eq!(machine.trouble(), Some(Trouble::EpochsEnd));
    assert_eq!(machine.tally().refused, 1);
}

#[test]
fn a_new_scope_gets_a_row_from_which_nobody_takes_over_until_all_know_of_it() {
    let fresh = ScopeState { fresh: true, ..core(1) };
    let mut machine = machine();
    machine.read(looked(0.0, 0.1, None), fresh);
    machine.confirmed(true, at(0.1));
    let row = |mode, epoch, beat| in_partitions(Buckets::OF_NEW_SCOPES, row(mode, epoch, beat));
    let made = row(Mode::Preparing, 1, FIRST_BEAT);
    assert_eq!(machine.row_step(at(0.2), fresh), RowStep::Create(made));
    machine.writes();
    machine.written(None, made, done(0.2, 0.3), at(0.3), fresh);
    assert_eq!(machine.authority(), None);
    let bumped = make(&mut machine, 0.3, 0.4, fresh);
    assert_eq!(bumped, row(Mode::Preparing, 1, FIRST_BEAT + 1));
    assert_eq!(machine.core_step(at(0.4), fresh), CoreStep::Resume(1));
    assert_eq!(make(&mut machine, 899.0, 899.1, core(1)).mode, Mode::Preparing);
    let native = make(&mut machine, 902.0, 902.1, core(1));
    assert_eq!(native, row(Mode::Native, 1, FIRST_BEAT + 3));
    assert_eq!(machine.authority(), Some(Right { epoch: 1, until: at(910.0) }));
}

/// B8. While the native store serves a scope no lease counts, so none can lie where nobody looks for it.
#[test]
fn the_partitions_of_a_scope_change_while_it_is_native_and_by_the_setting_alone() {
    let wanted = Buckets::new(64).unwrap();
    for (setting, then) in [(None, Buckets::default()), (Some(wanted), wanted)] {
        let terms = FallbackSettings { buckets: setting, ..terms() };
        let found = |mode| {
            let mut machine = AuthorityMachine::new(terms, at(0.0), 0);
            machine.read(looked(0.0, 0.1, Some(row(mode, 3, 5))), core(2));
            machine
        };
        let mut machine = AuthorityMachine::new(terms, at(0.0), 0);
        machine.read(looked(0.0, 0.1, Some(row(Mode::Native, 3, 5))), core(3));
        assert_eq!(make(&mut machine, 0.2, 0.3, core(3)).buckets, then, "in a bump");
        let mut machine = found(Mode::Cassandra);
        let draining = make(&mut machine, 60.2, 60.3, core(2));
        assert_eq!((draining.mode, draining.buckets), (Mode::Draining, Buckets::default()));
        assert_eq!(machine.row_step(at(60.4), core(2)), RowStep::Count);
        machine.counted(Some(0), at(60.5));
        let native = make(&mut machine, 60.6, 60.7, core(2));
        assert_eq!((native.mode, native.buckets), (Mode::Native, Buckets::default()));
    }
}

#[test]
fn a_row_that_is_gone_is_not_made_again() {
    let mut machine = machine();
    machine.read(looked(0.0, 0.1, None), core(3));
    machine.confirmed(true, at(0.1));
    assert!(matches!(machine.row_step(at(0.2), core(3)), RowStep::Wait(_)));
    assert_eq!(machine.trouble(), Some(Trouble::RowGone));
    machine.read(looked(20.0, 20.1, Some(row(Mode::Native, 3, 0))), core(3));
    assert_eq!(machine.trouble(), None);
}

#[test]
fn a_scope_that_is_removed_leaves_its_row_retired_and_otherwise_takes_it_up_again() {
    let mut machine = ready(1);
    machine.retire(at(5.0));
    assert!(!machine.is_retired());
    assert_eq!(make(&mut machine, 1.0, 1.1, core(1)), row(Mode::Retired, 1, 6));
    assert!(machine.is_retired());
    assert_eq!(machine.row_step(at(1.2), core(1)), RowStep::Wait(at(5.0)));
    assert_eq!(make(&mut machine, 5.0, 5.1, core(1)), row(Mode::Preparing, 1, 7));
}

/// There may be holds in Cassandra still, which nobody would wait for once the scope is removed.
#[test]
fn a_scope_that_has_not_come_back_yet_is_not_retired() {
    let mut machine = machine();
    machine.read(looked(0.0, 0.1, Some(row(Mode::Native, 4, 0))), core(1));
    machine.retire(at(5.0));
    assert_eq!(make(&mut machine, 0.2, 0.3, core(1)), row(Mode::Native, 4, 1));
}

/// `RowWCoversAuthority`: a client that takes over waits by the row.
#[test]
fn a_w_longer_than_the_rows_stands_in_it_from_the_first_bump_on() {
    let mut machine = machine();
    let shorter = of(lasting(4, 2), row(Mode::Native, 1, 5));
    machine.read(looked(0.0, 0.1, Some(shorter)), core(1));
    assert_eq!(make(&mut machine, 0.2, 0.3, core(1)), row(Mode::Native, 1, 6));
    assert_eq!(machine.authority(), Some(Right { epoch: 1, until: at(8.2) }));
}

/// One that has read a row of W 20 s and V 5 s in the core's epoch.
fn under_a_longer_w() -> AuthorityMachine {
    let mut machine = machine();
    machine.read(looked(0.0, 0.1, Some(of(lasting(20, 5), row(Mode::Native, 1, 5)))), core(1));
    machine
}

/// `ShorterWWaits`: another leader may have authority of 16 s since just before, and native clients were
/// told so.
#[test]
fn a_shorter_w_is_written_when_no_authority_is_left_that_was_counted_by_the_longer_one() {
    let mut machine = under_a_longer_w();
    let longer = |beat| of(lasting(20, 5), row(Mode::Native, 1, beat));
    assert_eq!(make(&mut machine, 0.5, 1.0, core(1)), longer(6));
    assert_eq!(
        machine.authority(),
        Some(Right { epoch: 1, until: at(8.5) }),
        "by its own W, all the while"
    );
    assert_eq!(
        machine.row_step(at(1.0), core(1)),
        RowStep::Wait(at(3.0)),
        "as often as that needs"
    );
    assert_eq!(make(&mut machine, 3.0, 3.1, core(1)), longer(7));
    assert_eq!(make(&mut machine, 20.9, 20.9, core(1)), longer(8), "19.9 s after the first");
    let shorter = make(&mut machine, 23.4, 23.5, core(1));
    assert_eq!(shorter, row(Mode::Native, 1, 9));
    assert_eq!(machine.authority(), Some(Right { epoch: 1, until: at(31.4) }));
}

/// `ShorterWAlone`: between two bumps that were this leader's there was another leader's, which has authority since.
#[test]
fn a_shorter_w_waits_anew_when_somebody_else_wrote_in_between() {
    let mut machine = under_a_longer_w();
    make(&mut machine, 0.5, 1.0, core(1));
    machine.confirmed(true, at(15.0));
    let (from, to) = change(&mut machine, 15.0, core(1));
    machine.written(Some(from), to, Change::Otherwise, at(15.1), core(1));
    let theirs = of(lasting(20, 5), row(Mode::Native, 1, 7));
    machine.read(looked(16.0, 16.1, Some(theirs)), core(1));
    assert_eq!(make(&mut machine, 21.5, 21.6, core(1)).durations, lasting(20, 5));
    assert_eq!(make(&mut machine, 41.5, 41.5, core(1)).durations, lasting(20, 5));
    assert_eq!(make(&mut machine, 44.0, 44.1, core(1)).durations, lasting(10, 5));
}

/// `VStands`: another leader that finds the row waits by what it says.
#[test]
fn v_changes_only_in_the_cores_epoch() {
    let theirs = lasting(13, 10);
    let mut machine = machine();
    machine.read(looked(0.0, 0.1, Some(of(theirs, row(Mode::Cassandra, 2, 0)))), core(1));
    assert_eq!(make(&mut machine, 60.1, 60.2, core(1)).durations, theirs, "it drains");
    machine.counted(Some(0), at(60.3));
    assert_eq!(make(&mut machine, 60.3, 60.4, core(1)).durations, theirs, "it is native");
    let due = at(60.4) + Duration::from_secs(13);
    assert_eq!(machine.core_step(at(60.4), core(1)), CoreStep::Wait(Some(due)));
    for bump in [60.5, 63.0, 65.5, 68.0, 70.5, 73.0] {
        assert_eq!(make(&mut machine, bump, bump, core(1)).durations, theirs, "{bump}");
    }
    assert_eq!(machine.core_step(at(73.5), core(1)), CoreStep::Raise(4));
    let v_is_own = make(&mut machine, 75.8, 75.9, core(4)).durations;
    assert_eq!(v_is_own, lasting(10, 5), "and W, 13 s after the first bump");
}

/// `ReturnWaitByTheRow`: holds are counted by it, whatever the settings say.
#[test]
fn a_return_is_waited_for_by_the_v_of_the_row() {
    let mut machine = machine();
    machine.read(looked(0.0, 0.1, Some(of(lasting(30, 10), row(Mode::Native, 4, 0)))), core(1));
    assert_eq!(machine.core_step(at(0.1), core(1)), CoreStep::Wait(Some(at(13.1))));
}

/// Whoever could take over goes by the row's W.
#[test]
fn a_drain_takes_half_of_the_rows_w_at_most() {
    let mut machine = machine();
    machine.read(looked(0.0, 0.1, Some(of(lasting(4, 2), row(Mode::Draining, 3, 0)))), core(1));
    machine.counted(Some(1), at(0.5));
    assert_eq!(
        machine.row_step(at(0.5), core(1)),
        RowStep::Wait(at(0.86)),
        "as often as its V needs"
    );
    machine.counted(Some(1), at(2.0));
    assert_eq!(machine.row_step(at(2.05), core(1)), RowStep::Wait(at(2.1)));
    assert_eq!(make(&mut machine, 2.1, 2.2, core(1)).mode, Mode::Native);
}

#[test]
fn who_yields_waits_for_the_longest_w_that_may_be_in_the_row() {
    let mut machine = under_a_longer_w();
    for (sent, rests_until) in [(1.0, 1.25), (3.0, 23.0)] {
        machine.confirmed(true, at(sent));
        let (from, to) = change(&mut machine, sent, core(1));
        machine.not_written(Some(from), to, at(sent), core(1));
        assert_eq!(machine.row_step(at(sent), core(1)), RowStep::Wait(at(rests_until)));
        machine.read(looked(sent, sent, Some(from)), core(1));
    }
}

#[test]
fn a_row_that_cannot_be_used_is_told() {
    let mut machine = machine();
    machine.not_read(false, at(0.1));
    assert_eq!(machine.trouble(), None, "Cassandra is slow, say");
    machine.not_read(true, at(0.2));
    assert_eq!(machine.trouble(), Some(Trouble::RowOdd));
    machine.read(looked(1.0, 1.1, Some(row(Mode::Native, 1, 0))), core(1));
    assert_eq!(machine.trouble(), None);
}

/// Each rule of a leader, taken away once, and the test that notices.
#[test]
fn each_rule_that_is_taken_away_is_noticed() {
    let table: [(Mutant, fn()); 15] = [
        (Mutant::AuthorityFromBumpEnd, authority_is_counted_from_the_start_of_the_bump),
        (Mutant::UnknownBumpCounts, a_bump_of_unknown_outcome_gives_nothing_whatever_a_read_shows),
        (
            Mutant::ReturnAtOnce,
            a_leader_that_finds_the_row_native_above_the_core_waits_from_the_end_of_its_read,
        ),
        (
            Mutant::ReturnWaitsHalf,
            a_leader_that_finds_the_row_native_above_the_core_waits_from_the_end_of_its_read,
        ),
        (
            Mutant::ReturnWaitFromStart,
            a_leader_that_finds_the_row_native_above_the_core_waits_from_the_end_of_its_read,
        ),
        (
            Mutant::OnlyReturnerWaits,
            a_leader_that_finds_the_row_native_above_the_core_waits_from_the_end_of_its_read,
        ),
        (Mutant::UnknownReturnCounts, a_return_of_unknown_outcome_starts_no_wait),
        (Mutant::RowBelowCore, a_row_below_the_core_is_raised_above_it_and_waited_for),
        (Mutant::RowWrittenWithoutQuorum, it_reads_first_and_writes_only_after_a_round),
        (Mutant::RowNotRaised, a_row_below_the_core_is_raised_above_it_and_waited_for),
        (Mutant::RowWBelowAuthority, a_w_longer_than_the_rows_stands_in_it_from_the_first_bump_on),
        (
            Mutant::ShorterWAtOnce,
            a_shorter_w_is_written_when_no_authority_is_left_that_was_counted_by_the_longer_one,
        ),
        (Mutant::ShorterWBesideOthers, a_shorter_w_waits_anew_when_somebody_else_wrote_in_between),
        (Mutant::VChangesAnyTime, v_changes_only_in_the_cores_epoch),
        (Mutant::ReturnWaitByOwnV, a_return_is_waited_for_by_the_v_of_the_row),
    ];
    for (mutant, test) in table {
        test();
        let run = while_armed(mutant, || std::panic::catch_unwind(test));
        assert!(run.is_err(), "nothing notices that {mutant} is armed");
    }
}

/// DESIGN §15: whichever of the two was further, nobody has authority in an epoch that was there before.
#[test]
fn of_a_restored_scope_the_row_is_raised_above_both_before_any_authority() {
    for (of_row, of_core, raised) in [(3, 331, 332), (400, 331, 401), (331, 331, 332)] {
        for mode in [Mode::Native, Mode::Preparing] {
            let mut machine = machine();
            machine.restored();
            machine.read(looked(0.0, 0.1, Some(row(mode, of_row, 5))), core(of_core));

            let to = make(&mut machine, 0.2, 0.3, core(of_core));

            assert_eq!(to, row(mode, raised, 0));
            assert_eq!(machine.authority(), None);
            assert!(!machine.is_behind(), "once is enough");
            // From here on as after every raise: the core follows after the wait.
            make(&mut machine, 0.4, 0.5, core(of_core));
            assert_eq!(machine.authority().map(|right| right.epoch), Some(raised));
            let wait = terms().durations.return_wait().as_secs_f64();
            let step = |now| machine.core_step(at(now), core(of_core));
            assert!(matches!(step(0.2 + wait), CoreStep::Wait(_)));
            assert_eq!(step(0.4 + wait), CoreStep::Raise(raised));
        }
    }
}

/// A write whose outcome is unknown may not have been made.
#[test]
fn a_raise_of_unknown_outcome_is_still_owed() {
    let mut machine = machine();
    machine.restored();
    machine.read(looked(0.0, 0.1, Some(row(Mode::Native, 3, 5))), core(331));
    machine.confirmed(true, at(0.2));
    let (from, to) = change(&mut machine, 0.2, core(331));
    machine.writes();
    machine.not_written(Some(from), to, at(1.0), core(331));
    assert!(machine.is_behind());
    machine.read(looked(2.0, 2.1, Some(to)), core(331));
    assert_eq!(make(&mut machine, 2.2, 2.3, core(331)).epoch, to.epoch + 1);
}

/// A scope that was retired, or that had no row yet, and one that Cassandra serves.
#[test]
fn a_restored_scope_gets_another_epoch_from_every_state_of_its_row() {
    let fresh = ScopeState { fresh: true, ..core(331) };
    let mut none = machine();
    none.restored();
    none.read(looked(0.0, 0.1, None), fresh);
    none.confirmed(true, at(0.2));
    let RowStep::Create(made) = none.row_step(at(0.2), fresh) else { panic!("no row is made") };
    assert_eq!((made.mode, made.epoch), (Mode::Preparing, 332));

    let mut retired = machine();
    retired.restored();
    retired.read(looked(0.0, 0.1, Some(row(Mode::Retired, 331, 5))), core(331));
    let to = make(&mut retired, 0.2, 0.3, core(331));
    assert_eq!((to.mode, to.epoch), (Mode::Preparing, 332));

    let mut served = machine();
    served.restored();
    served.read(looked(0.0, 0.1, Some(row(Mode::Cassandra, 500, 5))), core(331));
    let later = terms().switch_every.as_secs_f64() + 1.0;
    let to = make(&mut served, later, later + 0.1, core(331));
    assert_eq!((to.mode, to.epoch), (Mode::Draining, 501));
    assert!(!served.is_behind());
}
