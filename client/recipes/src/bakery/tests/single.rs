//! One locker alone, and a few in turn.

use futures_util::join;

use super::*;

/// How many statements `act` sends.
async fn sent(bakery: &Bakery, act: impl Future<Output = ()>) -> u64 {
    let before = bakery.base.cassandra.statements().sent;
    act.await;
    bakery.base.cassandra.statements().sent - before
}

#[test]
fn a_free_lock_takes_six_round_trips_and_one_and_the_form_in_php_two_more() {
    for (form, takes, gives_back) in [(BakeryForm::Wiki, 6, 1), (BakeryForm::Php, 7, 2)] {
        let (machine, model) = world(1);
        let bakery = locker(&model, &machine.process("a"), form);
        machine.run(async {
            let mut guard = None;
            let took = sent(&bakery, async { guard = bakery.lock("foo").await.ok() }).await;
            let guard = guard.unwrap();
            let gave = sent(&bakery, async { guard.release().await.unwrap() }).await;
            let tried = sent(&bakery, async { drop(bakery.try_lock("foo").await.unwrap()) }).await;
            assert_eq!((took, gave, tried), (takes, gives_back, takes + 1), "{form:?}");
        });
    }
}

/// The content of the tables during a hold, and after it.
#[test]
fn a_hold_is_a_number_and_no_flag() {
    for form in FORMS {
        let (machine, model) = world(2);
        let bakery = locker(&model, &machine.process("a"), form);
        let runtime = machine.world().runtime();
        machine.run(async {
            let guard = bakery.lock("foo").await.unwrap();
            assert_eq!((guard.name(), guard.owner()), ("foo", "a"));
            assert_eq!(numbers(&model).await.into_values().collect::<Vec<_>>(), [1]);
            assert_eq!(choosing(&model).await, [""; 0]);
            guard.release().await.unwrap();
            runtime.sleep(secs(10)).await;
            assert_eq!(numbers(&model).await, BTreeMap::new());
            assert_eq!(cells(&model, "choosing").await, BTreeMap::new());
        });
    }
}

/// The wait is three TTLs long; then they get the lock in the order in which they drew.
#[test]
fn who_waits_keeps_its_number_for_longer_than_a_ttl_and_the_order_is_that_of_the_numbers() {
    for form in FORMS {
        let (machine, model) = world(3);
        let lockers = ["a", "b", "c", "d"].map(|name| locker(&model, &machine.process(name), form));
        let [a, b, c, d] = &lockers;
        let world = machine.world().runtime();
        machine.run(async {
            let held = a.lock("foo").await.unwrap();
            let order = std::sync::Mutex::new(Vec::new());
            let waiting = async |bakery: &Bakery, after: u64| {
                world.sleep(secs(after)).await;
                let guard = bakery.lock("foo").await.unwrap();
                order.lock().unwrap().push(guard.owner().to_owned());
                guard.release().await.unwrap();
            };
            let releasing = async {
                world.sleep(secs(90)).await;
                assert!(held.is_safe());
                held.release().await.unwrap();
            };
            join!(waiting(c, 5), waiting(b, 10), waiting(d, 80), releasing);
            assert_eq!(order.into_inner().unwrap(), ["c", "b", "d"], "{form:?}");
        });
    }
}

