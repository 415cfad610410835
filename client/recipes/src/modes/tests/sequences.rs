//! Sequences that move from one store to the other and back.

use std::collections::BTreeSet;
use std::num::NonZeroU32;

use holdfast_mutants::{Mutant, while_armed};
use holdfast_runtime::Rng;

use super::*;
use crate::lease::{SequencePlace, Sequences};
use crate::model::Odds;
use crate::statement::{Action, Ident, Statement, Value};

const NAME: &str = "invoices";

fn count(count: u32) -> NonZeroU32 {
    NonZeroU32::new(count).unwrap()
}

fn sequences(world: &World) -> Sequences {
    Sequences::new(&world.cassandra(&world.machine.world()), &LeaseTable::default())
}

/// What `holdfast-migrate sequences --to native` does.
async fn give(world: &World) {
    assert_eq!(world.scope().tie_cluster("c1").await.unwrap(), "c1");
    give_untied(world).await;
}

/// The same without its tie.
async fn give_untied(world: &World) {
    let sequences = sequences(world);
    loop {
        match sequences.place(NAME).await.unwrap() {
            SequencePlace::Cassandra { next } => {
                let natively = world.native.last_number(NAME) + 1;
                world.native.begin_numbers(NAME, natively.max(u64::try_from(next).unwrap()));
                if sequences.give(NAME, next).await.unwrap() {
                    return;
                }
            }
            SequencePlace::Native => return,
            SequencePlace::Returning => panic!("nobody brings it back"),
        }
    }
}

/// What `holdfast-migrate sequences --to cassandra` does.
async fn bring_back(world: &World) {
    let sequences = sequences(world);
    assert!(sequences.begin_return(NAME).await.unwrap());
    world.sleep(Sequences::RETURNING_FOR).await;
    let next = i64::try_from(world.native.last_number(NAME)).unwrap() + 1;
    assert!(sequences.end_return(NAME, next).await.unwrap());
}

/// Six processes draw all the while, of which two know Cassandra alone; half of the statements have faults.
#[test]
fn no_number_is_drawn_twice_while_a_sequence_moves_there_and_back() {
    for seed in 0..12 {
        let world = World::new(seed);
        let over = tokio_util::sync::CancellationToken::new();
        world.machine.run(async {
            let mut drawing = Vec::new();
            for number in 0..6_u64 {
                let process = world.machine.process(&format!("p{number}"));
                let lease = world.old(&process);
                let locker = world.locker(&process, LockerMode::Both).await.unwrap();
                let sequence = locker.sequence(NAME).unwrap();
                let (runtime, over, machine) =
                    (process.runtime(), over.clone(), world.machine.world());
                let draws = async move {
                    let mut drawn = Vec::new();
                    while !over.is_cancelled() {
                        let wanted = count(1 + u32::try_from(Rng::next_u64(&machine) % 3).unwrap());
                        let answer = if number < 2 {
                            lease.sequence(NAME).draw(wanted.get()).await
                        } else {
                            sequence.draw(wanted).await
                        };
                        match answer {
                            Ok(numbers) => drawn.extend(numbers),
                            Err(error) => assert!(number < 2, "{error}"),
                        }
                        runtime.sleep(ms(Rng::next_u64(&machine) % 2_000)).await;
                    }
                    drawn
                };
                drawing.push(task(&process, draws));
            }
            world.model.set_odds(Odds {
                answer_lost: 100,
                request_lost: 50,
                late: 50,
                ..Odds::default()
            });
            for _ in 0..3 {
                world.sleep(secs(20)).await;
                give(&world).await;
                world.sleep(secs(20)).await;
                bring_back(&world).await;
            }
            over.cancel();
            let (mut all, mut number_drawn) = (BTreeSet::new(), 0);
            for drawn in drawing {
                let drawn = drawn.await;
                assert!(drawn.is_sorted(), "seed {seed}: {drawn:?}");
                number_drawn += drawn.len();
                for number in drawn {
                    assert!(all.insert(number), "seed {seed}: {number} was drawn twice");
                }
            }
            assert!(number_drawn > 100, "seed {seed}: {number_drawn}");
            assert!(world.native.last_number(NAME) > 20, "seed {seed}");
        });
    }
}

