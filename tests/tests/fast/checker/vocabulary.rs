//! Histories of readers, sets, `any` and values: right ones that look odd, and for each check one
//! that is wrong in exactly one way.

use super::lines::{RIGHT, broken, judge};

// --- right ones

#[test]
fn readers_beside_readers_are_right_in_any_order_of_their_tokens() {
    let report = judge(
        "0 a asks 1 jobs~
         0 b asks 1 jobs~
         1 b granted 1 6
         1 b safe-until 900
         2 a granted 1 5
         2 a safe-until 900
         3 z reads 1 jobs
         4 z read 1 5~+6~
         50 b releases 6
         51 b released 6
         60 a is-safe 5
         70 a releases 5
         71 a released 5",
    );

    assert_eq!(report.violations, []);
    assert_eq!((report.tally.shared, report.tally.together), (2, 1));
}

#[test]
fn a_set_given_back_in_parts_is_right() {
    let report = judge(
        "0 a asks 1 jobs+stock~
         1 a granted 1 5
         1 a safe-until 900
         9 b asks 1 jobs
         10 b queued 1
         20 a releases 5 jobs
         21 b granted 1 6
         21 b safe-until 900
         22 a released 5 jobs
         23 a is-safe 5 names=stock
         24 a state 2 1=5:stock
         25 a asks 1 jobs+stock~
         26 a granted 1 5 names=stock
         30 a releases 5
         31 a released 5 stock
         40 z healed
         41 b releases 6
         41 b released 6",
    );

    assert_eq!(report.violations, []);
    assert_eq!((report.tally.sets, report.tally.released_in_part), (1, 1));
}

/// An `any` leaves the names that it did not get to those behind it, and at the names that it got
/// it may be first.
#[test]
fn an_any_that_takes_one_name_and_leaves_the_other_queue_is_right() {
    let history = "0 b asks 1 jobs|stock any=1
         1 b queued 1 index=4
         2 c asks 1 jobs
         3 c queued 1 index=5
         9 b granted 1 6 names=stock
         10 c granted 1 7
         11 d asks 1 jobs|other any=0
         12 d granted 1 8 names=other
         13 e asks 1 jobs|stock any=0
         14 e denied 1";

    assert_eq!(broken(history), RIGHT);
}

/// A set waits for one of its names; a request for another name is not held up.
#[test]
fn a_set_that_waits_holds_up_only_its_own_names() {
    let history = "0 b asks 1 jobs+stock
         1 b queued 1 index=4
         2 c asks 1 other
         3 c granted 1 5
         9 b granted 1 6";

    assert_eq!(broken(history), RIGHT);
}

/// One value passes from holder to holder: set, confirmed, cleared, and set by a call without an
/// outcome, which may or may not have taken effect.
#[test]
fn a_value_that_goes_from_hand_to_hand_is_right() {
    for seen in ["", "jobs:two@7", "jobs:three@7"] {
        let history = format!(
            "0 a asks 1 jobs
             1 a granted 1 5
             2 a sets 2 5 jobs one
             3 a set 2
             4 a releases 5
             5 a released 5
             6 b asks 1 jobs
             7 b granted 1 6 jobs:one@5
             8 b releases 6
             9 b released 6
             10 c asks 1 jobs
             11 c granted 1 7 jobs:one@5
             12 c sets 2 7 jobs two
             13 c unknown 2
             14 c sets 3 7 jobs CLEAR
             15 c set 3
             16 c sets 4 7 jobs three
             17 c unknown 4
             18 c releases 7
             19 c released 7
             20 d asks 1 jobs~
             21 d granted 1 8 {seen}"
        );
        assert_eq!(broken(&history), RIGHT, "{seen}");
    }
}

