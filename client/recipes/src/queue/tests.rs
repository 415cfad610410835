//! The queue on the model of its tables.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;
use std::time::Duration;

use holdfast_mutants::{Mutant, while_armed};
use holdfast_runtime::simulated::Process;

use super::row::column_name;
use super::*;
use crate::database::Database;
use crate::lock_task::{Attempt, Reached};
use crate::model::{Fate, Model, Odds, Which};
use crate::seed_clients::SeedTable;
use crate::statement::{Action, Statement};
use crate::test_support::{self, cassandra, options, world};

const fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn locker(model: &Model, process: &Process, service: &str, ttl: Duration, skew: Duration) -> Queue {
    let (cassandra, options) = (cassandra(model, process), options(service, ttl, skew));
    Queue::new(&cassandra, &options, QueueTables::default()).unwrap()
}

/// A cell of the row `foo`, as the article's client writes it: with a TTL and timestamps of its
/// own.
fn seed_cell(table: &'static str, column: &str, ttl_s: i32, at_us: i64) -> Statement {
    SeedTable::cells(table).put(column, ttl_s, at_us)
}

async fn seed_read(model: &Model, table: &'static str) -> Vec<String> {
    SeedTable::cells(table).names(model).await
}

#[test]
fn a_cells_name_is_in_the_order_of_its_time_and_then_of_its_thread() {
    assert_eq!(column_name(1_417_455_697_411_000, "t"), "00001417455697411000t");
    assert!(column_name(9, "z") < column_name(10, "a"));
    assert!(column_name(10, "a") < column_name(10, "b"));
}

/// Listing 6, steps 3 and 4, unchanged. `a` stalls for a TTL between them, and `b` holds the lock.
#[test]
fn the_articles_one_record_may_be_another_clients() {
    let (machine, model) = world(1);
    let runtime = machine.world().runtime();
    machine.run(async {
        model.execute(seed_cell("lock_main", "a", 60, 1)).await.unwrap();
        runtime.sleep(secs(61)).await;
        model.execute(seed_cell("lock_main", "b", 60, 2)).await.unwrap();
        assert_eq!(seed_read(&model, "lock_main").await.len(), 1, "b is alone, and goes in");

        let seen_by_a = seed_read(&model, "lock_main").await;
        assert_eq!(seen_by_a.len(), 1, "step 4 lets a in beside b");
        assert_eq!(seen_by_a[0], "b", "had it asked whose");
    });
}

/// The same stall at every step: an attempt that sends a statement after it finds `b`. (A guard's safe
/// deadline would have passed too; the recipe does not rely on that.)
#[test]
fn one_record_that_is_somebody_elses_is_no_lock() {
    for stalls_after_ms in (0..500).step_by(5) {
        let (machine, model) = world(stalls_after_ms);
        let process = machine.process("a");
        let queue = locker(&model, &process, "a", secs(30), secs(10));
        let mut attempt = queue.attempt("foo", Wait::Forever);
        let (had, mut answer) = tokio::sync::oneshot::channel();
        let attempting = async move {
            let attempted = attempt.advance().await;
            let _ = had.send(matches!(attempted, Ok(Reached::Hold { .. })));
        };
        process.runtime().spawn("attempt", attempting).detach();
        let world = machine.world().runtime();
        machine.run(async {
            world.sleep(Duration::from_millis(stalls_after_ms)).await;
            process.pause();
            let asked = model.arrived();
            world.sleep(secs(60)).await;
            model.execute(seed_cell("lock_main", "b", 600, 1)).await.unwrap();
            let by_b = model.arrived() - asked;
            process.resume();
            world.sleep(secs(10)).await;
            let asked_on = model.arrived() - by_b > asked;
            let had = answer.try_recv().unwrap();
            assert!(!(had && asked_on), "stalled after {stalls_after_ms} ms");
        });
    }
}

/// Lemma 1 covers acknowledged writes. One that only one replica has may be visible to its writer
/// alone.
#[test]
fn of_two_clients_that_come_at_once_while_writes_get_lost_one_is_in_at_a_time() {
    for seed in 0..300 {
        let (machine, model) = world(seed);
        model.set_odds(Odds { request_lost: 400, ..Odds::default() });
        let inside = std::sync::atomic::AtomicUsize::new(0);
        // The later client's clock is behind, so it is first in the queue.
        let come = async |name: &str, after_ms: u64, behind_ms: i64| {
            let process = machine.process(name);
            process.set_wall_skew(-behind_ms);
            process.runtime().sleep(Duration::from_millis(after_ms)).await;
            let queue = locker(&model, &process, name, secs(180), secs(60));
            if let Ok(guard) = queue.lock_within("foo", secs(60)).await {
                assert_eq!(inside.fetch_add(1, Ordering::Relaxed), 0, "seed {seed}");
                process.runtime().sleep(secs(8)).await;
                inside.fetch_sub(1, Ordering::Relaxed);
                drop(guard);
            }
        };
        let (second, third) = (seed * 37 % 3_000, seed * 71 % 6_000);
        machine.run(async {
            futures_util::join!(come("a", 0, 0), come("b", second, 9_000), come("c", third, 19_000))
        });
    }
}

