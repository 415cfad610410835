//! The counts of simulated runs: added up, and compared with what a long run has to reach.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use super::fault::Kind;
use super::limits::{self, ONE_RUN_IN};

/// What one run counted, or many together.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// Simulated runs.
    pub runs: u64,
    /// True time after the first leader, milliseconds.
    pub simulated_ms: u64,
    /// Times that another node began to lead, or the same in another term.
    pub leaders: u64,
    /// Requests granted.
    pub grants: u64,
    /// Requests that were acknowledged as waiting first.
    pub waits: u64,
    /// Requests of unknown outcome.
    pub unknown: u64,
    /// Writes that resources behind fencing tokens accepted.
    pub writes: u64,
    /// Writes that such resources refused: under an older token than one they had seen.
    pub refused_writes: u64,
    /// Reports of watches: locks and changes.
    pub watch_news: u64,
    /// Times that a watch broke and sent the state anew.
    pub watches_begun_anew: u64,
    /// Sessions that a leader expired.
    pub expiries: u64,
    /// Times that a node restarted without something that it had written and not synced.
    pub lost_writes: u64,
    /// Snapshots that a leader sent and a follower took.
    pub snapshots: u64,
    /// Nodes that were killed while they wrote a snapshot.
    pub torn_snapshots: u64,
    /// Changes of members that were committed.
    pub member_changes: u64,
    /// Damaged stores that refused to open.
    pub refused_stores: u64,
    /// Times that the schedule of a regression run happened.
    pub scheduled: u64,
    /// Runs with scopes that fall back on Cassandra.
    #[serde(default)]
    pub scoped_runs: u64,
    /// Grants in such scopes by the native store.
    #[serde(default)]
    pub scope_grants: u64,
    /// Grants in such scopes in Cassandra.
    #[serde(default)]
    pub fallback_grants: u64,
    /// Epochs of such scopes in which a lock was granted.
    #[serde(default)]
    pub scope_epochs: u64,
    /// Runs with a scope that moves through all modes.
    #[serde(default)]
    pub moving_runs: u64,
    /// Moves of such scopes.
    #[serde(default)]
    pub scope_moves: u64,
    /// Of these, the moves to a stage at which processes are native.
    #[serde(default)]
    pub moves_to_store: u64,
    /// Changes of a process' mode in them.
    #[serde(default)]
    pub mode_changes: u64,
    /// Grants in them to processes with modes.
    #[serde(default)]
    pub moving_grants: u64,
    /// Of these, the elections that were won.
    #[serde(default)]
    pub moving_leaders: u64,
    /// Of these, the batches that had the lock among theirs.
    #[serde(default)]
    pub moving_bunches: u64,
    /// Moves of their sequences from one store to the other.
    #[serde(default)]
    pub sequence_moves: u64,
    /// Grants in them to old clients.
    #[serde(default)]
    pub old_grants: u64,
    /// Items of work that were enqueued, times that a worker had one, and of these the times that a
    /// worker had had it before.
    #[serde(default)]
    pub work_items: u64,
    #[serde(default)]
    #[expect(missing_docs, reason = "the one before says it")]
    pub work_had: u64,
    #[serde(default)]
    #[expect(missing_docs, reason = "the one before says it")]
    pub work_again: u64,
    /// Runs that began with a large table.
    #[serde(default)]
    pub large_tables: u64,
    /// Runs after which all nodes were lost and another cluster was restored.
    #[serde(default)]
    pub disasters: u64,
    /// Answers with numbers of a sequence.
    #[serde(default)]
    pub numbers: u64,
    /// Holds that the store ended because they had lasted their longest.
    #[serde(default)]
    pub too_long: u64,
    /// Looks that showed a closed lock, or a frozen one.
    #[serde(default)]
    pub looks_shut: u64,
    /// Safe holds of permits under a limit that an operator had set.
    #[serde(default)]
    pub under_kept_limits: u64,
    /// Runs in which a limit of size was reached, by its name.
    #[serde(default)]
    pub limits: BTreeMap<String, u64>,
    /// Injected faults, by kind; one that found no target does not count.
    pub faults: BTreeMap<Kind, u64>,
}

impl Counts {
    /// The least counts behind the figures of `docs/reliability.md`.
    pub fn of_the_long_run() -> Self {
        Self {
            runs: 20_000,
            simulated_ms: 300 * 3_600_000,
            leaders: 40_000,
            expiries: 40_000,
            lost_writes: 20_000,
            member_changes: 5_000,
            scoped_runs: 6_000,
            scope_grants: 200_000,
            fallback_grants: 20_000,
            scope_epochs: 20_000,
            moving_runs: 3_000,
            scope_moves: 15_000,
            moves_to_store: 6_000,
            mode_changes: 40_000,
            moving_grants: 60_000,
            old_grants: 10_000,
            work_items: 30_000,
            work_again: 3_000,
            large_tables: 20,
            disasters: 800,
            numbers: 500_000,
            too_long: 20_000,
            looks_shut: 1_500,
            under_kept_limits: 50_000,
            limits: limits::names().map(|name| (name.to_owned(), 20_000 / ONE_RUN_IN)).collect(),
            faults: Kind::every().map(|kind| (kind, 1_000)).collect(),
            ..Self::default()
        }
    }

    /// The same without what only runs with limits on the totals of a node can reach.
    #[must_use]
    pub fn without_node_totals(mut self) -> Self {
        self.limits.retain(|name, _| !limits::is_added_last(name));
        self
    }

