//! The checks: facts in, findings out.

use std::collections::{BTreeMap, BTreeSet};

use holdfast_keyspace::driver::{Granted, KeyspaceFacts, NodeFacts, NodeSays, Replicas};

use crate::schema::SHORTENED;

use super::{Case, Finding, SerialScope, Verdict};

/// A difference between clocks that no time service leaves.
const CLOCKS_APART_MS: i64 = 1_000;
/// As many tombstones in one read slow a lock down; Cassandra warns of a thousand by default.
const MANY_TOMBSTONES: i64 = 1_000;

fn good(check: &'static str, says: impl Into<String>) -> Finding {
    Finding { check, verdict: Verdict::Good, says: says.into(), remedy: None }
}

fn note(check: &'static str, says: impl Into<String>) -> Finding {
    Finding { verdict: Verdict::Note, ..good(check, says) }
}

impl Finding {
    fn is(self, verdict: Verdict, remedy: impl Into<String>) -> Self {
        Self { verdict, remedy: Some(remedy.into()), ..self }
    }
}

impl Case<'_> {
    pub(super) fn findings(&self) -> Vec<Finding> {
        let mut findings = vec![self.nodes()];
        findings.extend(self.versions());
        findings.extend(self.clients());
        findings.push(self.keyspace_there());
        if let Some(keyspace) = &self.facts.keyspace {
            findings.extend(self.replicas(keyspace));
            findings.extend(durable_writes(keyspace));
            findings.extend(tablets(keyspace));
            findings.extend(self.tables());
        }
        findings.extend([self.paxos(), self.commit_log(), self.clocks(), self.tombstones()]);
        findings.extend(self.permissions());
        findings
    }

    fn told(&self) -> impl Iterator<Item = (&NodeFacts, &NodeSays)> {
        self.facts.nodes.iter().filter_map(|node| Some((node, node.says.as_ref()?)))
    }

    fn nodes(&self) -> Finding {
        let nodes = &self.facts.nodes;
        let mut each: BTreeMap<&str, usize> = BTreeMap::new();
        for node in nodes {
            *each.entry(node.datacenter.as_deref().unwrap_or("no datacenter")).or_default() += 1;
        }
        let each: Vec<String> =
            each.iter().map(|(name, nodes)| format!("{nodes} in {name}")).collect();
        let down: Vec<&str> = nodes
            .iter()
            .filter(|node| node.says.is_none())
            .map(|node| node.name.as_str())
            .collect();
        let found = good("nodes", format!("{} ({})", many(nodes.len(), "node"), each.join(", ")));
        if down.is_empty() {
            return found;
        }
        let says = format!("{}; no connection to {}", found.says, down.join(", "));
        Finding { says, ..found }.is(
            Verdict::Caution,
            "start them, or let this machine reach them: nothing below speaks of them",
        )
    }

    fn versions(&self) -> Vec<Finding> {
        let by = group(self.told().map(|(node, says)| {
            let what = if says.is_scylla { "ScyllaDB" } else { "Cassandra" };
            let release =
                says.release.as_deref().map_or_else(|why| format!("({why})"), str::to_owned);
            (format!("{what} {release}"), node.name.as_str())
        }));
        let same = by.len() <= 1;
        let says = if same { listed(by.keys()) } else { with_nodes(&by) };
        let mut found = vec![if same {
            good("version", says)
        } else {
            let says = format!("not the same on all nodes: {says}");
            note("version", says)
        }];
        if self.told().any(|(_, says)| says.is_scylla) {
            found.push(good("version", "Holdfast is not tested on ScyllaDB").is(
                Verdict::Caution,
                "try your recipe on a test cluster first, with a node that dies and clocks that differ",
            ));
        }
        found
    }

    /// Who else is there: old clients, too.
    fn clients(&self) -> Vec<Finding> {
        let mut drivers: BTreeMap<&str, usize> = BTreeMap::new();
        for (driver, connections) in
            self.told().filter_map(|(_, says)| says.drivers.as_ref().ok()).flatten()
        {
            *drivers.entry(driver).or_default() += connections;
        }
        let drivers: Vec<String> = drivers
            .iter()
            .map(|(driver, connections)| format!("{driver} ({})", many(*connections, "connection")))
            .collect();
        if drivers.is_empty() {
            return self
                .not_told("clients", |says| says.drivers.as_ref().err())
                .into_iter()
                .collect();
        }
        vec![note("clients", drivers.join(", "))]
    }

    fn keyspace_there(&self) -> Finding {
        let name = self.keyspace.as_str();
        match (&self.facts.unfit, &self.facts.keyspace) {
            // It says itself what to do.
            (Some(why), _) => Finding { verdict: Verdict::Wrong, ..good("keyspace", why.clone()) },
            (None, Some(keyspace)) => good("keyspace", format!("{name}: {}", keyspace.replicas)),
            (None, None) => good("keyspace", format!("nothing is known of {name}"))
                .is(Verdict::Wrong, "let this machine reach a node"),
        }
    }

    fn replicas(&self, keyspace: &KeyspaceFacts) -> Vec<Finding> {
        let of = |place: &str, replicas: usize| match replicas {
            0 | 3.. => None,
            1 => Some(good(
                "replicas",
                format!(
                    "one replica {place}: while its node is down no lock there can be had, and with its disk its locks are gone"
                ),
            )),
            2 => Some(good(
                "replicas",
                format!("two replicas {place}: both have to be up for a lock"),
            )),
        };
        let few: Vec<Finding> = match &keyspace.replicas {
            Replicas::Anywhere(replicas) => of("on any nodes", *replicas).into_iter().collect(),
            Replicas::In(each) if self.decides_everywhere() => {
                let all = each.values().sum();
                of("in all", all).into_iter().collect()
            }
            Replicas::In(each) => {
                let here =
                    each.iter().filter(|(name, _)| self.scope.datacenter() == Some(name.as_str()));
                here.filter_map(|(name, replicas)| of(&format!("in {name}"), *replicas)).collect()
            }
            Replicas::Other(_) => Vec::new(),
        };
        let remedy =
            "three replicas outlive the loss of one node: ALTER KEYSPACE, then nodetool repair";
        let mut found: Vec<Finding> =
            few.into_iter().map(|found| found.is(Verdict::Caution, remedy)).collect();
        found.extend(self.datacenters(keyspace));
        found
    }

    fn decides_everywhere(&self) -> bool {
        !matches!(self.scope, SerialScope::Datacenter(_))
    }

    fn datacenters(&self, keyspace: &KeyspaceFacts) -> Option<Finding> {
        let there: BTreeSet<&str> =
            self.facts.nodes.iter().filter_map(|node| node.datacenter.as_deref()).collect();
        if there.len() < 2 {
            return None;
        }
        let names = there.into_iter().collect::<Vec<_>>().join(", ");
        match (self.scope, &keyspace.replicas) {
            (_, Replicas::Anywhere(_)) => Some(
                good("datacenters", format!("{names}; the replicas are in whichever of them")).is(
                    Verdict::Caution,
                    "ALTER KEYSPACE to NetworkTopologyStrategy, with a number for each datacenter",
                ),
            ),
            (SerialScope::Cluster, _) => Some(
                good("datacenters", format!("{names}; every lock is decided by the replicas of all of them, through any node")).is(
                    Verdict::Caution,
                    "--datacenter NAME asks the nodes near by; with --local-serial it decides there alone, for all clients of a lock",
                ),
            ),
            (SerialScope::Near(name), _) => Some(note(
                "datacenters",
                format!("{names}; every lock is decided by the replicas of all of them, through nodes of {name}"),
            )),
            (SerialScope::Datacenter(name), _) => Some(note(
                "datacenters",
                format!("{names}; locks are decided in {name} alone: clients that name another one are not excluded"),
            )),
        }
    }

    fn tables(&self) -> Vec<Finding> {
        let tables =
            match &self.tables {
                Ok(tables) => tables,
                Err(why) => {
                    return vec![good("tables", why.clone()).is(
                        Verdict::Caution,
                        "GRANT SELECT ON KEYSPACE system_schema to this role",
                    )];
                }
            };
        let missing: Vec<&str> = tables
            .iter()
            .filter(|table| table.kept_s.is_none())
            .map(|table| table.name.as_str())
            .collect();
        let there = tables.len() - missing.len();
        let makes = "holdfast cassandra schema --apply makes what is missing";
        let mut found = Vec::new();
        if there == 0 {
            found.push(
                good("tables", "none of the recipes' tables is there").is(Verdict::Wrong, makes),
            );
        } else if missing.is_empty() {
            found.push(good("tables", format!("all {there} are there")));
        } else {
            let says = format!(
                "{there} are there; not there: {}; a recipe needs its own alone",
                missing.join(", ")
            );
            found.push(note("tables", says));
        }
        if !self.lacking.is_empty() {
            let says = format!("made by an older version, without {}", self.lacking.join(", "));
            found.push(
                good("tables", says)
                    .is(Verdict::Wrong, "holdfast cassandra schema --apply adds these columns"),
            );
        }
        let long: Vec<String> = tables
            .iter()
            .filter(|table| table.keeps_too_long)
            .filter_map(|table| Some(format!("{} ({} s)", table.name, table.kept_s?)))
            .collect();
        if !long.is_empty() {
            let says = format!(
                "keep deleted rows so long that a busy lock will fail: {}",
                long.join(", ")
            );
            found.push(good("gc_grace", says).is(Verdict::Caution, SHORTENED));
        } else if there > 0 {
            found.push(good("gc_grace", "no table keeps deleted rows for too long"));
        }
        found
    }

    /// A finding of what the nodes did not tell, with one of their reasons.
    fn not_told<'a>(
        &'a self,
        check: &'static str,
        why: impl Fn(&'a NodeSays) -> Option<&'a String>,
    ) -> Option<Finding> {
        let (node, why) = self.told().find_map(|(node, says)| Some((node, why(says)?)))?;
        let says = format!("not told by {}: {why}", node.name);
        Some(good(check, says).is(
            Verdict::Note,
            "Cassandra tells it since 4.0, to a role with SELECT ON KEYSPACE system_views; else look at cassandra.yaml of each node",
        ))
    }

    /// The values of a setting with the nodes that have it.
    fn setting(&self, name: &str) -> BTreeMap<String, Vec<&str>> {
        group(self.told().filter_map(|(node, says)| {
            let value = says.settings.as_ref().ok()?.get(name)?;
            Some((value.clone(), node.name.as_str()))
        }))
    }

    fn settings_not_told(&self, check: &'static str) -> Option<Finding> {
        self.not_told(check, |says| says.settings.as_ref().err())
    }

    fn paxos(&self) -> Finding {
        let variants = self.setting("paxos_variant");
        let quicker = "paxos_variant: v2 on every node takes half the round trips; all nodes have to be of 4.1 or later";
        match variants.keys().map(String::as_str).collect::<Vec<_>>().as_slice() {
            [] => self.settings_not_told("paxos").unwrap_or_else(|| {
                note(
                    "paxos",
                    "v1: the nodes know no other; v2 of Cassandra 4.1 takes half the round trips",
                )
            }),
            [one] if one.starts_with("v2") => good("paxos", format!("{one} on every node")),
            [one] => note("paxos", format!("{one} on every node; {quicker}")),
            _ => good("paxos", format!("not the same on all nodes: {}", with_nodes(&variants))).is(
                Verdict::Wrong,
                "set the same paxos_variant on every node, and restart them one by one",
            ),
        }
    }

    /// A log that is synced now and then forgets, after a power failure, what was acknowledged since.
    fn commit_log(&self) -> Finding {
        let kinds = self.setting("commitlog_sync");
        let periods = ["commitlog_sync_period", "commitlog_sync_period_in_ms"];
        let period = periods.into_iter().find_map(|name| self.setting(name).into_keys().next());
        if kinds.is_empty() {
            return self.settings_not_told("commit log").unwrap_or_else(|| {
                note("commit log", "the nodes do not say how it is synced (commitlog_sync)")
            });
        }
        if !kinds.contains_key("periodic") {
            return good(
                "commit log",
                format!("synced before each answer ({})", listed(kinds.keys())),
            );
        }
        let period = period.map_or_else(String::new, |period| format!(", each {period}"));
        let says = format!(
            "synced periodically{period}: a node that loses its power forgets what it acknowledged since, and that is enough for two \
             holders"
        );
        good("commit log", says).is(
            Verdict::Caution,
            "commitlog_sync: group, on every node; or keep a node that lost its power down for TTL and skew",
        )
    }

    fn clocks(&self) -> Finding {
        let known: Vec<_> = self
            .told()
            .filter_map(|(node, says)| Some((node.name.as_str(), says.clock.as_ref().ok()?)))
            .collect();
        let ahead = known.iter().max_by_key(|(_, clock)| clock.least_ms);
        let behind = known.iter().min_by_key(|(_, clock)| clock.most_ms);
        let (Some((leader, fastest)), Some((last, slowest))) = (ahead, behind) else {
            return self
                .not_told("clocks", |says| says.clock.as_ref().err())
                .unwrap_or_else(|| note("clocks", "no node was asked"));
        };
        // Certain, and possible.
        let certain = fastest.least_ms.saturating_sub(slowest.most_ms).max(0);
        let most = known.iter().map(|(_, clock)| clock.most_ms).max().unwrap_or_default()
            - known.iter().map(|(_, clock)| clock.least_ms).min().unwrap_or_default();
        let max_ms = i64::try_from(self.max_skew.as_millis()).unwrap_or(i64::MAX);
        let allowed = format!("; --max-skew is {:?}", self.max_skew);
        if certain <= CLOCKS_APART_MS.min(max_ms) {
            return good(
                "clocks",
                format!("those of the nodes are within {most} ms of each other{allowed}"),
            );
        }
        let found =
            good("clocks", format!("{leader} is {certain} ms ahead of {last}, or more{allowed}"));
        let remedy = "run a time service (chrony, ntpd) on every node; until then a larger --max-skew in all clients of these locks";
        let verdict = if certain > max_ms { Verdict::Wrong } else { Verdict::Caution };
        found.is(verdict, remedy)
    }

    fn tombstones(&self) -> Finding {
        let told = self.told().filter_map(|(node, says)| {
            let (table, most) = says.most_tombstones.as_ref().ok()?.as_ref()?;
            Some((*most, table.as_str(), node.name.as_str()))
        });
        let is_known = self.told().any(|(_, says)| says.most_tombstones.is_ok());
        match told.max() {
            Some((most, table, node)) if most >= MANY_TOMBSTONES => {
                let limit = self.setting("tombstone_failure_threshold").into_keys().next();
                let limit =
                    limit.map_or_else(String::new, |limit| format!("; it fails a read of {limit}"));
                good("tombstones", format!("a read of {table} at {node} walked {most} of them{limit}"))
                    .is(Verdict::Caution, "see gc_grace; a lock that is taken by short processes all the time leaves most")
            }
            Some((most, table, _)) => {
                good("tombstones", format!("{most} at most in a read lately, of {table}"))
            }
            None if is_known => good("tombstones", "none in a read lately"),
            None => self
                .not_told("tombstones", |says| says.most_tombstones.as_ref().err())
                .unwrap_or_else(|| note("tombstones", "no node was asked")),
        }
    }

    fn permissions(&self) -> Vec<Finding> {
        let anybody = self.setting("authorizer").into_keys().any(|one| one.contains("AllowAll"));
        if anybody {
            return vec![note(
                "permissions",
                "every client may change every lock (authorizer: AllowAllAuthorizer); old clients cannot be kept out by \
                 a role of their own",
            )];
        }
        let Some(role) = &self.facts.role else { return Vec::new() };
        let granted = match &role.may {
            Ok(Granted::All) => {
                return vec![good("permissions", format!("role {} is a superuser", role.name)).is(
                    Verdict::Caution,
                    "holdfast cassandra schema --grants prints what a client needs",
                )];
            }
            Ok(granted) => granted,
            Err(why) => {
                return vec![note(
                    "permissions",
                    format!("of role {} are not told: {why}", role.name),
                )];
            }
        };
        let may =
            |table: &String, permission| granted.has(permission, self.keyspace.as_str(), table);
        let can = |need: &&super::Need| {
            need.tables.iter().all(|table| may(table, "SELECT") && may(table, "MODIFY"))
        };
        let able: Vec<&str> = self.needs.iter().filter(can).map(|need| need.does).collect();
        if able.is_empty() {
            return vec![
                good(
                    "permissions",
                    format!("role {} may change the tables of no recipe", role.name),
                )
                .is(
                    Verdict::Wrong,
                    "holdfast cassandra schema --grants prints what a client needs",
                ),
            ];
        }
        vec![good(
            "permissions",
            format!("role {} has what this needs: {}", role.name, able.join("; ")),
        )]
    }
}

