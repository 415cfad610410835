//! The checks on facts that were made up.

use std::collections::BTreeMap;
use std::time::Duration;

use holdfast_keyspace::driver::{
    ClockAhead, Granted, KeyspaceFacts, NodeFacts, NodeSays, Replicas, RoleFacts,
};

use super::*;

fn node(number: u8) -> NodeFacts {
    let settings = [
        ("paxos_variant", "v2"),
        ("commitlog_sync", "group"),
        ("authorizer", "CassandraAuthorizer"),
        ("tombstone_failure_threshold", "100000"),
    ];
    let settings = settings.map(|(name, value)| (name.to_owned(), value.to_owned()));
    let says = NodeSays {
        release: Ok("5.0.9".to_owned()),
        is_scylla: false,
        settings: Ok(settings.into()),
        clock: Ok(ClockAhead { least_ms: -1, most_ms: 1 }),
        most_tombstones: Ok(None),
        drivers: Ok(BTreeMap::new()),
    };
    NodeFacts {
        name: format!("10.0.0.{number}:9042"),
        datacenter: Some("dc1".into()),
        says: Some(says),
    }
}

/// A cluster at which nothing is wrong.
fn facts() -> Facts {
    let keyspace = KeyspaceFacts {
        replicas: Replicas::In([("dc1".to_owned(), 3)].into()),
        durable_writes: Ok(true),
        tablets: None,
        tables: BTreeMap::new(),
    };
    let granted = ["SELECT", "MODIFY"].map(str::to_owned).to_vec();
    let may = Ok(Granted::Only([("keyspace locks".to_owned(), granted)].into()));
    Facts {
        nodes: [1, 2, 3].map(node).into(),
        keyspace: Some(keyspace),
        unfit: None,
        role: Some(RoleFacts { name: "app".to_owned(), may }),
    }
}

fn table(name: &str, kept_s: Option<i32>, keeps_too_long: bool) -> TableCase {
    TableCase { name: name.to_owned(), kept_s, keeps_too_long }
}

fn examined(facts: Facts, scope: &SerialScope, tables: Vec<TableCase>) -> Vec<Finding> {
    let max_skew = Duration::from_mins(1);
    let needs = Schema::new("locks").needs();
    let keyspace = &Ident::new("locks");
    Case { keyspace, scope, max_skew, facts, tables: Ok(tables), lacking: Vec::new(), needs }
        .findings()
}

/// What is not as it should be after `change`.
fn wrong_after(change: impl FnOnce(&mut Facts)) -> Vec<Finding> {
    let mut facts = facts();
    change(&mut facts);
    let tables = vec![table("leases", Some(300), false)];
    let mut found = examined(facts, &SerialScope::Cluster, tables);
    found.retain(|finding| finding.verdict != Verdict::Good);
    found
}

fn one(found: Vec<Finding>) -> Finding {
    assert_eq!(found.len(), 1, "{found:#?}");
    found.into_iter().next().unwrap()
}

fn says_of(facts: &mut Facts, node: usize) -> &mut NodeSays {
    facts.nodes[node].says.as_mut().unwrap()
}

#[test]
fn a_cluster_that_is_as_it_should_be_has_nothing_to_do() {
    assert_eq!(wrong_after(|_| ()), []);
}

#[expect(clippy::too_many_lines, reason = "a table")]
#[test]
fn each_thing_that_is_wrong_is_one_finding_that_names_it_and_says_what_to_do() {
    type Change = fn(&mut Facts);
    let cases: [(Change, &str, Verdict, &str); 15] = [
        (
            |facts| facts.nodes[1].says = None,
            "nodes",
            Verdict::Caution,
            "no connection to 10.0.0.2:9042",
        ),
        (
            |facts| says_of(facts, 0).release = Ok("4.1.3".into()),
            "version",
            Verdict::Note,
            "Cassandra 4.1.3 on 10.0.0.1:9042; Cassandra 5.0.9 on",
        ),
        (
            |facts| facts.unfit = Some("there is no keyspace locks".into()),
            "keyspace",
            Verdict::Wrong,
            "there is no keyspace",
        ),
        (
            |facts| keyspace(facts).replicas = Replicas::In([("dc1".into(), 2)].into()),
            "replicas",
            Verdict::Caution,
            "both have to be up",
        ),
        (
            |facts| keyspace(facts).replicas = Replicas::Anywhere(1),
            "replicas",
            Verdict::Caution,
            "one replica",
        ),
        (
            |facts| keyspace(facts).durable_writes = Ok(false),
            "durable writes",
            Verdict::Wrong,
            "forgets locks",
        ),
        (|facts| keyspace(facts).tablets = Some(true), "tablets", Verdict::Wrong, "refuses LWT"),
        (
            |facts| set(facts, &[0, 1, 2], "paxos_variant", "v1"),
            "paxos",
            Verdict::Note,
            "half the round trips",
        ),
        (
            |facts| set(facts, &[1], "paxos_variant", "v1"),
            "paxos",
            Verdict::Wrong,
            "v1 on 10.0.0.2:9042; v2 on",
        ),
        (
            |facts| set(facts, &[2], "commitlog_sync", "periodic"),
            "commit log",
            Verdict::Caution,
            "power",
        ),
        (
            |facts| says_of(facts, 2).clock = Ok(ahead(5_000)),
            "clocks",
            Verdict::Caution,
            "10.0.0.3:9042 is 4998 ms ahead of",
        ),
        (
            |facts| says_of(facts, 2).clock = Ok(ahead(-70_000)),
            "clocks",
            Verdict::Wrong,
            "ahead of 10.0.0.3:9042",
        ),
        (
            |facts| says_of(facts, 0).most_tombstones = Ok(Some(("lock_main".into(), 40_000))),
            "tombstones",
            Verdict::Caution,
            "40000 of them; it fails a read of 100000",
        ),
        (
            |facts| set(facts, &[0], "authorizer", "AllowAllAuthorizer"),
            "permissions",
            Verdict::Note,
            "every client may change every lock",
        ),
        (
            |facts| role(facts, Granted::Only(BTreeMap::new())),
            "permissions",
            Verdict::Wrong,
            "no recipe",
        ),
    ];
    for (change, check, verdict, says) in cases {
        let found = one(wrong_after(change));
        assert_eq!((found.check, found.verdict), (check, verdict), "{found:?}");
        assert!(found.says.contains(says), "{says}: {found:?}");
        let has_remedy = found.remedy.is_some();
        // Why a keyspace is not fit says itself what to do.
        assert_eq!(has_remedy, verdict >= Verdict::Caution && check != "keyspace", "{found:?}");
    }
}