    /// Adds the counts of another run, or of others.
    pub fn add(&mut self, other: &Self) {
        self.runs += other.runs;
        self.simulated_ms += other.simulated_ms;
        self.leaders += other.leaders;
        self.grants += other.grants;
        self.waits += other.waits;
        self.unknown += other.unknown;
        self.writes += other.writes;
        self.refused_writes += other.refused_writes;
        self.watch_news += other.watch_news;
        self.watches_begun_anew += other.watches_begun_anew;
        self.expiries += other.expiries;
        self.lost_writes += other.lost_writes;
        self.snapshots += other.snapshots;
        self.torn_snapshots += other.torn_snapshots;
        self.member_changes += other.member_changes;
        self.refused_stores += other.refused_stores;
        self.scheduled += other.scheduled;
        self.scoped_runs += other.scoped_runs;
        self.scope_grants += other.scope_grants;
        self.fallback_grants += other.fallback_grants;
        self.scope_epochs += other.scope_epochs;
        self.moving_runs += other.moving_runs;
        self.scope_moves += other.scope_moves;
        self.moves_to_store += other.moves_to_store;
        self.mode_changes += other.mode_changes;
        self.moving_grants += other.moving_grants;
        self.moving_leaders += other.moving_leaders;
        self.moving_bunches += other.moving_bunches;
        self.sequence_moves += other.sequence_moves;
        self.old_grants += other.old_grants;
        self.work_items += other.work_items;
        self.work_had += other.work_had;
        self.work_again += other.work_again;
        self.large_tables += other.large_tables;
        self.disasters += other.disasters;
        self.numbers += other.numbers;
        self.too_long += other.too_long;
        self.looks_shut += other.looks_shut;
        self.under_kept_limits += other.under_kept_limits;
        for (name, count) in &other.limits {
            *self.limits.entry(name.clone()).or_default() += count;
        }
        for (kind, count) in &other.faults {
            *self.faults.entry(*kind).or_default() += count;
        }
    }

    /// Counts one more fault of this kind.
    pub fn struck(&mut self, kind: Kind) {
        *self.faults.entry(kind).or_default() += 1;
    }

    /// What is missing to reach `least`, a line each.
    pub fn short_of(&self, least: &Self) -> Vec<String> {
        let wanted = least.rows().into_iter().zip(self.rows());
        let mut missing: Vec<String> = wanted
            .filter(|((_, least), (_, seen))| seen < least)
            .map(|((name, least), (_, seen))| format!("{name}: {seen} of {least}"))
            .collect();
        for (name, least) in &least.limits {
            let seen = self.limits.get(name).copied().unwrap_or(0);
            if seen < *least {
                missing.push(format!("limit {name}: {seen} of {least}"));
            }
        }
        for (kind, least) in &least.faults {
            let seen = self.faults.get(kind).copied().unwrap_or(0);
            if seen < *least {
                missing.push(format!("fault {kind}: {seen} of {least}"));
            }
        }
        missing
    }

    fn rows(&self) -> [(&'static str, u64); 39] {
        [
            ("runs", self.runs),
            ("simulated seconds", self.simulated_ms / 1_000),
            ("changes of leader", self.leaders),
            ("grants", self.grants),
            ("waits", self.waits),
            ("unknown outcomes", self.unknown),
            ("fenced writes taken", self.writes),
            ("fenced writes refused", self.refused_writes),
            ("news to watchers", self.watch_news),
            ("watches begun anew", self.watches_begun_anew),
            ("expiries", self.expiries),
            ("restarts with lost writes", self.lost_writes),
            ("snapshots installed", self.snapshots),
            ("snapshots cut short", self.torn_snapshots),
            ("membership changes", self.member_changes),
            ("stores refused", self.refused_stores),
            ("schedules happened", self.scheduled),
            ("runs with scopes", self.scoped_runs),
            ("grants in scopes", self.scope_grants),
            ("grants in Cassandra", self.fallback_grants),
            ("epochs of scopes", self.scope_epochs),
            ("runs with a moving scope", self.moving_runs),
            ("moves of scopes", self.scope_moves),
            ("moves to the store", self.moves_to_store),
            ("changes of mode", self.mode_changes),
            ("grants in moving scopes", self.moving_grants),
            ("elections in moving scopes", self.moving_leaders),
            ("batches in moving scopes", self.moving_bunches),
            ("moves of sequences", self.sequence_moves),
            ("grants to old clients", self.old_grants),
            ("items of work", self.work_items),
            ("items had", self.work_had),
            ("items had again", self.work_again),
            ("large tables", self.large_tables),
            ("clusters restored", self.disasters),
            ("numbers of sequences", self.numbers),
            ("holds that lasted too long", self.too_long),
            ("looks at shut locks", self.looks_shut),
            ("holds under kept limits", self.under_kept_limits),
        ]
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, count) in self.rows() {
            writeln!(f, "{name:<28}{count:>12}")?;
        }
        for (name, count) in &self.limits {
            writeln!(f, "{:<34}{count:>6} runs", format!("limit {name}"))?;
        }
        for (kind, count) in &self.faults {
            writeln!(f, "{:<28}{count:>12}", format!("fault {kind}"))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_that_saw_too_little_says_of_what() {
        let mut seen = Counts::of_the_long_run();
        assert_eq!(seen.short_of(&Counts::of_the_long_run()), Vec::<String>::new());

        seen.expiries -= 1;
        seen.faults.remove(&Kind::Wipe);
        seen.limits.remove("max_watches");

        let missing = seen.short_of(&Counts::of_the_long_run());
        assert_eq!(
            missing,
            ["expiries: 39999 of 40000", "limit max_watches: 0 of 200", "fault wipe: 0 of 1000"]
        );
    }
}
