//! Log lines about the cluster: who leads, what the first start waits for, that a member does not answer, and
//! that this node does not serve.
//!
//! A fault that lasts has a line when it begins, one a minute with how long it has lasted, and one when it is over: a
//! dead member is no reason to fill a disk with lines. The lines of the consensus library about the same faults, ten a
//! second, are left out ([`telemetry`](crate::telemetry)).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use holdfast_replication::members::{MemberStatus, Members};
use holdfast_runtime::{Instant, Runtime};

use super::view::Condition;
use crate::consensus::{Consensus, Role};
use crate::raft::{Forming, Replica};

/// Time between two looks at the members.
const EVERY: Duration = Duration::from_secs(1);
/// A fault that is over before has no line: an election is no fault.
const AFTER: Duration = Duration::from_secs(2);
/// Time between two lines about a fault that lasts.
const AGAIN_EVERY: Duration = Duration::from_mins(1);

/// Logs each change of what the first start waits for, and later each change of the leader. Runs until
/// the replica is gone.
pub(super) async fn changes(replica: Arc<Replica>) {
    let mut role = replica.role();
    let mut forming = replica.forming();
    let mut leader_was_known = false;
    loop {
        let open = holdfast_runtime::select! {
            changed = forming.changed() => changed.is_ok(),
            changed = role.changed() => changed.is_ok(),
        };
        if !open {
            return;
        }
        if let Forming::Waiting { reason } = &*forming.borrow_and_update() {
            tracing::info!("forming the cluster: {reason}");
            continue;
        }
        let role = role.borrow_and_update();
        let leader_is_known = !matches!(*role, Role::Following { leader: None });
        // At the start there is never a leader: not worth a line.
        if leader_is_known || leader_was_known {
            tell(&replica, &role);
        }
        leader_was_known = leader_is_known;
    }
}

fn tell(replica: &Replica, role: &Role) {
    let cluster = replica.status().cluster.map(|id| id.to_string()).unwrap_or_default();
    match role {
        Role::Leading { tenure } => tracing::info!(cluster, term = tenure.get(), "this node leads"),
        Role::Following { leader: Some(leader) } => tracing::info!(
            cluster,
            "node {} leads; clients are sent to {}",
            leader.node_id,
            leader.advertise
        ),
        Role::Following { leader: None } => tracing::info!(cluster, "no leader is known"),
    }
}

/// Logs faults that last, until the task is dropped.
pub(super) async fn faults(replica: Arc<Replica>, condition: Arc<Condition>, runtime: Runtime) {
    let mut faults = Faults::default();
    loop {
        runtime.sleep(EVERY).await;
        // What the first start waits for has lines of its own.
        if matches!(*replica.forming().borrow(), Forming::Waiting { .. }) {
            continue;
        }
        let readiness = condition.readiness();
        let not_ready = (!readiness.ready).then_some(readiness.why.as_str());
        let members = replica.members().map(|known| known.members).unwrap_or_default();
        for line in faults.look(runtime.clock.now(), not_ready, &members) {
            match line {
                Line::Fault(text) => tracing::warn!("{text}"),
                Line::Over(text) => tracing::info!("{text}"),
            }
        }
    }
}

/// A line that is due.
#[derive(Debug, PartialEq, Eq)]
enum Line {
    Fault(String),
    Over(String),
}

/// The faults there are.
#[derive(Debug, Default)]
struct Faults {
    /// This node does not serve.
    own: Lasting,
    /// Of members that do not answer this leader.
    members: BTreeMap<u64, Lasting>,
}

impl Faults {
    /// `not_ready`: why this node does not serve. `members`: those this node knows if it leads, else none.
    fn look(
        &mut self,
        now: Instant,
        not_ready: Option<&str>,
        members: &[MemberStatus],
    ) -> Vec<Line> {
        let mut lines = Vec::new();
        match self.own.look(not_ready.is_some(), now) {
            Some(Due::Begins) => {
                let why = not_ready.unwrap_or_default();
                lines.push(Line::Fault(format!("this node does not serve: {why}")));
            }
            Some(Due::Lasts(time)) => {
                let (why, time) = (not_ready.unwrap_or_default(), time.as_secs());
                lines.push(Line::Fault(format!("this node has not served for {time} s: {why}")));
            }
            Some(Due::Over(time)) => {
                let time = time.as_secs();
                lines.push(Line::Over(format!("this node serves again, after {time} s")));
            }
            None => {}
        }
        // A node that does not lead does not know who answers.
        self.members.retain(|id, _| members.iter().any(|status| status.member.node_id == *id));
        lines.extend(members.iter().filter_map(|status| self.look_at(now, status)));
        lines
    }