/// The holder died; the next one finds its value suspect and confirms it; for the one after that it
/// is no longer suspect; it is still the value that the dead holder set.
#[test]
fn a_value_doubted_after_a_death_and_confirmed_is_right() {
    let report = judge(
        "0 a asks 1 jobs
         1 a granted 1 5
         1 a safe-until 90
         2 a sets 2 5 jobs one
         3 a set 2
         4 a killed
         200 b asks 1 jobs
         201 b granted 1 6 jobs:one@5?
         202 b sets 2 6 jobs CONFIRM
         203 b set 2
         204 b releases 6
         205 b released 6
         206 c asks 1 jobs
         207 c granted 1 7 jobs:one@5",
    );

    assert_eq!(report.violations, []);
    let tally = report.tally;
    assert_eq!((tally.writes, tally.values_seen, tally.suspects), (2, 2, 1));
}

/// It is unknown whether the client that died had been granted the lock in between.
#[test]
fn a_value_doubted_after_a_death_that_may_have_been_a_holders_is_right() {
    for doubt in ["", "?"] {
        let history = format!(
            "0 a asks 1 jobs
             1 a granted 1 5
             2 a sets 2 5 jobs one
             3 a set 2
             4 b asks 1 jobs
             5 b queued 1
             6 a releases 5
             7 a released 5
             8 b killed
             200 c asks 1 jobs
             201 c granted 1 7 jobs:one@5{doubt}"
        );
        assert_eq!(broken(&history), RIGHT, "{doubt}");
    }
}

/// A client gives back what it lost at its safe deadline. Whether the store learns that the hold was
/// lost depends on whether every member knows the command for it.
#[test]
fn a_value_left_by_a_lost_hold_is_suspect_once_every_member_knows_that_command() {
    for (before, after, doubt, is_right) in
        [("4", "5", "", true), ("4", "5", "?", true), ("5", "5", "", false), ("5", "5", "?", true)]
    {
        let history = format!(
            "0 h all-know {before}
             0 a asks 1 jobs
             1 a granted 1 5
             1 a safe-until 90
             2 a sets 2 5 jobs one
             3 a set 2
             94 a lost 5 deadline
             95 h all-know {after}
             200 b asks 1 jobs
             201 b granted 1 6 jobs:one@5{doubt}"
        );
        assert_eq!(broken(&history).is_empty(), is_right, "{before} {after} {doubt}");
    }
}

/// One that is given back makes room at once, and one whose client does not believe in it any more takes none.
#[test]
fn permits_within_the_limit_stand_beside_each_other() {
    let history = "0 a asks 1 gpu~2/4
         1 a granted 1 5
         1 a safe-until 900
         2 b asks 1 gpu~2/4
         3 b granted 1 6
         3 b safe-until 90
         4 a releases 5
         5 a released 5
         6 c asks 1 gpu~2/4
         7 c granted 1 7
         7 c safe-until 900
         94 b lost 6 deadline
         95 d asks 1 gpu~2/4
         96 d granted 1 8
         96 d safe-until 900";

    assert_eq!(broken(history), RIGHT);
    assert_eq!(judge(history).tally.permits_beside, 3);
}

/// The larger head start goes first, and among the same ones the request that came first.
#[test]
fn a_request_with_a_head_start_goes_before_those_with_a_smaller_one() {
    let history = "0 a asks 1 jobs
         1 a granted 1 5
         1 a safe-until 900
         2 b asks 1 jobs
         3 b queued 1
         4 c asks 1 jobs head-start=20
         5 c queued 1
         6 d asks 1 jobs head-start=20
         7 d queued 1
         8 a releases 5
         9 a released 5
         10 c granted 1 6
         10 c safe-until 900
         11 c releases 6
         12 c released 6
         13 d granted 1 7
         13 d safe-until 900
         14 d releases 7
         15 d released 7
         16 b granted 1 8
         16 b safe-until 900";

    assert_eq!(broken(history), RIGHT);
    assert_eq!(judge(history).tally.overtakes, 2);
}

// --- wrong in exactly one way

#[test]
fn one_with_the_same_or_a_smaller_head_start_that_goes_first_is_found() {
    for (first, second) in [(0, 0), (20, 20), (20, 0), (20, 10)] {
        let history = format!(
            "0 a asks 1 jobs
             1 a granted 1 5
             1 a safe-until 900
             2 b asks 1 jobs head-start={first}
             3 b queued 1
             4 c asks 1 jobs head-start={second}
             5 c queued 1
             8 a releases 5
             9 a released 5
             10 c granted 1 6
             10 c safe-until 900
             11 c releases 6
             12 c released 6
             16 b granted 1 8
             16 b safe-until 900"
        );
        assert_eq!(broken(&history), [9], "{first} {second}");
    }
}

