//! The real HTTP/2 under faults of TCP: servers and clients as they are, tonic, hyper and h2 among
//! them, over the simulated TCP of turmoil.
//!
//! `HOLDFAST_HTTP2_SEED` makes only the run of this seed.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "helpers of a test tell what they find, and fail it by a panic"
)]

mod node;
mod run;
mod stage;
mod unary;
mod wire;

use std::time::Duration;

use futures_util::future::try_join_all;
use holdfast::{Error, LostReason, WatchEvent};
use holdfast_server::raft::ReplicaConfig;
use holdfast_tests::history::Asked;
use holdfast_tests::scribe::{Held, Scribe, Wish};
use holdfast_tests::simulation::fresh_seed;
use stage::{LONG, Pending, Settings, Stage, TTL, host_of_client, host_of_node};
use unary::Session;

const SECOND: Duration = Duration::from_secs(1);
/// By this time either end notices a half-open connection of a client: its silence for one interval
/// of HTTP/2's keepalive, 5 s, and no answer within 5 s.
const NOTICED_WITHIN: Duration = Duration::from_millis(10_500);

fn take(stage: &mut Stage, client: u64, scribe: &Scribe, name: &'static str) -> Held {
    let scribe = scribe.clone();
    stage.job(client, |_| async move { scribe.lock(name, LONG).await.unwrap() })
}

fn wait_for(
    stage: &mut Stage,
    client: u64,
    scribe: &Scribe,
    name: &'static str,
) -> Pending<Result<Held, Error>> {
    let scribe = scribe.clone();
    let waits = stage.begin(client, |_| async move { scribe.lock(name, LONG).await });
    stage.pass(SECOND);
    assert!(!waits.is_done(), "{name} is held");
    waits
}

fn release(stage: &mut Stage, client: u64, held: Held) {
    stage.job(client, |_| async move { held.release().await.unwrap() });
}

/// Connections at a host, as it sees them.
fn connections_at(stage: &mut Stage, host: String) -> usize {
    stage.job(1, |_| async move { turmoil::established_tcp_stream_count_on(host) })
}

/// The histories of the clients are merged by their clocks.
#[test]
fn the_clocks_of_all_clients_show_the_same_whatever_happens() {
    let mut stage = Stage::set(&Settings::new(13, 2));
    stage.crash(1);
    stage.pass(10 * SECOND + SECOND / 3);
    stage.start(1);
    let clocks = [1, 2].map(|client| {
        stage
            .begin(client, |desk| async move { (desk.runtime.clock.now(), turmoil::sim_elapsed()) })
    });
    let [one, other] = clocks.map(|pending| stage.finish(&pending));

    assert_eq!(one, other);
    let (now, elapsed) = one;
    assert_eq!(now.since_origin(), elapsed.unwrap() + stage::CLOCKS_BEGIN_AT);
}

#[test]
fn a_lock_is_handed_over_to_the_client_that_waits() {
    let mut stage = Stage::set(&Settings::new(1, 2));
    let (first, second) = (stage.connect(1, TTL), stage.connect(2, TTL));
    let held = take(&mut stage, 1, &first, "jobs");
    let waits = wait_for(&mut stage, 2, &second, "jobs");

    stage.job(1, |_| async move {
        // Far longer than the lease: keepalives carry it.
        held.keep(3 * TTL).await;
        held.release().await.unwrap();
    });
    let held = stage.finish(&waits).unwrap();
    release(&mut stage, 2, held);

    let report = stage.verdict();
    assert_eq!((report.tally.safe_holds, report.tally.waits), (2, 1));
}

