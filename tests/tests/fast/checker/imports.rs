//! I25: imports from another store.

use super::lines::{RIGHT, broken, judge};

/// A holder and two waiters are imported; each is claimed, and each gets the lock in its turn.
const RIGHT_ONE: &str = "
    0 i imports 1 old/a 10000 +jobs:half
    0 i imports 2 old/b 10000 ?jobs
    0 i imports 3 old/c 10000 ?jobs
    5 i imported 1 1
    5 i imported 2 queued
    5 i imported 3 queued
    10 c claims 1 jobs old/c
    11 c queued 1
    20 a claims 1 jobs old/a
    21 a granted 1 2 jobs:half@1
    21 a safe-until 900
    22 b claims 1 jobs old/b
    23 b queued 1
    30 a releases 2
    31 a released 2
    32 b granted 1 3 jobs:half@1
    32 b safe-until 900
    40 b releases 3
    41 b released 3
    42 c granted 1 4 jobs:half@1
    42 c safe-until 900
    50 c releases 4
    51 c released 4
    60 z healed";

/// The right history with one line replaced.
fn with(line: &str, other: &str) -> String {
    assert!(RIGHT_ONE.contains(line), "{line}");
    RIGHT_ONE.replace(line, other)
}

#[test]
fn an_import_that_is_claimed_in_its_order_is_right() {
    let report = judge(RIGHT_ONE);

    assert_eq!(report.violations, []);
    assert_eq!((report.tally.imported, report.tally.claimed), (3, 3));
}

/// I25: the holder that it waits for has not been imported yet.
#[test]
fn a_waiter_that_comes_in_as_a_holder_is_found() {
    assert_eq!(broken("0 i imports 1 old/b 10000 ?jobs\n 5 i imported 1 7"), [25]);
    assert_eq!(broken("0 i imports 1 old/b 10000 ?jobs\n 5 i imported 1 refused"), RIGHT);
}

#[test]
fn a_row_that_comes_in_again_while_it_runs_is_found() {
    let twice = |at: u64, fate: &str| {
        format!(
            "0 i imports 1 old/a 1000 +jobs
             5 i imported 1 7
             {at} i imports 2 old/a 1000 +jobs
             {} i imported 2 {fate}",
            at + 5
        )
    };
    assert_eq!(broken(&twice(500, "8")), [25]);
    assert_eq!(broken(&twice(500, "known")), RIGHT);
    assert_eq!(broken(&twice(900, "8")), RIGHT, "a fast clock may have ended the first");
}

#[test]
fn a_claim_that_is_granted_twice_is_found() {
    let history = "0 i imports 1 old/a 10000 +jobs
        5 i imported 1 1
        10 a claims 1 jobs old/a
        11 a granted 1 2
        20 a releases 2
        21 a released 2
        22 b claims 1 jobs old/a
        23 b granted 1 3";

    assert_eq!(broken(history), [25]);
    // The first answer was lost: the row may have been imported once more.
    let again = history.replace("10 a", "6 i imports 2 old/a 10000 +jobs\n 10 a");
    assert_eq!(broken(&again), RIGHT);
}

#[test]
fn an_import_that_is_not_to_be_claimed_while_it_runs_is_found() {
    let refused = |reason: &str, at: u64| {
        format!(
            "0 i imports 1 old/a 1000 +jobs
             5 i imported 1 7
             {at} a claims 1 jobs old/a
             {} a refused 1 {reason}",
            at + 1
        )
    };
    assert_eq!(broken(&refused("not_imported", 500)), [25]);
    assert_eq!(broken(&refused("limit", 500)), RIGHT);
    assert_eq!(broken(&refused("not_imported", 950)), RIGHT);
    let claimed = "400 b claims 1 jobs old/a\n 500 a claims";
    let other = refused("not_imported", 500).replace("500 a claims", claimed);
    assert_eq!(broken(&other), RIGHT, "another may have had it");
}

#[test]
fn a_value_that_is_not_the_one_that_came_in_is_found() {
    let other = with("21 a granted 1 2 jobs:half@1", "21 a granted 1 2 jobs:other@1");
    assert_eq!(broken(&other), [25]);
    let none = with("21 a granted 1 2 jobs:half@1", "21 a granted 1 2");
    assert_eq!(broken(&none), [25]);
}

#[test]
fn somebody_else_who_holds_what_is_imported_and_not_claimed_is_found() {
    let granted = |at: u64| {
        format!(
            "0 i imports 1 old/a 1000 +jobs
             5 i imported 1 7
             10 b asks 1 jobs
             {at} b granted 1 8"
        )
    };
    assert_eq!(broken(&granted(500)), [25]);
    assert_eq!(broken(&granted(950)), RIGHT, "by a fast clock it has run out");
}

#[test]
fn who_waited_behind_and_is_granted_before_is_found() {
    let early = with("42 c granted 1 4", "31 c granted 1 4")
        .replace("32 b granted 1 3", "52 b granted 1 5")
        .replace("32 b safe-until", "52 b safe-until")
        .replace("b releases 3", "b releases 5")
        .replace("b released 3", "b released 5");
    let mut lines: Vec<&str> = early.lines().map(str::trim).filter(|l| !l.is_empty()).collect();
    lines.retain(|line| !line.contains("b release"));
    lines.sort_by_key(|line| line.split(' ').next().unwrap().parse::<u64>().unwrap());

    assert_eq!(broken(&lines.join("\n")), [25]);
}
