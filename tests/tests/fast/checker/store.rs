//! Histories of what is observed besides the clients: resources behind fencing tokens, expiries,
//! nodes, free locks, and what the store owes while no fault is active.

use super::lines::{RIGHT, broken, judge};

// --- right ones

/// The write of a holder that was paused comes after the next holder's, and is refused. That is the
/// purpose of the token.
#[test]
fn a_late_write_that_is_refused_is_right() {
    let report = judge(
        "0 a asks 1 jobs
         1 a granted 1 5
         1 a safe-until 100
         2 a accepted 5 jobs
         3 a accepted 5 jobs
         200 b asks 1 jobs
         201 b granted 1 6
         201 b safe-until 900
         202 b accepted 6 jobs
         203 a fenced 5 jobs 6
         204 b accepted 6 jobs",
    );

    assert_eq!(report.violations, []);
    assert_eq!((report.tally.accepted, report.tally.fenced), (4, 1));
}

/// The lease is 1 s with its margin, a tenth for the leader's clock; 100 ms to settle, 100 ms of
/// grace: the session has to be over 1,355 ms after the client was killed or the run was healed.
#[test]
fn an_expiry_within_its_bound_is_right() {
    let report = judge(
        "0 z healed
         0 a opened 1000
         1 a asks 1 jobs
         1 a granted 1 5
         1 a safe-until 800
         10 a killed
         20 z fault
         500 z healed
         1850 z expired a
         3000 z applied 1 9 x 1",
    );

    assert_eq!(report.violations, []);
    assert_eq!((report.tally.expiries, report.tally.owed_expiries), (1, 1));
}

/// The end of the run came too early to show that the session should have ended, and while a fault
/// is active nothing is owed.
#[test]
fn an_expiry_that_was_not_owed_yet_is_right() {
    let history = "0 a opened 1000
         1 a asks 1 jobs
         1 a granted 1 5
         10 a killed
         20 z fault
         5000 z healed
         6300 z applied 1 9 x 1";

    assert_eq!(broken(history), RIGHT);
}

/// The client's first session ran out; the hold that a look shows belongs to its second.
#[test]
fn a_hold_of_a_session_opened_after_an_expiry_is_right() {
    let history = "0 a opened 1000
         1 a asks 1 jobs
         1 a granted 1 5
         1 a safe-until 900
         1100 z expired a
         1200 a opened 1000
         1201 a asks 2 jobs
         1202 a granted 2 6
         1202 a safe-until 2000
         1300 z reads 1 jobs
         1301 z read 1 6";

    assert_eq!(broken(history), RIGHT);
}

/// The client opened two sessions, because it never learned of the first; that one runs out while
/// the second holds.
#[test]
fn an_expiry_of_a_session_that_held_something_else_is_right() {
    let history = "0 a opened 1000
         1 a asks 1 jobs
         1 a granted 1 6
         1 a safe-until 900
         500 z expired a 3+4
         800 a is-safe 6
         850 a releases 6
         860 a released 6";

    assert_eq!(broken(history), RIGHT);
}

#[test]
fn an_expiry_of_the_very_session_that_was_certain_is_found() {
    let history = "0 a opened 1000
         1 a asks 1 jobs
         1 a granted 1 6
         1 a safe-until 900
         500 z expired a 3+6
         800 a is-safe 6";

    assert_eq!(broken(history), [6]);
}

#[test]
fn a_client_that_closed_its_session_owes_no_expiry() {
    let history = "0 z healed
         0 a opened 1000
         10 a closes
         11 a killed
         9000 z applied 1 9 x 1";

    assert_eq!(broken(history), RIGHT);
}

/// One node is behind another; both are in the state of their index.
#[test]
fn nodes_at_different_indexes_are_right() {
    let report = judge(
        "0 z applied 1 9 x 100
         1 z applied 2 8 w 100
         2 z applied 2 9 x 100
         3 z applied 2 12 y 101",
    );

    assert_eq!(report.violations, []);
    assert_eq!(report.tally.compared, 1);
}

/// A set stands first in the queue of a free lock: it waits for another of its names (DESIGN §4).
#[test]
fn a_free_lock_that_a_set_keeps_is_right() {
    let history = "0 a asks 1 stock
         1 a granted 1 5
         2 b asks 1 jobs+stock
         3 b queued 1
         4 c asks 1 jobs
         5 c queued 1
         6 z reads 1 jobs
         7 z read 1 - waiting=2";

    assert_eq!(broken(history), RIGHT);
}

/// A command may do so little that it grants nothing: the ones after it do (`work_steps`).
#[test]
fn a_free_lock_is_right_while_a_command_has_left_work() {
    let history = "0 b asks 1 jobs
         1 b queued 1
         3 z leaves-work 6
         5 z reads 1 jobs
         7 z read 1 - waiting=1";

    assert_eq!(broken(history), RIGHT);
}

#[test]
fn a_deadline_that_passes_while_something_is_broken_is_right() {
    let history = "0 z healed
         0 a opened 1000
         1 a asks 1 jobs
         1 a granted 1 5
         1 a safe-until 800
         700 a safe-until 2000
         1400 z fault
         2001 a lost 5 deadline
         3000 z healed";

    assert_eq!(broken(history), RIGHT);
}

// --- wrong in exactly one way

#[test]
fn an_older_write_accepted_after_a_newer_one_is_found() {
    let history = "0 a asks 1 jobs
         1 a granted 1 5
         1 a safe-until 100
         2 a accepted 5 jobs
         200 b asks 1 jobs
         201 b granted 1 6
         202 b accepted 6 jobs
         203 a accepted 5 jobs";

    assert_eq!(broken(history), [1]);
}

