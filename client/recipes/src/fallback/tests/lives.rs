//! In no simulated run are two guards of a lock safe at once, or an older token after a newer one (I24, I3), and after all
//! faults the native store serves again. But for each rule that is taken away, some run goes wrong.

use std::ops::Range;

use super::life::{Seen, live};
use holdfast_mutants::{Mutant, while_armed};

fn live_many(seeds: Range<u64>) {
    let mut all = Seen::default();
    for seed in seeds {
        live(seed, &mut all).unwrap_or_else(|wrong| panic!("seed {seed}: {wrong}"));
    }
    println!("{all:?}");
    let enough = all.native > 20 * all.lives
        && all.in_cassandra > 10 * all.lives
        && all.lost > all.lives
        && all.epochs > 6 * all.lives;
    assert!(enough, "too little happened: {all:?}");
}

#[test]
fn in_no_life_are_two_guards_safe_at_once_or_do_tokens_go_back() {
    live_many(0..20);
}

#[test]
#[ignore = "long: two thousand lives"]
fn in_none_of_very_many_lives_are_two_guards_safe_at_once_or_do_tokens_go_back() {
    live_many(1_000..3_000);
}

/// The first of these runs that goes wrong with `mutant`, by its random seed.
fn found(mutant: Mutant, seeds: Range<u64>) -> Option<u64> {
    let mut all = Seen::default();
    let wrong = seeds.into_iter().find_map(|seed| {
        let outcome = while_armed(mutant, || live(seed, &mut all));
        outcome.err().map(|wrong| (seed, wrong))
    });
    println!("with {mutant}: {wrong:?}, {all:?}");
    wrong.map(|(seed, _)| seed)
}

/// The rules that prevent most failures. Mutants that show more rarely have tests of their own, and a place in the long
/// list below.
#[test]
fn a_life_goes_wrong_without_each_of_the_rules_that_carry_most() {
    let mutants = [
        Mutant::CoverOfAnyEpoch,
        Mutant::TakeOverAtOnce,
        Mutant::DrainTakenOverAtOnce,
        Mutant::BeatNotCompared,
    ];
    for mutant in mutants {
        assert!(found(mutant, 0..20).is_some(), "no life went wrong with {mutant}");
    }
}

#[test]
#[ignore = "long: hundreds of lives without each of the rules that break rarely"]
fn a_life_goes_wrong_without_rules_that_are_rarely_needed() {
    let mutants = [
        Mutant::CoverFromReceipt,
        Mutant::UnknownTakeOverCounts,
        Mutant::ReadBeforeHoldCounts,
        Mutant::EntryWhileDraining,
        Mutant::DurationsOfFirstRow,
    ];
    for mutant in mutants {
        assert!(found(mutant, 0..400).is_some(), "no life went wrong with {mutant}");
    }
}