/// A number is certain for 2.93 s here, and a waiter far behind would otherwise look every 2 s.
#[test]
fn who_is_far_behind_looks_often_enough_to_keep_its_number() {
    for seed in 0..20 {
        let form = FORMS[usize::try_from(seed % 2).unwrap()];
        let (machine, model) = world(seed);
        let lockers = ["holder", "a", "b", "c", "d", "e", "f"]
            .map(|name| locker_for(&model, &machine.process(name), form, (secs(5), secs(1))));
        let world = machine.world().runtime();
        machine.run(async {
            let held = lockers[0].lock("foo").await.unwrap();
            let order = std::sync::Mutex::new(String::new());
            let waiting = async |bakery: &Bakery, after: u64| {
                world.sleep(secs(after)).await;
                let guard = bakery.lock("foo").await.unwrap();
                order.lock().unwrap().push_str(guard.owner());
                guard.release().await.unwrap();
            };
            let releasing = async {
                world.sleep(secs(60)).await;
                held.release().await.unwrap();
            };
            let waiters = (1..).zip(&lockers[1..]).map(|(after, bakery)| waiting(bakery, after));
            join!(futures_util::future::join_all(waiters), releasing);
            assert_eq!(order.into_inner().unwrap(), "abcdef", "seed {seed}");
        });
    }
}

#[test]
fn a_hand_over_takes_a_fraction_of_a_second_and_only_the_first_two_in_line_pay_for_it() {
    for seed in 0..20 {
        let (machine, model) = world(seed);
        let lockers = ["a", "b", "c", "d"]
            .map(|name| locker(&model, &machine.process(name), BakeryForm::Wiki));
        let hand_over =
            test_support::hand_over(&machine, &lockers, |it| it.base.cassandra.statements().sent);
        hand_over.is_quick_and_only_the_first_two_pay(seed);
    }
}

/// A client that raises its flag once ours has a number draws a higher one: ours does not wait for it.
/// `z` never draws.
#[test]
fn who_comes_to_choose_later_is_not_waited_for() {
    for form in FORMS {
        let (machine, model) = world(4);
        let ours = locker(&model, &machine.process("ours"), form);
        let [first, z] = ["first", "z"].map(|id| Old::new(&machine, &model, id, form));
        let runtime = machine.world().runtime();
        machine.run(async {
            let olds = async {
                // After the PHP form's first step.
                while choosing(&model).await.is_empty() {
                    runtime.sleep(ms(1)).await;
                }
                first.raise_flag().await;
                runtime.sleep(secs(5)).await;
                assert_eq!(numbers(&model).await.len(), 1, "ours has its number");
                z.raise_flag().await;
                runtime.sleep(secs(5)).await;
                first.lower_flag().await;
            };
            let ((), guard) = join!(olds, ours.lock_within("foo", secs(60)));
            assert!(guard.is_ok(), "{form:?}: {guard:?}");
            assert_eq!(choosing(&model).await, ["z"]);
        });
    }
}

/// The PHP form's first step waits for those that it saw first: here there is always a client
/// choosing.
#[test]
fn the_first_step_of_php_waits_for_nobody_who_came_later() {
    let (machine, model) = world(5);
    let ours = locker(&model, &machine.process("ours"), BakeryForm::Php);
    let [first, z] = ["first", "z"].map(|id| Old::new(&machine, &model, id, BakeryForm::Php));
    let runtime = machine.world().runtime();
    machine.run(async {
        first.raise_flag().await;
        let olds = async {
            runtime.sleep(secs(5)).await;
            assert_eq!(choosing(&model).await, ["first"], "ours has not begun to draw");
            z.raise_flag().await;
            first.lower_flag().await;
            runtime.sleep(secs(5)).await;
            assert_eq!(numbers(&model).await.len(), 1, "ours has its number");
            z.lower_flag().await;
        };
        let ((), guard) = join!(olds, ours.lock_within("foo", secs(60)));
        assert!(guard.is_ok(), "{guard:?}");
    });
}

#[test]
fn a_try_finds_a_held_lock_held_and_leaves_nothing_behind() {
    for form in FORMS {
        let (machine, model) = world(6);
        let [a, b] = ["a", "b"].map(|name| locker(&model, &machine.process(name), form));
        let world = machine.world().runtime();
        machine.run(async {
            let held = a.try_lock("foo").await.unwrap().unwrap();
            let asked = sent(&b, async {
                assert!(b.try_lock("foo").await.unwrap().is_none());
            });
            assert_eq!(asked.await, 1, "one look, and no number");
            held.release().await.unwrap();
            world.sleep(secs(10)).await;
            assert_eq!(numbers(&model).await, BTreeMap::new());
            assert_eq!(cells(&model, "choosing").await, BTreeMap::new());
        });
    }
}

