//! Two clusters on one keyspace, with a scope of one name: at most one of them has authority, ever (`OwnCluster`).

use std::sync::Arc;
use std::time::Duration;

use holdfast_core::{Command, RestorePlan};
use holdfast_keyspace::authority::{
    Authority, AuthorityRow, Buckets, Change, ClusterTag, Durations, Mode,
};
use holdfast_keyspace::database::Tables;
use holdfast_keyspace::model::Model;
use holdfast_runtime::simulated::Machine;

use super::super::FallbackSettings;
use super::super::lead::ScopeAuthorities;
use super::world::{Node, Raft, cluster, scope};
use holdfast_mutants::{Mutant, while_armed};

/// A day of 2026.
const NOW_MS: u64 = 1_795_000_000_000;

const fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

pub(super) fn terms() -> FallbackSettings {
    let durations = Durations::new(secs(4), secs(2)).expect("they fit");
    let (drain_limit, switch_every) = (secs(1), secs(2));
    FallbackSettings { durations, drain_limit, switch_every, buckets: None }
}

/// One node of a cluster of its own, which leads, on tables that others use as well.
pub(super) struct Alone {
    raft: Arc<Raft>,
    authorities: ScopeAuthorities,
}

impl Alone {
    pub(super) fn new(machine: &Machine, model: &Model, number: u8) -> Self {
        let raft = Raft::new(machine);
        let node = Node::new(&raft, 0, machine.process("server"));
        raft.nodes.set(vec![node.clone()]).unwrap_or_else(|_| panic!("set once"));
        let (runtime, board) = (node.process.runtime(), node.board.clone());
        let tables = Arc::new(Tables::new(Arc::new(model.clone()), runtime.clock.clone()));
        let fallback = Some((terms(), tables));
        let authorities = ScopeAuthorities::start(node, board, cluster(number), fallback, runtime);
        Self { raft, authorities }
    }

    pub(super) fn begin(&self) {
        self.raft.elect(0);
        self.raft.commit(Command::SetScope { scope: scope() });
    }

    fn has_authority(&self) -> bool {
        self.authorities.status(&scope()).is_some_and(|status| status.authority.is_some())
    }

    fn trouble(&self) -> Option<&'static str> {
        self.authorities.status(&scope()).and_then(|status| status.trouble)
    }
}

/// In how many of the looks of a minute the first, the second and both have authority.
fn looks(seed: u64, row: Option<AuthorityRow>) -> ([usize; 3], [Option<&'static str>; 2]) {
    let machine = Machine::new(seed);
    let (model, world) = (Model::new(&machine), machine.world());
    let both = [1, 2].map(|number| Alone::new(&machine, &model, number));
    let clock = world.runtime().clock;
    let tables = Arc::new(Tables::new(Arc::new(model), clock.clone()));
    let authority = Authority::new(tables, clock, scope().as_str());
    machine.run(async {
        if let Some(row) = row {
            assert!(matches!(authority.create(row).await, Ok(Change::Done { .. })));
        }
        both.iter().for_each(Alone::begin);
        let mut times = [0; 3];
        for _ in 0..600 {
            world.runtime().sleep(Duration::from_millis(100)).await;
            let have = both.each_ref().map(Alone::has_authority);
            times[0] += usize::from(have[0]);
            times[1] += usize::from(have[1]);
            times[2] += usize::from(have[0] && have[1]);
        }
        (times, both.each_ref().map(Alone::trouble))
    })
}

/// A row that version 0.1 left has no cluster: it is that of the first whose bump is answered.
fn of_0_1() -> AuthorityRow {
    let (durations, cluster) = (terms().durations, None);
    let buckets = Buckets::default();
    AuthorityRow { mode: Mode::Native, epoch: 1, beat: 7, durations, cluster, buckets }
}

#[test]
fn of_two_clusters_on_one_row_one_has_authority_and_the_other_says_what_is_wrong() {
    for row in [None, Some(of_0_1())] {
        for seed in 0..20 {
            let ([first, second, together], troubles) = looks(seed, row);
            assert_eq!(together, 0, "seed {seed}");
            assert!((first == 0) != (second == 0), "seed {seed}: {first} {second}");
            assert!(first + second > 300, "seed {seed}: {first} {second}");
            let says = "its row in the table authority cannot be used; the leader's log says why";
            assert_eq!(troubles.iter().flatten().collect::<Vec<_>>(), [&says], "seed {seed}");
        }
    }
}

/// DESIGN §15: the second cluster begins with a backup of the first, which runs on although it should not. The
/// restored one takes the row over, in an epoch above; at no moment do both have authority, and the first
/// gets none any more.
#[test]
fn a_restored_cluster_takes_the_row_over_from_the_one_before_it() {
    for seed in 0..20 {
        let machine = Machine::new(seed);
        let (model, world) = (Model::new(&machine), machine.world());
        let [old, new] = [1, 2].map(|number| Alone::new(&machine, &model, number));
        let outcome = machine.run(async {
            let sleep = |time| world.runtime().sleep(time);
            old.begin();
            sleep(secs(20)).await;
            assert!(old.has_authority(), "seed {seed}");
            let plan = RestorePlan { now_ms: NOW_MS, epoch: None, ttl_max_ms: 1_000, now: true };
            new.raft.restore(old.raft.table().restored(&plan).unwrap());
            new.raft.elect(0);
            let (mut together, mut last_old, mut first_new) = (0, 0, None);
            for tick in 0..600 {
                sleep(Duration::from_millis(100)).await;
                let have = (old.has_authority(), new.has_authority());
                together += usize::from(have.0 && have.1);
                last_old = if have.0 { tick } else { last_old };
                first_new = first_new.or(have.1.then_some(tick));
            }
            (together, last_old, first_new)
        });
        let (together, last_old, first_new) = outcome;
        assert_eq!(together, 0, "seed {seed}");
        let first_new = first_new.unwrap_or_else(|| panic!("seed {seed}: no authority"));
        assert!(last_old < first_new, "seed {seed}: {last_old} and {first_new}");
        let state = new.raft.table().scope(&scope()).unwrap();
        assert!(state.epoch > 300 && !new.raft.table().is_scope_restored(&scope()), "{state:?}");
    }
}

/// Each bumps the row in turn, in one epoch.
#[test]
fn without_the_rule_two_clusters_have_authority_at_once() {
    let found = (0..20).find(|seed| {
        let ([.., together], _) =
            while_armed(Mutant::RowOfOtherCluster, || looks(*seed, Some(of_0_1())));
        together > 0
    });
    assert!(found.is_some(), "no run finds that the rule is missing");
}

#[test]
fn a_cluster_is_read_as_it_is_written() {
    let tag = ClusterTag::new(&[0xa5; 16]).expect("16 bytes");
    assert_eq!(tag.to_string(), "a5".repeat(16));
    assert_eq!(ClusterTag::new(&[1; 15]), None);
}
