//! `holdfast-migrate sequences`, between real Cassandra nodes and real servers.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "helpers of tests stop the test when something is not as it must be"
)]

use std::collections::BTreeSet;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::future::{join, join_all};
use holdfast_recipes::{LockerMode, LockerSequence};
use holdfast_runtime::Runtime;
use holdfast_tests::moving::Move;
use holdfast_tests::program::{Ended, Program};
use serde_json::{Value, json};

const LIMIT: Duration = Duration::from_mins(1);
const NAME: &str = "orders/invoices";

/// `holdfast cassandra … sequence next`.
async fn next(moved: &Move, rest: &[&str]) -> Ended {
    let endpoints = moved.cluster.endpoints();
    let (points, keyspace) = (moved.stage.points(), moved.stage.keyspace());
    let place = ["--endpoints", &endpoints, "cassandra", "--contact-points", points];
    let place = [&place[..], &["--keyspace", keyspace, "sequence", "next"], rest].concat();
    Program::start("holdfast", &place).end(LIMIT).await
}

async fn next_natively(moved: &Move, name: &str) -> i64 {
    let endpoints = moved.cluster.endpoints();
    let line = ["--endpoints", &endpoints, "sequence", "next", name];
    let drawn = Program::start("holdfast", &line).end(LIMIT).await;
    assert_eq!(drawn.code, Some(0), "{drawn:?}");
    drawn.out.trim().parse().unwrap()
}

/// Draws until it is told to stop.
async fn draw(sequence: LockerSequence, over: Arc<AtomicBool>) -> Vec<i64> {
    let mut drawn = Vec::new();
    while !over.load(Ordering::Relaxed) {
        drawn.extend(sequence.draw(NonZeroU32::new(2).unwrap()).await.unwrap());
        Runtime::system().sleep(Duration::from_millis(20)).await;
    }
    drawn
}

async fn moves(moved: &Move, scope: &str, to: &str) -> Vec<Value> {
    moved.done("sequences", &["--scope", scope, "--to", to]).await
}

/// What an operator does, while three processes draw all the while.
async fn there_and_back(moved: &Move) {
    let before = next(moved, &[NAME, "--by", "3"]).await;
    assert_eq!(before.out, "1\n2\n3\n", "{before:?}");
    let given = moves(moved, "orders/", "native").await;
    let of = |moved: &[Value], name: &str| -> Value {
        moved.iter().find(|one| one["sequence"] == name).cloned().unwrap()
    };
    assert_eq!(of(&given, NAME)["at"], "native", "{given:?}");
    let again = moves(moved, "orders/", "native").await;
    assert_eq!(of(&again, NAME), json!({ "sequence": NAME, "at": "native" }));

    let refused = next(moved, &[NAME]).await;
    assert_eq!(refused.code, Some(122), "{refused:?}");
    assert!(refused.err.contains("holdfast-migrate sequences --to cassandra"), "{refused:?}");
    let through = next(moved, &["--mode", "both", "--scope", "orders/", NAME]).await;
    assert_eq!(through.code, Some(0), "{through:?}");
    let through: i64 = through.out.trim().parse().unwrap();
    assert!(through > 3 && next_natively(moved, NAME).await > through);

    let shown = moved.done("sequences", &["--scope", "orders/", "--dry-run"]).await;
    assert_eq!(of(&shown, NAME)["at"], "native");
    let back = moves(moved, "orders/", "cassandra").await;
    let from: i64 = of(&back, NAME)["next"].as_str().unwrap().parse().unwrap();
    assert!(from > through, "{back:?}");
    let after = next(moved, &[NAME]).await;
    assert!(after.out.trim().parse::<i64>().unwrap() >= from, "{after:?}");
}

#[tokio::test]
async fn sequences_go_to_the_native_store_and_back_and_no_number_comes_twice() {
    let moved = Move::set_with_fallback("migrate_sequences").await;
    // The native one is ahead already.
    assert_eq!(next(&moved, &["orders/ahead"]).await.out, "1\n");
    for number in 1..=3 {
        assert_eq!(next_natively(&moved, "orders/ahead").await, number);
    }
    assert_eq!(next(&moved, &["parcels"]).await.out, "1\n");
    let over = Arc::new(AtomicBool::new(false));
    let mut processes = Vec::new();
    for service in ["a", "b", "c"] {
        processes.push(moved.process("orders/", service, LockerMode::Both).await);
    }
    // Not of the name whose numbers the operator looks at.
    let drawing =
        processes.iter().map(|locker| draw(locker.sequence("orders/drawn").unwrap(), over.clone()));
    let moving = async {
        there_and_back(&moved).await;
        over.store(true, Ordering::Relaxed);
    };
    let (each, ()) = join(join_all(drawing), moving).await;
    let mut all = BTreeSet::new();
    for drawn in each {
        // Of nodes that are slow, and have other tests to serve, a process gets a dozen draws in this time.
        assert!(drawn.is_sorted() && drawn.len() >= 10, "{drawn:?}");
        for number in drawn {
            assert!(all.insert(number), "{number} was drawn twice");
        }
    }
    let ahead = next(&moved, &["orders/ahead"]).await;
    assert_eq!(ahead.out, "4\n", "above the native ones: {ahead:?}");
    assert_eq!(next(&moved, &["parcels"]).await.out, "2\n", "another scope's");
}

/// A scope that falls back keeps its sequences where both stores can be without.
#[tokio::test]
async fn a_scope_with_fallback_keeps_its_sequences_in_cassandra() {
    let moved = Move::set_with_fallback("migrate_sequences_fb").await;
    assert_eq!(next(&moved, &["net/ids"]).await.out, "1\n");
    let endpoints = moved.cluster.endpoints();
    let set = ["--endpoints", &endpoints, "scope", "set", "net/", "--fallback"];
    let set = Program::start("holdfast", &set).end(LIMIT).await;
    assert_eq!(set.code, Some(0), "{set:?}");
    let given = moved.run("sequences", &["--scope", "net/", "--to", "native"]).await;
    assert_eq!(given.code, Some(1), "{given:?}");
    let said: Value = serde_json::from_str(given.out.trim()).unwrap();
    assert_eq!(said["sequence"], "net/ids", "{said}");
    assert!(said["stays"].as_str().unwrap().contains("knows no sequences"), "{said}");
    assert_eq!(next(&moved, &["net/ids"]).await.out, "2\n");
    let there = moves(&moved, "net/", "cassandra").await;
    assert_eq!(there, [json!({ "sequence": "net/ids", "at": "cassandra" })]);
}
