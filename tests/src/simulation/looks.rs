//! Checks made all the time during a run, because no record shows the violation: nodes that end by themselves or do not end, and sessions
//! that outlive their clients.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use holdfast_core::SessionId;
use holdfast_runtime::Instant;
use holdfast_server::consensus::Consensus as _;

use super::limits::DISK_STALL;
use super::stage::{Stage, lock};
use crate::sim::{Ended, Host};

/// How much later than its limit and a quarter of it a node may find that its disk hangs: its clock may be slow, and it looks ten times
/// within the limit.
const STALL_FOUND_WITHIN: Duration = Duration::from_secs(1);
/// How long a session may outlive its lease, beyond the TTL by which resumes put its end off: time for the expiry, which has to be
/// committed, and for messages under way.
const EXPIRED_WITHIN: Duration = Duration::from_secs(3);
/// The error of a node that ends because it lacks descriptors.
const NO_DESCRIPTOR: &str = "Too many open files";
/// A leader that a quorum answered this recently has a quorum.
const QUORUM_WITHIN_MS: u64 = 1_000;
/// A client that resumes without end and takes nothing fails again within this time, as long as its leader has a quorum for each resume.
/// Where answers of the members take a second, the leader has none for most, and its lease clock stands still, although some answer is
/// always younger than [`QUORUM_WITHIN_MS`] (seeds 1000002018, 1000002345).
const FAILS_AGAIN_WITHIN: Duration = Duration::from_millis(1_500);

/// The state of the checks.
#[derive(Default)]
pub(super) struct Looks {
    /// Ends that were already reported as wrong.
    told_ends: BTreeSet<(u64, String)>,
    /// Nodes that ended while a fault explained it, and why they did. The fault may be over while another one keeps the node down.
    explained_ends: BTreeMap<u64, String>,
    /// Nodes whose disk went on after a hang: when it did, or when a look last found the node paused since.
    freed: BTreeMap<u64, Instant>,
    /// Nodes whose disk finishes nothing, and since when they run with such a disk.
    hung: BTreeMap<u64, Instant>,
    /// Clients whose decoder fails on long messages.
    deaf: BTreeMap<u64, Deaf>,
}

/// A client whose decoder fails on long messages.
struct Deaf {
    /// The number of messages that it had failed on before.
    failed_before: u64,
    /// The number of messages that it has failed on by now, and when it failed last.
    failed: (u64, Instant),
    /// Since when nothing else can keep its session, and the leader since then.
    calm: Option<(Instant, Leader)>,
}

/// A node and the term that it leads.
type Leader = (u64, u64);