#[test]
fn more_permits_than_the_limit_are_found() {
    let history = "0 a asks 1 gpu~3/4
         1 a granted 1 5
         1 a safe-until 900
         2 b asks 1 gpu~1/4
         3 b granted 1 6
         3 b safe-until 900
         4 c asks 1 gpu~1/4
         5 c granted 1 7
         5 c safe-until 900";

    assert_eq!(broken(history), [2]);
}

#[test]
fn a_reader_beside_a_writer_is_found() {
    for (first, second) in [("jobs", "jobs~"), ("jobs~", "jobs")] {
        let history = format!(
            "0 a asks 1 {first}
             1 a granted 1 5
             1 a safe-until 900
             2 b asks 1 {second}
             500 b granted 1 6
             500 b safe-until 1400"
        );
        assert_eq!(broken(&history), [24], "{first} {second}");
    }
}

/// The longest reader is not the last one: it is still there when the writer comes.
#[test]
fn a_writer_beside_the_first_of_two_readers_is_found() {
    let history = "0 a asks 1 jobs~
         1 a granted 1 5
         1 a safe-until 900
         2 b asks 1 jobs~
         3 b granted 1 6
         3 b safe-until 900
         4 b releases 6
         5 b released 6
         6 c asks 1 jobs
         7 c granted 1 7
         7 c safe-until 900";

    assert_eq!(broken(history), [24]);
}

#[test]
fn two_sets_that_share_one_name_are_found() {
    let history = "0 a asks 1 jobs+stock
         1 a granted 1 5
         1 a safe-until 900
         2 b asks 1 other+stock
         500 b granted 1 6
         500 b safe-until 1400";

    assert_eq!(broken(history), [24]);
}

#[test]
fn a_reader_that_is_safe_after_a_newer_writer_is_found() {
    let history = "0 a asks 1 jobs
         0 b asks 1 jobs~
         1 a granted 1 6
         1 a safe-until 900
         2 a releases 6
         3 b granted 1 5
         3 b safe-until 900";

    assert_eq!(broken(history), [24]);
}

#[test]
fn a_set_granted_in_part_is_found() {
    let history = "0 a asks 1 jobs+stock+tools
         1 a granted 1 5 names=jobs+tools";

    assert_eq!(broken(history), [14]);
}

#[test]
fn an_any_granted_without_a_name_is_found() {
    let history = "0 a asks 1 jobs|stock any=0
         1 a granted 1 5 names=";

    assert_eq!(broken(history), [14]);
}

#[test]
fn a_grant_of_a_name_that_was_not_asked_for_is_found() {
    for (asked, got) in [("jobs|stock any=1", "jobs|tools"), ("jobs+stock", "jobs+stock+tools")] {
        let history = format!(
            "0 a asks 1 {asked}
             1 a granted 1 5 names={got}"
        );
        assert_eq!(broken(&history), [23], "{asked}");
    }
}

#[test]
fn a_retry_that_gets_other_names_is_found() {
    for again in ["jobs", "jobs|stock|tools"] {
        let history = format!(
            "0 a asks 1 jobs|stock|tools any=1
             1 a granted 1 5 names=jobs|stock
             2 a asks 1 jobs|stock|tools any=1
             3 a granted 1 5 names={again}"
        );
        assert_eq!(broken(&history), [12], "{again}");
    }
}

/// The first reader was frozen before it could learn of its grant; its lease was still certain.
#[test]
fn a_reader_beside_one_that_was_granted_unseen_is_right() {
    let history = "0 a asks 1 stock
         1 a granted 1 5
         1 a safe-until 900
         2 a releases 5
         3 a released 5
         4 a asks 2 jobs~
         5 a queued 2
         6 b asks 1 jobs~
         7 b granted 1 7
         7 b safe-until 900
         950 a session-lost 2";

    assert_eq!(broken(history), RIGHT);
}

