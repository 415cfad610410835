//! Whole lives: three leaders, two clients of each kind, an hour of what can go wrong in two minutes. Each
//! leader has settings of its own for W and V, and now and then begins again with others.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use holdfast_cassandra::authority::Durations;
use holdfast_cassandra::database::{Answer, Database, Fault, Tables};
use holdfast_cassandra::model::{Model, Odds};
use holdfast_cassandra::statement::Statement;
use holdfast_core::Command;
use holdfast_seams::simulated::{Machine, Process};

use super::super::lead::Keepers;
use super::super::terms::Terms;
use super::clients::{Fallback, Lease, Native};
use super::world::{Judge, Node, Raft, Seen, below, cluster, scope, up_to};
use holdfast_mutants::{Mutant, while_armed};

const NODES: usize = 3;
/// Both errors together are the allowance.
const RATE_ERROR_PPM: u64 = 50_000;

/// W and V, in seconds, that a leader may have.
const SETTINGS: [(u64, u64); 4] = [(4, 2), (3, 1), (9, 2), (9, 6)];

fn terms(world: &Process) -> Terms {
    let (w, v) = SETTINGS[Life::any(world, SETTINGS.len())];
    let durations =
        Durations::new(Duration::from_secs(w), Duration::from_secs(v)).expect("they fit");
    Terms { durations, drain_limit: Duration::from_secs(1), switch_every: Duration::from_secs(2) }
}

/// The tables, as one process reaches them, or not.
#[derive(Clone)]
struct Cut {
    model: Model,
    world: Process,
    off: Arc<AtomicBool>,
}

impl Database for Cut {
    fn execute(&self, statement: Statement) -> BoxFuture<'static, Result<Answer, Fault>> {
        if self.off.load(Ordering::Relaxed) {
            let seams = self.world.seams();
            return async move {
                seams.sleep(Duration::from_secs(2)).await;
                Err(Fault::Unknown("cut off".into()))
            }
            .boxed();
        }
        self.model.execute(statement)
    }

    fn endpoints(&self) -> Vec<String> {
        Vec::new()
    }
}

struct Life {
    machine: Machine,
    model: Model,
    raft: Arc<Raft>,
    judge: Arc<Judge>,
    servers: Vec<Server>,
    clients: Vec<Process>,
}

struct Server {
    process: Process,
    cut: Cut,
    node: Arc<Node>,
    /// Those of the settings it has now.
    keepers: Mutex<Option<Keepers>>,
}

impl Server {
    /// Begins again, knowing nothing, with other settings.
    fn restart(&self, terms: Terms) {
        let seams = self.node.process.seams();
        let tables = Arc::new(Tables::new(Arc::new(self.cut.clone()), seams.clock.clone()));
        let mut keepers = self.keepers.lock().expect("nobody panicked");
        // First those of before are over.
        *keepers = None;
        let (node, board) = (self.node.clone(), self.node.board.clone());
        *keepers = Some(Keepers::start(node, board, cluster(1), Some((terms, tables)), seams));
    }
}

/// A clock that is wrong by as much as is allowed, in either direction.
fn process(machine: &Machine, name: &str) -> Process {
    let process = machine.process(name);
    let drawn = below(&machine.world(), 2 * RATE_ERROR_PPM + 1);
    let error =
        i64::try_from(drawn).expect("small") - i64::try_from(RATE_ERROR_PPM).expect("small");
    process.set_rate(i32::try_from(error).expect("small"));
    process
}

impl Life {
    fn new(seed: u64) -> Self {
        let machine = Machine::new(seed);
        let (model, raft, judge) =
            (Model::new(&machine), Raft::new(&machine), Judge::new(&machine));
        let nodes: Vec<_> =
            (0..NODES).map(|id| Node::new(&raft, id, process(&machine, "server"))).collect();
        raft.nodes.set(nodes.clone()).unwrap_or_else(|_| panic!("set once"));
        let server = |node: Arc<Node>| {
            let cut = Cut { model: model.clone(), world: machine.world(), off: Arc::default() };
            let server =
                Server { process: node.process.clone(), cut, node, keepers: Mutex::default() };
            server.restart(terms(&machine.world()));
            server
        };
        let servers = nodes.into_iter().map(server).collect();
        let mut life = Self { machine, model, raft, judge, servers, clients: Vec::new() };
        life.start_clients();
        life
    }

    fn start_clients(&mut self) {
        let lease = Arc::new(Lease::default());
        for id in 0..4 {
            let process = process(&self.machine, "client");
            self.clients.push(process.clone());
            let (seams, judge) = (process.seams(), self.judge.clone());
            if id < 2 {
                let native = Native::new(id, process, self.raft.clone(), judge);
                seams.spawn("native", native.run()).detach();
            } else {
                let tables = Tables::new(Arc::new(self.model.clone()), seams.clock.clone());
                let fallback = Fallback::new(id, process, tables, judge, lease.clone());
                seams.spawn("fallback", fallback.run()).detach();
            }
        }
    }

