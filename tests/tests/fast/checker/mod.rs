//! Tests of the judge: for each check a history that is wrong in exactly one way, and histories
//! that are right although they look odd.
//!
//! A history is written one record a line: milliseconds, client, what. Names are joined by `+`
//! (all of them) or `|` (any); one that ends with `~` is shared, with `~2/4` two of its four permits.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of a test fail it by a panic")]

mod bounds;
mod imports;
mod lines;
mod store;
mod vocabulary;
mod watches;

use lines::{RIGHT, broken, judge};

// --- right ones

#[test]
fn a_plain_hand_over_is_right() {
    let report = judge(
        "0 a asks 1 jobs
         1 a granted 1 5
         1 a safe-until 900
         2 b asks 1 jobs
         3 b queued 1 index=8
         3 a contended 5
         50 z reads 1 jobs
         51 z read 1 5
         60 a releases 5
         61 a released 5
         61 b granted 1 6
         61 b safe-until 950
         70 b is-safe 6
         80 b releases 6
         81 b released 6
         90 z healed",
    );

    assert_eq!(report.violations, []);
    assert_eq!(
        (report.tally.grants, report.tally.waits, report.tally.safe_holds, report.tally.reads),
        (2, 1, 2, 1)
    );
}

/// Its earlier hold had a longer lease, in another store.
#[test]
fn a_grant_after_the_safe_deadline_of_this_very_grant_is_right() {
    let history = "0 a asks 1 jobs
         1 a granted 1 5
         1 a safe-until 5 900
         2 a releases 5
         3 a released 5
         4 a asks 2 jobs
         5 a granted 2 6
         5 a safe-until 6 50
         40 a is-safe 6
         60 b asks 1 jobs
         61 b granted 1 7
         61 b safe-until 7 900
         70 b is-safe 7
         80 a lost 6 deadline";

    assert_eq!(broken(history), RIGHT);
}

#[test]
fn a_grant_before_the_safe_deadline_of_the_grant_is_found() {
    let history = "0 a asks 1 jobs
         1 a granted 1 5
         1 a safe-until 5 50
         40 a safe-until 5 90
         60 b asks 1 jobs
         61 b granted 1 7
         61 b safe-until 7 900
         100 a lost 5 deadline";

    assert_eq!(broken(history), [24]);
}

/// The old holder's client learned late that its lease was over; no client believed anything then.
#[test]
fn a_grant_after_the_old_holders_safe_deadline_is_right() {
    let history = "0 a asks 1 jobs
         1 a granted 1 5
         1 a safe-until 900
         2 b asks 1 jobs
         1001 b granted 1 6
         1001 b safe-until 2000
         3000 a lost 5 expired";

    assert_eq!(broken(history), RIGHT);
}

/// Passing the safe deadline ends a hold for ever: a later renewal of the session does not bring
/// it back, so the next holder is alone.
#[test]
fn a_renewal_after_the_deadline_revives_no_hold() {
    let history = "0 a asks 1 jobs
         1 a granted 1 5
         1 a safe-until 100
         200 a safe-until 900
         300 b asks 1 jobs
         301 b granted 1 6
         301 b safe-until 1200";

    assert_eq!(broken(history), RIGHT);
}

/// The client was paused for longer than its lease: its wait and its hold ended with its session
/// without its knowledge, and the session that it opened afterwards proves nothing about the one
/// before.
#[test]
fn a_lease_that_ran_out_is_not_mended_by_a_session_opened_after_it() {
    let history = "0 a asks 1 stock
         1 a granted 1 5
         1 a safe-until 100
         2 a sets 2 5 stock one
         3 a set 2
         4 a releases 5
         5 a release-unknown 5
         6 b asks 1 jobs
         7 b granted 1 6
         7 b safe-until 900
         8 a asks 3 jobs
         9 a queued 3
         300 b releases 6
         301 b released 6
         302 c asks 1 jobs
         303 c granted 1 7
         303 c safe-until 900
         500 a session-lost 3
         501 a asks 4 stock
         502 a granted 4 8 stock:one@5?
         502 a safe-until 900";

    assert_eq!(broken(history), RIGHT);
}

