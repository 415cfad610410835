//! A whole cluster in one thread, without a socket, on virtual time: the real client, the real
//! session layer, real replication and the real store, scenario by scenario, with clocks of one
//! rate and sharp bounds (DESIGN §3, "Runtime for the simulator").
#![allow(clippy::unwrap_used, reason = "helpers of a test fail it by a panic")]

use std::time::Duration;

use futures_util::future::{join, join_all, join3};
use holdfast::{Client, Error, LostReason};
use holdfast_runtime::simulated::Machine;
use holdfast_runtime::{Instant, Runtime};
use holdfast_tests::history::{Asked, Change, ClientId, Recorder};
use holdfast_tests::run::judge;
use holdfast_tests::sim::{Crash, Hold, Host, Part, Settings, World, apart, one_way};
use holdfast_tests::traffic::{Held, Scribe, Wish};

const TTL: Duration = Duration::from_secs(10);
/// The server's margin of DESIGN §5.2.
const MARGIN: Duration = Duration::from_millis(50);
const LONG: Duration = Duration::from_mins(10);

/// A world with a leader, whose clients write one history.
struct Scene<'m> {
    world: World<'m>,
    recorder: Recorder,
}

/// Runs a scenario on so many nodes. The same seed gives the same run.
fn play(nodes: u64, seed: u64, scene: impl AsyncFnOnce(&Scene<'_>)) {
    play_with(Settings::new(seed, nodes), scene);
}

fn play_with(settings: Settings, scene: impl AsyncFnOnce(&Scene<'_>)) {
    let machine = Machine::new(settings.seed);
    machine.run(async {
        let world = World::start(&machine, settings).await;
        let recorder = Recorder::in_memory(world.runtime().clock);
        let played = Scene { world, recorder };
        scene(&played).await;
        played.world.observe();
        assert_eq!(played.world.violations(), Vec::<String>::new());
    });
}

impl Scene<'_> {
    /// Connects client `number`, which records what it does.
    async fn client(&self, number: u64) -> Scribe {
        let client = self.world.connect(number, TTL).await.unwrap();
        let process = self.world.client_process(number);
        let recorder = self.recorder.of(process.clone());
        Scribe::of(client, ClientId(number), recorder, process.runtime())
    }

    /// Nothing passes between client `number` and any node; neither end learns of it.
    fn silence(&self, number: u64) {
        let nodes: Vec<Host> = self.world.nodes().into_iter().map(Host::Node).collect();
        self.world.network().cut(apart(&[Host::Client(number)], &nodes));
    }

    fn now(&self) -> Instant {
        self.world.runtime().clock.now()
    }

    async fn sleep(&self, length: Duration) {
        self.world.runtime().sleep(length).await;
    }

    async fn leader(&self) -> u64 {
        self.world.until_led(Duration::from_secs(20)).await.unwrap()
    }

    /// The leader is gone, and stays so.
    async fn lose_the_leader(&self) -> u64 {
        let leader = self.leader().await;
        self.world.crash(leader, Crash::Process);
        leader
    }
}

/// Waits for the lock `jobs`, and releases it at once; returns its token.
async fn pass_through(client: &Scribe) -> u64 {
    let held = client.lock("jobs", LONG).await.unwrap();
    let token = held.token();
    held.release().await.unwrap();
    token
}

#[test]
fn a_lock_is_handed_over_to_the_client_that_waits() {
    play(1, 1, async |scene| {
        let (first, second) = (scene.client(1).await, scene.client(2).await);
        let held = first.lock("jobs", LONG).await.unwrap();

        let hold_long = async {
            // Far longer than the lease: keepalives carry it.
            held.keep(12 * TTL).await;
            held.release().await.unwrap();
        };
        let ((), granted) = join(hold_long, second.lock("jobs", LONG)).await;

        let granted = granted.unwrap();
        granted.keep(TTL).await;
        granted.release().await.unwrap();
        let report = judge(vec![scene.recorder.take()]);
        assert_eq!((report.tally.safe_holds, report.tally.waits), (2, 1));
    });
}

/// The clocks of this scenario have one rate, so the bounds are sharp: not before the whole TTL and
/// the margin after the last keepalive that the server received, and at once then.
#[test]
fn a_silent_client_loses_its_lock_when_its_lease_is_over_and_not_before() {
    play(1, 2, async |scene| {
        let (silent, waiter) = (scene.client(1).await, scene.client(2).await);
        let held = silent.lock("jobs", LONG).await.unwrap();

        let fall_silent = async {
            scene.sleep(Duration::from_secs(25)).await;
            scene.silence(1);
            let from = scene.now();
            let reason = held.guard().lost().await;
            held.note();
            (from, scene.now(), reason)
        };
        let ((silent_from, lost_at, reason), (granted, granted_at)) =
            join(fall_silent, async { (waiter.lock("jobs", LONG).await, scene.now()) }).await;

        assert_eq!(reason, LostReason::DeadlinePassed);
        assert!(lost_at < granted_at, "I6");
        let took = granted_at.saturating_since(silent_from);
        // The last keepalive arrived at most TTL/4 before the line fell silent.
        assert!(took <= TTL + MARGIN + Duration::from_millis(100), "{took:?} (I7)");
        assert!(took >= TTL * 3 / 4, "{took:?}");
        granted.unwrap().release().await.unwrap();
        judge(vec![scene.recorder.take()]);
    });
}

#[test]
fn holds_and_places_outlive_the_leader() {
    play(3, 3, async |scene| {
        let (first, second) = (scene.client(1).await, scene.client(2).await);
        let third = scene.client(3).await;
        let held = first.lock("jobs", LONG).await.unwrap();
        let token = held.token();

        let change_leaders = async {
            for _ in 0..3 {
                held.keep(Duration::from_secs(5)).await;
                let lost = scene.lose_the_leader().await;
                held.keep(Duration::from_secs(5)).await;
                scene.world.start_node(lost).await.unwrap();
                assert!(held.note(), "the lease outlives an election");
            }
            assert_eq!(held.token(), token);
            held.release().await.unwrap();
        };
        let take = async |client: &Scribe, after: u64| {
            scene.sleep(Duration::from_secs(after)).await;
            pass_through(client).await
        };
        let ((), second, third) = join3(change_leaders, take(&second, 1), take(&third, 2)).await;

        assert!(token < second && second < third, "{token} {second} {third} (I9)");
        judge(vec![scene.recorder.take()]);
    });
}

/// Two readers hold, a set waits for their locks and keeps out a third reader, of a lock that is
/// shared and of one that is free. The leader dies while all of this stands. Then the readers
/// leave, the set gets all of its names at once, leaves a value and releases one name, and the
/// third reader enters with that value.
#[test]
fn readers_and_a_set_outlive_the_leader_and_enter_in_order() {
    play(3, 5, async |scene| {
        let (first, second) = (scene.client(1).await, scene.client(2).await);
        let (mover, late) = (scene.client(3).await, scene.client(4).await);
        let rates = Wish::shared("rates");
        let readers = [first.acquire(&rates, LONG).await, second.acquire(&rates, LONG).await];
        let [first, second]: [Held; 2] = readers.map(Result::unwrap);
        let both = Wish::all(vec![Asked::exclusive("jobs"), Asked::exclusive("rates")]);

        let change_leaders = async {
            first.keep(Duration::from_secs(5)).await;
            scene.lose_the_leader().await;
            first.keep(Duration::from_secs(5)).await;
            assert!(first.note() && second.note(), "leases outlive an election");
            first.release().await.unwrap();
            second.keep(Duration::from_secs(5)).await;
            second.release().await.unwrap();
        };
        let move_money = async {
            scene.sleep(Duration::from_secs(1)).await;
            let held = mover.acquire(&both, LONG).await.unwrap();
            let token = held.token();
            held.change_value("rates", Change::Set("moved".into())).await.unwrap();
            held.release_names(&["rates".into()]).await.unwrap();
            held.keep(TTL).await;
            held.release().await.unwrap();
            token
        };
        let read_late = async {
            scene.sleep(Duration::from_secs(2)).await;
            late.attempt(&Wish::exclusive("jobs")).await.unwrap_err();
            let held = late.acquire(&rates, LONG).await.unwrap();
            let value = held.guard().value().unwrap();
            let token = held.token();
            held.release().await.unwrap();
            (token, value)
        };
        let ((), set, (last, value)) = join3(change_leaders, move_money, read_late).await;

        assert!(set < last, "{set} {last} (I9)");
        let told = (&*value.bytes, value.token.get(), value.is_suspect);
        assert_eq!(told, (&b"moved"[..], set, false));
        let tally = judge(vec![scene.recorder.take()]).tally;
        assert_eq!((tally.together, tally.sets, tally.released_in_part, tally.waits), (1, 1, 1, 2));
        assert_eq!((tally.shared, tally.writes, tally.values_seen), (3, 1, 1));
    });
}

/// The lease of a silent client runs out while the followers' disks finish nothing: the leader is
/// confirmed, appends the expiry and cannot commit it. Then all nodes lose their power. The old
/// leader comes back with one follower and leads again, because its log is the longer one: the
/// entry of its old tenure commits before any client is heard. Every other session has a whole
/// lease from then on: the waiter, which had no answer meanwhile, is granted at its place.
#[test]
fn a_leader_that_crashes_with_an_expiry_not_committed_expires_nobody_wrongly() {
    play(3, 4, async |scene| {
        let opened = scene.now();
        let (silent, waiter) = (scene.client(1).await, scene.client(2).await);
        let held = silent.lock("jobs", LONG).await.unwrap();
        let leader = scene.leader().await;
        let followers: Vec<u64> =
            scene.world.nodes().into_iter().filter(|id| *id != leader).collect();

        let fail = async {
            scene.silence(1);
            scene.world.runtime().clock.sleep_until(opened + TTL).await;
            for id in &followers {
                scene.world.disk(*id).stick();
            }
            scene.sleep(3 * MARGIN).await;
            let status = scene.world.replica(leader).unwrap().status();
            assert!(status.last_log > status.applied, "the expiry is appended: {status:?}");
            scene.world.power_cut();
            let others = [Host::Node(leader), Host::Node(followers[0])];
            let apart = apart(&[Host::Node(followers[1])], &others);
            scene.world.network().cut(apart.clone());
            for id in scene.world.nodes() {
                scene.world.start_node(id).await.unwrap();
            }
            assert_eq!(scene.leader().await, leader, "its log is the longest");
            scene.world.network().mend(&apart);
        };
        let ((), granted) = join(fail, waiter.lock("jobs", LONG)).await;

        granted.unwrap().release().await.unwrap();
        assert!(!held.note());
        judge(vec![scene.recorder.take()]);
    });
}

/// Finding S1 of `docs/reliability.md`. The leader is cut off on live connections, together with
/// the client that holds. Answers of the other nodes are under way to it; they arrive when another
/// leader has given all sessions a lease, and before any other message. They prove nothing about
/// the present: the old leader acknowledges no keepalive (§5.1), and the client is unsafe before
/// the next one is granted.
#[test]
fn answers_from_before_an_election_let_a_deposed_leader_acknowledge_nothing() {
    play(3, 6, async |scene| {
        let (holder, waiter) = (scene.client(1).await, scene.client(2).await);
        let writer = scene.client(3).await;
        let held = holder.lock("jobs", LONG).await.unwrap();
        let old = scene.leader().await;
        let nodes: Vec<u64> = scene.world.nodes().into_iter().filter(|id| *id != old).collect();
        let others: Vec<Host> = nodes.iter().copied().map(Host::Node).collect();
        let (there, back) =
            (one_way(&[Host::Node(old)], &others), one_way(&others, &[Host::Node(old)]));
        let network = scene.world.network();

        let fail = async {
            scene.sleep(Duration::from_secs(25)).await;
            // From here on the holder reaches only the old leader.
            network.cut(apart(&[Host::Client(1)], &others));
            network.hold(&back, &[Part::Answered], Hold::Kept);
            scene.sleep(Duration::from_millis(300)).await;
            network.hold(&back, &[Part::Asked], Hold::Kept);
            network.hold(&there, Part::ALL, Hold::Kept);
            while scene.world.leader() == Some(old) {
                scene.sleep(Duration::from_millis(10)).await;
            }
            // A keepalive waits for the round that is under way now.
            scene.sleep(Duration::from_millis(5_700)).await;
            assert!(held.guard().is_safe(), "it was acknowledged lately enough");
            network.release(&back, &[Part::Answered]);
            scene.sleep(Duration::from_millis(100)).await;
            network.release(&back, &[Part::Asked]);
            network.release(&there, Part::ALL);
            held.guard().lost().await;
            held.note();
            scene.now()
        };
        let write = async {
            // Appended by the old leader, and acknowledged by the others.
            scene.sleep(Duration::from_millis(25_100)).await;
            writer.lock("more", LONG).await.unwrap().release().await.unwrap();
        };
        let wait = async { (waiter.lock("jobs", LONG).await.unwrap(), scene.now()) };
        let (lost_at, (), (granted, granted_at)) = join3(fail, write, wait).await;

        assert!(lost_at < granted_at, "I6: safe until {lost_at:?}, granted at {granted_at:?}");
        granted.release().await.unwrap();
        judge(vec![scene.recorder.take()]);
    });
}

/// Acquires and releases a lock of its own so many times; returns how often the store refused it
/// for load, and it repeated the request when the store allowed.
async fn work(client: &Client, runtime: &Runtime, name: String, rounds: u64) -> u64 {
    let (mut done, mut refused) = (0, 0);
    while done < rounds {
        match client.lock(&name).await {
            Ok(guard) => {
                guard.release().await.unwrap();
                done += 1;
            }
            Err(Error::Refused { retry_after: Some(pause), .. }) => {
                refused += 1;
                runtime.sleep(pause).await;
            }
            Err(other) => unreachable!("{other}"),
        }
    }
    refused
}

/// I31: eight sessions of 32 workers each ask for far more than the queue has places. Refused
/// requests are repeated; no stream ends, and every lock is free in the end.
#[test]
fn a_store_with_too_much_to_do_refuses_acquires_and_neither_releases_nor_streams() {
    const SESSIONS: u64 = 8;
    const WORKERS: u64 = 32;
    const ROUNDS: u64 = 5;
    for places in [64, 32, 16] {
        let mut settings = Settings::new(90, 1);
        settings.replica.max_pending_commands = places;
        play_with(settings, async |scene| {
            let mut crews = Vec::new();
            for number in 1..=SESSIONS {
                let client = scene.world.connect(number, TTL).await.unwrap();
                let runtime = scene.world.client_process(number).runtime();
                let crew = async move {
                    let workers = (0..WORKERS).map(|worker| {
                        work(&client, &runtime, format!("{number}/{worker}"), ROUNDS)
                    });
                    join_all(workers).await.into_iter().sum::<u64>()
                };
                crews.push(scene.world.as_client(number, crew));
            }
            let opened = scene.world.streams_opened();

            let refused: u64 = join_all(crews).await.into_iter().map(Option::unwrap).sum();

            assert_eq!(opened, SESSIONS);
            assert_eq!(scene.world.streams_opened(), opened, "{places} places");
            assert!(refused > 0, "{places} places were enough for all at once");
        });
    }
}