/// A client holds and another waits when something happens to the leader. The next leader has both:
/// the hold was never in doubt, the place is kept.
fn hold_and_place_outlive(seed: u64, happens_to: impl Fn(&mut Stage, u64)) {
    let mut stage = Stage::set(&Settings::new(seed, 2));
    let (first, second) = (stage.connect(1, TTL), stage.connect(2, TTL));
    let held = take(&mut stage, 1, &first, "jobs");
    let waits = wait_for(&mut stage, 2, &second, "jobs");
    let token = held.token();
    let old = stage.until_led();
    let term = stage.term();

    let keep = stage.begin(1, |_| async move {
        held.keep(3 * TTL).await;
        held
    });
    happens_to(&mut stage, old);
    stage.until_led_in_a_term_after(term);
    let held = stage.finish(&keep);
    assert!(held.guard().is_safe(), "the lease outlives an election");
    release(&mut stage, 1, held);
    let next = stage.finish(&waits).unwrap();
    assert!(next.token() > token, "I3");
    release(&mut stage, 2, next);

    stage.heal();
    let report = stage.verdict();
    assert_eq!((report.tally.safe_holds, report.tally.waits), (2, 1));
}

/// Its segments are lost, and neither end learns of it.
#[test]
fn hold_and_place_outlive_a_leader_that_is_cut_off() {
    hold_and_place_outlive(2, Stage::cut_off);
}

/// Its segments are held, and delivered when the network is healed: its messages as a leader arrive
/// after it was deposed.
#[test]
fn hold_and_place_outlive_a_leader_whose_links_are_held() {
    hold_and_place_outlive(3, Stage::hold_off);
}

/// Its system closes its connections.
#[test]
fn hold_and_place_outlive_a_leader_that_is_killed() {
    hold_and_place_outlive(4, Stage::crash);
}

/// Connections that it does not know are reset when it is back.
#[test]
fn hold_and_place_outlive_a_leader_that_loses_its_power_and_comes_back() {
    hold_and_place_outlive(5, |stage, leader| {
        stage.power_off(leader);
        stage.pass(SECOND / 2);
        stage.power_on(leader);
    });
}

/// It names the next leader and sends GOAWAY.
#[test]
fn hold_and_place_outlive_a_leader_that_stops() {
    hold_and_place_outlive(6, Stage::stop);
}

/// The way in which a client's connection breaks in the middle of a grant.
#[derive(Clone, Copy, Debug)]
enum Cut {
    Both,
    ToTheNode,
    FromTheNode,
    Held,
}

impl Cut {
    fn strike(self, stage: &mut Stage, client: &str, node: &str) {
        match self {
            Self::Both => stage.cut(client, node),
            Self::ToTheNode => stage.cut_one_way(client, node),
            Self::FromTheNode => stage.cut_one_way(node, client),
            Self::Held => stage.hold(client, node),
        }
    }
}

/// Cut at every millisecond from the request on, in every way: whatever was under way, the client
/// gets the lock once, the store shows that one hold, and its release frees it.
#[test]
fn a_stream_that_is_cut_in_the_middle_of_a_grant_neither_loses_nor_doubles_the_hold() {
    let mut stage = Stage::set(&Settings::new(7, 2));
    let (first, second) = (stage.connect(1, TTL), stage.connect(2, TTL));
    let leader = host_of_node(stage.until_led());
    let mut slowed = 0;
    for cut in [Cut::Both, Cut::ToTheNode, Cut::FromTheNode, Cut::Held] {
        for after_ms in 0..16 {
            let (scribe, name) = (first.clone(), format!("{cut:?}/{after_ms}"));
            let asked = stage.elapsed();
            let asking = name.clone();
            let pending =
                stage.begin(1, |_| async move { scribe.lock(&asking, LONG).await.unwrap() });
            stage.pass(Duration::from_millis(after_ms));
            cut.strike(&mut stage, &host_of_client(1), &leader);
            stage.pass(SECOND);
            stage.mend(&host_of_client(1), &leader);
            let held = stage.finish(&pending);
            slowed += u64::from(stage.elapsed() > asked + 2 * SECOND);

            let (scribe, looked) = (second.clone(), name.clone());
            let token = held.token();
            let holders = stage.job(2, |_| async move {
                scribe.attempt(&Wish::exclusive(&looked)).await.unwrap_err();
                scribe.client().reader().inspect(&looked).await.unwrap().unwrap().holders
            });
            assert_eq!(holders.iter().map(|one| one.token.get()).collect::<Vec<_>>(), [token]);
            release(&mut stage, 1, held);
            let scribe = second.clone();
            let next = stage.job(2, |_| async move { scribe.try_lock(&name).await.unwrap() });
            release(&mut stage, 2, next);
        }
    }
    println!("{slowed} of 64 streams were given up and made anew");
    assert!(slowed >= 10, "too few streams were cut in the middle of anything");
    assert!(stage.verdict().tally.grants >= 128);
}

