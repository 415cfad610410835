//! A whole cluster in one thread, without a socket, on virtual time: the real client, the real
//! session layer and real replication (DESIGN §3, "Seams for the simulator").
#![allow(clippy::unwrap_used, reason = "helpers of a test fail it by a panic")]

use std::time::Duration;

use holdfast::LostReason;
use holdfast_tests::fault::Line;
use holdfast_tests::history::{Asked, Change, Recorder};
use holdfast_tests::run::judge;
use holdfast_tests::sim::Sim;
use holdfast_tests::traffic::Wish;

const TTL: Duration = Duration::from_secs(10);
/// The server's margin of DESIGN §5.2.
const MARGIN: Duration = Duration::from_millis(50);
const LONG: Duration = Duration::from_mins(10);

fn recorder(sim: &Sim) -> Recorder {
    Recorder::in_memory(sim.seams.clock.clone())
}

#[tokio::test(start_paused = true)]
async fn a_lock_is_handed_over_to_the_client_that_waits() {
    let sim = Sim::start(1, 1).await;
    let recorder = recorder(&sim);
    let (first, _line) = sim.client(TTL, 1, &recorder).await;
    let (second, _line) = sim.client(TTL, 2, &recorder).await;
    let held = first.lock("jobs", LONG).await.unwrap();

    let hold_long = async {
        // Far longer than the lease: keepalives carry it.
        held.keep(12 * TTL).await;
        held.release().await.unwrap();
    };
    let ((), granted) = tokio::join!(hold_long, second.lock("jobs", LONG));

    let granted = granted.unwrap();
    granted.keep(TTL).await;
    granted.release().await.unwrap();
    let report = judge(vec![recorder.take()]);
    assert_eq!((report.tally.safe_holds, report.tally.waits), (2, 1));
}

/// The clocks of a simulation have one rate, so the bounds are sharp: not before the whole TTL and
/// the margin after the last keepalive the server heard, and at once then.
#[tokio::test(start_paused = true)]
async fn a_silent_client_loses_its_lock_when_its_lease_is_over_and_not_before() {
    let sim = Sim::start(1, 2).await;
    let recorder = recorder(&sim);
    let (silent, line) = sim.client(TTL, 1, &recorder).await;
    let (waiter, _line) = sim.client(TTL, 2, &recorder).await;
    let held = silent.lock("jobs", LONG).await.unwrap();

    let fall_silent = async {
        sim.seams.sleep(Duration::from_secs(25)).await;
        line.send_replace(Line::Silent);
        let from = sim.seams.clock.now();
        let reason = held.guard().lost().await;
        held.note();
        (from, sim.seams.clock.now(), reason)
    };
    let ((silent_from, lost_at, reason), granted) = tokio::join!(fall_silent, async {
        (waiter.lock("jobs", LONG).await, sim.seams.clock.now())
    });
    let (granted, granted_at) = granted;

    assert_eq!(reason, LostReason::DeadlinePassed);
    assert!(lost_at < granted_at, "I6");
    let took = granted_at.saturating_since(silent_from);
    // The last keepalive was heard at most TTL/4 before the line fell silent.
    assert!(took <= TTL + MARGIN + Duration::from_millis(100), "{took:?} (I7)");
    assert!(took >= TTL * 3 / 4, "{took:?}");
    granted.unwrap().release().await.unwrap();
    judge(vec![recorder.take()]);
}

#[tokio::test(start_paused = true)]
async fn holds_and_places_outlive_the_leader() {
    let mut sim = Sim::start(3, 3).await;
    let recorder = recorder(&sim);
    let (first, _line) = sim.client(TTL, 1, &recorder).await;
    let (second, _line) = sim.client(TTL, 2, &recorder).await;
    let (third, _line) = sim.client(TTL, 3, &recorder).await;
    let held = first.lock("jobs", LONG).await.unwrap();
    let token = held.token();

    let seams = sim.seams.clone();
    let change_leaders = async {
        for _ in 0..3 {
            held.keep(Duration::from_secs(5)).await;
            let leader = sim.leader().await;
            sim.kill(leader).await;
            held.keep(Duration::from_secs(5)).await;
            sim.network.heal();
            sim.start_node(leader).await;
            assert!(held.note(), "the lease outlives an election");
        }
        assert_eq!(held.token(), token);
        held.release().await.unwrap();
    };
    let take = async |client: &holdfast_tests::traffic::Scribe, after: u64| {
        seams.sleep(Duration::from_secs(after)).await;
        let held = client.lock("jobs", LONG).await.unwrap();
        let token = held.token();
        held.release().await.unwrap();
        token
    };
    let ((), second, third) = tokio::join!(change_leaders, take(&second, 1), take(&third, 2));

    assert!(token < second && second < third, "{token} {second} {third} (I9)");
    judge(vec![recorder.take()]);
}