/// The client looked so seldom that its deadline is not known to have moved on in time.
#[test]
fn a_hold_that_seems_to_have_lapsed_may_still_be_given_back() {
    let history = "0 a asks 1 jobs
         1 a granted 1 5
         1 a safe-until 100
         200 a safe-until 300
         250 a releases 5
         251 a released 5";

    assert_eq!(broken(history), RIGHT);
}

#[test]
fn a_retry_of_an_unknown_request_may_be_granted() {
    let history = "0 a asks 1 jobs within=50
         50 a unknown 1
         60 a asks 1 jobs within=50
         61 a granted 1 5
         62 a granted 1 5
         99 z healed";

    assert_eq!(broken(history), RIGHT);
}

/// The later request overtakes only those that are not certain to have been in the queue.
#[test]
fn overtaking_one_of_unknown_fate_is_right() {
    let history = "0 a asks 1 jobs
         1 a granted 1 5
         2 b asks 1 jobs
         3 c asks 1 jobs
         4 c queued 1 index=9
         5 d asks 1 jobs within=20
         6 d queued 1 index=10
         40 d denied 1
         50 a releases 5
         51 a released 5
         51 c granted 1 6
         60 c releases 6
         61 c released 6
         61 b granted 1 7";

    assert_eq!(broken(history), RIGHT);
}

#[test]
fn a_killed_client_owes_no_answers() {
    let history = "0 a asks 1 jobs
         1 a granted 1 5
         2 a asks 2 other
         3 a killed
         9 z healed";

    assert_eq!(broken(history), RIGHT);
}

#[test]
fn a_state_that_shows_what_was_acknowledged_is_right() {
    let history = "0 a asks 1 jobs
         1 a granted 1 5
         2 a asks 2 more
         3 a queued 2 index=8
         4 a asks 3 third
         5 a granted 3 6
         6 a releases 6
         7 a asks 4 fourth
         9 a state 4 1=5 2=queued 3=ended";

    assert_eq!(broken(history), RIGHT);
}

// --- wrong in exactly one way

#[test]
fn two_safe_holds_of_one_name_are_found() {
    let history = "0 a asks 1 jobs
         1 a granted 1 5
         1 a safe-until 900
         2 b asks 1 jobs
         500 b granted 1 6
         500 b safe-until 1400";

    assert_eq!(broken(history), [24]);
}

/// A client that was killed released nothing: its lease has to run out.
#[test]
fn a_dead_clients_lock_given_away_before_its_deadline_is_found() {
    let history = "0 a asks 1 jobs
         1 a granted 1 5
         1 a safe-until 900
         10 a killed
         20 b asks 1 jobs
         500 b granted 1 6
         500 b safe-until 1400";

    assert_eq!(broken(history), [24]);
}

/// The recorded deadline is over, but the client still reported that it was safe.
#[test]
fn a_guard_that_says_safe_while_another_holds_is_found() {
    let history = "0 a asks 1 jobs
         1 a granted 1 5
         1 a safe-until 100
         90 b asks 1 jobs
         101 b granted 1 6
         101 b safe-until 1400
         120 a is-safe 5";

    assert_eq!(broken(history), [24]);
}

#[test]
fn a_write_refused_while_its_client_is_safe_is_found() {
    let history = |at_ms: u64| {
        format!(
            "0 a asks 1 jobs
             1 a granted 1 5
             1 a safe-until 900
             {at_ms} a fenced 5 jobs 6"
        )
    };

    assert_eq!(broken(&history(500)), [1]);
    assert_eq!(broken(&history(901)), RIGHT);
}

#[test]
fn an_older_token_that_is_safe_after_a_newer_one_is_found() {
    let history = "0 a asks 1 jobs
         0 b asks 1 jobs
         1 a granted 1 6
         1 a safe-until 900
         2 a releases 6
         3 b granted 1 5
         3 b safe-until 900";

    assert_eq!(broken(history), [24]);
}

