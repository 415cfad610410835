//! The examples of the client, run as a new user runs them: against real servers, to their end.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of a test fail it by a panic"
)]

use std::time::Duration;

use holdfast_tests::cluster::{Cluster, Setup};
use holdfast_tests::program::Program;

const LIMIT: Duration = Duration::from_mins(1);

/// The lines that an example printed; it has to end well.
async fn lines(name: &str) -> Vec<String> {
    let cluster = Cluster::start(&Setup::nodes(1)).await;
    let ended = Program::example(name, &cluster.endpoints()).end(LIMIT).await;
    assert_eq!(ended.code, Some(0), "{}{}", ended.out, ended.err);
    ended.out.lines().map(str::to_owned).collect()
}

fn token(line: &str) -> u64 {
    let (_, rest) = line.split_once("token ").expect("the line names a token");
    let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().unwrap()
}

#[tokio::test]
async fn a_lock_is_held_while_the_work_is_done() {
    let lines = lines("hold_a_lock").await;

    assert!(lines[0].starts_with("reports/nightly is ours under token "), "{lines:?}");
    assert_eq!(lines[1..], ["12 pages written"]);
}

/// I1: the first holder was paused and its late write carries the older token.
#[tokio::test]
async fn the_late_write_of_a_paused_holder_is_refused_by_the_database() {
    let lines = lines("fenced_write").await;

    let [first, stopped, second, late, balance] = &lines[..] else { panic!("{lines:?}") };
    assert!(stopped.ends_with("is stopped in the middle of its work"), "{lines:?}");
    assert!(token(first) < token(second), "{lines:?}");
    assert!(second.ends_with("written: true"), "{lines:?}");
    assert_eq!(token(late), token(first), "it writes under the token it had");
    assert!(late.ends_with("written: false"), "{lines:?}");
    assert_eq!(balance, "balance: 70");
}

#[tokio::test]
async fn batches_that_overlap_are_worked_through_key_by_key() {
    let lines = lines("batch_worker").await;

    let of = |worker: &str, key: &str| {
        let start = format!("{worker} has processed index/{key} under token ");
        lines.iter().filter(|line| line.starts_with(&start)).count()
    };
    for (worker, keys) in [("worker 1", ["a", "b", "c"]), ("worker 2", ["b", "c", "d"])] {
        for key in keys {
            assert_eq!(of(worker, key), 1, "{worker} and {key}: {lines:?}");
        }
    }
    assert_eq!(lines.last().unwrap(), "3 and 3 messages are processed");
}

#[tokio::test]
async fn an_observer_hears_of_every_leader() {
    let lines = lines("leader_election").await;

    let seen = |text: &str| lines.iter().any(|line| line == text);
    let (one, two) = ("10.0.0.1:8080", "10.0.0.2:8080");
    // Either of them may come first.
    let orders = [(one, two), (two, one)];
    let order = orders.iter().find(|(first, second)| {
        seen(&format!("{second} takes over from {first}"))
            && seen(&format!("the observer saw {first} and {second} take turns"))
    });
    assert!(order.is_some(), "{lines:?}");
}

/// Sharing a client does not bypass the lock.
#[tokio::test]
async fn services_that_share_a_client_exclude_each_other() {
    let lines = lines("two_services").await;

    assert_eq!(lines.len(), 12, "{lines:?}");
    for turn in lines.chunks(2) {
        let service = turn[0].strip_suffix(" begins").expect("a turn begins before another ends");
        assert_eq!(turn[1], format!("{service} ends"), "{lines:?}");
    }
}

/// I2: never more than the limit, each under a token of its own.
#[tokio::test]
async fn two_of_five_jobs_run_at_a_time() {
    let lines = lines("semaphore").await;

    assert_eq!(lines.len(), 5, "{lines:?}");
    let tokens: Vec<u64> = lines.iter().map(|line| token(line)).collect();
    assert!(tokens.is_sorted_by(|one, other| one < other), "{lines:?}");
    let at_a_time = lines.iter().map(|line| {
        let (_, end) = line.rsplit_once(", ").expect("the line says how many run");
        end.split(' ').next().unwrap().parse::<u32>().unwrap()
    });
    assert_eq!(at_a_time.max(), Some(2), "{lines:?}");
}

/// I9: a request with a head start goes before those that came a moment earlier.
#[tokio::test]
async fn what_is_urgent_is_printed_first() {
    let lines = lines("urgent").await;

    let places: Vec<&str> = lines[..3].iter().map(|line| &line[..1]).collect();
    assert_eq!(places, ["0", "1", "0"], "{lines:?}");
    assert!(lines[0].ends_with("while the yearly report is printed"), "{lines:?}");
    let mut printed = lines[3..].to_vec();
    printed.sort_by_key(|line| token(line));
    let order = printed.iter().map(|line| line.split(" is printed").next().unwrap());
    assert_eq!(order.collect::<Vec<_>>(), ["the urgent one", "the first", "the second"]);
}

/// I37: both offices ask the same sequence at the same time.
#[tokio::test]
async fn no_two_offices_write_the_same_number() {
    let lines = lines("invoice_numbers").await;

    let numbers = |office: &str| -> Vec<u64> {
        let of = format!("the office in {office} writes invoice ");
        lines.iter().filter_map(|line| line.strip_prefix(&of)?.parse().ok()).collect()
    };
    let (one_by_one, block) = (numbers("Lund"), numbers("Graz"));
    assert_eq!((one_by_one.len(), block.len()), (4, 4), "{lines:?}");
    assert!(one_by_one.is_sorted() && block.is_sorted(), "{lines:?}");
    assert_eq!(block[3], block[0] + 3, "a block has no gaps: {lines:?}");
    let mut all = [one_by_one, block].concat();
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), 8, "{lines:?}");
}

/// The first one gave the lock back long before the second one came.
#[tokio::test]
async fn one_of_two_machines_writes_the_report_and_the_third_the_next_one() {
    let lines = lines("nightly_once").await;

    assert_eq!(lines.len(), 3, "{lines:?}");
    assert!(lines[0].starts_with("machine one writes the report under token "), "{lines:?}");
    assert_eq!(lines[1], "machine two has nothing to do");
    assert!(lines[2].starts_with("machine three writes the report under token "), "{lines:?}");
    assert!(token(&lines[0]) < token(&lines[2]), "{lines:?}");
}

/// I14: two at once, under one token, as soon as there are two.
#[tokio::test]
async fn a_book_gets_two_of_three_printers_at_once() {
    let lines = lines("two_printers").await;

    assert_eq!(lines.len(), 3, "{lines:?}");
    assert_eq!(lines[0], "the letter is done");
    let book = "the book is printed by printers/ada and printers/cleo under token ";
    assert!(lines[1].starts_with(book), "{lines:?}");
    assert_eq!(lines[2], "the poster is done");
}