/// Nothing is lost and nothing refused: for TCP the connection is fine, but nothing arrives. The
/// client notices by its own deadline, before another client is granted; the node notices by
/// HTTP/2's keepalive.
#[test]
fn a_held_line_is_noticed_by_deadlines_at_both_ends_and_not_by_tcp() {
    let mut stage = Stage::set(&Settings::new(8, 3));
    let (first, second) = (stage.connect(2, TTL), stage.connect(3, TTL));
    let held = take(&mut stage, 2, &first, "jobs");
    let waits = wait_for(&mut stage, 3, &second, "jobs");
    let leader = host_of_node(stage.until_led());
    stage.pass(SECOND);
    let before = connections_at(&mut stage, leader.clone());

    for id in 1..=3 {
        stage.hold(&host_of_client(2), &host_of_node(id));
    }
    let lost = stage.begin(2, |_| async move {
        let reason = held.guard().lost().await;
        held.note();
        (held, reason)
    });
    stage.pass(NOTICED_WITHIN);
    assert_eq!(connections_at(&mut stage, leader), before - 1, "a dead line is still kept open");
    let (_held, reason) = stage.finish(&lost);
    assert_eq!(reason, LostReason::DeadlinePassed);
    let next = stage.finish(&waits).unwrap();
    for id in 1..=3 {
        stage.mend(&host_of_client(2), &host_of_node(id));
    }
    // The first client is back, and its messages from meanwhile are delivered: they free nothing.
    let again = wait_for(&mut stage, 2, &first, "jobs");
    release(&mut stage, 3, next);
    let again = stage.finish(&again).unwrap();
    release(&mut stage, 2, again);
    stage.verdict();
}

/// Both ends have given the connection up long before the lease is over: that ends no session and
/// frees nothing.
#[test]
fn a_line_that_the_node_gave_up_ends_no_session() {
    let mut stage = Stage::set(&Settings::new(14, 3));
    let (first, second) = (stage.connect(2, 6 * TTL), stage.connect(3, TTL));
    let held = take(&mut stage, 2, &first, "jobs");
    let waits = wait_for(&mut stage, 3, &second, "jobs");
    for id in 1..=3 {
        stage.hold(&host_of_client(2), &host_of_node(id));
    }
    stage.pass(2 * NOTICED_WITHIN);
    for id in 1..=3 {
        stage.mend(&host_of_client(2), &host_of_node(id));
    }
    let held = stage.job(2, |_| async move {
        held.keep(6 * TTL).await;
        held
    });

    assert!(held.guard().is_safe() && !waits.is_done());
    release(&mut stage, 2, held);
    let next = stage.finish(&waits).unwrap();
    release(&mut stage, 3, next);
    stage.verdict();
}

