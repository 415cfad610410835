//! Histories of what watches report. `w` watches all names; its report of a lock begins with the
//! index of the log.

use super::lines::{RIGHT, broken, judge};

/// Two clients acquire and release, a third one looks in the end, and the watch reports all of it.
const PLAIN: &str = "0 w watches 1 j
     1 w told 1 synced
     2 a asks 1 jobs
     3 a granted 1 5
     3 w told 1 4 jobs granted 5
     3 a safe-until 900
     4 b asks 1 jobs
     5 w told 1 5 jobs queued waiting=1
     9 a releases 5
     10 a released 5
     10 w told 1 6 jobs released 5
     10 w told 1 6 jobs granted 6
     11 b granted 1 6
     11 b safe-until 900
     20 b releases 6
     21 b released 6
     21 w told 1 7 jobs released 6
     22 a asks 2 jobs
     23 a granted 2 7
     23 w told 1 8 jobs granted 7
     24 a releases 7
     25 a released 7
     25 w told 1 9 jobs released 7
     26 z reads 1 jobs
     27 z read 1 -
     30 z healed
     300 w watch-over 1";

/// The plain history with one line replaced; an empty replacement leaves the line out.
fn but(line: &str, other: &str) -> String {
    assert!(PLAIN.contains(line), "{line} is one of its lines");
    PLAIN.replacen(line, other, 1)
}

// --- right ones

#[test]
fn a_watch_that_tells_everything_is_right() {
    let report = judge(PLAIN);

    assert_eq!(report.violations, []);
    assert_eq!((report.tally.watch_news, report.tally.watches_begun_anew), (8, 0));
}

/// Changes during a break of the watch are not reported.
#[test]
fn a_watch_that_says_that_it_broke_may_leave_things_out() {
    let history = but("10 w told 1 6 jobs released 5", "10 w told 1 restarted");
    let history = history.replacen("10 w told 1 6 jobs granted 6", "", 1).replacen(
        "21 w told 1 7 jobs released 6",
        "21 w told 1 synced",
        1,
    );

    let report = judge(&history);

    assert_eq!(report.violations, []);
    assert_eq!(report.tally.watches_begun_anew, 1);
}

/// The state is older than the grant, which is reported after it.
#[test]
fn a_state_that_shows_a_holder_and_goes_on_from_there_is_right() {
    let history = "0 a asks 1 jobs
         1 a granted 1 5
         1 a safe-until 900
         2 w watches 1
         3 w told 1 lock jobs 5 waiting=1
         3 w told 1 synced
         4 w told 1 8 jobs left
         9 a releases 5
         10 a released 5
         10 w told 1 9 jobs released 5";

    assert_eq!(broken(&history.replace("watches 1", "watches 1 j")), RIGHT);
}

/// The lease ran out: the watch learns of it when no client believes in the hold any more.
#[test]
fn a_loss_that_is_told_after_the_safe_deadline_is_right() {
    let history = "0 w watches 1 j
         1 w told 1 synced
         2 a asks 1 jobs
         3 a granted 1 5
         3 w told 1 4 jobs granted 5
         3 a safe-until 100
         150 w told 1 5 jobs lost 5";

    assert_eq!(broken(history), RIGHT);
}

/// A watch that began a moment before the end has not reported `jobs`, whose value stays.
#[test]
fn a_watch_that_has_not_told_all_of_its_state_in_the_end_is_right() {
    let history = "0 a asks 1 jobs
         1 a granted 1 5
         1 a safe-until 900
         2 a sets 2 5 jobs v
         3 a set 2
         24 a releases 5
         25 a released 5
         26 z reads 1 jobs
         27 z read 1 - jobs:v@5
         30 z healed
         290 w watches 1 j
         300 w watch-over 1";
    assert_eq!(broken(history), RIGHT);

    let complete = history.replacen("300 w", "291 w told 1 synced\n300 w", 1);
    assert_ne!(broken(&complete), RIGHT);
}

// --- wrong ones, each in one way

#[test]
fn a_grant_that_a_watch_leaves_out_is_found() {
    // Its release is not reported either: only the clients know of the grant.
    let history = but("10 w told 1 6 jobs granted 6", "").replacen(
        "21 w told 1 7 jobs released 6",
        "21 w told 1 7 jobs value",
        1,
    );

    assert_eq!(broken(&history), [23]);
}

#[test]
fn a_release_that_a_watch_leaves_out_is_found() {
    // The next holder then stands beside one that is gone.
    assert_eq!(broken(&but("21 w told 1 7 jobs released 6", "")), [2, 23]);
}

#[test]
fn a_release_that_a_watch_tells_twice_is_found() {
    let history = but(
        "10 w told 1 6 jobs released 5",
        "10 w told 1 6 jobs released 5
         10 w told 1 6 jobs released 5",
    );

    assert_eq!(broken(&history), [23]);
}