/// A `try` gives choosers a moment: of two that try at once one gets the lock.
#[test]
fn of_two_clients_that_try_at_once_one_holds_it() {
    for seed in 0..600 {
        let form = FORMS[usize::try_from(seed % 2).unwrap()];
        let (machine, model) = world(seed);
        let [a, b] = ["a", "b"].map(|name| locker(&model, &machine.process(name), form));
        let world = machine.world().runtime();
        machine.run(async {
            let late = async {
                world.sleep(ms(seed % 100 * 3)).await;
                b.try_lock("foo").await.unwrap()
            };
            let (a, b) = join!(a.try_lock("foo"), late);
            let had = [a.unwrap().is_some(), b.is_some()];
            assert!(had[0] != had[1], "seed {seed}: {had:?}");
        });
    }
}

/// A client died while choosing: a `try` ends after a moment, and does not wait for that client's
/// TTL.
#[test]
fn a_try_does_not_wait_for_a_client_that_never_draws() {
    for form in FORMS {
        let (machine, model) = world(7);
        let ours = locker(&model, &machine.process("ours"), form);
        let dead = Old::new(&machine, &model, "dead", form);
        let world = machine.world().runtime();
        machine.run(async {
            dead.raise_flag().await;
            let began = world.clock.now();
            assert!(ours.try_lock("foo").await.unwrap().is_none());
            assert!(world.clock.now().saturating_since(began) < secs(3), "{form:?}");
            world.sleep(secs(10)).await;
            assert_eq!(numbers(&model).await, BTreeMap::new());
            assert_eq!(choosing(&model).await, ["dead"]);
        });
    }
}

/// At any step: while it draws, waits or holds.
#[test]
fn who_dies_anywhere_is_over_after_its_ttl_and_the_skew() {
    for dies_after_ms in (0..900).step_by(15) {
        let form = FORMS[usize::try_from(dies_after_ms / 15 % 2).unwrap()];
        let (machine, model) = world(dies_after_ms);
        let (a, b) = (machine.process("a"), machine.process("b"));
        let (first, second) = (locker(&model, &a, form), locker(&model, &b, form));
        model.set_skew(1, i64::try_from(SKEW.as_millis()).unwrap());
        let runtime = machine.world().runtime();
        let held = async move { std::mem::forget(first.lock("foo").await) };
        a.runtime().spawn("acquire", held).detach();
        machine.run(async {
            runtime.sleep(ms(dies_after_ms)).await;
            a.kill();
            let within = TTL + SKEW + secs(5);
            let had = second.lock_within("foo", within).await;
            assert!(had.is_ok(), "died after {dies_after_ms} ms: {had:?}");
        });
    }
}

/// Writes of unknown outcome arrive late: the deletes that were sent after them win.
#[test]
fn what_is_given_up_leaves_nothing_even_if_its_writes_arrive_late() {
    use crate::model::Odds;
    for seed in 0..100 {
        let form = FORMS[usize::try_from(seed % 2).unwrap()];
        let (machine, model) = world(seed);
        let bakery = locker(&model, &machine.process("a"), form);
        model.set_odds(Odds { late: 400, request_lost: 100, ..Odds::default() });
        let world = machine.world().runtime();
        machine.run(async {
            drop(world.timeout(ms(seed * 40), bakery.lock("foo")).await);
            world.sleep(secs(10)).await;
            model.set_odds(Odds::default());
            world.sleep(secs(20)).await;
            assert_eq!(numbers(&model).await, BTreeMap::new(), "seed {seed}");
            assert_eq!(cells(&model, "choosing").await, BTreeMap::new(), "seed {seed}");
        });
    }
}