impl Stage<'_> {
    /// Makes every check once.
    pub(super) fn look_for_others(&self) {
        self.look_for_ends();
        self.look_for_hung_disks();
        self.look_for_deaf_clients();
    }

    /// No node ends by itself without a fault that explains it. A fault that explains ends asks this once more before it is over, because
    /// a node may have ended since the last look.
    pub(super) fn look_for_ends(&self) {
        self.look_for_freed_disks();
        for id in self.world.nodes().into_iter().filter(|id| !self.has_left(*id)) {
            let why = match self.world.ended(id) {
                Some(Ended::Fault(fault)) if !self.may_end_with(id, &fault) => fault.to_string(),
                Some(Ended::Storage(why)) => why,
                _ => continue,
            };
            if self.is_explained(id, &why) {
                lock(&self.looks).explained_ends.insert(id, why);
                continue;
            }
            if lock(&self.looks).told_ends.insert((id, why.clone())) {
                self.wrong(format!("I16: node {id} ended by itself: {why}"));
            }
        }
    }

    /// Whether a fault explains that the node ended so: one that goes on, or one that did when the node was found to have ended.
    fn is_explained(&self, id: u64, why: &str) -> bool {
        let hangs = self.world.disk(id).hangs() || self.was_just_freed(id);
        if hangs && why.contains(DISK_STALL) {
            self.world.network().reached(DISK_STALL);
        }
        let was_explained =
            lock(&self.looks).explained_ends.get(&id).is_some_and(|before| before == why);
        let is_storage = matches!(self.world.ended(id), Some(Ended::Storage(_)));
        was_explained
            || self.lacks_files(id, why)
            || is_storage && (hangs || lock(&self.starved).contains(&id))
    }

    /// The disk goes on after a hang. What was under way still takes its time, and a node that is paused cannot learn of it: the last look of
    /// its watchdog may come first, and finds the operation not finished (seeds 9700010655, 9700013829).
    pub(super) fn goes_on_after_a_hang(&self, id: u64) {
        lock(&self.looks).freed.insert(id, self.runtime.clock.now());
    }

    fn look_for_freed_disks(&self) {
        let now = self.runtime.clock.now();
        for (id, last) in &mut lock(&self.looks).freed {
            if self.world.is_paused(*id) {
                *last = now;
            }
        }
    }

    fn was_just_freed(&self, id: u64) -> bool {
        let freed = lock(&self.looks).freed.get(&id).copied();
        let now = self.runtime.clock.now();
        freed.is_some_and(|last| now.saturating_since(last) <= STALL_FOUND_WITHIN)
    }

    /// Whether the node ended for want of a descriptor, while a fault leaves it none: after a minute of waiting for one
    /// (`server/replication/src/storage/files.rs`), or because it was just starting.
    pub(super) fn lacks_files(&self, id: u64, why: &str) -> bool {
        lock(&self.closed).contains(&id) && why.contains(NO_DESCRIPTOR)
    }

    /// The node starts: an end of it from now on needs a fault of its own.
    pub(super) fn begins_anew(&self, id: u64) {
        let mut looks = lock(&self.looks);
        looks.explained_ends.remove(&id);
        looks.freed.remove(&id);
    }

    /// A node whose disk finishes nothing for longer than `disk_stall_ms` ends, so that the others can go on (I31). Only time in which it
    /// runs counts.
    fn look_for_hung_disks(&self) {
        let Some(limit_ms) = self.plan.limits.get(DISK_STALL).copied() else { return };
        let within = Duration::from_millis(limit_ms) * 5 / 4 + STALL_FOUND_WITHIN;
        let now = self.runtime.clock.now();
        let mut looks = lock(&self.looks);
        let mut found = None;
        for id in self.world.nodes() {
            let runs = self.world.is_running(id) && !self.world.is_paused(id);
            let Some(since) = self.world.disk(id).held_up_since().filter(|_| runs) else {
                looks.hung.remove(&id);
                continue;
            };
            let both = *looks.hung.entry(id).or_insert(now);
            let hung = now.saturating_since(both.max(since));
            if hung > within {
                found = Some((id, hung));
                looks.hung.remove(&id);
            }
        }
        drop(looks);
        if let Some((id, hung)) = found {
            self.wrong(format!("I31: node {id} goes on although its disk has hung for {hung:?}"));
        }
    }

    /// The decoder of client `number` fails on long messages from now on.
    pub(super) fn begins_to_fail(&self, number: u64) {
        let failed_before = self.world.network().too_long_for(Host::Client(number));
        let failed = (failed_before, self.runtime.clock.now());
        lock(&self.looks).deaf.insert(number, Deaf { failed_before, failed, calm: None });
    }

    /// The client takes every message again.
    pub(super) fn fails_no_longer(&self, number: u64) {
        lock(&self.looks).deaf.remove(&number);
    }

    /// A session whose client does not take its State ends with its lease, however often the client resumes it (I31). The time counts from
    /// the last keepalive that left the client, and from the beginning of a calm; a resume under way puts the end off by a TTL.
    fn look_for_deaf_clients(&self) {
        let numbers: Vec<u64> = lock(&self.looks).deaf.keys().copied().collect();
        for number in numbers {
            let failed = self.world.network().too_long_for(Host::Client(number));
            let now = self.runtime.clock.now();
            let mut looks = lock(&self.looks);
            let Some(deaf) = looks.deaf.get_mut(&number) else { continue };
            if deaf.failed.0 != failed {
                deaf.failed = (failed, now);
            }
            let resumes = now.saturating_since(deaf.failed.1) <= FAILS_AGAIN_WITHIN;
            let leader = self.calm_leader(number).filter(|_| resumes);
            let since = match (deaf.calm, leader) {
                (Some((since, before)), Some(leader)) if before == leader => since,
                _ => now,
            };
            deaf.calm = leader.map(|leader| (since, leader));
            let has_failed = failed > deaf.failed_before;
            drop(looks);
            let Some((leader, _)) = leader.filter(|_| has_failed) else { continue };
            self.look_for_deaf(number, leader, since, now);
        }
    }

    fn look_for_deaf(&self, number: u64, leader: u64, since: Instant, now: Instant) {
        let Some(right) = self.world.last_right(number) else { return };
        let Some(signed) = self.world.last_sign_of(number) else { return };
        let place = usize::try_from(number).unwrap_or(0) % self.plan.clients.len();
        let ttl = Duration::from_millis(self.plan.clients[place].ttl_ms);
        // Twice the lease, on a clock that is slow by a tenth at most.
        let within = ttl * 22 / 10 + EXPIRED_WITHIN;
        let lasted = now.saturating_since(since.max(signed).max(right.at));
        if lasted <= within {
            return;
        }
        let mut is_open = false;
        if let Some(replica) = self.world.replica(leader) {
            replica.read(&mut |table, _| {
                is_open = table.session(SessionId::new(right.session)).is_some();
            });
        }
        if is_open {
            self.fails_no_longer(number);
            self.wrong(format!(
                "I31: session {} of client {number} is open {lasted:?} after anything that could \
                 renew its lease of {ttl:?}: the client does not take its State",
                right.session
            ));
        }
    }

    /// The leader, if nothing but its client can keep a session just now: a quorum answers, more than half of the disks work, the leader's
    /// among them, and nothing holds up what the client sent before.
    fn calm_leader(&self, client: u64) -> Option<Leader> {
        let network = self.world.network();
        let is_quick = network.usual().bytes_per_second.is_none();
        let calm = is_quick && !network.is_disturbed(Host::Client(client));
        let leader = self.world.leader().filter(|_| calm)?;
        let works = |id: &u64| !self.world.is_paused(*id) && self.world.disk(*id).is_well();
        let working = self.world.running().iter().filter(|id| works(id)).count();
        if !works(&leader) || working * 2 <= self.world.nodes().len() {
            return None;
        }
        let replica = self.world.replica(leader)?;
        let tenure = replica.role().borrow().tenure()?;
        let quorum = replica.status().millis_since_quorum?;
        (quorum <= QUORUM_WITHIN_MS).then_some((leader, tenure.get()))
    }
}
