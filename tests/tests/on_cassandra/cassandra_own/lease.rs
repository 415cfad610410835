//! The lease: election with a value, sequences.

use std::time::Duration;

use futures_util::future::join_all;
use holdfast_recipes::{Lease, LeaseTable, LockerOptions, Wait};
use holdfast_tests::cassandra::{LEASE, Stage};

use super::{SKEW, TTL, secs, sleep};

fn lease(stage: &Stage, service: &str, ttl: Duration, skew: Duration) -> Lease {
    let options = LockerOptions::default().service(service).ttl(ttl).max_skew(skew);
    Lease::new(&stage.cassandra(), &options, LeaseTable::default()).unwrap()
}

/// Every renewal writes the value: it outlives the TTL as long as the leader does.
#[tokio::test]
async fn observers_see_the_leaders_value_beyond_its_ttl_and_a_new_leader_after_it() {
    let stage = Stage::set("election", &[LEASE]).await;
    let (first, second) = (lease(&stage, "one", TTL, SKEW), lease(&stage, "two", TTL, SKEW));
    let leading = first.campaign("lead", "10.0.0.1:80", Wait::Forever).await.unwrap();
    let mut observer = second.observe("lead");
    let leader = observer.next().await.unwrap().unwrap();
    assert_eq!((&*leader.name, leader.value.as_deref()), ("one", Some("10.0.0.1:80")));

    sleep(TTL + secs(2)).await;
    assert_eq!(first.leader("lead").await.unwrap(), Some(leader));
    leading.set_value(Some("10.0.0.3:80".into())).await.unwrap();
    assert_eq!(observer.next().await.unwrap().unwrap().value.as_deref(), Some("10.0.0.3:80"));

    let standing = second.campaign("lead", "10.0.0.2:80", Wait::Forever);
    let (standing, resigned) = tokio::join!(standing, leading.resign());
    resigned.unwrap();
    assert!(standing.unwrap().guard().is_safe());
}

#[tokio::test]
async fn a_sequence_drawn_by_four_at_once_gives_no_number_twice() {
    let stage = Stage::set("sequences", &[LEASE]).await;
    let drawers = (0..4).map(|drawer| {
        let sequence = lease(&stage, &format!("drawer-{drawer}"), TTL, SKEW).sequence("orders");
        async move {
            let mut drawn = Vec::new();
            for count in 1..6 {
                drawn.extend(sequence.draw(count).await.unwrap());
            }
            drawn
        }
    });
    let mut drawn: Vec<i64> = join_all(drawers).await.concat();
    drawn.sort_unstable();
    drawn.dedup();

    assert_eq!(drawn.len(), 4 * (1 + 2 + 3 + 4 + 5));
    assert!(drawn[0] >= 1);
}