/// A watch has no deadline of its own, and the node may have nothing to send for hours: only
/// HTTP/2's keepalive shows that the connection is dead.
#[test]
fn a_watch_whose_line_is_held_goes_on_where_it_ended() {
    let mut stage = Stage::set(&Settings::new(9, 2));
    let first = stage.connect(1, TTL);
    let held = take(&mut stage, 1, &first, "jobs");
    let watching = stage.job(2, |desk| async move {
        let mut watch = desk.builder().reader().unwrap().watch("");
        until_told(&mut watch, &WatchEvent::Synced).await;
        watch
    });

    for id in 1..=3 {
        stage.hold(&host_of_client(2), &host_of_node(id));
    }
    let mut watch = watching;
    let interrupted = stage.begin(2, |_| async move {
        until_told(&mut watch, &WatchEvent::Interrupted).await;
        watch
    });
    let begun = stage.elapsed();
    let mut watch = stage.finish(&interrupted);
    assert!(stage.elapsed() <= begun + NOTICED_WITHIN);
    for id in 1..=3 {
        stage.mend(&host_of_client(2), &host_of_node(id));
    }
    stage.job(2, |_| async move { until_told(&mut watch, &WatchEvent::Resumed).await });
    release(&mut stage, 1, held);
    stage.verdict();
}

async fn until_told(watch: &mut holdfast::Watch, event: &WatchEvent) {
    while watch.next().await.unwrap().unwrap() != *event {}
}

/// A segment of the append stream is lost and the link is whole again: TCP would wait for ever
/// here. The leader gives the connection up by its keepalive and fills the follower over a new one,
/// while the others go on.
#[test]
fn a_member_whose_connection_is_stuck_is_reached_over_a_new_one() {
    let mut stage = Stage::set(&Settings::new(10, 1));
    let first = stage.connect(1, TTL);
    let leader = stage.until_led();
    let follower = if leader == 1 { 2 } else { 1 };
    let (one, other) = (host_of_node(leader), host_of_node(follower));
    stage.cut(&one, &other);
    let held = take(&mut stage, 1, &first, "jobs");
    stage.mend(&one, &other);
    assert_eq!(stage.leader(), Some(leader));

    stage.pass(stage::STUCK_LINES_ARE_GONE);
    release(&mut stage, 1, held);
    stage.verdict();
}

/// Locks of the slow client, in sets of the largest size that is allowed.
const SETS: usize = 17;
const SET: usize = 64;
/// The largest value.
const VALUE: usize = 4_096;

async fn fill(scribe: Scribe) -> Vec<Held> {
    let mut sets = Vec::new();
    for set in 0..SETS {
        let names: Vec<String> = (0..SET).map(|number| format!("large/{set}/{number}")).collect();
        let wish = Wish::all(names.iter().map(Asked::exclusive).collect());
        let held = scribe.acquire(&wish, LONG).await.unwrap();
        let guard = held.guard();
        let values = names.iter().map(|name| guard.lock(name).set_value(vec![b'x'; VALUE]));
        try_join_all(values).await.unwrap();
        sets.push(held);
    }
    sets
}

/// A client with 1,088 locks, each of which has a value of 4 KiB, loses its connection and resumes
/// its session over a slow one: State is 4.6 MB, and arrives after the client gave up for the first
/// time. A member that was away gets the table as a snapshot over a slow link, too.
#[test]
fn large_messages_pass_slow_lines() {
    let replica = ReplicaConfig {
        snapshot_log_bytes: 12 << 10,
        log_kept: 0,
        max_log_bytes: 1 << 20,
        reserve_bytes: 0,
        ..ReplicaConfig::new(0, Vec::new())
    };
    let mut stage = Stage::set(&Settings { segments: 16, replica, ..Settings::new(11, 1) });
    let first = stage.connect(1, 3 * TTL);
    let leader = stage.until_led();
    let away = if leader == 1 { 2 } else { 1 };
    stage.crash(away);
    let scribe = first.clone();
    let sets = stage.job(1, |_| fill(scribe));
    for id in 1..=3 {
        stage.slow(&host_of_client(1), &host_of_node(id), Duration::from_millis(100));
    }
    stage.slow(&host_of_node(leader), &host_of_node(away), Duration::from_millis(100));

    let client = host_of_client(1);
    stage.cut(&client, &host_of_node(leader));
    let scribe = first.clone();
    let after = stage.begin(1, |_| async move {
        scribe.lock("after", LONG).await.unwrap().release().await.unwrap();
    });
    stage.pass(3 * SECOND);
    stage.mend(&client, &host_of_node(leader));
    stage.start(away);
    stage.finish(&after);
    let scribe = first.clone();
    let locks =
        stage.job(1, |_| async move { scribe.client().reader().list("large/").await.unwrap() });
    assert_eq!(locks.len(), SETS * SET);
    stage.job(1, |_| async move {
        for held in sets {
            assert!(held.note());
            held.release().await.unwrap();
        }
    });
    stage.verdict();
}