/// §5.3 of the thesis renews the cells of holders only: a waiter's place ends with its TTL.
#[test]
fn under_the_articles_text_a_client_that_waits_for_longer_than_a_ttl_is_never_first_again() {
    let (machine, model) = world(1);
    let runtime = machine.world().runtime();
    machine.run(async {
        model.execute(seed_cell("lock_queue", "00000000000000000001waiter", 60, 1)).await.unwrap();
        runtime.sleep(secs(61)).await;
        let late = "00000000000000000099newcomer";
        model.execute(seed_cell("lock_queue", late, 60, 2)).await.unwrap();
        let queue = seed_read(&model, "lock_queue").await;
        assert_eq!(queue.len(), 1, "listing 6 goes round steps 2 and 10 for ever");
        assert_eq!(queue[0], late);
    });
}

/// The wait is three TTLs long; then the client that came first is first to get the lock.
#[test]
fn a_waiter_keeps_its_place_for_longer_than_a_ttl() {
    let (machine, model) = world(2);
    let processes = ["a", "b", "c"].map(|name| machine.process(name));
    let [a, b, c] = [0, 1, 2].map(|at| {
        let process: &Process = &processes[at];
        locker(&model, process, &process.name(), secs(30), secs(10))
    });
    let world = machine.world().runtime();
    machine.run(async {
        let held = a.lock("jobs").await.unwrap();
        let order = std::sync::Mutex::new(Vec::new());
        let waiting = async |queue: &Queue, after: u64| {
            world.sleep(secs(after)).await;
            let guard = queue.lock("jobs").await.unwrap();
            order.lock().unwrap().push(guard.owner().to_owned());
            guard.release().await.unwrap();
        };
        let releasing = async {
            world.sleep(secs(90)).await;
            assert!(held.is_safe());
            held.release().await.unwrap();
        };
        futures_util::join!(waiting(&b, 5), waiting(&c, 85), releasing);
        assert_eq!(order.into_inner().unwrap(), ["b", "c"]);
    });
}

#[test]
fn a_hand_over_takes_a_fraction_of_a_second_and_only_the_first_two_in_line_pay_for_it() {
    for seed in 0..30 {
        let (machine, model) = world(seed);
        let lockers = ["a", "b", "c", "d"].map(|name| {
            let process = machine.process(name);
            locker(&model, &process, name, secs(180), secs(60))
        });
        let hand_over =
            test_support::hand_over(&machine, &lockers, |it| it.base.cassandra.statements().sent);
        hand_over.is_quick_and_only_the_first_two_pay(seed);
    }
}

/// The holder's place in line has ended (it stalls, say), but its cell in the main row has not. The next client is first,
/// writes there once, and from then on only looks. Each write would be a tombstone.
#[test]
fn who_is_first_and_finds_the_main_row_taken_writes_there_once() {
    let (machine, model) = world(5);
    let process = machine.process("b");
    let queue = locker(&model, &process, "b", secs(180), secs(60));
    let mut attempt = queue.attempt("foo", Wait::Forever);
    machine.run(async {
        model.execute(seed_cell("lock_main", "a", 600, 1)).await.unwrap();
        let mut asked = Vec::new();
        for _ in 0..3 {
            let before = model.arrived();
            let attempted = attempt.advance().await.unwrap();
            assert!(matches!(attempted, Reached::HeldBy { .. }), "{attempted:?}");
            asked.push(model.arrived() - before);
        }
        // Its place, the head of the queue, a write, a look and the delete; after that two looks.
        assert_eq!(asked, [5, 2, 2]);
    });
}

#[test]
fn a_try_finds_a_held_lock_held_and_leaves_no_place_behind() {
    let (machine, model) = world(3);
    let (a, b) = (machine.process("a"), machine.process("b"));
    let (first, second) = (
        locker(&model, &a, "a", secs(180), secs(60)),
        locker(&model, &b, "b", secs(180), secs(60)),
    );
    let world = machine.world().runtime();
    machine.run(async {
        let held = first.try_lock("foo").await.unwrap().unwrap();
        assert_eq!((held.name(), held.owner()), ("foo", "a"));
        assert!(second.try_lock("foo").await.unwrap().is_none());
        held.release().await.unwrap();
        world.sleep(secs(10)).await;
        assert_eq!(seed_read(&model, "lock_queue").await, [""; 0]);
        assert_eq!(seed_read(&model, "lock_main").await, [""; 0]);
    });
}

