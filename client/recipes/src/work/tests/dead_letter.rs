//! Attempts, and dead letters.

use super::*;

fn shown(listed: &[Listed]) -> Vec<(&str, &ItemStatus, u32)> {
    listed.iter().map(|item| (item.payload.as_str(), &item.status, item.attempts)).collect()
}

#[test]
fn an_item_that_had_its_attempts_is_a_dead_letter_and_kept() {
    let (machine, model) = world(1);
    let queue = queue(&model, &machine.process("worker")).max_attempts(2);
    machine.run(async {
        let poison = queue.enqueue("poison").await.unwrap();
        queue.enqueue("good").await.unwrap();
        let mut had = Vec::new();
        while let Some(item) = queue.next(Wait::AtMost(secs(30))).await.unwrap() {
            had.push((item.payload().to_owned(), item.attempt()));
            if item.id() == &poison {
                item.give_back().await.unwrap();
            } else {
                item.done().await.unwrap();
            }
        }
        had.sort();
        let had: Vec<_> =
            had.iter().map(|(payload, attempt)| (payload.as_str(), *attempt)).collect();
        assert_eq!(had, [("good", 1), ("poison", 1), ("poison", 2)]);
        let listed = queue.list(9).await.unwrap();
        assert_eq!(shown(&listed), [("poison", &ItemStatus::DeadLetter, 2)]);
        assert!(queue.is_empty().await.unwrap(), "nothing waits");

        let again = queue.retry(&poison).await.unwrap();
        let listed = queue.list(9).await.unwrap();
        assert_eq!(shown(&listed), [("poison", &ItemStatus::Waiting, 0)]);
        let item = next(&queue).await;
        assert_eq!((item.id(), item.attempt()), (&again, 1));
        item.done().await.unwrap();
        assert_eq!(queue.list(9).await.unwrap(), []);
    });
}

#[test]
fn only_dead_letters_are_forgotten() {
    let (machine, model) = world(2);
    let queue = queue(&model, &machine.process("worker")).max_attempts(1);
    machine.run(async {
        let id = queue.enqueue("job").await.unwrap();
        for refused in [queue.forget(&id).await, queue.retry(&id).await.map(drop)] {
            assert!(refused.unwrap_err().to_string().contains("is no dead letter"));
        }
        next(&queue).await.give_back().await.unwrap();
        assert!(queue.next(Wait::AtMost(secs(30))).await.unwrap().is_none());
        assert_eq!(shown(&queue.list(9).await.unwrap()), [("job", &ItemStatus::DeadLetter, 1)]);
        queue.forget(&id).await.unwrap();
        assert_eq!(queue.list(9).await.unwrap(), []);
        assert!(queue.forget(&id).await.is_err());
    });
}

/// At whatever point the worker that makes it a dead letter dies, the item is found: waiting, or a dead letter.
#[test]
fn a_worker_that_dies_while_it_makes_a_dead_letter_loses_nothing() {
    let mut dead = 0;
    for killed_after_ms in (0..1_200_u64).step_by(15) {
        let (machine, model) = world(killed_after_ms);
        let process = machine.process("dying");
        let dying = queue(&model, &process).max_attempts(1);
        let heir = queue(&model, &machine.process("heir")).max_attempts(1);
        let runtime = machine.world().runtime();
        machine.run(async {
            heir.enqueue("job").await.unwrap();
            next(&heir).await.give_back().await.unwrap();
            let looking = async move { drop(dying.next(Wait::Forever).await) };
            process.runtime().spawn("look", looking).detach();
            runtime.sleep(Duration::from_millis(killed_after_ms)).await;
            process.kill();
            let kept = heir.list(9).await.unwrap();
            assert!(!kept.is_empty(), "killed after {killed_after_ms} ms");
            dead += usize::from(kept.iter().any(|item| item.status == ItemStatus::DeadLetter));
            assert!(heir.next(Wait::AtMost(secs(60))).await.unwrap().is_none());
            let kept = heir.list(9).await.unwrap();
            assert_eq!(shown(&kept), [("job", &ItemStatus::DeadLetter, 1)]);
        });
    }
    assert!((10..70).contains(&dead), "{dead}");
}

#[test]
fn a_dead_letter_goes_to_no_worker_that_found_it_before() {
    let (machine, model) = world(3);
    let [a, b] = ["a", "b"].map(|name| queue(&model, &machine.process(name)));
    let a = a.max_attempts(1);
    machine.run(async {
        let id = a.enqueue("job").await.unwrap();
        next(&a).await.give_back().await.unwrap();
        assert_eq!(b.scanner.free().await.unwrap(), std::slice::from_ref(&id));
        assert!(a.next(Wait::AtMost(secs(30))).await.unwrap().is_none());
        assert!(b.take(id).await.unwrap().is_none());
        assert_eq!(shown(&a.list(9).await.unwrap()), [("job", &ItemStatus::DeadLetter, 1)]);
    });
}