/// The first client was granted its other name, and frozen before it could learn of that: it stood
/// in no queue any more.
#[test]
fn somebody_behind_an_any_that_was_granted_elsewhere_unseen_is_right() {
    let history = "0 a asks 1 stock
         1 a granted 1 5
         1 a safe-until 900
         2 a releases 5
         3 a released 5
         4 a asks 2 jobs|stock any=1
         5 a queued 2
         6 b asks 1 jobs
         7 b granted 1 7
         7 b safe-until 900
         950 a session-lost 2";

    assert_eq!(broken(history), RIGHT);
}

#[test]
fn a_writer_overtaken_by_a_reader_is_found() {
    let history = "0 a asks 1 jobs~
         1 a granted 1 5
         2 b asks 1 jobs
         3 b queued 1
         4 c asks 1 jobs~
         5 c granted 1 6
         9 a releases 5
         10 a released 5
         11 b granted 1 7";

    assert_eq!(broken(history), [9]);
}

#[test]
fn a_reader_overtaken_by_another_reader_is_found() {
    let history = "0 b asks 1 jobs~
         1 b queued 1
         2 c asks 1 jobs~
         3 c granted 1 6
         4 b granted 1 7";

    assert_eq!(broken(history), [9]);
}

#[test]
fn a_set_overtaken_by_a_single_one_is_found() {
    let history = "0 b asks 1 jobs+stock
         1 b queued 1 index=4
         2 c asks 1 stock
         3 c granted 1 6
         9 b granted 1 7";

    assert_eq!(broken(history), [9]);
}

#[test]
fn a_single_one_overtaken_by_a_set_is_found_by_its_index() {
    let history = "0 b asks 1 stock
         0 c asks 1 jobs+stock
         5 b queued 1 index=8
         5 c queued 1 index=9
         6 c granted 1 6
         9 b granted 1 7";

    assert_eq!(broken(history), [9]);
}

/// The `any` would have taken either name; it stood first in both queues.
#[test]
fn an_any_overtaken_at_a_name_it_did_not_get_is_found() {
    let history = "0 b asks 1 jobs|stock any=1
         1 b queued 1
         2 c asks 1 jobs
         3 c granted 1 6
         9 b granted 1 7 names=stock";

    assert_eq!(broken(history), [9]);
}

#[test]
fn an_any_that_barges_is_found() {
    let history = "0 b asks 1 jobs
         1 b queued 1
         1 b safe-until 900
         2 c asks 1 jobs|stock any=0
         3 c granted 1 6 names=jobs|stock
         8 b cancels 1
         9 b cancelled 1";

    assert_eq!(broken(history), [9]);
}

#[test]
fn a_name_believed_after_it_was_given_back_is_found() {
    let history = "0 a asks 1 jobs+stock
         1 a granted 1 5
         1 a safe-until 900
         2 a releases 5 jobs
         3 a released 5 jobs
         9 a is-safe 5";

    assert_eq!(broken(history), [24]);
}

#[test]
fn a_belief_after_the_hold_was_told_to_be_lost_is_found() {
    let history = "0 a asks 1 jobs+stock
         1 a granted 1 5
         1 a safe-until 90
         95 a lost 5 deadline
         99 a is-safe 5";

    assert_eq!(broken(history), [24]);
}

#[test]
fn a_belief_in_a_name_that_was_not_granted_is_found() {
    let history = "0 a asks 1 jobs|stock any=1
         1 a granted 1 5 names=jobs
         1 a safe-until 900
         2 a is-safe 5 names=jobs|stock";

    assert_eq!(broken(history), [24]);
}

#[test]
fn a_name_given_back_that_was_never_held_is_found() {
    let history = "0 a asks 1 jobs|stock any=1
         1 a granted 1 5 names=jobs
         2 a releases 5
         3 a released 5 jobs|stock";

    assert_eq!(broken(history), [23]);
}

/// Only one of the two names was to be released.
#[test]
fn a_release_of_more_names_than_were_named_is_found() {
    let history = "0 a asks 1 jobs+stock
         1 a granted 1 5
         1 a safe-until 900
         2 a releases 5 jobs
         3 a released 5 jobs+stock";

    assert_eq!(broken(history), [13]);
}

