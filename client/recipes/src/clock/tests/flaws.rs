//! Where the article stops or goes back, by its own steps; and this module in the same runs.

use super::*;

/// Thesis, §6: one of three ran ahead by ten minutes, wrote its time, and died.
fn ahead_and_dead(machine: &Machine, model: &Model) -> (Process, [Process; 2]) {
    let dead = machine.process("ahead");
    dead.set_wall_skew(600_000);
    old_replica(model, &dead);
    (dead, [machine.process("b"), machine.process("c")])
}

#[test]
fn under_the_articles_text_time_stands_for_as_long_as_a_dead_replica_was_ahead() {
    let (machine, model) = world(1);
    let (dead, living) = ahead_and_dead(&machine, &model);
    for process in &living {
        old_replica(&model, process);
    }
    let runtime = machine.world().runtime();
    machine.run(async {
        runtime.sleep(ms(5_000)).await;
        dead.kill();
        let died = runtime.clock.now();
        // Its last write may still be under way to a node.
        runtime.sleep(ms(10_000)).await;
        let stands = old_answer(&model).await;
        for minute in 1..=9 {
            runtime.clock.sleep_until(died + MINUTE * minute).await;
            assert_eq!(old_answer(&model).await, stands, "minute {minute}");
        }
        runtime.clock.sleep_until(died + MINUTE * 10 + ms(5_000)).await;
        assert!(old_answer(&model).await > stands);
    });
}

/// The same, with replicas of this module as the living ones.
#[test]
fn after_a_dead_replica_that_was_ahead_time_goes_on_and_converges() {
    for seed in 0..10 {
        let (machine, model) = world(seed);
        // Replicas see each other's values a moment before they go on.
        machine.set_look_takes(Duration::from_micros(seed % 3));
        model.set_odds(Odds { answer_lost: 20, request_lost: 20, late: 20, unavailable: 20 });
        let (dead, living) = ahead_and_dead(&machine, &model);
        let replicas = living.each_ref().map(|process| kept(&model, process));
        let runtime = machine.world().runtime();
        machine.run(async {
            runtime.sleep(ms(5_000)).await;
            dead.kill();
            runtime.sleep(ms(10_000)).await;
            let ahead = |answer: u64| {
                i64::try_from(answer / 1_000).unwrap()
                    - i64::try_from(runtime.clock.wall_ms()).unwrap()
            };
            let asked = async |nth: usize| loop {
                // Statements get lost.
                if let Ok(answer) = replicas[nth % 2].now_us().await {
                    return (answer, runtime.clock.now());
                }
            };
            let (first, began) = asked(0).await;
            assert!((580_000..=600_000).contains(&ahead(first)), "seed {seed}: {}", ahead(first));
            let mut last = first;
            for nth in 1.. {
                // An update may be lost, or two.
                runtime.sleep(ms(15_000)).await;
                let (answer, now) = asked(nth).await;
                assert!(answer > last, "seed {seed}: it stands");
                last = answer;
                if ahead(answer) <= 0 {
                    break;
                }
                let passed = super::super::course::micros(now.saturating_since(began));
                // The first answer may have come while an update was lost.
                let slack = 5_000_000;
                assert!(answer - first <= passed / 2 + slack, "seed {seed}: faster than half");
                assert!(
                    answer - first >= passed / 4,
                    "seed {seed}: {} in {passed}",
                    answer - first
                );
            }
            // Twice ten minutes at the latest; then it is right, and stays so.
            assert!(runtime.clock.now().saturating_since(began) <= MINUTE * 20 + ms(30_000));
            for nth in 0..20 {
                runtime.sleep(ms(5_000)).await;
                let ahead = ahead(asked(nth).await.0);
                assert!((-8_000..=0).contains(&ahead), "seed {seed}: {ahead} ms");
            }
        });
    }
}

/// Theorem 5 covers the cell. A write that reached one node of three is seen by one read and missed by
/// the next.
#[test]
fn under_the_articles_text_an_answer_may_be_less_than_one_before() {
    let (mut old_went_back, mut asked) = (0, 0);
    for seed in 0..40 {
        let (machine, model) = world(seed);
        model.set_odds(Odds { request_lost: 200, ..Odds::default() });
        let process = machine.process("a");
        old_replica(&model, &process);
        let runtime = machine.world().runtime();
        machine.run(async {
            let mut last = 0;
            for _ in 0..200 {
                runtime.sleep(ms(20)).await;
                let Some(answer) = old_answer(&model).await else { continue };
                asked += 1;
                old_went_back += usize::from(answer < last);
                last = answer;
            }
        });
    }
    assert!(old_went_back > 10, "{old_went_back} of {asked}");
}