#[test]
fn a_grant_that_a_watch_tells_twice_is_found() {
    let history = but(
        "3 w told 1 4 jobs granted 5",
        "3 w told 1 4 jobs granted 5
         3 w told 1 4 jobs granted 5",
    );

    assert_eq!(broken(&history), [23]);
}

#[test]
fn a_watch_whose_index_goes_back_is_found() {
    assert_eq!(broken(&but("5 w told 1 5 jobs queued", "5 w told 1 3 jobs queued")), [23]);
}

#[test]
fn a_waiter_that_a_watch_leaves_out_is_found() {
    let history = but("21 w told 1 7 jobs released 6", "21 w told 1 7 jobs released 6 waiting=1")
        .replacen("23 w told 1 8 jobs granted 7", "23 w told 1 8 jobs granted 7 waiting=1", 1)
        .replacen("25 w told 1 9 jobs released 7", "25 w told 1 9 jobs left", 1);

    // The final state still shows it as held.
    assert_eq!(broken(&history), [23]);
}

#[test]
fn two_numbers_of_waiters_after_one_index_are_found() {
    let history = but("10 w told 1 6 jobs granted 6", "10 w told 1 6 jobs granted 6 waiting=1");

    assert_eq!(broken(&history), [23]);
}

#[test]
fn a_lock_that_is_shown_again_after_the_state_was_complete_is_found() {
    let history = but("1 w told 1 synced", "1 w told 1 synced\n1 w told 1 lock jobs -");

    assert_eq!(broken(&history), [23]);
}

#[test]
fn a_state_without_a_hold_that_was_certain_is_found() {
    let history = "0 a asks 1 jobs
         1 a granted 1 5
         1 a safe-until 900
         2 w watches 1 j
         3 w told 1 synced
         9 a releases 5";

    assert_eq!(broken(history), [18]);
}

#[test]
fn a_set_that_a_watch_tells_under_two_indexes_is_found() {
    let history = "0 w watches 1 j
         1 w told 1 synced
         2 a asks 1 jobs+jugs
         3 a granted 1 5
         3 a safe-until 900
         3 w told 1 4 jobs granted 5
         3 w told 1 5 jugs granted 5";

    assert_eq!(broken(history), [14]);
}

#[test]
fn a_set_that_a_watch_tells_in_part_is_found() {
    let history = "0 w watches 1 j
         1 w told 1 synced
         2 b asks 1 jars
         3 b granted 1 4
         3 w told 1 3 jars granted 4
         4 a asks 1 jobs+jugs
         5 a granted 1 5
         5 a safe-until 900
         5 w told 1 4 jobs granted 5
         6 b asks 2 jays
         7 b granted 2 6
         7 w told 1 5 jays granted 6";

    assert_eq!(broken(history), [14]);
}

#[test]
fn a_grant_that_a_watch_tells_of_another_name_is_found() {
    let history = "0 w watches 1 j
         1 w told 1 synced
         2 a asks 1 jobs
         3 a granted 1 5
         3 a safe-until 900
         3 w told 1 4 jobs granted 5
         3 w told 1 4 jugs granted 5";

    assert_eq!(broken(history), [23]);
}

#[test]
fn a_grant_that_a_watch_tells_in_another_mode_is_found() {
    assert_eq!(broken(&but("3 w told 1 4 jobs granted 5", "3 w told 1 4 jobs granted 5~")), [23]);
}

#[test]
fn a_loss_that_a_watch_tells_of_a_safe_hold_is_found() {
    let history = "0 w watches 1 j
         1 w told 1 synced
         2 a asks 1 jobs
         3 a granted 1 5
         3 w told 1 4 jobs granted 5
         3 a safe-until 100
         50 w told 1 5 jobs lost 5";

    assert_eq!(broken(history), [6]);
}

/// The client was paused when it was granted the lock, and its lease ran out meanwhile: when it
/// learned of the grant in the end, it believed in nothing.
#[test]
fn a_loss_that_a_watch_tells_before_the_grant_reached_its_client_is_right() {
    let history = "0 w watches 1 j
         1 w told 1 synced
         2 a asks 1 jobs
         3 w told 1 4 jobs granted 5
         50 w told 1 5 jobs lost 5
         90 a granted 1 5
         90 a lost 5 deadline";

    assert_eq!(broken(history), RIGHT);
}

#[test]
fn a_release_that_a_watch_tells_and_nobody_made_is_found() {
    let history = "0 w watches 1 j
         1 w told 1 synced
         2 a asks 1 jobs
         3 a granted 1 5
         3 w told 1 4 jobs granted 5
         3 a safe-until 100
         50 w told 1 5 jobs released 5";

    assert_eq!(broken(history), [13]);
}

#[test]
fn a_watch_that_shows_in_the_end_what_is_not_so_is_found() {
    assert_eq!(broken(&but("25 w told 1 9 jobs released 7", "")), [23]);
}

#[test]
fn a_watch_that_tells_nothing_long_after_healing_is_found() {
    assert_eq!(broken("0 z healed\n5 w watches 1 j\n400 w watch-over 1"), [31]);
}
