//! What the article leaves open, by its own steps; and how this recipe behaves there.

use super::*;
use crate::owner::{OwnerId, Signature};
use crate::statement::Value;

/// A worker of the article: its steps one by one, on the recipe's tables, without TTLs.
struct SeedWorker {
    rows: Rows,
    owner: OwnerId,
}

const NO_TTL: i32 = 0;

impl SeedWorker {
    fn new(model: &Model, machine: &Machine, name: &str) -> Self {
        let process = machine.process(name);
        let owner =
            OwnerId::draw(&Signature::draw(name, &*process.runtime().rng), &*process.runtime().rng);
        Self { rows: queue(model, &process).rows, owner }
    }

    async fn choose(&self, id: &ItemId, ttl_s: i32) {
        self.rows.put_choosing(id, &self.owner, ttl_s).await.1.unwrap();
    }

    /// `worker_number = max(number_hash.values) + 1`.
    async fn number(&self, id: &ItemId) -> i64 {
        let numbers = self.rows.numbers(id).await.unwrap();
        numbers.iter().filter_map(|row| row.number).max().unwrap_or(0) + 1
    }

    async fn take(&self, id: &ItemId, number: i64, ttl_s: i32) {
        self.rows.put_number(id, &self.owner, number, ttl_s).await.1.unwrap();
        self.rows.remove_choosing(id, &self.owner).await.unwrap();
    }

    async fn read(&self, id: &ItemId) -> Vec<NumberRow> {
        self.rows.numbers(id).await.unwrap()
    }

    /// `if number_hash[id].exists and number_hash[id] < worker_number`, for no id.
    fn has_it(&self, numbers: &[NumberRow], number: i64) -> bool {
        let others =
            numbers.iter().filter(|row| !row.is_marker() && row.worker != self.owner.as_str());
        !others.into_iter().any(|row| row.number.is_some_and(|theirs| theirs < number))
    }

    async fn all_steps(&self, id: &ItemId, ttl_s: i32) -> bool {
        self.choose(id, ttl_s).await;
        let number = self.number(id).await;
        self.take(id, number, ttl_s).await;
        assert_eq!(self.rows.choosing(id).await.unwrap(), [""; 0]);
        self.has_it(&self.read(id).await, number)
    }

    async fn removes(&self, id: &ItemId) {
        self.rows.remove_details(id).await.unwrap();
        self.rows.remove_marker(id).await.unwrap();
        self.rows.remove_number(id, &self.owner).await.unwrap();
    }
}

/// A queue, an item, and two workers of the article.
async fn seed_world(
    machine: &Machine,
    model: &Model,
) -> (WorkQueue, ItemId, SeedWorker, SeedWorker) {
    let ours = queue(model, &machine.process("ours"));
    let id = ours.enqueue("job").await.unwrap();
    let [a, b] = ["a", "b"].map(|name| SeedWorker::new(model, machine, name));
    (ours, id, a, b)
}

#[test]
fn under_the_articles_text_two_with_one_number_both_have_the_item() {
    let (machine, model) = world(1);
    machine.run(async {
        let (_, id, a, b) = seed_world(&machine, &model).await;
        a.choose(&id, NO_TTL).await;
        b.choose(&id, NO_TTL).await;
        let drawn = [a.number(&id).await, b.number(&id).await];
        assert_eq!(drawn, [1, 1]);
        a.take(&id, 1, NO_TTL).await;
        b.take(&id, 1, NO_TTL).await;
        let numbers = a.read(&id).await;
        assert!(a.has_it(&numbers, 1) && b.has_it(&numbers, 1));
        // Compared by number and owner, one of them goes away.
        let goes = [&a, &b].map(|one| claim::before(&numbers, 1, one.owner.as_str()).is_some());
        assert_eq!(goes, [false, true]);
    });
}

/// `b` reads the numbers while `a` chooses, waits until `a` has chosen, and goes by what it read. `a`
/// has the same number, and is the first of the two by name: comparing names, as the article does not,
/// would not help.
#[test]
fn under_the_articles_text_a_number_drawn_during_the_wait_is_not_seen() {
    let (machine, model) = world(2);
    machine.run(async {
        let (_, id, a, b) = seed_world(&machine, &model).await;
        a.choose(&id, NO_TTL).await;
        let by_a = a.number(&id).await;
        b.choose(&id, NO_TTL).await;
        let by_b = b.number(&id).await;
        b.take(&id, by_b, NO_TTL).await;
        assert_eq!(b.rows.choosing(&id).await.unwrap(), [a.owner.as_str()], "b waits");
        let read_by_b = b.read(&id).await;
        a.take(&id, by_a, NO_TTL).await;
        assert_eq!(b.rows.choosing(&id).await.unwrap(), [""; 0], "and goes on");

        let first = |numbers: &[NumberRow], worker: &SeedWorker| {
            claim::before(numbers, 1, worker.owner.as_str()).is_none()
        };
        let read_by_a = a.read(&id).await;
        assert!(first(&read_by_b, &b) && first(&read_by_a, &a), "both have it");
        assert!(!first(&b.read(&id).await, &b), "read after the wait, b goes away");
    });
}

