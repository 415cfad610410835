//! The simulated world works as described: each fault does what its name says, and the same seed
//! gives the same run.
#![allow(clippy::unwrap_used, reason = "helpers of a test fail it by a panic")]

use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::join;
use holdfast::{Client, Guard};
use holdfast_core::{Command, Label};
use holdfast_runtime::simulated::Machine;
use holdfast_server::consensus::{Committed, Consensus as _};
use holdfast_server::error::ProposeError;
use holdfast_server::raft::{Change, Members, Replica, ReplicaConfig};
use holdfast_tests::sim::{
    Crash, Damage, Ended, Hold, Host, Link, Part, Settings, Trace, World, apart, member, one_way,
};

const TTL: Duration = Duration::from_secs(5);
/// The marks of a node on its disk.
const MARKS: &str = "/data/sled/db";

/// Runs `run` in a world of three nodes that has a leader.
fn in_a_world_of(settings: Settings, run: impl AsyncFnOnce(&World<'_>)) {
    assert_eq!(wrong_in_a_world_of(settings, run), Vec::<String>::new());
}

/// The violations in it.
fn wrong_in_a_world_of(settings: Settings, run: impl AsyncFnOnce(&World<'_>)) -> Vec<String> {
    let machine = Machine::new(settings.seed);
    machine.run(async {
        let world = World::start(&machine, settings).await;
        run(&world).await;
        world.observe();
        world.violations()
    })
}

fn in_a_world(seed: u64, run: impl AsyncFnOnce(&World<'_>)) {
    in_a_world_of(Settings::new(seed, 3), run);
}

async fn seconds(world: &World<'_>, count: u64) {
    world.runtime().sleep(Duration::from_secs(count)).await;
}

async fn leader(world: &World<'_>) -> u64 {
    world.until_led(Duration::from_mins(1)).await.unwrap()
}

async fn follower(world: &World<'_>) -> u64 {
    let leader = leader(world).await;
    world.running().into_iter().find(|id| *id != leader).unwrap()
}

/// Client 1 acquires and releases so many locks; returns the client.
async fn pairs(world: &World<'_>, client: Client, count: u64) -> Client {
    let work = async move {
        for number in 0..count {
            client.lock(format!("lock-{number}")).await.unwrap().release().await.unwrap();
        }
        client
    };
    world.as_client(1, work).await.unwrap()
}

async fn take(world: &World<'_>, number: u64, name: &'static str) -> (Guard, Client) {
    let client = world.connect(number, TTL).await.unwrap();
    let take = async move { (client.lock(name).await.unwrap(), client) };
    world.as_client(number, take).await.unwrap()
}

/// Adds a node that waits to be added.
async fn add(world: &World<'_>, id: u64) {
    let added = world
        .ask_leader(|replica| async move { replica.change(Change::AddLearner(member(id))).await });
    added.await.unwrap().unwrap();
}

/// Two clients hand a lock over on three nodes; returns digests of the trace, and of every step of
/// the machine.
fn hand_over(seed: u64, trace: &Trace) -> (u64, u64) {
    let machine = Machine::new(seed);
    machine.run(async {
        let settings = Settings { trace: trace.clone(), ..Settings::new(seed, 3) };
        let world = World::start(&machine, settings).await;
        let (guard, _first) = take(&world, 1, "jobs").await;
        let token = guard.token();
        let waits = take(&world, 2, "jobs");
        let gives_back = async {
            // Far longer than the lease.
            seconds(&world, 12).await;
            assert!(guard.is_safe());
            world.as_client(1, async move { guard.release().await.unwrap() }).await.unwrap();
        };
        let ((granted, _second), ()) = join(waits, gives_back).await;
        assert!(granted.token() > token, "I3");
        world.observe();
        assert_eq!(world.violations(), Vec::<String>::new());
    });
    (trace.digest(), machine.digest())
}

#[test]
fn three_nodes_form_a_cluster_and_hand_a_lock_over() {
    let trace = Trace::kept();
    hand_over(1, &trace);
    assert_eq!(trace.lines().len() as u64, trace.count());
}

#[test]
fn the_same_seed_is_the_same_run_and_another_one_another() {
    let run = |seed| hand_over(seed, &Trace::default());

    assert_eq!(run(7), run(7));
    assert_ne!(run(7), run(8));
}

#[test]
fn all_nodes_without_power_come_back_with_what_was_acknowledged() {
    in_a_world(2, async |world| {
        let (guard, client) = take(world, 1, "jobs").await;
        let token = guard.token();
        world.power_cut();
        assert_eq!(world.running(), Vec::<u64>::new());
        for id in world.nodes() {
            assert!(world.disk(id).injected().power_lost > 0);
            world.start_node(id).await.unwrap();
        }
        leader(world).await;
        let inspect = async move { client.reader().inspect("jobs").await.unwrap() };
        let lock = world.as_client(1, inspect).await.unwrap().unwrap();
        assert_eq!(lock.holders.first().unwrap().token, token, "I19");
        drop(guard);
    });
}

/// A disk that ignores its syncs loses what its node pledged to keep. The probe finds that when the
/// node pledges it (I19), and the guard after the power cut (I21).
#[test]
fn a_node_whose_disk_ignores_syncs_refuses_its_folder_after_a_power_cut() {
    let refused = (0..8).filter(|&seed| {
        let mut refused = false;
        let wrong = wrong_in_a_world_of(Settings::new(seed, 3), async |world| {
            let id = follower(world).await;
            let client = world.connect(1, TTL).await.unwrap();
            // Only later writes are lost, the guard's hint among them.
            world.disk(id).ignore_syncs(true);
            let _client = pairs(world, client, 20).await;
            // The probe does not read the disk for every pledge.
            seconds(world, 5).await;
            assert!(world.disk(id).unsynced() > 0);
            world.crash(id, Crash::Power);
            refused = matches!(world.start_node(id).await, Err(Ended::Refused(_)));
        });
        assert!(wrong.iter().any(|wrong| wrong.starts_with("I19")), "{wrong:?}");
        refused
    });
    assert!(refused.count() > 0);
}

/// Whatever part of the last commit survives the power cut is cut off, and the node starts.
#[test]
fn a_commit_that_is_torn_by_a_power_cut_is_cut_off_and_the_node_goes_on() {
    let mut torn = 0;
    for seed in 0..4 {
        in_a_world(seed, async |world| {
            let id = follower(world).await;
            world.disk(id).set_pace(Duration::from_millis(20), Duration::from_millis(40));
            let mut client = world.connect(1, TTL).await.unwrap();
            for _ in 0..10 {
                client = pairs(world, client, 2).await;
                for _ in 0..1_000 {
                    if world.disk(id).unsynced() > 1 {
                        break;
                    }
                    world.runtime().sleep(Duration::from_micros(100)).await;
                }
                world.crash(id, Crash::Power);
                world.start_node(id).await.unwrap();
            }
            torn += world.disk(id).injected().torn;
            seconds(world, 10).await;
            let states: Vec<_> = world.nodes().into_iter().map(|id| world.state_of(id)).collect();
            assert!(states.windows(2).all(|pair| pair[0] == pair[1]), "I16: {states:?}");
        });
    }
    assert!(torn > 0, "no commit was torn");
}

#[test]
fn a_killed_process_loses_nothing_that_it_wrote() {
    in_a_world(3, async |world| {
        let id = follower(world).await;
        let client = world.connect(1, TTL).await.unwrap();
        let _client = pairs(world, client, 3).await;
        let path = segment(world, id);
        let content = world.disk(id).content(&path);

        world.crash(id, Crash::Process);

        assert_eq!(world.ended(id), Some(Ended::Killed));
        assert!(world.disk(id).content(&path) == content);
        world.start_node(id).await.unwrap();
    });
}

/// The segment of a node's log that is written.
fn segment(world: &World, id: u64) -> PathBuf {
    let path = |number| PathBuf::from(format!("/data/log/{number:016}.seg"));
    let there = (1..100).map(path).filter(|path| !world.disk(id).content(path).is_empty());
    there.last().unwrap()
}

/// A node that starts lacks nothing that it acknowledged.
#[test]
fn a_damaged_log_is_refused() {
    let cases = [
        (1, Damage::FlippedBit, false),
        (2, Damage::Cut, false),
        (3, Damage::Cut, true),
        (4, Damage::Older, true),
    ];
    for (seed, damage, to_records) in cases {
        in_a_world(seed, async |world| {
            let id = follower(world).await;
            let client = world.connect(1, TTL).await.unwrap();
            // The older copy is the content of its folder when its last process began.
            world.crash(id, Crash::Process);
            world.start_node(id).await.unwrap();
            let path = if to_records { segment(world, id) } else { PathBuf::from(MARKS) };
            let _client = pairs(world, client, 10).await;
            // A follower that was away gets what it missed a moment later.
            seconds(world, 5).await;
            world.crash(id, Crash::Process);

            assert!(world.disk(id).damage(&path, damage));

            let started = world.start_node(id).await;
            assert!(matches!(&started, Err(Ended::Refused(_))), "{damage:?}: {started:?}");
        });
    }
}

#[test]
fn a_full_disk_ends_its_node_which_comes_back_when_there_is_space() {
    in_a_world(4, async |world| {
        let id = follower(world).await;
        world.disk(id).set_free_space(Some(2_000));
        let client = world.connect(1, TTL).await.unwrap();
        let _client = pairs(world, client, 40).await;
        seconds(world, 1).await;

        assert!(matches!(world.ended(id), Some(Ended::Storage(_))), "{:?}", world.ended(id));
        assert!(world.disk(id).injected().full > 0);
        world.disk(id).set_free_space(None);
        world.start_node(id).await.unwrap();
    });
}

#[test]
fn a_stuck_disk_acknowledges_nothing_and_the_others_go_on() {
    in_a_world(5, async |world| {
        let id = follower(world).await;
        world.disk(id).stick();
        let path = segment(world, id);
        let content = world.disk(id).content(&path);
        let client = world.connect(1, TTL).await.unwrap();
        let _client = pairs(world, client, 5).await;

        assert!(world.disk(id).content(&path) == content);
        world.crash(id, Crash::Process);
        world.start_node(id).await.unwrap();
    });
}

/// L1 of the safety review: a hung disk reports nothing, and its node would answer pings for ever.
#[test]
fn a_disk_that_hangs_ends_its_node_within_the_limit_and_the_others_go_on() {
    let mut settings = Settings::new(14, 3);
    settings.replica.disk_stall_ms = 4_000;
    in_a_world_of(settings, async |world| {
        let id = follower(world).await;
        world.disk(id).stick();
        let client = world.connect(1, TTL).await.unwrap();
        let _client = pairs(world, client, 5).await;
        assert_eq!(world.ended(id), None, "not yet");
        seconds(world, 5).await;

        let Some(Ended::Storage(why)) = world.ended(id) else { panic!("{:?}", world.ended(id)) };
        assert!(why.contains("has not finished it for 4000 ms (disk_stall_ms)"), "{why}");
        world.start_node(id).await.unwrap();
    });
}

#[test]
fn a_paused_leader_is_replaced_and_follows_when_it_goes_on() {
    in_a_world(6, async |world| {
        let before = leader(world).await;
        world.pause(before);
        seconds(world, 10).await;

        let after = world.nodes().into_iter().find(|id| {
            *id != before
                && world.replica(*id).unwrap().status().leader.is_some_and(|l| l.node_id == *id)
        });
        assert!(after.is_some());
        world.resume(before);
        seconds(world, 10).await;
        assert_eq!(world.leader(), after);
    });
}

#[test]
fn a_leader_that_is_cut_off_is_replaced() {
    in_a_world(7, async |world| {
        let before = leader(world).await;
        let others: Vec<_> =
            world.nodes().into_iter().filter(|id| *id != before).map(Host::Node).collect();
        let cuts = apart(&[Host::Node(before)], &others);
        world.network().cut(cuts.clone());
        seconds(world, 15).await;
        assert_ne!(leader(world).await, before);
        assert!(world.network().injected().cut > 0);

        world.network().mend(&cuts);
        seconds(world, 15).await;
        let states: Vec<_> = world.nodes().into_iter().map(|id| world.state_of(id)).collect();
        assert!(states.windows(2).all(|pair| pair[0] == pair[1]), "I16: {states:?}");
    });
}

/// It receives its followers' messages, and they do not receive its own.
#[test]
fn a_leader_that_can_only_listen_is_replaced() {
    in_a_world(8, async |world| {
        let before = leader(world).await;
        let others: Vec<_> =
            world.nodes().into_iter().filter(|id| *id != before).map(Host::Node).collect();
        world.network().cut(one_way(&[Host::Node(before)], &others));
        seconds(world, 15).await;

        assert_ne!(leader(world).await, before);
    });
}

#[test]
fn calls_that_come_twice_change_nothing() {
    let settings = Settings::new(9, 3);
    in_a_world_of(settings, async |world| {
        world.network().set_usual(Link { twice_per_million: 500_000, ..Link::default() });
        for _ in 0..4 {
            let id = leader(world).await;
            world.crash(id, Crash::Power);
            seconds(world, 6).await;
            world.start_node(id).await.unwrap();
        }
        assert!(world.network().injected().twice > 10);
        assert!(world.network().votes().count() > 4);
    });
}

#[test]
fn messages_that_are_lost_hold_up_a_lock_and_do_not_lose_it() {
    in_a_world(10, async |world| {
        world.network().set_usual(Link { lost_per_million: 50_000, ..Link::default() });
        let client = world.connect(1, TTL).await.unwrap();
        let client = pairs(world, client, 30).await;
        assert!(world.network().injected().lost > 0);
        world.network().set_usual(Link::default());
        let _client = pairs(world, client, 1).await;
    });
}

/// It cannot arrive before its bytes had the time to pass.
#[test]
fn a_slow_link_delays_a_snapshot() {
    let arrival = |bytes_per_second: Option<u64>| {
        let mut took = Duration::ZERO;
        let mut settings = Settings::new(11, 3);
        settings.replica =
            ReplicaConfig { snapshot_log_bytes: 5 << 10, log_kept: 0, ..settings.replica.clone() };
        in_a_world_of(settings, async |world| {
            let client = world.connect(1, TTL).await.unwrap();
            let _client = pairs(world, client, 60).await;
            let (from, id) = (leader(world).await, world.new_node());
            let link = Link { bytes_per_second, ..Link::default() };
            world.network().set_link(Host::Node(from), Host::Node(id), link);
            world.start_node(id).await.unwrap();
            let begun = world.runtime().clock.now();
            add(world, id).await;
            while world.replica(id).unwrap().status().applied < Some(60) {
                world.runtime().sleep(Duration::from_millis(5)).await;
            }
            took = world.runtime().clock.now().saturating_since(begun);
            assert!(world.replica(id).unwrap().status().snapshot.is_some());
        });
        took
    };

    let (fast, slow) = (arrival(None), arrival(Some(800)));

    assert!(slow > fast + Duration::from_secs(1), "{fast:?} and {slow:?}");
}

/// Until then the leader's messages are lost.
#[test]
fn a_half_open_stream_is_noticed_after_its_keepalives() {
    in_a_world(12, async |world| {
        let (unaware, told) = (leader(world).await, follower(world).await);
        let client = world.connect(1, TTL).await.unwrap();

        world.network().half_open(Host::Node(told), Host::Node(unaware));
        let _client = pairs(world, client, 5).await;
        seconds(world, 4).await;

        let injected = world.network().injected();
        assert!(injected.half_open > 0);
        assert_eq!(injected.missed, 0);
        assert_ne!(world.state_of(told), world.state_of(unaware));
        seconds(world, 16).await;
        assert_eq!(world.network().injected().missed, injected.half_open);
        assert_eq!(world.state_of(told), world.state_of(unaware));
    });
}

/// For longer than keepalives of a connection may be missed, each way by itself.
#[test]
fn what_is_held_back_arrives_afterwards_and_its_connections_live() {
    for (seed, hold) in [(40, Hold::Kept), (41, Hold::Outlived)] {
        in_a_world(seed, async |world| {
            let (leader, other) = (leader(world).await, follower(world).await);
            let client = world.connect(1, TTL).await.unwrap();
            let ways = one_way(&[Host::Node(leader)], &[Host::Node(other)]);
            world.network().hold(&ways, Part::ALL, hold);
            let _client = pairs(world, client, 5).await;
            seconds(world, 12).await;
            assert_eq!(world.leader(), Some(leader), "the others hear it");
            assert_ne!(world.state_of(other), world.state_of(leader));
            let open = world.network().connections(Host::Node(other));

            world.network().release(&ways, Part::ALL);
            seconds(world, 2).await;

            assert_eq!(world.state_of(other), world.state_of(leader));
            let injected = world.network().injected();
            assert!(injected.held > 1 && injected.missed == 0, "{injected:?}");
            assert!(world.network().connections(Host::Node(other)) >= open);
        });
    }
}

/// The answers wait; what they answer was done.
#[test]
fn answers_are_held_back_without_the_questions() {
    in_a_world(42, async |world| {
        let (leader, other) = (leader(world).await, follower(world).await);
        let client = world.connect(1, TTL).await.unwrap();
        let ways = one_way(&[Host::Node(other)], &[Host::Node(leader)]);
        world.network().hold(&ways, &[Part::Answered], Hold::Kept);
        let _client = pairs(world, client, 5).await;
        seconds(world, 5).await;

        assert_eq!(world.leader(), Some(leader));
        assert_eq!(world.state_of(other), world.state_of(leader), "it was asked, and did it");
        world.network().release(&ways, Part::ALL);
        seconds(world, 1).await;
        assert!(world.network().injected().held > 5);
    });
}

#[test]
fn connections_that_break_are_made_anew_and_holds_outlive_them() {
    in_a_world(13, async |world| {
        let (guard, _client) = take(world, 1, "jobs").await;
        for _ in 0..5 {
            for id in world.nodes() {
                world.network().break_connections(Host::Node(id));
            }
            seconds(world, 2).await;
            assert!(guard.is_safe());
        }
        assert!(world.network().injected().broken >= 5);
    });
}

#[test]
fn a_node_that_is_asked_to_stop_hands_its_leadership_over() {
    in_a_world(14, async |world| {
        let before = leader(world).await;
        world.stop(before).await;

        assert_eq!(world.ended(before), Some(Ended::Stopped));
        assert_ne!(leader(world).await, before);
        world.start_node(before).await.unwrap();
    });
}

/// I22: with an empty folder it does not take its old place.
#[test]
fn a_wiped_node_does_not_come_back_under_its_old_id() {
    in_a_world(15, async |world| {
        let id = follower(world).await;
        world.wipe(id);
        world.begin_node(id);
        seconds(world, 10).await;

        assert!(matches!(world.ended(id), Some(Ended::Fault(_))), "{:?}", world.ended(id));
    });
}

#[test]
fn a_new_node_is_added_promoted_and_votes() {
    in_a_world(16, async |world| {
        let id = world.new_node();
        world.start_node(id).await.unwrap();
        add(world, id).await;
        seconds(world, 5).await;
        world
            .ask_leader(
                |replica| async move { replica.change(Change::Promote { node_id: id }).await },
            )
            .await
            .unwrap()
            .unwrap();
        seconds(world, 5).await;
        let states: Vec<_> = world.nodes().into_iter().map(|id| world.state_of(id)).collect();
        assert!(states.windows(2).all(|pair| pair[0] == pair[1]), "I16: {states:?}");
    });
}

/// Opens a session every 2 ms at `replica`, also when it does not lead, and keeps the answers.
async fn open_sessions(
    world: &World<'_>,
    replica: &Replica,
    count: u64,
) -> Vec<Result<Committed, ProposeError>> {
    let told = Arc::new(Mutex::new(Vec::new()));
    for _ in 0..count {
        let (ttl_ms, label) = (60_000, Label::parse("test").unwrap());
        let open = Command::OpenSession { ttl_ms, label, secret_hash: [3; 32] };
        let told = told.clone();
        replica.submit(open, Box::new(move |result| told.lock().unwrap().push(result)));
        world.runtime().sleep(Duration::from_millis(2)).await;
    }
    seconds(world, 10).await;
    std::mem::take(&mut told.lock().unwrap())
}

/// Commands come all the time, to disks that take 5 to 15 ms. openraft would let the leader commit
/// its own removal and go a little later, with other entries still under way to a node that does
/// not have them.
#[test]
fn a_leader_that_is_removed_leaves_no_outcome_unknown_and_nobody_waits_for_an_election() {
    for seed in 0..4 {
        let settings = Settings::new(seed, 3);
        let election = Duration::from_millis(settings.replica.election_min_ms);
        in_a_world_of(settings, async |world| {
            let old = leader(world).await;
            let replica = world.replica(old).unwrap();
            for id in world.nodes() {
                world.disk(id).set_pace(Duration::from_millis(5), Duration::from_millis(15));
            }
            let goes = async {
                seconds(world, 1).await;
                while world.ended(old).is_none() {
                    world
                        .ask_leader(move |leader| async move {
                            leader.change(Change::Remove { node_id: old }).await
                        })
                        .await;
                    world.runtime().sleep(Duration::from_millis(10)).await;
                }
            };
            let nobody_leads = async {
                let mut role = replica.role();
                role.wait_for(|role| role.tenure().is_none()).await.unwrap();
                let began = world.runtime().clock.now();
                leader(world).await;
                world.runtime().clock.now().saturating_since(began)
            };
            let proposes = open_sessions(world, &replica, 2_000);
            let ((told, ()), pause) = join(join(proposes, goes), nobody_leads).await;

            let committed = told.iter().filter(|result| result.is_ok()).count();
            let unknown = |result: &&Result<Committed, ProposeError>| {
                matches!(result, Err(ProposeError::OutcomeUnknown { .. }))
            };
            assert!(committed >= 400, "{committed} of {}", told.len());
            assert_eq!(told.iter().filter(unknown).count(), 0, "of {committed}");
            assert!(pause < election, "nobody led for {pause:?}");
            assert!(matches!(world.ended(old), Some(Ended::Fault(_))), "{:?}", world.ended(old));
        });
    }
}
