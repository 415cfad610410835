//! A leader whose Cassandra is busy with everybody who reads the row.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use holdfast_core::Command;
use holdfast_keyspace::authority::{Authority, AuthorityRow, Change, Durations, Mode};
use holdfast_keyspace::database::{Answer, Database, Fault, Tables};
use holdfast_keyspace::model::Model;
use holdfast_keyspace::statement::Statement;
use holdfast_runtime::simulated::{Machine, Process};

use super::super::FallbackSettings;
use super::super::lead::ScopeAuthorities;
use super::world::{Node, Raft, cluster, scope};

const fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// The tables, which answer about the row late, or not.
#[derive(Clone)]
struct Busy {
    model: Model,
    world: Process,
    late: Arc<AtomicBool>,
}

impl Busy {
    /// Longer than a fourth of W.
    const TAKES: Duration = Duration::from_millis(1_300);
}

impl Database for Busy {
    fn execute(&self, statement: Statement) -> BoxFuture<'static, Result<Answer, Fault>> {
        let late = statement.table.as_str() == "authority" && self.late.load(Ordering::Relaxed);
        let (runtime, executed) = (self.world.runtime(), self.model.execute(statement));
        async move {
            if late {
                runtime.sleep(Self::TAKES).await;
            }
            executed.await
        }
        .boxed()
    }

    fn endpoints(&self) -> Vec<String> {
        Vec::new()
    }
}

/// Everything about the row takes longer than a leader waits at first. It would begin anew with each statement for ever, if it did
/// not wait longer for the next.
#[test]
fn a_leader_leads_a_scope_back_from_a_cassandra_that_is_slower_than_a_fourth_of_w() {
    let machine = Machine::new(1);
    let (model, raft, world) = (Model::new(&machine), Raft::new(&machine), machine.world());
    let durations = Durations::new(secs(4), secs(2)).expect("they fit");
    let (drain_limit, switch_every) = (secs(1), secs(2));
    let terms = FallbackSettings { durations, drain_limit, switch_every, buckets: None };
    let node = Node::new(&raft, 0, machine.process("server"));
    raft.nodes.set(vec![node.clone()]).unwrap_or_else(|_| panic!("set once"));
    let is_busy = Arc::new(AtomicBool::new(false));
    let busy = Busy { model: model.clone(), world: world.clone(), late: is_busy.clone() };
    let runtime = node.process.runtime();
    let tables = Arc::new(Tables::new(Arc::new(busy), runtime.clock.clone()));
    let board = node.board.clone();
    let _keepers = ScopeAuthorities::start(node, board, cluster(1), Some((terms, tables)), runtime);
    let clock = world.runtime().clock;
    let tables = Arc::new(Tables::new(Arc::new(model), clock.clone()));
    let row = Authority::new(tables, clock, scope().as_str());

    machine.run(async {
        raft.elect(0);
        raft.commit(Command::SetScope { scope: scope() });
        world.runtime().sleep(secs(5)).await;
        let native = row.read().await.unwrap().row.expect("it was made");
        assert!(matches!(native.mode, Mode::Native | Mode::Preparing), "{native}");
        is_busy.store(true, Ordering::Relaxed);
        loop {
            let from = row.read().await.unwrap().row.expect("it is there");
            let to = AuthorityRow { mode: Mode::Cassandra, epoch: from.epoch + 1, beat: 0, ..from };
            let changed = row.change(from, to).await.unwrap();
            if matches!(changed, Change::Done { .. }) {
                break;
            }
        }

        world.runtime().sleep(secs(40)).await;
        let back = row.read().await.unwrap().row.expect("it is there");
        assert_eq!(back.mode, Mode::Native, "{back}");
        assert!(back.epoch > native.epoch + 1, "{back}");
    });
}