/// Every unary call, at the leader and through a member that follows.
#[test]
fn unary_calls_pass_at_any_node() {
    for through_another in [false, true] {
        unary_calls(through_another);
    }
}

fn unary_calls(through_another: bool) {
    let mut stage = Stage::set(&Settings::new(12, 2));
    let first = stage.connect(1, TTL);
    let held = take(&mut stage, 1, &first, "jobs");
    let leader = stage.until_led();
    let follower = if leader == 1 { 2 } else { 1 };
    let at = if through_another { follower } else { leader };

    let held_under = held.token();
    let waits = stage.begin(2, |_| async move {
        let mut session = Session::open(at).await;
        assert_eq!(session.holder_of("jobs").await, Some(held_under));
        let token = session.acquire("jobs").await;
        session.keep_alive().await;
        assert!(session.holds("jobs", token).await);
        session.set_value("jobs", token, "left here").await;
        session.release(token).await;
        assert!(!session.holds("jobs", token).await);
        session.close().await;
    });
    stage.pass(SECOND);
    assert!(!waits.is_done());
    release(&mut stage, 1, held);
    stage.finish(&waits);
    stage.verdict();
}

/// A client that reaches no node but one that follows is served through it (DESIGN §15), and again when another
/// leads; it is sent to the leader itself in vain.
#[test]
fn a_client_that_reaches_one_node_alone_is_served_through_it() {
    let mut stage = Stage::set(&Settings::new(13, 1));
    let first = stage.connect(1, 3 * TTL);
    let leader = stage.until_led();
    let reached = if leader == 1 { 2 } else { 1 };
    for id in (1..=3).filter(|id| *id != reached) {
        stage.cut(&host_of_client(1), &host_of_node(id));
    }

    let held = take(&mut stage, 1, &first, "jobs");
    stage.crash(leader);
    let scribe = first.clone();
    let others = stage.job(1, |_| async move { scribe.lock("others", LONG).await.unwrap() });
    stage.start(leader);
    stage.pass(SECOND);
    for held in [held, others] {
        release(&mut stage, 1, held);
    }
    stage.verdict();
}

/// Seeds that every test run repeats.
const KEPT: [u64; 2] = [1, 2];
/// The number of runs from fresh seeds; `HOLDFAST_HTTP2_RUNS` overrides it.
const FRESH: u64 = 2;

fn fresh() -> u64 {
    let asked = std::env::var("HOLDFAST_HTTP2_RUNS").ok();
    asked.map_or(FRESH, |runs| runs.parse().expect("HOLDFAST_HTTP2_RUNS is a number"))
}

/// Clients at work while links are cut, held and mended, and hosts crash, stop and come back.
#[test]
fn runs_over_real_http2_break_no_invariant() {
    let asked = std::env::var("HOLDFAST_HTTP2_SEED").ok();
    let seeds: Vec<u64> = match asked {
        Some(seed) => vec![seed.parse().expect("HOLDFAST_HTTP2_SEED is a seed")],
        None => KEPT.into_iter().chain((0..fresh()).map(|_| fresh_seed())).collect(),
    };
    let (mut grants, mut terms) = (0, 0);
    for seed in seeds {
        println!("repeat with HOLDFAST_HTTP2_SEED={seed}");
        let outcome = run::run(seed);
        println!("{outcome:?}");
        grants += outcome.tally.grants;
        terms += outcome.term - 1;
    }
    println!("{grants} grants, {terms} changes of leader");
    assert!(grants > 100 && terms > 0, "too little was done");
}