fn keyspace(facts: &mut Facts) -> &mut KeyspaceFacts {
    facts.keyspace.as_mut().unwrap()
}

fn set(facts: &mut Facts, nodes: &[usize], name: &str, value: &str) {
    for node in nodes {
        let settings = says_of(facts, *node).settings.as_mut().unwrap();
        settings.insert(name.to_owned(), value.to_owned());
    }
}

fn ahead(ms: i64) -> ClockAhead {
    ClockAhead { least_ms: ms - 1, most_ms: ms + 1 }
}

fn role(facts: &mut Facts, granted: Granted) {
    facts.role = Some(RoleFacts { name: "app".to_owned(), may: Ok(granted) });
}

/// A version that does not know it, or a role that may not read it: said, and never taken for good.
#[test]
fn what_a_node_does_not_tell_is_not_taken_for_good() {
    let found = wrong_after(|facts| {
        for node in 0..3 {
            let says = says_of(facts, node);
            says.settings = Err("keyspace system_views does not exist".into());
            says.most_tombstones = Err("keyspace system_views does not exist".into());
            says.clock = Err("no answer in 5s".into());
        }
        facts.role.as_mut().unwrap().may = Err("not authorized".into());
    });
    let checks: Vec<&str> = found.iter().map(|finding| finding.check).collect();
    assert_eq!(checks, ["paxos", "commit log", "clocks", "tombstones", "permissions"]);
    assert!(found.iter().all(|finding| finding.verdict == Verdict::Note), "{found:#?}");
    assert!(found[0].says.contains("10.0.0.1:9042: keyspace system_views"), "{found:#?}");
}

#[test]
fn of_tables_the_missing_ones_and_those_of_long_tombstones_are_named() {
    let of = |tables| {
        let mut found = examined(facts(), &SerialScope::Cluster, tables);
        found.retain(|finding| finding.verdict != Verdict::Good);
        one(found)
    };
    let some = of(vec![table("leases", Some(300), false), table("tokens", None, false)]);
    assert_eq!((some.check, some.verdict), ("tables", Verdict::Note));
    assert!(some.says.contains("not there: tokens;"), "{some:?}");
    let none = of(vec![table("leases", None, false)]);
    assert_eq!((none.check, none.verdict), ("tables", Verdict::Wrong));
    let long = of(vec![table("leases", Some(864_000), true)]);
    assert_eq!((long.check, long.verdict), ("gc_grace", Verdict::Caution));
    assert!(long.says.contains("leases (864000 s)"), "{long:?}");
}

#[test]
fn with_several_datacenters_it_is_said_where_locks_are_decided() {
    let two = |scope: &SerialScope| {
        let mut facts = facts();
        facts.nodes[2].datacenter = Some("dc2".into());
        keyspace(&mut facts).replicas =
            Replicas::In([("dc1".to_owned(), 3), ("dc2".to_owned(), 3)].into());
        let found = examined(facts, scope, vec![table("leases", Some(300), false)]);
        found.into_iter().find(|finding| finding.check == "datacenters").unwrap()
    };
    assert_eq!(two(&SerialScope::Cluster).verdict, Verdict::Caution);
    let near = two(&SerialScope::Near("dc1".into()));
    assert!(near.says.contains("of all of them, through nodes of dc1"), "{near:?}");
    let within = two(&SerialScope::Datacenter("dc1".into()));
    assert!(within.says.contains("decided in dc1 alone"), "{within:?}");
}

/// Only what the role has all of.
#[test]
fn a_role_is_told_what_it_has_the_permissions_for() {
    let mut facts = facts();
    let on = |table: &str, permissions: &[&str]| {
        let permissions = permissions.iter().map(|one| (*one).to_owned()).collect();
        (format!("table locks.{table}"), permissions)
    };
    let both = ["SELECT", "MODIFY"];
    let granted =
        [on("leases", &both), on("lock_main", &both), on("lock_queue", &["SELECT"])].into();
    role(&mut facts, Granted::Only(granted));
    let found = examined(facts, &SerialScope::Cluster, vec![table("leases", Some(300), false)]);
    let found = found.into_iter().find(|finding| finding.check == "permissions").unwrap();
    assert_eq!(found.says, "role app has what this needs: locks by lease");
}
