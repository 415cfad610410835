//! What the articles leave open, each demonstrated with its own steps on the model.

use std::collections::BTreeSet;

use futures_util::join;

use super::*;
use crate::model::Fate;

/// Wiki, lines 6 to 17, unchanged: returns how often the client looked before it had the lock.
async fn seed_waits(old: &Old<'_>, number: i64, ids: &[&str]) -> usize {
    let runtime = old.runtime.clone();
    let mut looks = 0;
    let mut choosing_hash: BTreeSet<String> = choosing(old.model).await.into_iter().collect();
    let mut number_hash = numbers(old.model).await;
    for id in ids {
        while choosing_hash.contains(*id) {
            looks += 1;
            runtime.sleep(secs(1)).await;
            choosing_hash = choosing(old.model).await.into_iter().collect();
        }
        while number_hash.get(*id).is_some_and(|theirs| *theirs < number) {
            looks += 1;
            runtime.sleep(secs(1)).await;
            number_hash = numbers(old.model).await;
        }
    }
    looks
}

/// Line 13 does not compare ids, although the Pascal above it does.
#[test]
fn by_the_wikis_line_13_two_with_equal_numbers_are_in_at_once() {
    let (machine, model) = world(1);
    let [a, b] = ["a", "b"].map(|id| Old::new(&machine, &model, id, BakeryForm::Wiki));
    machine.run(async {
        a.raise_flag().await;
        b.raise_flag().await;
        let drawn = (a.next_number().await, b.next_number().await);
        assert_eq!(drawn, (1, 1), "both read before either has written");
        for old in [&a, &b] {
            assert!(old.write_number(1).await);
            old.lower_flag().await;
        }
        assert_eq!(seed_waits(&a, 1, &["a", "b"]).await, 0, "a is in");
        assert_eq!(seed_waits(&b, 1, &["a", "b"]).await, 0, "b is in beside a");
    });
}

/// Line 7 comes before the wait of line 9, so a client misses the number it waited for. `c` leaves
/// meanwhile.
#[test]
fn by_the_wikis_line_7_a_client_that_was_waited_for_is_not_looked_at() {
    let (machine, model) = world(1);
    let [a, b, c] = ["a", "b", "c"].map(|id| Old::new(&machine, &model, id, BakeryForm::Wiki));
    let runtime = machine.world().runtime();
    machine.run(async {
        a.raise_flag().await;
        let a_drew = a.next_number().await;
        assert_eq!(c.draw().await, 1, "c is in");
        let b_drew = b.draw().await;
        assert_eq!((a_drew, b_drew), (1, 2));
        let a_goes_on = async {
            runtime.sleep(secs(5)).await;
            assert!(a.write_number(a_drew).await);
            c.give_back().await;
            a.lower_flag().await;
        };
        let (looks, ()) = join!(seed_waits(&b, b_drew, &["a", "b", "c"]), a_goes_on);
        assert!(looks >= 5, "b waited for a to draw, and is in");
        let order = numbers(&model).await;
        assert_eq!(order, [("a".to_owned(), 1), ("b".to_owned(), 2)].into());
        assert_eq!(seed_waits(&a, a_drew, &["a", "b", "c"]).await, 0, "a is in beside b");
    });
}

/// The same course with a client of this recipe in the place of `b`.
#[test]
fn who_was_waited_for_is_looked_at_after_the_wait() {
    let (machine, model) = world(1);
    let ours = locker(&model, &machine.process("ours"), BakeryForm::Wiki);
    let [a, c] = ["a", "c"].map(|id| Old::new(&machine, &model, id, BakeryForm::Wiki));
    let runtime = machine.world().runtime();
    machine.run(async {
        a.raise_flag().await;
        assert_eq!(c.draw().await, 1);
        let olds = async {
            while numbers(&model).await.len() < 2 {
                runtime.sleep(ms(10)).await;
            }
            runtime.sleep(secs(3)).await;
            assert!(a.write_number(1).await);
            c.give_back().await;
            a.lower_flag().await;
            runtime.sleep(secs(20)).await;
            runtime.clock.now()
        };
        let ours = async {
            let guard = ours.lock("foo").await.unwrap();
            (runtime.clock.now(), guard)
        };
        let waits = async {
            let left = olds.await;
            a.give_back().await;
            left
        };
        let (left, (had, _guard)) = join!(waits, ours);
        assert!(had >= left, "it is in beside a");
    });
}

