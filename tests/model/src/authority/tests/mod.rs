//! The rules together allow nothing bad; without any one of them something bad is found.

mod course;
mod recovery;
mod rules;
mod walk;

use super::{Action, Bounds, Durations, Longer, Start};
use course::{
    bumps, covers, drains, fails, holds, holds_and_recovers, holds_near, raises, returns,
    takes_over,
};
use walk::walks;

/// The least that can be whole, over, and begun at its end; no room anywhere.
const ONE_TICK: Durations = Durations { authority: 1, take_over: 1, hold: 1, back: 1 };
/// With room to be half over.
const TWO_TICKS: Durations = Durations { authority: 2, take_over: 2, hold: 2, back: 2 };
/// Clocks as wrong as they may be.
const ALLOWED: Durations = Durations { authority: 3, take_over: 3, hold: 2, back: 2 };

/// A server, a client of each kind, one take-over.
const SMALL: Bounds = Bounds {
    durations: ONE_TICK,
    longer: None,
    servers: 1,
    natives: 1,
    fallbacks: 1,
    late: 0,
    epochs: 2,
    beats: 1,
    grants: 1,
    start: Start::Native,
};
/// And back.
const RETURN: Bounds = Bounds { epochs: 4, ..SMALL };
/// Two leaders, one of them deposed and not aware of it.
const TWO_LEADERS: Bounds = Bounds { servers: 2, ..SMALL };
/// And server 1 has a longer W.
const TWO_W: Bounds = Bounds { longer: TWO_SETTINGS.longer, beats: 5, ..TWO_LEADERS };
/// Two clients that fall back, up to where it drains.
const TWO_CLIENTS: Bounds =
    Bounds { natives: 0, fallbacks: 2, epochs: 3, beats: 0, grants: 2, ..SMALL };
/// Everything that is modelled, which only random walks go through.
const LARGE: Bounds = Bounds {
    durations: ALLOWED,
    longer: None,
    servers: 2,
    natives: 2,
    fallbacks: 2,
    late: 2,
    epochs: 8,
    beats: 3,
    grants: 3,
    start: Start::Native,
};
/// Two leaders, of which server 1 has a W of two ticks in its settings, and server 0 one of one.
const TWO_SETTINGS: Bounds =
    Bounds { longer: Some(Longer { authority: 2, take_over: 2 }), ..LARGE };
/// Smaller ones, in which walks meet more often. They found without its rule what is bad.
const WALKS: [Bounds; 4] = [
    LARGE,
    Bounds { natives: 1, late: 1, epochs: 6, beats: 2, grants: 2, durations: ONE_TICK, ..LARGE },
    Bounds { durations: TWO_TICKS, fallbacks: 1, late: 1, grants: 2, natives: 1, ..LARGE },
    Bounds { durations: ONE_TICK, fallbacks: 1, late: 1, natives: 1, beats: 8, ..TWO_SETTINGS },
];

#[test]
fn with_all_rules_a_take_over_and_a_return_do_no_harm() {
    holds(RETURN);
}

/// In a run for a change the rules of `rules.rs` stand in for it: each is missed when it is broken, some of them only with two leaders.
#[test]
#[ignore = "long: a minute of one core"]
fn with_all_rules_a_leader_that_does_not_know_it_is_deposed_does_no_harm() {
    holds(TWO_LEADERS);
}

/// Server 1 has led, and its W is in the row; server 0 leads, and shortens it in time.
#[test]
fn with_all_rules_leaders_with_different_settings_do_no_harm_near_a_change_of_w() {
    let bounds = Bounds { beats: 4, ..TWO_W };
    let script = [rules::w_is_longer(), covers(0, 1)].concat();
    holds_near(bounds, &script, 8);
    let shortens = [bumps(0), vec![Action::Tick; 2], bumps(0)].concat();
    let shorter = [script, shortens].concat();
    holds_near(bounds, &shorter, 8);
    holds_near(bounds, &[shorter, takes_over(0, 1)].concat(), 6);
}

#[test]
fn with_all_rules_operations_that_come_late_do_no_harm() {
    holds(Bounds { late: 2, ..SMALL });
}

#[test]
fn with_all_rules_two_clients_that_fall_back_do_no_harm() {
    holds(TWO_CLIENTS);
}

#[test]
fn with_all_rules_clocks_as_wrong_as_allowed_do_no_harm() {
    holds(Bounds { durations: ALLOWED, ..SMALL });
}

#[test]
fn with_all_rules_a_restored_cluster_does_no_harm_and_serves() {
    holds_and_recovers(Bounds { start: Start::RestoredBesideNative(3), epochs: 4, ..SMALL });
    holds_and_recovers(Bounds { start: Start::RestoredBesideCassandra(4), epochs: 6, ..SMALL });
}

#[test]
fn with_all_rules_the_scope_is_served_again_whatever_happened() {
    holds_and_recovers(Bounds { beats: 0, ..RETURN });
}

#[test]
fn walks_with_all_rules_do_no_harm() {
    walks(&WALKS, 30_000_000);
}

/// Two leaders, two clients of each kind, two late writes, from each stage of a round trip.
#[test]
#[ignore = "minutes, and gigabytes"]
fn with_all_rules_nothing_bad_is_near_any_stage_of_a_round_trip() {
    let bounds = Bounds { durations: ONE_TICK, ..LARGE };
    let stages = [takes_over(0, 1), drains(0), returns(0), raises(0), bumps(0)];
    for stage in 1..=stages.len() {
        holds_near(bounds, &stages[..stage].concat(), 11);
    }
}

#[test]
#[ignore = "minutes, and gigabytes"]
fn with_all_rules_larger_worlds_do_no_harm() {
    holds(Bounds { durations: TWO_TICKS, ..RETURN });
    holds(Bounds { durations: ALLOWED, ..RETURN });
    holds(Bounds { late: 1, ..TWO_LEADERS });
    holds(Bounds { natives: 1, ..TWO_CLIENTS });
}

#[test]
#[ignore = "minutes"]
fn long_walks_with_all_rules_do_no_harm() {
    walks(&WALKS, 1_000_000_000);
}

#[test]
fn clocks_as_wrong_as_allowed_leave_no_tick_between_a_right_and_the_wait_for_its_end() {
    assert_eq!(Durations::with_clocks_wrong_by(10), ALLOWED);
}

/// The leader's clock is slow and the client's is fast.
#[test]
fn clocks_more_wrong_than_allowed_let_a_client_take_over_too_early() {
    fails(Bounds { durations: Durations::with_clocks_wrong_by(12), ..SMALL }, &[]);
}

/// The client's clock is slow and the leader's is fast.
#[test]
fn clocks_more_wrong_than_allowed_let_a_leader_return_too_early() {
    let Durations { hold, back, .. } = Durations::with_clocks_wrong_by(20);
    let bounds = Bounds { durations: Durations { hold, back, ..ALLOWED }, ..RETURN };
    fails(bounds, &[takes_over(0, ALLOWED.take_over), drains(0)].concat());
}
