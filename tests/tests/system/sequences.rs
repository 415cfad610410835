//! Sequences, on the command line and in the library, while leaders die.
#![allow(clippy::unwrap_used, reason = "helpers of a test fail it by a panic")]

use std::collections::BTreeSet;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use holdfast::{Client, Error, RefusalReason, Sequence};
use holdfast_runtime::Runtime;
use holdfast_tests::cluster::{Cluster, Setup};
use holdfast_tests::program::{Ended, run};

const LIMIT: Duration = Duration::from_secs(30);

async fn holdfast(cluster: &Cluster, arguments: &[&str]) -> Ended {
    let endpoints = cluster.endpoints();
    run("holdfast", &[&["--endpoints", &endpoints, "sequence"], arguments].concat()).await
}

/// Takes numbers until told to end, and checks that those of one client rise.
async fn numbers_until(over: Arc<AtomicBool>, sequence: Sequence) -> Vec<u64> {
    let mut numbers = Vec::new();
    while !over.load(Ordering::Relaxed) {
        let number = sequence.next().await.unwrap();
        assert!(numbers.last().is_none_or(|last| *last < number), "{number} after {numbers:?}");
        numbers.push(number);
    }
    numbers
}

/// I37: whoever asks, of whichever leader, one by one or in blocks.
#[tokio::test]
async fn no_number_is_given_out_twice_while_leaders_die() {
    let mut cluster = Cluster::start(&Setup::nodes(3)).await;
    cluster.leader().await;
    let builder = Client::builder().endpoints([cluster.endpoints()]).connect_timeout(LIMIT);
    let over = Arc::new(AtomicBool::new(false));
    let (mut tasks, mut given) = (Vec::new(), Vec::new());
    for block in [1, 1, 1, 7, 100] {
        let sequence = builder.sequence("ids").unwrap().blocks_of(NonZeroU32::new(block).unwrap());
        let (tell, told) = tokio::sync::oneshot::channel();
        let numbers = numbers_until(over.clone(), sequence);
        tasks.push(Runtime::system().spawn("numbers", async move {
            // If the test has ended, nobody asks any more.
            let _ = tell.send(numbers.await);
        }));
        given.push(told);
    }
    let ranges = builder.sequence("ids").unwrap();
    // Once one was given out, a member that is down holds up none (I29).
    let mut taken = vec![ranges.next().await.unwrap()];
    for _ in 0..3 {
        let leader = cluster.leader().await;
        cluster.kill(leader);
        taken.extend(ranges.take(NonZeroU32::new(50).unwrap()).await.unwrap());
        cluster.start_node(leader);
        cluster.all_ready().await;
    }
    over.store(true, Ordering::Relaxed);
    for told in given {
        let numbers = told.await.unwrap();
        // However often it had to look for the leader.
        assert!(!numbers.is_empty());
        taken.extend(numbers);
    }

    let different: BTreeSet<u64> = taken.iter().copied().collect();
    assert_eq!(different.len(), taken.len(), "a number was given out twice");
    assert!(taken.len() > 500, "{}", taken.len());
    let last = holdfast(&cluster, &["list", "ids", "--json"]).await;
    let last: serde_json::Value = serde_json::from_str(&last.out).unwrap();
    let last: u64 = last["last"].as_str().unwrap().parse().unwrap();
    assert!(Some(last) >= different.last().copied(), "{last}");
}

#[tokio::test]
async fn numbers_are_printed_begun_and_listed() {
    let cluster = Cluster::start(&Setup::nodes(1)).await;
    cluster.leader().await;
    let empty = holdfast(&cluster, &["list"]).await;
    assert_eq!(empty.out, "there is no such sequence\n");
    for expected in ["1\n", "2\n"] {
        let next = holdfast(&cluster, &["next", "invoices/2026"]).await;
        assert_eq!((next.code, &*next.out), (Some(0), expected), "{next:?}");
    }
    assert_eq!(holdfast(&cluster, &["next", "invoices/2026", "--by", "3"]).await.out, "3\n4\n5\n");
    let range = holdfast(&cluster, &["--json", "next", "invoices/2026", "--by", "65536"]).await;
    assert_eq!(range.out, "{\"first\":\"6\",\"last\":\"65541\",\"name\":\"invoices/2026\"}\n");
    let begun = holdfast(&cluster, &["begin", "orders", "10000"]).await;
    assert_eq!(begun.out, "the next number of orders is 10000\n", "{begun:?}");
    assert_eq!(holdfast(&cluster, &["next", "orders"]).await.out, "10000\n");
    let listed = holdfast(&cluster, &["list"]).await.out;
    let rows: Vec<Vec<&str>> =
        listed.lines().map(|line| line.split_whitespace().collect()).collect();
    let expected = [
        vec!["SEQUENCE", "LAST", "NUMBER"],
        vec!["invoices/2026", "65541"],
        vec!["orders", "10000"],
    ];
    assert_eq!(rows, expected, "{listed}");
    assert_eq!(holdfast(&cluster, &["list", "or"]).await.out.lines().count(), 2);

    let back = holdfast(&cluster, &["begin", "orders", "10000"]).await;
    assert_eq!(back.code, Some(122), "{back:?}");
    assert!(
        back.err.contains("the sequence orders cannot begin at 10000, only above 10000"),
        "{back:?}"
    );
    let many = holdfast(&cluster, &["next", "orders", "--by", "65537"]).await;
    assert_eq!(many.code, Some(122), "{many:?}");
    assert!(many.err.contains("a block has 1 to 65536 numbers, not 65537"), "{many:?}");
    for wrong in [&["next"][..], &["next", "a", "--by", "0"], &["begin", "a", "0"], &["begin", "a"]]
    {
        assert_eq!(holdfast(&cluster, wrong).await.code, Some(125), "{wrong:?}");
    }
    // It is no lock, and a lock of its name is none of it.
    let client = Client::connect([cluster.endpoints()]).await.unwrap();
    let _guard = client.lock("orders").await.unwrap();
    let orders = client.sequence("orders");
    assert_eq!(orders.next().await.unwrap(), 10_001);
    let refused = orders.take(NonZeroU32::MAX).await.unwrap_err();
    let is_limit = matches!(refused, Error::Refused { reason: RefusalReason::Limit, .. });
    assert!(is_limit, "{refused}");
}