/// The same, whenever the article's `a` ends its choosing: the recipe's `b` comes second by its name, and goes away.
#[test]
fn a_number_drawn_during_the_wait_is_seen() {
    for chosen_after_ms in (0..900).step_by(15) {
        let (machine, model) = world(chosen_after_ms);
        let b = queue(&model, &machine.process("b"));
        machine.run(async {
            let id = b.enqueue("job").await.unwrap();
            let a = SeedWorker::new(&model, &machine, "a");
            a.choose(&id, NO_TTL).await;
            let by_a = a.number(&id).await;
            let choosing = async {
                machine.world().runtime().sleep(Duration::from_millis(chosen_after_ms)).await;
                a.take(&id, by_a, NO_TTL).await;
            };
            let (had, ()) = futures_util::join!(b.take(id.clone()), choosing);
            assert!(had.unwrap().is_none(), "chosen after {chosen_after_ms} ms");
        });
    }
}

#[test]
fn under_the_articles_text_a_dead_workers_item_is_never_handed_out_again() {
    let (machine, model) = world(3);
    machine.run(async {
        let (ours, id, a, _) = seed_world(&machine, &model).await;
        assert!(a.all_steps(&id, NO_TTL).await, "and it dies");
        machine.world().runtime().sleep(Duration::from_hours(1_000)).await;
        assert!(ours.next(Wait::AtMost(secs(120))).await.unwrap().is_none());
        assert!(!ours.is_empty().await.unwrap());
    });
}

/// At whatever point the worker dies, another one gets the item within TTL and skew.
#[test]
fn a_dead_workers_item_is_handed_out_after_its_ttl() {
    for (seed, killed_after_ms) in (0..1_500_u64).step_by(30).enumerate() {
        let (machine, model) = world(seed as u64);
        let (dead, heir) = (machine.process("dead"), machine.process("heir"));
        let [dying, living] = [&dead, &heir].map(|process| queue(&model, process));
        let runtime = machine.world().runtime();
        machine.run(async {
            let id = living.enqueue("job").await.unwrap();
            let working = async move {
                let _item = next(&dying).await;
                std::future::pending::<()>().await;
            };
            dead.runtime().spawn("work", working).detach();
            runtime.sleep(Duration::from_millis(killed_after_ms)).await;
            dead.kill();
            let died = runtime.clock.now();
            let item = next(&living).await;
            let waited = runtime.clock.now().saturating_since(died);
            assert_eq!(item.id(), &id, "killed after {killed_after_ms} ms");
            assert!(waited <= TTL + SKEW + secs(4), "{killed_after_ms} ms: {waited:?}");
            item.done().await.unwrap();
            assert!(living.is_empty().await.unwrap());
        });
    }
}

/// Rows with a TTL and the article's steps: `a` stalls for a TTL between its read and its number.
#[test]
fn rows_that_end_by_themselves_are_not_enough() {
    let (machine, model) = world(4);
    machine.run(async {
        let (_, id, a, b) = seed_world(&machine, &model).await;
        a.choose(&id, 30).await;
        let by_a = a.number(&id).await;
        machine.world().runtime().sleep(secs(31)).await;
        assert!(b.all_steps(&id, 60).await, "b has it");
        a.take(&id, by_a, 60).await;
        let numbers = a.read(&id).await;
        let first = claim::before(&numbers, by_a, a.owner.as_str());
        assert_eq!(first, None, "and so has a, which is first by its name");
    });
}

/// The same stall at any point, with the recipe's workers: `a` has no safe item while `b` has it.
#[test]
fn a_chooser_that_stalls_for_a_ttl_has_nothing() {
    for stalls_after_ms in (0..900).step_by(6) {
        let (machine, model) = world(stalls_after_ms);
        let [a, b] = ["a", "b"].map(|name| machine.process(name));
        // It does not give up by itself.
        let patient = LockerOptions::default().answer_limit(Duration::from_hours(1));
        let stalling = queue_with(&model, &a, patient);
        let living = queue(&model, &b);
        let world = machine.world().runtime();
        machine.run(async {
            living.enqueue("job").await.unwrap();
            let (had, mut has) = tokio::sync::oneshot::channel();
            let working = async move {
                let _ = had.send(next(&stalling).await);
                std::future::pending::<()>().await;
            };
            a.runtime().spawn("work", working).detach();
            world.sleep(Duration::from_millis(stalls_after_ms)).await;
            a.pause();
            let item = next(&living).await;
            a.resume();
            for _ in 0..100 {
                world.sleep(Duration::from_millis(100)).await;
                let both = item.is_safe() && has.try_recv().is_ok_and(|had| had.is_safe());
                assert!(!both, "stalled after {stalls_after_ms} ms");
            }
            item.done().await.unwrap();
        });
    }
}

