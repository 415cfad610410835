//! Histories of bounds of holds, freezes and limits that operators set: right ones that look odd, and wrong ones.

use super::lines::{RIGHT, broken, judge};

/// Ended by the store after its longest time, which a fast leader counts as up to a tenth less.
#[test]
fn a_hold_that_is_ended_when_it_has_lasted_its_longest_is_right() {
    for granted in ["grant-seen 5", "queued 1"] {
        let history = format!(
            "0 a asks 1 jobs max-hold=100
             4 a {granted}
             5 a granted 1 5
             5 a safe-until 900
             95 a lost 5 too-long
             97 b asks 1 jobs
             98 b granted 1 6"
        );
        assert_eq!(broken(&history), RIGHT, "{granted}");
        assert_eq!(judge(&history).tally.too_long, 1);
    }
}

#[test]
fn a_hold_that_is_ended_before_its_longest_time_is_found() {
    let seen = "0 a asks 1 jobs max-hold=100
         40 a grant-seen 5
         41 a granted 1 5
         41 a safe-until 900
         129 a lost 5 too-long";
    let unseen = "0 a asks 1 jobs max-hold=100
         1 a granted 1 5
         1 a safe-until 900
         89 a lost 5 too-long";
    let unbound = "0 a asks 1 jobs
         1 a granted 1 5
         1 a safe-until 900
         89 a lost 5 too-long";
    for history in [seen, unseen, unbound] {
        assert_eq!(broken(history), [38], "{history}");
    }
}

#[test]
fn a_hold_that_outlasts_its_longest_time_with_nothing_broken_is_found() {
    for (safe_until, is_right) in [(310, true), (312, false)] {
        let history = format!(
            "0 z healed
             0 a asks 1 jobs max-hold=100
             1 a granted 1 5
             1 a safe-until {safe_until}
             900 a releases 5
             901 a released 5"
        );
        let expected: &[u8] = if is_right { &RIGHT } else { &[31] };
        assert_eq!(broken(&history), expected, "{safe_until}");
    }
}

/// A value that a hold left which may have been closed is suspect or not.
#[test]
fn a_value_of_a_hold_that_may_have_lasted_its_longest_may_be_suspect() {
    for (released, doubt, is_right) in [(95, "?", true), (95, "", true), (80, "?", false)] {
        let history = format!(
            "0 a asks 1 jobs max-hold=100
             1 a granted 1 5
             1 a safe-until 900
             2 a sets 2 5 jobs one
             3 a set 2
             {released} a releases 5
             {released} a released 5
             200 b asks 1 jobs
             201 b granted 1 6 jobs:one@5{doubt}"
        );
        assert_eq!(broken(&history).is_empty(), is_right, "{released} {doubt}");
    }
}

#[test]
fn a_lock_granted_before_its_last_holds_least_has_passed_is_found() {
    for (granted, invariants) in [(128, vec![38]), (131, vec![])] {
        let history = format!(
            "0 a asks 1 jobs at-least=100
             40 a grant-seen 5
             41 a granted 1 5
             41 a safe-until 900
             50 a releases 5
             51 a released 5
             52 b asks 1 jobs~
             {granted} b grant-seen 6
             {granted} b granted 1 6"
        );
        assert_eq!(broken(&history), invariants, "{granted}");
    }
}

/// Without observers of the nodes, only the request and the answer are certain.
#[test]
fn a_lock_granted_too_early_is_found_by_the_answers_alone() {
    for (granted, invariants) in [(88, vec![38]), (92, vec![])] {
        let history = format!(
            "0 a asks 1 jobs at-least=100
             1 a granted 1 5
             1 a safe-until 900
             2 a releases 5
             3 a released 5
             4 b asks 1 jobs
             {granted} b granted 1 6"
        );
        assert_eq!(broken(&history), invariants, "{granted}");
    }
}

/// Nobody holds it, and somebody waits: it is closed, or frozen.
#[test]
fn a_look_at_a_closed_or_frozen_lock_that_is_waited_for_is_right() {
    let closed = "0 a asks 1 jobs at-least=300
         1 a granted 1 5
         1 a safe-until 900
         2 a releases 5
         3 a released 5
         4 b asks 1 jobs
         5 b queued 1
         6 z reads 1 jobs
         7 z read 1 - waiting=1 closed=5";
    let frozen = "0 z orders 1 freeze jo
         1 z ordered 1
         4 b asks 1 jobs
         5 b queued 1
         6 z reads 1 jobs
         7 z read 1 - waiting=1 frozen";
    for history in [closed, frozen] {
        assert_eq!(broken(history), RIGHT, "{history}");
        assert_eq!(judge(history).tally.looks_shut, 1);
    }
}

#[test]
fn a_look_that_shows_a_closed_lock_wrongly_is_found() {
    let history = |least: &str, at: u64, holders: &str| {
        format!(
            "0 z healed
             0 a asks 1 jobs {least}
             1 a granted 1 5
             1 a safe-until 900
             2 a releases 5
             3 a released 5
             {at} z reads 1 jobs
             {at} z read 1 {holders} closed=5"
        )
    };
    assert_eq!(broken(&history("at-least=100", 310, "-")), RIGHT);
    assert_eq!(broken(&history("at-least=100", 320, "-")), [31], "for too long");
    assert_eq!(broken(&history("", 9, "-")), [18], "it had no least");
    assert_eq!(broken(&history("at-least=100", 9, "9")), [38], "it is held");
}