/// A process is paused in the middle of a native draw, for as long as the sequence takes to come back. Returns whether its number is drawn again.
fn paused_draw_repeats(stops_after_ms: u64) -> bool {
    let world = World::new(stops_after_ms);
    world.machine.run(async {
        let [slow, other] = ["slow", "other"].map(|name| world.machine.process(name));
        let drawing = world.locker(&slow, LockerMode::Both).await.unwrap().sequence(NAME).unwrap();
        let locker = world.locker(&other, LockerMode::Both).await.unwrap();
        let sequence = locker.sequence(NAME).unwrap();
        assert_eq!(sequence.draw(count(5)).await.unwrap(), 1..6);
        give(&world).await;
        assert_eq!(sequence.draw(count(2)).await.unwrap(), 6..8);
        let draw = async move { drawing.draw(count(1)).await.unwrap().start };
        let drawn = task(&slow, draw);
        world.sleep(ms(stops_after_ms)).await;
        slow.pause();
        bring_back(&world).await;
        let next: BTreeSet<i64> = sequence.draw(count(50)).await.unwrap().collect();
        slow.resume();
        next.contains(&drawn.await)
    })
}

#[test]
fn a_native_number_counts_only_if_its_sequence_was_there_all_the_while() {
    let repeats = || (0..200).step_by(4).filter(|after_ms| paused_draw_repeats(*after_ms)).count();
    assert_eq!(repeats(), 0);
    assert!(while_armed(Mutant::NumbersUnderWayCount, repeats) > 0, "the rule is needed");
}

/// In another cluster it begins at 1.
#[test]
fn a_sequence_that_was_given_to_an_untied_scope_is_drawn_from_nowhere() {
    let drawn = || {
        let world = World::new(3);
        world.machine.run(async {
            let process = world.machine.process("p");
            let locker = async |cluster| {
                let native = Arc::new(world.native.locker_of(&process, cluster));
                let locker = Locker::builder(&world.cassandra(&process), "", world.old(&process));
                let locker = locker.native_like(native).row(world.options(&process));
                locker.start(LockerMode::Both).await.unwrap().sequence(NAME).unwrap()
            };
            assert_eq!(locker("c1").await.draw(count(3)).await.unwrap(), 1..4);
            give_untied(&world).await;
            let untied = locker("c2").await.draw(count(1)).await;
            give(&world).await;
            let other = locker("c2").await.draw(count(1)).await;
            let own = locker("c1").await.draw(count(1)).await;
            [untied, other, own]
        })
    };
    let [untied, other, own] = drawn();
    let said = untied.unwrap_err().to_string();
    assert!(said.contains("tied to no cluster"), "{said}");
    let said = other.unwrap_err().to_string();
    assert!(said.contains("tied to the cluster \"c1\""), "{said}");
    assert_eq!(own.unwrap(), 4..5, "none was taken for those that are refused");
    assert!(while_armed(Mutant::DrawTiesTheScope, drawn)[0].is_ok(), "the rule is needed");
}

#[test]
fn a_sequence_that_was_given_away_is_refused_to_who_knows_cassandra_alone() {
    let world = World::new(1);
    world.machine.run(async {
        let process = world.machine.process("p");
        let alone = Locker::builder(&world.cassandra(&process), "", world.old(&process))
            .row(world.options(&process))
            .start(LockerMode::Cassandra)
            .await
            .unwrap();
        let sequence = alone.sequence(NAME).unwrap();
        assert_eq!(sequence.draw(count(3)).await.unwrap(), 1..4);
        give(&world).await;
        let refused = [
            sequence.draw(count(1)).await.unwrap_err(),
            world.old(&process).sequence(NAME).draw(1).await.unwrap_err(),
        ];
        for error in refused {
            let advice = "the sequence \"invoices\" is in the native store";
            assert!(error.to_string().contains(advice), "{error}");
        }
        bring_back(&world).await;
        assert_eq!(sequence.draw(count(1)).await.unwrap(), 4..5);
        let listed = sequences(&world).list("in").await.unwrap();
        assert_eq!(listed, [(NAME.to_owned(), SequencePlace::Cassandra { next: 5 })]);
        assert_eq!(sequences(&world).list("x").await.unwrap(), []);
    });
}