#[test]
fn a_write_under_somebody_elses_token_is_found() {
    let history = "0 a asks 1 jobs
         1 a granted 1 5
         1 a safe-until 900
         2 b accepted 5 jobs";

    assert_eq!(broken(history), [1]);
}

#[test]
fn a_write_of_one_that_shares_is_found() {
    let history = "0 a asks 1 jobs~
         1 a granted 1 5
         2 a accepted 5 jobs";

    assert_eq!(broken(history), [1]);
}

/// No other client was granted the lock, and no client learned of it: the observer saw the store
/// expire the session.
#[test]
fn an_expiry_that_the_store_was_seen_to_make_too_early_is_found() {
    let history = "0 a asks 1 jobs
         1 a granted 1 5
         1 a safe-until 900
         500 z expired a";

    assert_eq!(broken(history), [6]);
}

#[test]
fn an_expiry_after_its_bound_is_found() {
    for fate in ["2000 z expired a", "2000 z applied 1 9 x 1"] {
        let history = format!(
            "0 z healed
             0 a opened 1000
             10 a killed
             {fate}
             3000 z applied 1 9 x 1"
        );
        assert_eq!(broken(&history), [7], "{fate}");
    }
}

#[test]
fn a_stamp_that_goes_back_is_found() {
    let history = "0 z applied 1 9 x 100
         1 z applied 1 10 y 99";

    assert_eq!(broken(history), [8]);
}

#[test]
fn a_node_that_stamps_by_its_own_clock_is_found() {
    let history = "0 z applied 1 9 x 100
         1 z applied 2 9 y 101";

    assert_eq!(broken(history), [8]);
}

#[test]
fn two_nodes_in_different_states_at_one_index_are_found() {
    let history = "0 z applied 1 9 x 100
         1 z applied 2 9 y 100";

    assert_eq!(broken(history), [16]);
}

#[test]
fn a_free_lock_that_somebody_waits_for_is_found() {
    let history = "0 b asks 1 jobs
         1 b queued 1
         6 z reads 1 jobs
         7 z read 1 - waiting=1";

    assert_eq!(broken(history), [15]);
}

/// The work that a command had left was done before the look began.
#[test]
fn a_free_lock_after_the_work_that_was_left_is_found() {
    let history = "0 b asks 1 jobs
         1 b queued 1
         3 z leaves-work 5
         6 z reads 1 jobs
         7 z read 1 - waiting=1";

    assert_eq!(broken(history), [15]);
}

/// The set that could have kept the lock was granted before the look began.
#[test]
fn a_free_lock_that_no_set_keeps_any_more_is_found() {
    let history = "0 b asks 1 jobs+stock
         1 b granted 1 5
         2 b releases 5
         3 b released 5
         4 c asks 1 jobs
         6 z reads 1 jobs
         7 z read 1 - waiting=1";

    assert_eq!(broken(history), [15]);
}

#[test]
fn a_keepalive_without_answer_while_nothing_is_broken_is_found() {
    let history = "0 z healed
         0 a opened 1000
         1 a asks 1 jobs
         1 a granted 1 5
         1 a safe-until 800
         700 a safe-until 1500
         1501 a lost 5 deadline
         3000 z healed";

    assert_eq!(broken(history), [31]);
}

/// The keepalive left at 10 and gives 900 ms; the client counts from its answer. No other check
/// would find this.
#[test]
fn a_belief_beyond_what_was_acknowledged_is_found() {
    let history = "0 a acknowledged 1 900
         1 a asks 1 jobs
         2 a granted 1 5
         2 a safe-until 900
         60 a acknowledged 1 910
         61 a safe-until 960";

    assert_eq!(broken(history), [6]);
}

/// An acknowledgement that is older than the last one takes nothing back.
#[test]
fn a_belief_up_to_the_latest_acknowledgement_is_right() {
    let report = judge(
        "0 a acknowledged 1 900
         1 a asks 1 jobs
         2 a granted 1 5
         2 a safe-until 900
         60 a acknowledged 1 1200
         61 a acknowledged 1 1100
         62 a safe-until 1200",
    );

    assert_eq!(report.violations, []);
    assert_eq!(report.tally.acknowledged, 3);
}

/// The session held nothing: no hold shows the violation.
#[test]
fn an_expiry_of_a_session_that_was_told_that_it_lives_is_found() {
    let history = "0 a acknowledged 1 900
         500 a acknowledged 1 1400
         1300 z expired a session 1";

    assert_eq!(broken(history), [6]);
}

/// A leader without followers goes on acknowledging.
#[test]
fn an_acknowledgement_after_the_expiry_is_found() {
    let history = "0 a acknowledged 1 900
         1300 z expired a session 1
         1500 a acknowledged 1 2400";

    assert_eq!(broken(history), [6]);
}

#[test]
fn an_expiry_after_the_last_safe_deadline_is_right() {
    let history = "0 a acknowledged 1 900
         500 a acknowledged 1 1400
         1500 z expired a session 1
         1600 a acknowledged 2 2500";

    assert_eq!(broken(history), RIGHT);
}

/// The client checks at the instant of its own deadline.
#[test]
fn a_hold_that_is_taken_for_safe_at_its_deadline_is_found() {
    let history = "0 a asks 1 jobs
         1 a granted 1 5
         1 a safe-until 900
         900 a safe-until 900
         900 a is-safe 5";

    assert_eq!(broken(history), [6]);
}

/// The deadline moved on, and the client did not record it again.
#[test]
fn a_hold_that_is_safe_after_a_deadline_that_was_told_before_is_right() {
    let history = "0 a asks 1 jobs
         1 a granted 1 5
         1 a safe-until 900
         950 a is-safe 5";

    assert_eq!(broken(history), RIGHT);
}