/// The holder pauses, its clock does not: its cell has ended and the next client holds the lock.
/// What the holder writes when it wakes leaves nothing.
#[test]
fn a_holder_that_wakes_too_late_is_lost_and_leaves_nothing_beside_the_next_one() {
    let (machine, model) = world(4);
    let (a, b) = (machine.process("a"), machine.process("b"));
    let (first, second) = (
        locker(&model, &a, "a", secs(180), secs(60)),
        locker(&model, &b, "b", secs(180), secs(60)),
    );
    machine.run(async {
        let held = first.lock("foo").await.unwrap();
        a.pause();
        let next = second.lock("foo").await.unwrap();
        assert!(!held.is_safe());
        a.resume();
        for _ in 0..100 {
            let there = seed_read(&model, "lock_main").await;
            assert_eq!(there.len(), 1, "{there:?}");
        }
        assert!(next.is_safe());
    });
}

/// Writes of unknown outcome arrive late: the deletes that were sent after them win.
#[test]
fn what_is_given_up_leaves_nothing_even_if_its_writes_arrive_late() {
    for seed in 0..100 {
        let (machine, model) = world(seed);
        let process = machine.process("a");
        let queue = locker(&model, &process, "a", secs(180), secs(60));
        model.set_odds(Odds { late: 400, request_lost: 100, ..Odds::default() });
        let world = machine.world().runtime();
        machine.run(async {
            let wait = Duration::from_millis(seed * 40);
            drop(world.timeout(wait, queue.lock("foo")).await);
            world.sleep(secs(10)).await;
            model.set_odds(Odds::default());
            world.sleep(secs(20)).await;
            assert_eq!(seed_read(&model, "lock_main").await, [""; 0], "seed {seed}");
            assert_eq!(seed_read(&model, "lock_queue").await, [""; 0], "seed {seed}");
        });
    }
}

/// The head of the queue wrote its cell into the main row and got no answer to the write, to the look after it, or to the
/// delete. It never waits for that cell, which is its own.
#[test]
fn the_head_of_the_queue_does_not_wait_for_a_cell_of_its_own() {
    let put: Which = |one| is_of_b(one) && matches!(one.action, Action::Put { .. });
    let look: Which = |one| is_main(one) && matches!(one.action, Action::First { .. });
    let delete: Which = |one| is_of_b(one) && matches!(one.action, Action::Erase { .. });
    for (which, first_s) in [(put, 5), (look, 5), (delete, 0)] {
        for fate in [Fate::AnswerLost, Fate::Late(secs(3))] {
            let (machine, model) = world(11);
            let processes = ["a", "b"].map(|name| machine.process(name));
            // `b` is before the holder in the queue, writes into the main row, finds the holder there, and deletes its
            // own cell.
            processes[1].set_wall_skew(-60_000);
            let [a, b] = processes
                .each_ref()
                .map(|process| locker(&model, process, &process.name(), secs(180), secs(60)));
            let world = machine.world().runtime();
            machine.run(async {
                let held = a.lock("foo").await.unwrap();
                let waiting = async {
                    let guard = b.lock("foo").await.unwrap();
                    (world.clock.now(), guard)
                };
                let troubling = async {
                    world.sleep(secs(first_s)).await;
                    if std::ptr::fn_addr_eq(which, look) {
                        // The look that follows its write.
                        model.choose(put, Fate::Answered);
                        while !model.nothing_is_chosen() {
                            world.sleep(Duration::from_millis(1)).await;
                        }
                    }
                    model.choose(which, fate);
                };
                let releasing = async {
                    world.sleep(secs(10)).await;
                    held.release().await.unwrap();
                    world.clock.now()
                };
                let ((had, _guard), (), released) =
                    futures_util::join!(waiting, troubling, releasing);
                assert!(model.nothing_is_chosen());
                let took = had.saturating_since(released);
                // A replica may be far behind with the delete of the holder.
                assert!(took < secs(30), "had {took:?} after the release");
            });
        }
    }
}

#[test]
fn a_head_that_waits_for_its_own_cell_is_noticed() {
    let test = the_head_of_the_queue_does_not_wait_for_a_cell_of_its_own;
    let run = while_armed(Mutant::OwnCellInTheWay, || std::panic::catch_unwind(test));
    assert!(run.is_err(), "nothing showed that the mutant was armed");
}