#[test]
fn nobody_draws_from_a_sequence_on_its_way_back() {
    let world = World::new(3);
    world.machine.run(async {
        let process = world.machine.process("p");
        let locker = world.locker(&process, LockerMode::Both).await.unwrap();
        let sequence = locker.sequence(NAME).unwrap();
        assert_eq!(sequence.draw(count(3)).await.unwrap(), 1..4);
        give(&world).await;
        let sequences = sequences(&world);
        assert!(sequences.begin_return(NAME).await.unwrap());
        let waited = in_time(&process, Sequences::RETURNING_FOR, sequence.draw(count(1))).await;
        assert!(waited.is_none(), "it waits");
        assert!(sequences.end_return(NAME, 4).await.unwrap());
        assert_eq!(sequence.draw(count(1)).await.unwrap(), 4..5);
    });
}

/// An older client knows numbers only, and advances the one that marks the way back: the sequence is in the native store again.
#[test]
fn an_older_client_that_draws_on_the_way_back_gives_the_sequence_away_again() {
    let world = World::new(4);
    world.machine.run(async {
        let process = world.machine.process("p");
        let locker = world.locker(&process, LockerMode::Both).await.unwrap();
        let sequence = locker.sequence(NAME).unwrap();
        sequence.draw(count(3)).await.unwrap();
        give(&world).await;
        let sequences = sequences(&world);
        assert!(sequences.begin_return(NAME).await.unwrap());
        let next = |at: i64| vec![(Ident::new("next"), Some(Value::from(at)))];
        let key = vec![(Ident::new("name"), Value::from(NAME))];
        let (cells, only_if) = (next(i64::MAX), next(i64::MAX - 1));
        let older = Action::UpdateIf { cells, ttl_s: None, only_if };
        world.model.apply(&Statement::new(Ident::new("sequences"), key, older));
        assert!(!sequences.end_return(NAME, 4).await.unwrap());
        assert_eq!(sequences.place(NAME).await.unwrap(), SequencePlace::Native);
        assert_eq!(sequence.draw(count(1)).await.unwrap(), 4..5, "natively");
        bring_back(&world).await;
        assert_eq!(sequence.draw(count(1)).await.unwrap(), 5..6);
    });
}

/// What a tool repeats, or does at the wrong time, changes nothing.
#[test]
fn a_sequence_is_given_away_and_brought_back_once() {
    let world = World::new(2);
    world.machine.run(async {
        let process = world.machine.process("p");
        let locker = world.locker(&process, LockerMode::Cassandra).await.unwrap();
        let sequences = sequences(&world);
        assert!(!sequences.give(NAME, 1).await.unwrap(), "it has no row");
        locker.sequence(NAME).unwrap().draw(count(1)).await.unwrap();
        assert!(!sequences.begin_return(NAME).await.unwrap());
        assert!(!sequences.give(NAME, 1).await.unwrap(), "the next is 2");
        for _ in 0..2 {
            assert!(sequences.give(NAME, 2).await.unwrap());
        }
        assert!(!sequences.end_return(NAME, 2).await.unwrap());
        for _ in 0..2 {
            assert!(sequences.begin_return(NAME).await.unwrap());
        }
        assert_eq!(sequences.place(NAME).await.unwrap(), SequencePlace::Returning);
        for _ in 0..2 {
            assert!(sequences.end_return(NAME, 9).await.unwrap());
        }
        assert_eq!(locker.sequence(NAME).unwrap().draw(count(1)).await.unwrap(), 9..10);
    });
}