/// "Any operation that fails must be repeated until it succeeds." A client does not, and lowers its
/// flag.
#[test]
fn who_goes_on_without_an_acknowledgement_of_its_number_is_not_seen() {
    let (machine, model) = world(1);
    let [a, b] = ["a", "b"].map(|id| Old::new(&machine, &model, id, BakeryForm::Php));
    let runtime = machine.world().runtime();
    machine.run(async {
        a.raise_flag().await;
        assert_eq!(a.next_number().await, 1);
        model.choose(|put| put.table.as_str() == "numbers", Fate::Late(secs(5)));
        assert!(!a.write_number(1).await, "nobody knows");
        a.lower_flag().await;
        assert_eq!(b.draw().await, 1);
        assert_eq!(choosing(&model).await, [""; 0]);
        assert_eq!(numbers(&model).await, [("b".to_owned(), 1)].into(), "b is in");
        runtime.sleep(secs(6)).await;
        let order = numbers(&model).await;
        assert_eq!(order.first_key_value(), Some((&"a".to_owned(), &1)), "a is in by (1, a)");
    });
}

/// "First … look into Choosing for true value … to make sure that nobody is withdrawing".
#[test]
fn by_the_step_1_of_php_two_draw_at_once_all_the_same() {
    let (machine, model) = world(1);
    let [a, b] = ["a", "b"].map(|id| Old::new(&machine, &model, id, BakeryForm::Php));
    machine.run(async {
        assert_eq!(choosing(&model).await, [""; 0], "a's look");
        assert_eq!(choosing(&model).await, [""; 0], "b's look");
        a.raise_flag().await;
        b.raise_flag().await;
        assert_eq!((a.next_number().await, b.next_number().await), (1, 1));
    });
}

/// "If a client crashes after setting its number the algorithm will eventually block all other
/// clients"; a client that crashes while it draws blocks them too.
#[test]
fn by_the_article_a_client_that_dies_while_it_draws_or_holds_stops_all_others_for_ever() {
    let (machine, model) = world(1);
    let [chooser, holder] = ["a", "b"].map(|id| Old::new(&machine, &model, id, BakeryForm::Wiki));
    machine.run(async {
        holder.draw().await;
        chooser.raise_flag().await;
        machine.world().runtime().sleep(Duration::from_hours(365 * 24)).await;
        assert_eq!(choosing(&model).await, ["a"], "line 9 goes round");
        assert_eq!(numbers(&model).await, [("b".to_owned(), 1)].into(), "and so does line 13");
    });
}

/// TTLs alone do not mend it: the flag ends, another client takes the lock, and the chooser writes the
/// number that it drew before that.
#[test]
fn with_ttls_and_nothing_else_a_chooser_that_stalls_is_in_beside_another() {
    let (machine, model) = world(1);
    let [a, b] = ["a", "b"].map(|id| Old::new(&machine, &model, id, BakeryForm::Wiki).with_ttl(60));
    machine.run(async {
        a.raise_flag().await;
        let drawn = a.next_number().await;
        machine.world().runtime().sleep(secs(61)).await;
        assert_eq!(b.draw().await, 1);
        assert_eq!(seed_waits(&b, 1, &["a", "b"]).await, 0, "b is in");
        assert!(a.write_number(drawn).await);
        a.lower_flag().await;
        let order = numbers(&model).await;
        assert_eq!(order.first_key_value(), Some((&"a".to_owned(), &1)), "a is in by (1, a)");
    });
}

/// The flag's process died between the steps 5 and 10.
#[test]
fn a_false_flag_that_stands_for_ever_is_in_nobodys_way() {
    let (machine, model) = world(1);
    let dead = Old::new(&machine, &model, "dead", BakeryForm::Php);
    let ours = locker(&model, &machine.process("ours"), BakeryForm::Php);
    machine.run(async {
        dead.raise_flag().await;
        dead.lower_flag().await;
        let guard = ours.try_lock("foo").await.unwrap().unwrap();
        guard.release().await.unwrap();
        assert_eq!(
            cells(&model, "choosing").await,
            [("dead".to_owned(), Value::Flag(false))].into()
        );
    });
}
