//! A drain that looks for leases in every partition of a scope.

use std::sync::Arc;
use std::time::Duration;

use holdfast_keyspace::authority::{Authority, AuthorityRow, Buckets, Change, Mode};
use holdfast_keyspace::database::Tables;
use holdfast_keyspace::model::Model;
use holdfast_keyspace::statement::{Action, Ident, Statement, Value};
use holdfast_runtime::simulated::Machine;

use super::clusters::{Alone, terms};
use super::world::scope;

const TICK: Duration = Duration::from_millis(10);

/// How long the row says `draining`, with a lease in that partition of 64.
fn drain(lease_in: Option<i64>) -> Duration {
    let machine = Machine::new(1);
    let (model, world) = (Model::new(&machine), machine.world());
    let leader = Alone::new(&machine, &model, 1);
    let clock = world.runtime().clock;
    let tables = Arc::new(Tables::new(Arc::new(model.clone()), clock.clone()));
    let row = Authority::new(tables, clock.clone(), scope().as_str());
    let durations = terms().durations;
    let there = AuthorityRow {
        mode: Mode::Cassandra,
        epoch: 1,
        beat: 0,
        durations,
        cluster: None,
        buckets: Buckets::new(64).expect("it is a number of partitions"),
    };
    machine.run(async {
        assert!(matches!(row.create(there).await, Ok(Change::Done { .. })));
        if let Some(bucket) = lease_in {
            let key = vec![
                (Ident::new("scope"), Value::from(scope().as_str())),
                (Ident::new("bucket"), Value::from(bucket)),
                (Ident::new("name"), Value::from("a lease")),
            ];
            let cells = vec![(Ident::new("owner"), Some(Value::from("client A")))];
            let put = Action::UpdateIf { cells, ttl_s: None, only_if: Vec::new() };
            model.apply(&Statement::new(Ident::new("fallback_leases"), key, put).partitioned_by(2));
        }
        leader.begin();
        let mut began = None;
        loop {
            world.runtime().sleep(TICK).await;
            let now = row.read().await.expect("it answers").row.expect("it is there");
            match (now.mode, began) {
                (Mode::Draining, None) => began = Some(clock.now()),
                (Mode::Native, Some(began)) => return clock.now().saturating_since(began),
                _ => {}
            }
        }
    })
}

/// B8. A drain is over once no lease is left, wherever one lies; otherwise it takes its whole time.
#[test]
fn a_drain_misses_no_lease_in_whichever_partition_it_lies() {
    let limit = terms().drain_limit;
    assert!(drain(None) < limit / 2, "{:?}", drain(None));
    for bucket in [0, 15, 16, 40, 63] {
        let waited = drain(Some(bucket));
        assert!(waited >= limit, "{bucket}: {waited:?}");
    }
}
