//! Very many waiters for one lock: a cancel in the middle, and hand-overs.

use std::time::Duration;

use super::{Stage, millis};
use crate::cluster::Setup;
use crate::many_holds::TTL_MS;
use crate::wire::Wire;

/// Requests of one session.
const PER_SESSION: u64 = 1_000;
/// Cancels, and hand-overs.
const TIMES: u64 = 200;

/// So many waiters, looked at for `look`.
pub async fn measure(look: Duration, count: u64) {
    let setup = Setup::nodes(3)
        .cluster("ttl_max_ms", TTL_MS)
        .cluster("max_waiters_per_lock", count + 1)
        .cluster("frames_per_second", 10_000_000_u64);
    let stage = Stage::start(&setup, look).await;
    let (mut holder, _) = Wire::open(stage.leader_address(), TTL_MS).await;
    holder.acquire(1, "hot", false).await;
    let token = holder.granted(1).await;

    let began = stage.now();
    let mut sessions = Vec::new();
    for _ in 0..count.div_ceil(PER_SESSION) {
        sessions.push(enqueue(stage.leader_address()).await);
    }
    println!("{count} waiters for one lock in {:.1} s", stage.since(began).as_secs_f64());
    stage.look("they wait").await;
    cancel_in_the_middle(&stage, &mut sessions).await;
    hand_over(&stage, holder, token, &mut sessions).await;
    stage.end();
}

/// A session with its share of the waiters. Its stream is read no further: it is told of nothing but grants.
async fn enqueue(leader: &str) -> Wire {
    let (mut wire, _) = Wire::open(leader, TTL_MS).await;
    for request in 1..=PER_SESSION {
        wire.acquire(request, "hot", true).await;
    }
    for request in 1..=PER_SESSION {
        wire.queued(request).await;
    }
    wire
}

/// Waiters of the session in the middle leave, one after the other.
async fn cancel_in_the_middle(stage: &Stage, sessions: &mut [Wire]) {
    let middle = sessions.len() / 2;
    let wire = &mut sessions[middle];
    let mut took = Vec::new();
    for request in PER_SESSION / 2..PER_SESSION / 2 + TIMES {
        let began = stage.now();
        wire.cancel(request).await;
        wire.cancelled(request).await;
        took.push(stage.since(began));
    }
    tell("a cancel in the middle", took);
}

/// The lock passes on from the front of the queue.
async fn hand_over(stage: &Stage, mut holder: Wire, mut token: u64, sessions: &mut [Wire]) {
    let first = &mut sessions[0];
    let mut took = Vec::new();
    for request in 1..=TIMES {
        let began = stage.now();
        if request == 1 {
            holder.release(token).await;
        } else {
            first.release(token).await;
        }
        token = first.granted(request).await;
        took.push(stage.since(began));
    }
    tell("a hand-over", took);
}

fn tell(what: &str, mut took: Vec<Duration>) {
    took.sort();
    let at = |percent: usize| millis(took[(took.len() - 1) * percent / 100]);
    println!("{what}: p50 {:.2} ms, p99 {:.2} ms, at most {:.2} ms", at(50), at(99), at(100));
}