#[test]
fn a_look_that_shows_a_freeze_wrongly_is_found() {
    let history = |orders: &str, look: &str| {
        format!(
            "{orders}
             50 z reads 1 jobs
             60 z read 1 - {look}"
        )
    };
    let frozen = "0 z orders 1 freeze jobs\n9 z ordered 1";
    let thawing = format!("{frozen}\n20 z orders 2 thaw jobs");
    let thawed = format!("{thawing}\n30 z ordered 2");
    assert_eq!(broken(&history(frozen, "")), [18], "it was frozen");
    assert_eq!(broken(&history(&thawing, "")), RIGHT);
    assert_eq!(broken(&history(&thawing, "frozen")), RIGHT);
    assert_eq!(broken(&history(&thawed, "frozen")), [18], "it was thawed");
    assert_eq!(broken(&history(&thawed, "")), RIGHT);
    assert_eq!(broken(&history("0 z orders 1 freeze stock", "frozen")), [18], "another one");
    let again = format!("{thawed}\n40 z orders 3 freeze jobs\n45 z ordered 3");
    assert_eq!(broken(&history(&again, "")), [18], "it was frozen again");
    assert_eq!(broken(&history(&again, "frozen")), RIGHT);
}

/// Every grant of which it is certain that it came between the freeze and its end.
#[test]
fn a_grant_of_a_frozen_name_is_found() {
    for (asked, granted, invariants) in
        [(5, 30, vec![]), (11, 30, vec![38]), (11, 41, vec![]), (50, 51, vec![])]
    {
        let mut lines = [
            (0, "z orders 1 freeze jo"),
            (10, "z ordered 1"),
            (40, "z orders 2 thaw jo"),
            (45, "z ordered 2"),
            (asked, "b asks 1 jobs"),
            (granted, "b granted 1 6"),
        ];
        lines.sort_unstable_by_key(|(at, _)| *at);
        let lines: Vec<String> = lines.iter().map(|(at, what)| format!("{at} {what}")).collect();
        assert_eq!(broken(&lines.join("\n")), invariants, "{asked} {granted}");
    }
    let seen = "0 b asks 1 jobs
         0 z orders 1 freeze jo
         10 z ordered 1
         20 b grant-seen 6
         21 b granted 1 6";
    assert_eq!(broken(seen), [38]);
}

/// The limit was lowered under the first hold, which goes on; the second one was asked for before that.
#[test]
fn permits_under_a_limit_that_changes_are_judged_by_the_largest_that_may_have_been_in_force() {
    for (asked, invariants) in [(5, vec![]), (30, vec![2])] {
        let mut lines = vec![
            (0, "z orders 1 gpu 4"),
            (1, "z ordered 1"),
            (2, "a asks 1 gpu~3/0"),
            (3, "a granted 1 5"),
            (3, "a safe-until 900"),
            (10, "z orders 2 gpu 1"),
            (20, "z ordered 2"),
            (asked, "b asks 1 gpu~1/0"),
            (40, "b granted 1 6"),
            (40, "b safe-until 900"),
        ];
        lines.sort_by_key(|(at, _)| *at);
        let lines: Vec<String> = lines.iter().map(|(at, what)| format!("{at} {what}")).collect();
        let report = judge(&lines.join("\n"));
        assert_eq!(report.broken(), invariants, "{asked}");
        assert_eq!(report.tally.under_kept_limits, 2);
    }
    let no_limit = "2 a asks 1 gpu~3/0
         3 a granted 1 5
         3 a safe-until 900";
    assert_eq!(broken(no_limit), [2]);
}

#[test]
fn a_waiter_above_a_limit_that_was_lowered_leaves_for_a_reason_and_any_other_does_not() {
    for (limit, invariants) in [(2, vec![]), (3, vec![10])] {
        let history = format!(
            "0 z orders 1 gpu 4
             1 z ordered 1
             2 a asks 1 gpu~3/0
             3 a queued 1
             10 z orders 2 gpu {limit}
             20 z ordered 2
             30 a refused 1 permits"
        );
        assert_eq!(broken(&history), invariants, "{limit}");
    }
}

/// By an operator, or for a hold that had lasted its longest.
#[test]
fn a_session_that_is_ended_from_outside_by_nobody_is_found() {
    let history = |bounds: &str, operator: &str| {
        format!(
            "0 a asks 1 jobs {bounds}
             1 a granted 1 5
             1 a safe-until 900
             {operator}
             95 z revoked a
             96 a lost 5 taken-away"
        )
    };
    assert_eq!(broken(&history("max-hold=100", "")), RIGHT);
    assert_eq!(broken(&history("", "90 z takes-away a")), RIGHT);
    assert_eq!(broken(&history("max-hold=120", "")), [13]);
    assert_eq!(broken(&history("", "90 z takes-away b")), [13]);
}

/// I9. Seed 9910001232: the second client was granted the lock for so short that its hold was over before anybody told it. One
/// without such a bound stood in the queue.
#[test]
fn somebody_behind_a_short_hold_that_nobody_was_told_of_is_right() {
    let history = |bound: &str| {
        format!(
            "0 b asks 1 stock
             1 b granted 1 4
             1 b safe-until 900
             2 a asks 1 jobs
             3 a granted 1 5
             3 a safe-until 900
             4 b asks 2 jobs {bound}
             5 b queued 2
             6 a releases 5
             7 a released 5
             200 c asks 1 jobs
             201 c granted 1 7
             201 c safe-until 900
             950 b session-lost 2"
        )
    };

    assert_eq!(broken(&history("max-hold=35")), RIGHT);
    assert_eq!(broken(&history("")), [9]);
}