#[test]
fn a_token_given_out_twice_is_found() {
    let history = "0 a asks 1 jobs
         1 a granted 1 5
         2 a releases 5
         3 b asks 1 other
         4 b granted 1 5";

    assert_eq!(broken(history), [3]);
}

#[test]
fn a_token_that_goes_back_over_names_is_found() {
    let history = "0 a asks 1 jobs
         1 a granted 1 6
         2 b asks 1 other
         3 b granted 1 5";

    assert_eq!(broken(history), [3]);
}

/// Each scope has an epoch of its own; within a scope tokens rise, across its names too.
#[test]
fn tokens_are_compared_within_a_scope_and_not_between_scopes() {
    let history = |name: &str| {
        format!(
            "0 a scopes pay/ ship/
             0 a asks 1 pay/1
             1 a granted 1 6
             2 b asks 1 {name}
             3 b granted 1 5"
        )
    };

    assert_eq!(broken(&history("pay/2")), [3]);
    assert_eq!(broken(&history("ship/2")), RIGHT);
    assert_eq!(broken(&history("zoo")), RIGHT);
}

/// Also when a scope came back from the other store.
#[test]
fn a_token_given_out_twice_in_a_scope_is_found() {
    let history = "0 a scopes pay/
         0 a asks 1 pay/1
         1 a granted 1 5
         2 a releases 5
         3 b asks 1 pay/1
         4 b granted 1 5";

    assert_eq!(broken(history), [3]);
}

#[test]
fn a_waiter_overtaken_by_one_that_came_later_is_found() {
    let history = "0 b asks 1 jobs
         1 b queued 1
         2 c asks 1 jobs
         3 c granted 1 6
         4 c releases 6
         5 c released 6
         5 b granted 1 7";

    assert_eq!(broken(history), [9]);
}

#[test]
fn a_waiter_overtaken_within_overlapping_calls_is_found_by_its_index() {
    let history = "0 b asks 1 jobs
         0 c asks 1 jobs
         5 b queued 1 index=8
         5 c queued 1 index=9
         6 c granted 1 6
         7 c releases 6
         8 c released 6
         8 b granted 1 7";

    assert_eq!(broken(history), [9]);
}

#[test]
fn one_that_would_not_wait_and_barges_is_found() {
    let history = "0 b asks 1 jobs
         1 b queued 1
         1 b safe-until 900
         2 c asks 1 jobs try
         3 c granted 1 6
         8 b cancels 1
         9 b cancelled 1";

    assert_eq!(broken(history), [9]);
}

#[test]
fn a_retry_with_another_token_is_found() {
    let history = "0 a asks 1 jobs
         1 a granted 1 5
         2 a asks 1 jobs
         3 a granted 1 6";

    assert_eq!(broken(history), [12]);
}

#[test]
fn a_request_both_granted_and_denied_is_found() {
    let history = "0 a asks 1 jobs try
         1 a denied 1
         2 a asks 1 jobs try
         3 a granted 1 6";

    assert_eq!(broken(history), [12]);
}

#[test]
fn a_waiter_refused_after_it_was_acknowledged_is_found() {
    let history = "0 a asks 1 jobs
         1 a queued 1
         9 a refused 1 limit";

    assert_eq!(broken(history), [10]);
}

#[test]
fn a_waiter_cancelled_by_nobody_is_found() {
    let history = "0 a asks 1 jobs
         1 a queued 1
         9 a cancelled 1";

    assert_eq!(broken(history), [10]);
}

#[test]
fn a_wait_that_ends_with_the_session_while_its_lease_is_certain_is_found() {
    let history = "0 a asks 1 jobs
         1 a queued 1
         1 a safe-until 900
         9 a session-lost 1";

    assert_eq!(broken(history), [10]);
}

#[test]
fn a_grant_to_a_session_that_is_over_is_found() {
    let history = "0 a asks 1 jobs
         1 a queued 1
         5 a ended expired
         9 a granted 1 6";

    assert_eq!(broken(history), [5]);
}

#[test]
fn an_expiry_before_the_safe_deadline_is_found() {
    let history = "0 a asks 1 jobs
         1 a granted 1 5
         1 a safe-until 900
         500 a lost 5 expired";

    assert_eq!(broken(history), [6]);
}