/// `b` reads the scan, `a` processes the item and removes it, `b` goes on.
#[test]
fn under_the_articles_text_an_item_that_is_done_is_handed_out_once_more() {
    let (machine, model) = world(5);
    machine.run(async {
        let (ours, id, a, b) = seed_world(&machine, &model).await;
        assert_eq!(ours.scanner.free().await.unwrap(), std::slice::from_ref(&id), "b's scan");
        assert!(a.all_steps(&id, NO_TTL).await);
        a.removes(&id).await;
        assert!(b.all_steps(&id, NO_TTL).await, "b has it");
        assert_eq!(
            b.rows.details(&id).await.unwrap(),
            rows::Details::default(),
            "which is nothing"
        );
    });
}

#[test]
fn an_item_that_is_done_goes_to_no_worker_that_found_it_before_and_leaves_nothing() {
    let (machine, model) = world(6);
    let [a, b] = ["a", "b"].map(|name| queue(&model, &machine.process(name)));
    machine.run(async {
        let id = a.enqueue("job").await.unwrap();
        assert_eq!(b.scanner.free().await.unwrap(), std::slice::from_ref(&id));
        next(&a).await.done().await.unwrap();
        assert!(b.take(id).await.unwrap().is_none());
        machine.world().runtime().sleep(secs(20)).await;
        assert_eq!(numbers(&b).await, []);
    });
}

/// "No consistency factor constraints": of two writes without a wait between, the second may be seen
/// first.
#[test]
fn under_the_articles_text_an_item_may_have_no_details() {
    let (machine, model) = world(7);
    machine.run(async {
        let (ours, done, ..) = seed_world(&machine, &model).await;
        let id = ItemId::draw(done.written_us() + 1, 0, &*machine.world().runtime().rng);
        ours.rows.put_marker(&id).await.unwrap();
        let a = SeedWorker::new(&model, &machine, "a");
        assert!(a.all_steps(&id, NO_TTL).await, "it has the item");
        assert_eq!(a.rows.details(&id).await.unwrap().payload, None, "and nothing to do");
    });
}

/// At whatever point an enqueueing process dies: each item that is found has its payload, and an
/// enqueue that was answered is found.
#[test]
fn an_enqueue_that_dies_half_way_leaves_no_item_without_details() {
    let (mut with, mut without) = (0, 0);
    for killed_after_ms in (0..400_u64).step_by(4) {
        let (machine, model) = world(killed_after_ms);
        model.set_odds(Odds { request_lost: 100, late: 100, ..Odds::default() });
        let process = machine.process("dying");
        let dying = queue(&model, &process);
        let ours = queue(&model, &machine.process("ours"));
        let runtime = machine.world().runtime();
        machine.run(async {
            let (answer, mut answered) = tokio::sync::oneshot::channel();
            let enqueueing = async move {
                let _ = answer.send(dying.enqueue("job").await);
            };
            process.runtime().spawn("enqueue", enqueueing).detach();
            runtime.sleep(Duration::from_millis(killed_after_ms)).await;
            process.kill();
            model.set_odds(Odds::default());
            // Longer than a write may be under way.
            runtime.sleep(secs(20)).await;
            // It may lie in a slot that is not listed: the test lists it.
            let began_us = ours.rows.now_us() - 20_000_000;
            let listing = Listing::draw(began_us, &machine.world());
            ours.rows.list_slot(Slot::first_of(began_us), &listing).await.unwrap();
            // One that reached a single replica is in some of the reads.
            let (mut found, mut markers) = (Vec::new(), 0);
            for _ in 0..8 {
                let listed = ours.list(9).await.unwrap();
                found = if listed.is_empty() { found } else { listed };
                markers = markers.max(numbers(&ours).await.len());
            }
            assert_eq!(found.len(), markers, "killed after {killed_after_ms} ms");
            assert!(found.iter().all(|item| item.payload == "job"));
            if let Ok(Ok(id)) = answered.try_recv() {
                assert_eq!(found[0].id, id);
            }
            with += found.len();
            without += usize::from(found.is_empty());
        });
    }
    assert!(with > 10 && without > 10, "{with} and {without}");
}