    async fn torment(&self) {
        let (world, raft) = (self.machine.world(), &self.raft);
        raft.elect(0);
        raft.commit(Command::SetScope { scope: scope() });
        while self.machine.now() < Duration::from_secs(150) {
            world.seams().sleep(Duration::from_millis(200) + up_to(&world, 5_000)).await;
            match below(&world, 12) {
                0..3 => {
                    raft.depose();
                    let longest = if below(&world, 3) == 0 { 12_000 } else { 1_500 };
                    world.seams().sleep(up_to(&world, longest)).await;
                    raft.elect(usize::try_from(below(&world, 3)).expect("small"));
                }
                3..5 => self.pause(&self.servers[Self::any(&world, NODES)].process),
                5 => self.pause(&self.clients[Self::any(&world, 4)]),
                6 => {
                    let cut = &self.servers[Self::any(&world, NODES)].cut.off;
                    cut.store(below(&world, 2) == 0, Ordering::Relaxed);
                }
                7..9 => {
                    let odds = || below(&world, 120);
                    let (answer_lost, request_lost, late) = (odds(), odds(), odds());
                    self.model.set_odds(Odds {
                        answer_lost,
                        request_lost,
                        late,
                        unavailable: odds(),
                    });
                }
                9 => self.model.set_odds(Odds::default()),
                _ => self.servers[Self::any(&world, NODES)].restart(terms(&world)),
            }
        }
    }

    fn any(world: &Process, number: usize) -> usize {
        usize::try_from(below(world, u64::try_from(number).unwrap_or(1))).unwrap_or(0)
    }

    fn pause(&self, process: &Process) {
        let (process, world) = (process.clone(), self.machine.world());
        let length = up_to(&world, 9_000);
        process.pause();
        let seams = world.seams();
        let resume = async move {
            world.seams().sleep(length).await;
            process.resume();
        };
        seams.spawn("resume", resume).detach();
    }

    /// Everything is well again: the scope comes back to whoever leads, and somebody holds natively.
    async fn heal(&self) -> bool {
        let world = self.machine.world();
        self.model.set_odds(Odds::default());
        for Server { process, cut, .. } in &self.servers {
            process.resume();
            cut.off.store(false, Ordering::Relaxed);
        }
        self.clients.iter().for_each(Process::resume);
        self.raft.elect(0);
        // What is late in Cassandra is carried out; a leader that yields does so for W.
        world.seams().sleep(Duration::from_secs(20)).await;
        let before = self.judge.seen().native;
        world.seams().sleep(Duration::from_secs(30)).await;
        self.judge.seen().native > before
    }
}

/// What a life came to, how often the epoch was raised in it, and whether it was well in the end.
fn live(seed: u64) -> (Seen, u64, bool) {
    let life = Life::new(seed);
    let well = life.machine.run(async {
        life.torment().await;
        life.heal().await
    });
    (life.judge.seen(), life.raft.epochs_raised(), well)
}

#[test]
fn in_no_life_are_two_holds_safe_at_once_or_one_after_a_newer_and_the_scope_is_served_again() {
    let (first, lives) = match std::env::var("HOLDFAST_SEED") {
        Ok(seed) => (seed.parse().expect("a number"), 1),
        Err(_) => (0, 40),
    };
    let (mut native, mut fallback, mut raised) = (0, 0, 0);
    for seed in first..first + lives {
        let (seen, epochs, well) = live(seed);
        assert!(seen.wrongs.is_empty(), "HOLDFAST_SEED={seed}: {:#?}", seen.wrongs);
        assert!(well, "HOLDFAST_SEED={seed}: nobody holds natively when all is well again");
        (native, fallback, raised) =
            (native + seen.native, fallback + seen.fallback, raised + epochs);
    }
    println!(
        "{lives} lives: {native} looks at a native hold that was safe, {fallback} holds in Cassandra, the epoch raised {raised} times"
    );
    assert!(lives == 1 || (native > 2_000 && fallback > 100 && raised > 40));
}

/// The rules of a leader that runs as random as these find missing soon: in run 3, 71 and 7. `ReturnWaitsToTheEnd`
/// was found in run 340; `ShorterWWaits` and the rules of V were not in 150; the others need what happens
/// once in thousands. They have a test by hand, and the model, but for V.
const FOUND: [Mutant; 3] =
    [Mutant::UnknownBumpCounts, Mutant::ReturnAtOnce, Mutant::RowWBelowAuthority];
/// In so many runs each of them has to be found. Other draws make other runs of the same seeds.
const SEARCHED: u64 = 300;

#[test]
fn a_life_goes_wrong_without_rules_that_leaders_uphold() {
    for mutant in FOUND {
        let found =
            (0..SEARCHED).find(|seed| !while_armed(mutant, || live(*seed)).0.wrongs.is_empty());
        println!("with {mutant}: life {found:?}");
        assert!(found.is_some(), "no life finds that {mutant} is armed");
    }
}