#[test]
fn a_hold_released_by_somebody_else_is_found() {
    let history = "0 a asks 1 jobs
         1 a granted 1 5
         1 a safe-until 900
         500 a released 5";

    assert_eq!(broken(history), [13]);
}

#[test]
fn a_session_closed_by_nobody_is_found() {
    let history = "0 a asks 1 jobs
         1 a granted 1 5
         1 a safe-until 900
         500 a ended closed";

    assert_eq!(broken(history), [13]);
}

#[test]
fn a_hold_forgotten_by_a_later_state_is_found() {
    let history = "0 a asks 1 jobs
         1 a granted 1 5
         9 a state 2";

    assert_eq!(broken(history), [19]);
}

#[test]
fn a_hold_under_another_token_in_a_later_state_is_found() {
    let history = "0 a asks 1 jobs
         1 a granted 1 5
         9 a state 2 1=6";

    assert_eq!(broken(history), [4]);
}

#[test]
fn a_place_forgotten_by_a_later_state_is_found() {
    let history = "0 a asks 1 jobs
         1 a queued 1
         9 a state 2 1=ended";

    assert_eq!(broken(history), [4]);
}

#[test]
fn a_hold_that_is_gone_while_it_is_safe_is_found() {
    let history = "0 a asks 1 jobs
         1 a granted 1 5
         1 a safe-until 900
         9 a releases 5
         10 a not-holder 5";

    assert_eq!(broken(history), [19]);
}

#[test]
fn pushes_about_what_was_never_asked_or_given_are_found() {
    let asked = "0 a asks 1 jobs\n";
    for invented in [
        "1 a granted 2 5",
        "1 a queued 2",
        "1 a moved 2",
        "1 a contended 5",
        "1 a lost 5 expired",
        "1 a released 5",
        "1 a state 9 7=queued",
    ] {
        assert_eq!(broken(&format!("{asked}{invented}")), [23], "{invented}");
    }
}

#[test]
fn a_look_that_does_not_show_the_holder_is_found() {
    for shown in ["-", "9"] {
        let history = format!(
            "0 a asks 1 jobs
             1 a granted 1 5
             1 a safe-until 900
             9 z reads 1 jobs
             10 z read 1 {shown}"
        );
        assert_eq!(broken(&history), [18]);
    }
}

#[test]
fn a_look_into_the_past_is_found() {
    let history = "0 a asks 1 jobs
         1 a granted 1 5
         2 a releases 5
         3 b asks 1 jobs
         4 b granted 1 6
         9 z reads 1 jobs
         10 z read 1 5";

    assert_eq!(broken(history), [18]);
}

#[test]
fn a_look_that_shows_a_session_that_is_over_is_found() {
    let history = "0 a asks 1 jobs
         1 a granted 1 5
         5 a ended expired
         9 z reads 1 jobs
         10 z read 1 5";

    assert_eq!(broken(history), [11]);
}

#[test]
fn a_waiter_forgotten_after_healing_is_found() {
    let history = "0 a asks 1 jobs
         1 a queued 1
         9 z healed";

    assert_eq!(broken(history), [31]);
}

#[test]
fn a_try_that_never_ends_is_found() {
    let history = "0 a asks 1 jobs try
         9 z healed";

    assert_eq!(broken(history), [32]);
}

#[test]
fn a_call_that_ends_long_after_its_limit_is_found() {
    let history = "0 a asks 1 jobs within=50
         500 a denied 1";

    assert_eq!(broken(history), [32]);
}

#[test]
fn a_release_without_answer_is_found() {
    let history = "0 a asks 1 jobs
         1 a granted 1 5
         2 a releases 5
         9 z healed";

    assert_eq!(broken(history), [32]);
}

/// While some fault is active, the store owes no client progress.
#[test]
fn a_run_that_was_not_healed_owes_no_progress() {
    let history = "0 a asks 1 jobs
         1 z healed
         2 z fault";

    assert_eq!(broken(history), RIGHT);
}