/// At whatever point in its three deletes a worker dies: another gets the item whole, or not at all, and nothing of it
/// remains.
#[test]
fn a_worker_that_dies_between_the_deletes_leaves_nothing_to_do_again() {
    let (mut again, mut ghosts) = (0, 0);
    for killed_after_ms in (0..300_u64).step_by(4) {
        let (machine, model) = world(killed_after_ms);
        let process = machine.process("dying");
        let (dying, heir) = (queue(&model, &process), queue(&model, &machine.process("heir")));
        let runtime = machine.world().runtime();
        machine.run(async {
            heir.enqueue("job").await.unwrap();
            let item = next(&dying).await;
            let removing = async move { drop(item.done().await) };
            process.runtime().spawn("done", removing).detach();
            runtime.sleep(Duration::from_millis(killed_after_ms)).await;
            process.kill();
            let is_ghost =
                heir.list(1).await.unwrap().is_empty() && !heir.is_empty().await.unwrap();
            ghosts += usize::from(is_ghost);
            if let Some(item) = heir.next(Wait::AtMost(secs(60))).await.unwrap() {
                assert_eq!((item.payload(), item.attempt()), ("job", 2));
                again += 1;
                item.done().await.unwrap();
            }
            runtime.sleep(TTL + SKEW + secs(10)).await;
            assert_eq!(numbers(&heir).await, [], "killed after {killed_after_ms} ms");
        });
    }
    assert!(again > 0 && ghosts > 3, "{again} done again, {ghosts} without details");
}

/// The workers' clocks are ten minutes behind and ahead of the enqueueing process; a delete by them must not be older
/// than what it removes, nor must an earlier attempt hide a later one.
#[test]
fn clocks_that_differ_by_minutes_change_nothing_but_the_order() {
    let (machine, model) = world(8);
    let processes = ["enqueues", "behind", "ahead"].map(|name| machine.process(name));
    for (process, ahead_ms) in processes.iter().zip([0, -600_000, 600_000]) {
        process.set_wall_skew(ahead_ms);
    }
    let [enqueues, behind, ahead] = processes.each_ref().map(|process| queue(&model, process));
    machine.run(async {
        for worker in [&behind, &ahead] {
            enqueues.enqueue("job").await.unwrap();
            let mut attempts = Vec::new();
            for one in [&ahead, &behind, &ahead] {
                let item = next(one).await;
                attempts.push(item.attempt());
                item.give_back().await.unwrap();
            }
            let item = next(worker).await;
            assert_eq!((attempts, item.attempt()), (vec![1, 2, 3], 4));
            item.done().await.unwrap();
            machine.world().runtime().sleep(secs(60)).await;
            for one in [&behind, &ahead, &enqueues] {
                assert!(one.next(Wait::AtMost(secs(40))).await.unwrap().is_none());
            }
            assert_eq!(numbers(&enqueues).await, []);
        }
    });
}

/// Writes a foreign client's row into that partition of the numbers.
async fn strange(model: &Model, part: Part, item: &str, worker: &str, number: Option<i64>) {
    use crate::database::Database;
    use crate::statement::{Action, Ident, Statement};
    let key = [
        ("queue", Value::from("jobs")),
        ("hour", Value::from(part.key())),
        ("item", Value::from(item)),
        ("worker", Value::from(worker)),
    ];
    let key = key.map(|(name, value)| (Ident::new(name), value)).to_vec();
    let cells = vec![(Ident::new("number"), number.map(Value::from))];
    let put = Action::Put { cells, ttl_s: 0, at_us: 1 };
    model.execute(Statement::new(Ident::new("work_numbers"), key, put)).await.unwrap();
}

/// Whatever foreign clients wrote there: nothing panics, an item with a number that cannot be passed counts as taken, and
/// the next one is free.
#[test]
fn rows_that_say_too_little_or_too_much_stop_nobody() {
    let (machine, model) = world(9);
    let ours = queue(&model, &machine.process("ours"));
    machine.run(async {
        for number in [None, Some(i64::MAX), Some(-1)] {
            let id = ours.enqueue("taken").await.unwrap();
            strange(&model, id.part(), id.as_str(), "stranger", number).await;
            assert!(ours.take(id).await.unwrap().is_none(), "{number:?}");
        }
        let part = Part::Slot(Slot::first_of(ours.rows.now_us()));
        for item in ["\0", "0", "00001417455697411000zzzzzzzzzzzzzzzz", "job"] {
            strange(&model, part, item, "0", Some(0)).await;
        }
        let id = ours.enqueue("job").await.unwrap();
        let item = next(&ours).await;
        assert_eq!((item.id(), item.payload()), (&id, "job"));
        let status: Vec<_> =
            ours.list(9).await.unwrap().into_iter().map(|listed| listed.status).collect();
        let by = |worker: &str| ItemStatus::Taken { by: worker.into() };
        assert_eq!(status, [by("stranger"), by("stranger"), by("stranger"), by("ours")]);
    });
}