/// A client with an earlier time came in before a head whose write to the main row had no answer. That head does not
/// block it.
#[test]
fn a_cell_of_one_who_is_not_first_any_more_is_taken_back() {
    let (machine, model) = world(12);
    let [a, b] = ["a", "b"].map(|name| machine.process(name));
    // `a` is first by its clock, and comes second: not so late that it is before the floor of `b`.
    a.set_wall_skew(-1_900);
    let [first, second] = [(&a, "a"), (&b, "b")]
        .map(|(process, name)| locker(&model, process, name, secs(180), secs(60)));
    let world = machine.world().runtime();
    machine.run(async {
        model.choose(
            |one| is_of_b(one) && matches!(one.action, Action::Put { .. }),
            Fate::AnswerLost,
        );
        let late = async {
            world.sleep(secs(1)).await;
            let began = world.clock.now();
            let guard = first.lock("foo").await.unwrap();
            (world.clock.now().saturating_since(began), guard)
        };
        let waiting = world.timeout(secs(60), second.lock("foo"));
        let ((took, _guard), second) = futures_util::join!(late, waiting);
        assert!(model.nothing_is_chosen() && second.is_err());
        assert!(took < secs(10), "had after {took:?}");
    });
}

/// B5: under a name of its own each hold would leave tombstones in the main row, and a read of the queue from its beginning would walk
/// over those of every place that there ever was.
#[test]
fn a_lock_that_one_process_takes_again_and_again_has_one_name_in_the_main_row_and_is_read_from_its_head()
 {
    let (machine, model) = world(13);
    let process = machine.process("a");
    let queue = locker(&model, &process, "a", secs(180), secs(60));
    let world = machine.world().runtime();
    machine.run(async {
        let mut owners = BTreeSet::new();
        let mut hold = async || {
            let guard = queue.lock("foo").await.unwrap();
            owners.extend(seed_read(&model, "lock_main").await);
            guard.release().await.unwrap();
            world.sleep(secs(1)).await;
        };
        hold().await;
        let look_at_all: Which =
            |one| one.table.as_str() == "lock_queue" && matches!(one.action, Action::First { .. });
        model.choose(look_at_all, Fate::Answered);
        for _ in 0..5 {
            hold().await;
        }
        assert!(!model.nothing_is_chosen(), "the whole queue was read again within ten seconds");
        for _ in 0..5 {
            hold().await;
        }
        assert!(model.nothing_is_chosen(), "the whole queue was not read again after ten seconds");
        assert_eq!(owners.len(), 1, "{owners:?}");
    });
}

/// `b` has looked at the queue, and reads it from its head on. `a`, whose clock is a minute behind, comes in before that head.
#[test]
fn a_place_before_the_floor_is_seen_within_ten_seconds() {
    let (machine, model) = world(14);
    let [a, b] = ["a", "b"].map(|name| machine.process(name));
    a.set_wall_skew(-60_000);
    let [first, second] = [(&a, "a"), (&b, "b")]
        .map(|(process, name)| locker(&model, process, name, secs(180), secs(60)));
    let world = machine.world().runtime();
    machine.run(async {
        let held = second.lock("foo").await.unwrap();
        let order = std::sync::Mutex::new(Vec::new());
        let waiting = async |queue: &Queue, name: &str| {
            let guard = queue.lock("foo").await.unwrap();
            order.lock().unwrap().push(name.to_owned());
            guard.release().await.unwrap();
        };
        let releasing = async {
            world.sleep(secs(15)).await;
            held.release().await.unwrap();
        };
        futures_util::join!(waiting(&second, "b"), waiting(&first, "a"), releasing);
        assert_eq!(order.into_inner().unwrap(), ["a", "b"]);
    });
}

/// The cells of an attempt whose deletes have no answer may be in the tables.
#[test]
fn an_id_is_used_again_only_after_every_cell_of_it_was_deleted() {
    let (machine, model) = world(15);
    let process = machine.process("a");
    let base = locker(&model, &process, "a", secs(180), secs(60)).base;
    let table = Ident::new("lock_main");
    let cells = || OwnCells::new(&base, "foo", QueueTables::default().columns());
    machine.run(async {
        let (one, two) = (cells(), cells());
        let [first, second] = [&one, &two].map(|cells| cells.owner.clone());
        assert_ne!(first, second, "two attempts at the same time");

        one.put_owner(&table).await.unwrap();
        model.choose(|one| matches!(one.action, Action::Erase { .. }), Fate::AnswerLost);
        one.erase_owner(&table).await.unwrap_err();
        drop(one);
        assert!(cells().owner != first);

        two.put_owner(&table).await.unwrap();
        two.erase_owner(&table).await.unwrap();
        drop(two);
        let (one, two) = (cells(), cells());
        assert!([&one.owner, &two.owner].contains(&&second));
    });
}

fn is_main(statement: &Statement) -> bool {
    statement.table.as_str() == "lock_main"
}

/// A write of the client `b` in the main row.
fn is_of_b(statement: &Statement) -> bool {
    let owner = statement.key.get(1).and_then(|(_, column)| column.text());
    is_main(statement) && owner.is_some_and(|owner| owner.starts_with("hf1:b"))
}
