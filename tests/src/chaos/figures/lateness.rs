//! How late the locks of killed clients passed on, against the bound of DESIGN §5.3 (I7).
//!
//! The judge proves that no lock passes on early (I6, I24). Lateness counts from the end of the
//! lease as the dead client knew it: the send time of its last acknowledged keepalive plus its TTL.

use std::collections::BTreeMap;
use std::fmt;

use super::MS;
use crate::chaos::kind::Kind;
use crate::chaos::schedule::{Observed, Span};
use crate::chaos::workload;
use crate::history::{ClientId, Record, What};

/// How much earlier a safe deadline is than send time plus TTL, besides the allowance (DESIGN
/// §5.4).
const SAFETY_MS: u64 = 20;
/// The allowance, in hundredths.
const ALLOWANCE: u64 = 10;
/// The margin of DESIGN §5.2.
const MARGIN_MS: u64 = 50;
/// A commit, a push, and how long a dead client's last messages may have been under way: on a
/// loaded machine of two cores, under faults that make every commit slow.
const GRACE_MS: u64 = 10_000;

/// One lock of one killed client.
#[derive(Clone, Debug)]
pub(super) struct Late {
    name: String,
    client: ClientId,
    by_ms: u64,
    /// What §5.3 allows, without the grace.
    bound_ms: u64,
    /// How long a node ran for a tenth or a hundredth of its time meanwhile. A leader that does
    /// keeps its office: it still beats within its lease, and commits as slowly as it runs.
    slow_ms: u64,
    changes: u64,
    /// No other fault was active meanwhile.
    alone: bool,
}

impl Late {
    pub(super) fn is_too_late(&self) -> bool {
        self.by_ms > self.bound_ms + self.slow_ms + GRACE_MS
    }
}

impl fmt::Display for Late {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, client, by_ms, bound_ms, slow_ms, changes, .. } = self;
        write!(
            f,
            "I7: {name} of {client}, which was killed, passed on {by_ms} ms after its lease; \
             {changes} changes of leader allow {bound_ms} ms, slow nodes {slow_ms} ms"
        )
    }
}

/// The state of a client at one point of the history.
#[derive(Default)]
struct Client {
    safe_until_ns: u64,
    /// Its exclusive holds: by name, the token.
    alone: BTreeMap<String, u64>,
    /// The names that it asked to share, by request.
    shared: BTreeMap<u64, Vec<String>>,
}

/// A lock whose holder was killed.
struct Orphan {
    client: ClientId,
    token: u64,
    lease_end_ns: u64,
}

/// Every lock that a client held alone when it was killed, and that another client was granted
/// later. Only names that no request combines with others: a set may have to wait for another name.
pub(super) fn of_killed_clients(history: &[Record], observed: &Observed) -> Vec<Late> {
    let mut clients: BTreeMap<ClientId, Client> = BTreeMap::new();
    let mut orphans: BTreeMap<String, Vec<Orphan>> = BTreeMap::new();
    let mut late = Vec::new();
    for Record { at_ns, client: id, what } in history {
        let client = clients.entry(*id).or_default();
        if let What::Granted { names, token, .. } = what {
            for name in names {
                let left = orphans.remove(name).unwrap_or_default();
                late.extend(
                    left.iter()
                        .filter(|orphan| orphan.token < *token)
                        .map(|orphan| passed_on(name, orphan, *at_ns, observed)),
                );
            }
        }
        if matches!(what, What::Killed) {
            let left = clients.remove(id).unwrap_or_default();
            let lease_end_ns = lease_end(*id, left.safe_until_ns);
            let alone = left.alone.into_iter();
            for (name, token) in alone.filter(|(name, _)| workload::is_asked_for_alone(name)) {
                orphans.entry(name).or_default().push(Orphan { client: *id, token, lease_end_ns });
            }
        } else {
            client.take_in(what);
        }
    }
    late
}

impl Client {
    fn take_in(&mut self, what: &What) {
        match what {
            What::Safe { until_ns } => self.safe_until_ns = *until_ns,
            What::Acquire { request, items, .. } => {
                let shared = items.iter().filter(|item| item.shared);
                self.shared.insert(*request, shared.map(|item| item.name.clone()).collect());
            }
            What::Granted { request, token, names, .. } => {
                let shared = self.shared.remove(request).unwrap_or_default();
                let alone = names.iter().filter(|name| !shared.contains(name));
                self.alone.extend(alone.map(|name| (name.clone(), *token)));
            }
            What::Release { token, names } => self
                .alone
                .retain(|name, held| held != token || !(names.is_empty() || names.contains(name))),
            What::Lost { token, .. } => self.alone.retain(|_, held| held != token),
            What::Close => self.alone.clear(),
            _ => {}
        }
    }
}

/// The send time of the last keepalive whose answer was recorded, plus the TTL.
fn lease_end(client: ClientId, safe_until_ns: u64) -> u64 {
    let ttl_ms = u64::try_from(workload::ttl(client).as_millis()).unwrap_or(u64::MAX);
    safe_until_ns + (ttl_ms * ALLOWANCE / 100 + SAFETY_MS) * MS
}