#[test]
fn a_set_that_a_later_state_shows_in_part_is_found() {
    let history = "0 a asks 1 jobs+stock
         1 a granted 1 5
         9 a state 2 1=5:jobs";

    assert_eq!(broken(history), [19]);
}

#[test]
fn a_name_given_back_that_a_later_state_shows_as_held_is_found() {
    let history = "0 a asks 1 jobs+stock
         1 a granted 1 5
         2 a releases 5 jobs
         3 a released 5 jobs
         9 a state 2 1=5:jobs+stock";

    assert_eq!(broken(history), [19]);
}

#[test]
fn a_look_that_leaves_out_one_of_two_readers_is_found() {
    let history = "0 a asks 1 jobs~
         1 a granted 1 5
         1 a safe-until 900
         2 b asks 1 jobs~
         3 b granted 1 6
         3 b safe-until 900
         9 z reads 1 jobs
         10 z read 1 6~";

    assert_eq!(broken(history), [18]);
}

#[test]
fn a_look_that_shows_a_reader_as_alone_is_found() {
    let history = "0 a asks 1 jobs~
         1 a granted 1 5
         1 a safe-until 900
         9 z reads 1 jobs
         10 z read 1 5";

    assert_eq!(broken(history), [18]);
}

#[test]
fn a_look_at_holders_that_do_not_fit_is_found() {
    let history = "9 z reads 1 jobs
         10 z read 1 5~+6";

    assert_eq!(broken(history), [2]);
}

#[test]
fn a_value_that_is_not_the_last_one_left_is_found() {
    for wrong in ["", "jobs:one@5", "jobs:two@5", "jobs:three@6"] {
        let history = format!(
            "0 a asks 1 jobs
             1 a granted 1 5
             2 a sets 2 5 jobs one
             3 a set 2
             4 a releases 5
             5 a released 5
             6 b asks 1 jobs
             7 b granted 1 6 jobs:one@5
             8 b sets 2 6 jobs two
             9 b set 2
             10 b releases 6
             11 b released 6
             12 c asks 1 jobs
             13 c granted 1 7 {wrong}"
        );
        assert_eq!(broken(&history), [19], "{wrong}");
    }
}

/// The change under way may or may not have been made; the one before it was.
#[test]
fn a_look_at_a_value_while_it_is_changed_is_right() {
    for seen in ["jobs:one@5", "jobs:two@5"] {
        let history = format!(
            "0 a asks 1 jobs
             1 a granted 1 5
             1 a safe-until 900
             2 a sets 2 5 jobs one
             3 a set 2
             4 a sets 3 5 jobs two
             5 z reads 1 jobs
             6 z read 1 5 {seen}
             7 a set 3
             8 z reads 2 jobs
             9 z read 2 5 jobs:two@5"
        );
        assert_eq!(broken(&history), RIGHT, "{seen}");
    }
}

#[test]
fn a_look_that_shows_a_value_of_the_past_is_found() {
    for seen in ["", "jobs:one@5", "jobs:two@5?"] {
        let history = format!(
            "0 a asks 1 jobs
             1 a granted 1 5
             1 a safe-until 900
             2 a sets 2 5 jobs one
             3 a set 2
             4 a sets 3 5 jobs two
             5 a set 3
             6 z reads 1 jobs
             7 z read 1 5 {seen}"
        );
        assert_eq!(broken(&history), [18], "{seen}");
    }
}

#[test]
fn a_value_lost_over_a_crash_is_found() {
    let history = "0 a asks 1 jobs
         1 a granted 1 5
         2 a sets 2 5 jobs one
         3 a set 2
         4 a releases 5
         5 a released 5
         6 z fault
         9 z healed
         12 c asks 1 jobs+stock
         13 c granted 1 7";

    assert_eq!(broken(history), [19]);
}

#[test]
fn a_value_that_was_cleared_and_comes_back_is_found() {
    let history = "0 a asks 1 jobs
         1 a granted 1 5
         2 a sets 2 5 jobs one
         3 a set 2
         4 a sets 3 5 jobs CLEAR
         5 a set 3
         6 a releases 5
         7 a released 5
         12 c asks 1 jobs
         13 c granted 1 7 jobs:one@5";

    assert_eq!(broken(history), [19]);
}