/// Two readers hold, a set waits for what they hold and keeps out a third reader, of a lock that is
/// shared and of one that is free. The leader dies while all of this stands. Then the readers
/// leave, the set has all of its names at once, leaves a value and gives back one name, and the
/// third reader enters with that value.
#[tokio::test(start_paused = true)]
async fn readers_and_a_set_outlive_the_leader_and_enter_in_order() {
    let mut sim = Sim::start(3, 5).await;
    let recorder = recorder(&sim);
    let (first, _line) = sim.client(TTL, 1, &recorder).await;
    let (second, _line) = sim.client(TTL, 2, &recorder).await;
    let (mover, _line) = sim.client(TTL, 3, &recorder).await;
    let (late, _line) = sim.client(TTL, 4, &recorder).await;
    let rates = Wish::shared("rates");
    let readers = [first.acquire(&rates, LONG).await, second.acquire(&rates, LONG).await];
    let [first, second] = readers.map(Result::unwrap);
    let both = Wish::all(vec![Asked::exclusive("jobs"), Asked::exclusive("rates")]);

    let seams = sim.seams.clone();
    let change_leaders = async {
        first.keep(Duration::from_secs(5)).await;
        let leader = sim.leader().await;
        sim.kill(leader).await;
        first.keep(Duration::from_secs(5)).await;
        assert!(first.note() && second.note(), "leases outlive an election");
        first.release().await.unwrap();
        second.keep(Duration::from_secs(5)).await;
        second.release().await.unwrap();
    };
    let move_money = async {
        seams.sleep(Duration::from_secs(1)).await;
        let held = mover.acquire(&both, LONG).await.unwrap();
        let token = held.token();
        held.change_value("rates", Change::Set("moved".into())).await.unwrap();
        held.release_names(&["rates".into()]).await.unwrap();
        held.keep(TTL).await;
        held.release().await.unwrap();
        token
    };
    let read_late = async {
        seams.sleep(Duration::from_secs(2)).await;
        late.attempt(&Wish::exclusive("jobs")).await.unwrap_err();
        let held = late.acquire(&rates, LONG).await.unwrap();
        let value = held.guard().value().unwrap();
        let token = held.token();
        held.release().await.unwrap();
        (token, value)
    };
    let ((), set, (last, value)) = tokio::join!(change_leaders, move_money, read_late);

    assert!(set < last, "{set} {last} (I9)");
    assert_eq!((&*value.bytes, value.token.get(), value.is_suspect), (&b"moved"[..], set, false));
    let tally = judge(vec![recorder.take()]).tally;
    assert_eq!((tally.together, tally.sets, tally.released_in_part, tally.waits), (1, 1, 1, 2));
    assert_eq!((tally.shared, tally.writes, tally.values_seen), (3, 1, 1));
}

/// The lease of a silent client runs out while the followers' disks finish nothing: the leader is
/// confirmed, appends the expiry and cannot commit it. Then all lose their power. The old leader
/// comes back with one follower and leads again, for its log is the longer one: the entry of its
/// old tenure commits before anybody is heard. Everybody else has a whole lease from then on: the
/// waiter, who heard from nobody meanwhile, is granted at its place.
#[tokio::test(start_paused = true)]
async fn a_leader_that_crashes_with_an_expiry_not_committed_expires_nobody_wrongly() {
    let mut sim = Sim::start(3, 4).await;
    let recorder = recorder(&sim);
    let opened = sim.seams.clock.now();
    let (silent, line) = sim.client(TTL, 1, &recorder).await;
    let (waiter, _line) = sim.client(TTL, 2, &recorder).await;
    let held = silent.lock("jobs", LONG).await.unwrap();
    let leader = sim.leader().await;
    let (follower, other) = ((leader + 1) % 3, (leader + 2) % 3);
    let id = |index: usize| index as u64 + 1;

    let seams = sim.seams.clone();
    let fail = async {
        line.send_replace(Line::Silent);
        seams.clock.sleep_until(opened + TTL).await;
        sim.stall_disk(follower);
        sim.stall_disk(other);
        seams.sleep(3 * MARGIN).await;
        let status = sim.replica(leader).status();
        assert!(status.last_log > status.applied, "the expiry is appended: {status:?}");
        for index in 0..3 {
            sim.kill(index).await;
        }
        sim.network.heal();
        sim.network.cut(id(other), id(leader));
        sim.network.cut(id(other), id(follower));
        for index in 0..3 {
            sim.start_node(index).await;
        }
        assert_eq!(sim.leader().await, leader, "its log is the longest");
        sim.network.heal();
    };
    let ((), granted) = tokio::join!(fail, waiter.lock("jobs", LONG));

    granted.unwrap().release().await.unwrap();
    assert!(!held.note());
    judge(vec![recorder.take()]);
}