fn passed_on(name: &str, orphan: &Orphan, at_ns: u64, observed: &Observed) -> Late {
    let ttl_ms = u64::try_from(workload::ttl(orphan.client).as_millis()).unwrap_or(u64::MAX);
    let began_ns = orphan.lease_end_ns.saturating_sub(ttl_ms * MS);
    let within = |at: u64| (began_ns..=at_ns).contains(&at);
    let changes = observed.tenures.iter().filter(|tenure| within(tenure.from_ns)).count() as u64;
    let overlap = |&(from, until): &(u64, u64)| until.min(at_ns).saturating_sub(from.max(began_ns));
    let leaderless_ns: u64 = observed.leaderless.iter().map(overlap).sum();
    let broken = |fault: &Span| {
        fault.kind != Kind::KillClient && fault.from_ns < at_ns && fault.until_ns > began_ns
    };
    let slow = observed.faults.iter().filter(|fault| fault.kind == Kind::SlowNode);
    let slow_ns: u64 = slow.map(|fault| overlap(&(fault.from_ns, fault.until_ns))).sum();
    Late {
        name: name.to_owned(),
        client: orphan.client,
        by_ms: at_ns.saturating_sub(orphan.lease_end_ns) / MS,
        bound_ms: MARGIN_MS + (ttl_ms + MARGIN_MS) * changes + leaderless_ns / MS,
        slow_ms: slow_ns / MS,
        changes,
        alone: !observed.faults.iter().any(broken),
    }
}

/// The line of the table.
pub(super) fn told(late: &[Late]) -> String {
    let most = |late: &mut dyn Iterator<Item = &Late>| late.max_by_key(|late| late.by_ms).cloned();
    let alone: Vec<&Late> = late.iter().filter(|late| late.alone).collect();
    let quiet = most(&mut alone.iter().copied()).map_or("not measured".into(), |late| {
        format!("max {} ms over {} locks with nothing else broken", late.by_ms, alone.len())
    });
    let all = most(&mut late.iter()).map_or(String::new(), |late| {
        format!("; else max {} ms, where §5.3 allows {} ms and a commit", late.by_ms, late.bound_ms)
    });
    quiet + &all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chaos::pulse::Tenure;
    use crate::history::Asked;

    fn record(at_ms: u64, client: u64, what: What) -> Record {
        Record { at_ns: at_ms * MS, client: ClientId(client), what }
    }

    fn asks(request: u64) -> What {
        let items = vec![Asked::exclusive("slow/1")];
        What::Acquire { request, items, any: None, wait: true, within_ms: None }
    }

    fn granted(request: u64, token: u64) -> What {
        What::Granted { request, token, names: vec!["slow/1".into()], values: Vec::new() }
    }

    /// Client 41 is a holder: its lease is 2 s, its safe deadline 220 ms before the end of it.
    #[test]
    fn a_lock_is_late_from_the_end_of_its_dead_holders_lease() {
        let history = [
            record(0, 41, asks(1)),
            record(1, 41, granted(1, 5)),
            record(2, 41, What::Safe { until_ns: 1_780 * MS }),
            record(100, 41, What::Killed),
            record(200, 50, asks(1)),
            record(2_090, 50, granted(1, 6)),
        ];
        let tenure = Tenure { node: 0, term: 2, from_ns: 1_500 * MS };
        let observed = Observed {
            tenures: vec![tenure],
            leaderless: vec![(1_000 * MS, 1_500 * MS)],
            ..Observed::default()
        };

        let late = of_killed_clients(&history, &observed);

        assert_eq!(late.len(), 1);
        assert_eq!((late[0].by_ms, late[0].changes), (90, 1));
        assert_eq!(late[0].bound_ms, 50 + 2_050 + 500);
    }

    /// The leader of chaos seed 589762873 ran for a tenth of its time and passed a lock on 15 s late.
    #[test]
    fn a_lock_may_be_as_late_as_a_node_was_slow() {
        let history = [
            record(0, 41, asks(1)),
            record(1, 41, granted(1, 5)),
            record(2, 41, What::Safe { until_ns: 1_780 * MS }),
            record(100, 41, What::Killed),
            record(200, 50, asks(1)),
            record(17_000, 50, granted(1, 6)),
        ];
        let span = |kind| Span { kind, from_ns: 1_000 * MS, until_ns: 16_000 * MS };
        let late = |kind| {
            let observed = Observed { faults: vec![span(kind)], ..Observed::default() };
            of_killed_clients(&history, &observed).remove(0)
        };

        assert!(late(Kind::SlowDisk).is_too_late());
        assert!(!late(Kind::SlowNode).is_too_late());
        assert_eq!(late(Kind::SlowNode).slow_ms, 15_000);
    }

    #[test]
    fn what_was_given_back_before_the_kill_is_not_late() {
        let history = [
            record(0, 41, asks(1)),
            record(1, 41, granted(1, 5)),
            record(2, 41, What::Release { token: 5, names: Vec::new() }),
            record(100, 41, What::Killed),
            record(200, 50, asks(1)),
            record(9_000, 50, granted(1, 6)),
        ];

        assert!(of_killed_clients(&history, &Observed::default()).is_empty());
    }
}