#[test]
fn a_change_that_was_refused_and_took_effect_is_found() {
    let history = "0 a asks 1 jobs
         1 a granted 1 5
         2 a sets 2 5 jobs one
         3 a refused 2 limit
         6 a releases 5
         7 a released 5
         12 c asks 1 jobs
         13 c granted 1 7 jobs:one@5";

    assert_eq!(broken(history), [19]);
}

#[test]
fn a_value_of_a_dead_holder_that_is_not_doubted_is_found() {
    for end in ["4 a killed", "950 a lost 5 expired"] {
        let history = format!(
            "0 a asks 1 jobs
             1 a granted 1 5
             1 a safe-until 900
             2 a sets 2 5 jobs one
             3 a set 2
             {end}
             1200 c asks 1 jobs
             1201 c granted 1 7 jobs:one@5"
        );
        assert_eq!(broken(&history), [19], "{end}");
    }
}

#[test]
fn a_value_that_is_doubted_after_a_release_is_found() {
    let history = "0 a asks 1 jobs
         1 a granted 1 5
         1 a safe-until 900
         2 a sets 2 5 jobs one
         3 a set 2
         4 a releases 5
         5 a released 5
         12 c asks 1 jobs
         13 c granted 1 7 jobs:one@5?";

    assert_eq!(broken(history), [19]);
}

#[test]
fn a_value_set_by_somebody_who_does_not_hold_is_found() {
    let held = "0 a asks 1 jobs
         0 b asks 1 stock~
         1 a granted 1 5
         1 b granted 1 6
         2 a releases 5
         3 a released 5";
    for (who, token, name) in
        [("b", 5, "jobs"), ("b", 6, "stock"), ("b", 6, "jobs"), ("a", 5, "jobs")]
    {
        let history = format!(
            "{held}
             8 {who} sets 2 {token} {name} mine
             9 {who} set 2"
        );
        assert_eq!(broken(&history), [13], "{who} {token} {name}");
    }
}

#[test]
fn a_change_of_a_value_that_nobody_asked_for_is_found() {
    assert_eq!(broken("9 a set 2"), [23]);
}

/// A block is asked for before another one is answered: either may be the lower one.
#[test]
fn blocks_of_calls_that_overlap_are_right_in_either_order_and_gaps_are_right_too() {
    let report = judge(
        "0 a takes 1 ids 3
         1 b takes 1 ids 1
         2 c takes 1 other 1
         3 b took 1 1
         3 c took 1 1
         4 a took 1 2
         5 b takes 2 ids 9
         6 b took 2
         7 b takes 3 ids 1
         8 b took 3 14
         9 a killed",
    );

    assert_eq!(report.violations, []);
    assert_eq!(report.tally.numbers, 4);
}

#[test]
fn a_number_given_out_twice_is_found() {
    let history = "0 a takes 1 ids 3
         1 b takes 1 ids 1
         3 b took 1 3
         4 a took 1 1";

    assert_eq!(broken(history), [37]);
}

#[test]
fn a_number_below_one_that_was_given_out_before_is_found() {
    let history = "0 a takes 1 ids 1
         1 a took 1 10
         2 b takes 1 ids 1
         3 b took 1 9";

    assert_eq!(broken(history), [37]);
}

/// It waits for two of its names, and the one that is free is kept for it.
#[test]
fn a_lock_kept_for_a_request_with_a_floor_is_right_and_a_grant_below_the_floor_is_found() {
    let right = "0 a asks 1 jobs
         1 a granted 1 5
         2 b asks 1 jobs|stock|desk any=2
         3 b queued 1 index=4
         4 z reads 1 stock
         5 z read 1 - waiting=1
         6 a releases 5
         7 a released 5
         8 b granted 1 6 names=jobs+stock";
    assert_eq!(broken(right), RIGHT);

    let below = "0 b asks 1 jobs|stock any=2
         1 b granted 1 6 names=jobs";
    assert_eq!(broken(below), [14]);
}