    fn look_at(&mut self, now: Instant, status: &MemberStatus) -> Option<Line> {
        let member = &status.member;
        let who = format!("node {} at {}", member.node_id, member.peer_advertise);
        let fault = self.members.entry(member.node_id).or_default();
        Some(match fault.look(!status.answers, now)? {
            Due::Begins => Line::Fault(format!("{who} does not answer this leader")),
            Due::Lasts(time) => {
                Line::Fault(format!("{who} has not answered this leader for {} s", time.as_secs()))
            }
            Due::Over(time) => {
                Line::Over(format!("{who} answers again, after {} s", time.as_secs()))
            }
        })
    }
}

/// A fault, from when it was first seen.
#[derive(Debug, Default)]
struct Lasting {
    since: Option<Instant>,
    /// When its last line was due.
    told: Option<Instant>,
}

#[derive(Debug, PartialEq, Eq)]
enum Due {
    Begins,
    Lasts(Duration),
    Over(Duration),
}

impl Lasting {
    fn look(&mut self, is_there: bool, now: Instant) -> Option<Due> {
        if !is_there {
            let Self { since, told } = std::mem::take(self);
            return told.and(since).map(|since| Due::Over(now.saturating_since(since)));
        }
        let lasts = now.saturating_since(*self.since.get_or_insert(now));
        match self.told {
            None if lasts >= AFTER => {
                self.told = Some(now);
                Some(Due::Begins)
            }
            Some(told) if now.saturating_since(told) >= AGAIN_EVERY => {
                self.told = Some(now);
                Some(Due::Lasts(lasts))
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use holdfast_replication::members::Member;

    use super::*;

    fn at(seconds: u64) -> Instant {
        Instant::from_origin(Duration::from_secs(seconds))
    }

    fn member(node_id: u64, answers: bool) -> MemberStatus {
        let (advertise, peer_advertise) = ("a:7420".into(), format!("n{node_id}:7421"));
        MemberStatus {
            member: Member { node_id, advertise, peer_advertise },
            votes: true,
            silent_ms: None,
            answers,
            last_log: None,
            lag: 0,
            applied: None,
            snapshot: None,
            version: None,
        }
    }

    /// The lines of looks a second apart, with the second of each.
    fn lines(
        looks: impl IntoIterator<Item = (u64, Option<&'static str>, Vec<MemberStatus>)>,
    ) -> Vec<String> {
        let mut faults = Faults::default();
        let mut all = Vec::new();
        for (second, not_ready, members) in looks {
            for line in faults.look(at(second), not_ready, &members) {
                all.push(match line {
                    Line::Fault(text) => format!("{second} WARN {text}"),
                    Line::Over(text) => format!("{second} INFO {text}"),
                });
            }
        }
        all
    }

    #[test]
    fn a_dead_member_has_a_line_at_once_one_a_minute_and_one_at_the_end() {
        let looks = (0..200).map(|second| {
            (second, None, vec![member(1, true), member(3, !(10..150).contains(&second))])
        });

        let said = [
            "12 WARN node 3 at n3:7421 does not answer this leader",
            "72 WARN node 3 at n3:7421 has not answered this leader for 62 s",
            "132 WARN node 3 at n3:7421 has not answered this leader for 122 s",
            "150 INFO node 3 at n3:7421 answers again, after 140 s",
        ];
        assert_eq!(lines(looks), said);
    }

    #[test]
    fn a_node_that_does_not_serve_says_so_and_why() {
        let why = |second: u64| (5..70).contains(&second).then_some("no leader is heard in term 4");
        let looks = (0..80).map(|second| (second, why(second), Vec::new()));

        let said = [
            "7 WARN this node does not serve: no leader is heard in term 4",
            "67 WARN this node has not served for 62 s: no leader is heard in term 4",
            "70 INFO this node serves again, after 65 s",
        ];
        assert_eq!(lines(looks), said);
    }

    /// An election, a member that pauses, and a leader that leads no more.
    #[test]
    fn what_is_over_quickly_or_cannot_be_known_any_more_has_no_line() {
        let election =
            (0..20).map(|second| (second, (second % 4 < 2).then_some("election"), Vec::new()));
        assert_eq!(lines(election), [""; 0]);

        let dead = |second: u64| (second, None, vec![member(3, false)]);
        let follows = |second: u64| (second, None, Vec::new());
        let looks = (0..3).map(dead).chain((3..5).map(follows)).chain((5..7).map(dead));
        assert_eq!(lines(looks), ["2 WARN node 3 at n3:7421 does not answer this leader"]);
    }
}