fn durable_writes(keyspace: &KeyspaceFacts) -> Option<Finding> {
    match keyspace.durable_writes {
        Ok(true) => None,
        Ok(false) => Some(
            good("durable writes", "off: a node that restarts forgets locks that it acknowledged")
                .is(Verdict::Wrong, "ALTER KEYSPACE … WITH durable_writes = true"),
        ),
        Err(ref why) => Some(note("durable writes", format!("not told: {why}"))),
    }
}

fn tablets(keyspace: &KeyspaceFacts) -> Option<Finding> {
    (keyspace.tablets == Some(true)).then(|| {
        good("tablets", "ScyllaDB keeps this keyspace as tablets, and refuses LWT there up to 2025.3").is(
            Verdict::Wrong,
            "make the keyspace WITH tablets = {'enabled': false}; lease, tokens-lwt, modes and fallback need LWT",
        )
    })
}

fn group<'a>(each: impl Iterator<Item = (String, &'a str)>) -> BTreeMap<String, Vec<&'a str>> {
    let mut by: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for (value, node) in each {
        by.entry(value).or_default().push(node);
    }
    by
}

fn listed<'a>(all: impl Iterator<Item = &'a String>) -> String {
    all.map(String::as_str).collect::<Vec<_>>().join(", ")
}

fn with_nodes(by: &BTreeMap<String, Vec<&str>>) -> String {
    let each = by.iter().map(|(value, nodes)| format!("{value} on {}", nodes.join(", ")));
    each.collect::<Vec<_>>().join("; ")
}

fn many(number: usize, what: &str) -> String {
    if number == 1 { format!("one {what}") } else { format!("{number} {what}s") }
}
