//! Why a lock is waited for.

use std::time::Duration;

use holdfast_proto::v1;

use crate::{Client, Holder, Reader, Result, wire};

/// Why a lock is waited for, as of one linearizable read: [`Reader::explain`].
///
/// The store knows sessions, not what goes on in them. That a session which holds one lock waits for another
/// does not prove that it gives back the one only after it got the other; it is the best guess there is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Explanation {
    /// The lock, then those that others of the list wait for, each once: at most 100. Empty if nobody holds the
    /// lock or waits for it.
    pub locks: Vec<ExplainedLock>,
    /// Nothing was left out.
    pub is_whole: bool,
}

/// A lock of an [`Explanation`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ExplainedLock {
    /// Its name.
    pub name: String,
    /// How many sessions hold it in all.
    pub held_by: u64,
    /// How many requests wait for it in all.
    pub waiting: u64,
    /// The holders in the order of the grants: at most 10.
    pub holders: Vec<ExplainedHolder>,
    /// The next in line, if nobody holds the lock: the lock is kept for it while it waits for another one, or
    /// nothing is granted here now (a scope is suspended, a restored cluster waits).
    pub kept_for: Option<ExplainedWait>,
}

/// A holder, and what it waits for itself.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ExplainedHolder {
    /// The holder.
    pub holder: Holder,
    /// What its session waits for: at most 10 requests. None: it is what the others wait for.
    pub waits: Vec<ExplainedWait>,
    /// The session may wait for more: not all of its requests were looked at, or are shown.
    pub may_wait_for_more: bool,
}

/// A request that waits.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ExplainedWait {
    /// Its session.
    pub session: u64,
    /// The session's label. It may contain any characters: escape it before it goes to a terminal.
    pub label: String,
    /// The locks that it waits for: at most 64.
    pub names: Vec<String>,
    /// How long it has waited, by the leader's wall clock.
    pub waiting: Duration,
}

/// One step of a cycle: this lock is held by this holder, who waits for the lock of the next step; the last
/// one's for that of the first.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CycleStep<'a> {
    /// The lock.
    pub lock: &'a str,
    /// Its holder, or who it is kept for.
    pub session: u64,
    /// The session's label.
    pub label: &'a str,
}

impl Reader {
    /// Why the lock `name` is waited for: its holders, the locks that they wait for, and so on. Needs the right to
    /// read all locks.
    ///
    /// # Errors
    ///
    /// As of [`Reader::inspect`]; [`Error::Refused`](crate::Error::Refused) by servers before 0.3.
    pub async fn explain(&self, name: &str) -> Result<Explanation> {
        let request = v1::ExplainRequest { name: name.to_owned() };
        let response =
            self.ask(|endpoint| self.transport.explain(endpoint, request.clone())).await?;
        Ok(Explanation::from_wire(response))
    }
}

impl Client {
    /// As [`Reader::explain`].
    ///
    /// # Errors
    ///
    /// As of [`Reader::explain`].
    pub async fn explain(&self, name: &str) -> Result<Explanation> {
        self.reader().explain(name).await
    }
}

impl Explanation {
    fn from_wire(response: v1::ExplainResponse) -> Self {
        let locks = response.locks.into_iter().map(ExplainedLock::from_wire).collect();
        Self { locks, is_whole: !response.more }
    }

    /// The holders that everybody waits for in the end, each with its lock: they wait for nothing themselves.
    pub fn culprits(&self) -> impl Iterator<Item = (&str, &Holder)> {
        self.locks.iter().flat_map(|lock| {
            let is_idle =
                |held: &&ExplainedHolder| held.waits.is_empty() && !held.may_wait_for_more;
            let idle = lock.holders.iter().filter(is_idle);
            idle.map(|holder| (lock.name.as_str(), &holder.holder))
        })
    }

    /// Sessions that wait for each other, if there are such: none of them goes on by itself.
    pub fn cycle(&self) -> Option<Vec<CycleStep<'_>>> {
        let mut path = Vec::new();
        let mut done = Vec::new();
        self.locks.iter().find_map(|lock| self.cycle_from(lock, &mut path, &mut done))
    }

    /// A depth-first search; no path is longer than the list of locks, which has 100.
    fn cycle_from<'a>(
        &'a self,
        lock: &'a ExplainedLock,
        path: &mut Vec<CycleStep<'a>>,
        done: &mut Vec<&'a str>,
    ) -> Option<Vec<CycleStep<'a>>> {
        if let Some(at) = path.iter().position(|step| step.lock == lock.name) {
            return path.get(at..).map(<[CycleStep<'_>]>::to_vec);
        }
        if done.contains(&lock.name.as_str()) {
            return None;
        }
        for (session, label, wait) in lock.waits() {
            path.push(CycleStep { lock: &lock.name, session, label });
            let others = wait.names.iter().filter(|name| **name != lock.name);
            let found = others
                .filter_map(|name| self.locks.iter().find(|other| other.name == *name))
                .find_map(|other| self.cycle_from(other, path, done));
            if found.is_some() {
                return found;
            }
            path.pop();
        }
        done.push(&lock.name);
        None
    }
}

impl ExplainedLock {
    fn from_wire(lock: v1::ExplainedLock) -> Self {
        let holder = |held: v1::ExplainedHolder| {
            let waits = held.waits.into_iter().map(ExplainedWait::from_wire).collect();
            let may_wait_for_more = held.may_wait_for_more;
            Some(ExplainedHolder { holder: wire::holder(held.holder?), waits, may_wait_for_more })
        };
        Self {
            name: lock.name,
            held_by: lock.held_by,
            waiting: lock.waiting,
            holders: lock.holders.into_iter().filter_map(holder).collect(),
            kept_for: lock.kept_for.map(ExplainedWait::from_wire),
        }
    }

    /// The sessions that keep the lock from others, each with what it waits for.
    fn waits(&self) -> impl Iterator<Item = (u64, &str, &ExplainedWait)> {
        let held = self.holders.iter().flat_map(|held| {
            let Holder { session, label, .. } = &held.holder;
            held.waits.iter().map(move |wait| (*session, label.as_str(), wait))
        });
        let kept = self.kept_for.iter().map(|wait| (wait.session, wait.label.as_str(), wait));
        held.chain(kept)
    }
}

impl ExplainedWait {
    fn from_wire(wait: v1::ExplainedWait) -> Self {
        Self {
            session: wait.session_id,
            label: wait.label,
            names: wait.names,
            waiting: Duration::from_millis(wait.waiting_ms),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wait(session: u64, names: &[&str]) -> v1::ExplainedWait {
        let names = names.iter().map(|name| (*name).to_owned()).collect();
        v1::ExplainedWait {
            session_id: session,
            label: format!("s{session}"),
            names,
            waiting_ms: 1,
        }
    }

    /// A lock with these holders and what each waits for.
    fn lock(name: &str, holders: &[(u64, &[&str])]) -> v1::ExplainedLock {
        let holder = |&(session, names): &(u64, &[&str])| v1::ExplainedHolder {
            holder: Some(v1::Holder { session_id: session, ..v1::Holder::default() }),
            waits: if names.is_empty() { Vec::new() } else { vec![wait(session, names)] },
            may_wait_for_more: false,
        };
        let holders: Vec<_> = holders.iter().map(holder).collect();
        v1::ExplainedLock {
            name: name.to_owned(),
            held_by: holders.len() as u64,
            holders,
            ..Default::default()
        }
    }

    fn explained(locks: Vec<v1::ExplainedLock>) -> Explanation {
        Explanation::from_wire(v1::ExplainResponse { index: 1, locks, more: false })
    }

    fn cycle(explained: &Explanation) -> Vec<(&str, u64)> {
        let cycle = explained.cycle().unwrap_or_default();
        cycle.into_iter().map(|step| (step.lock, step.session)).collect()
    }

    #[test]
    fn a_chain_ends_with_who_waits_for_nothing() {
        let chain = explained(vec![
            lock("a", &[(1, &["b"])]),
            lock("b", &[(2, &["c", "d"]), (3, &[])]),
            lock("c", &[(4, &[])]),
            lock("d", &[]),
        ]);
        let culprits: Vec<_> =
            chain.culprits().map(|(lock, holder)| (lock, holder.session)).collect();
        assert_eq!(culprits, [("b", 3), ("c", 4)]);
        assert_eq!(chain.cycle(), None);
    }

    /// Not every request of it was looked at.
    #[test]
    fn a_holder_that_may_wait_for_more_is_no_culprit() {
        let mut busy = lock("a", &[(1, &[])]);
        busy.holders[0].may_wait_for_more = true;
        assert_eq!(explained(vec![busy]).culprits().count(), 0);
        assert_eq!(explained(vec![lock("a", &[(1, &[])])]).culprits().count(), 1);
    }

    #[test]
    fn a_cycle_is_found_wherever_it_begins() {
        let round = explained(vec![
            lock("a", &[(1, &["b"])]),
            lock("b", &[(9, &[]), (2, &["x", "c"])]),
            lock("c", &[(3, &["b"])]),
        ]);
        assert_eq!(cycle(&round), [("b", 2), ("c", 3)]);
        assert!(
            cycle(&explained(vec![lock("a", &[(1, &["a"])])])).is_empty(),
            "it waits for its own lock again"
        );
    }

    /// A set is first in the queue of a free lock, which waits for it.
    #[test]
    fn a_lock_that_is_kept_for_a_set_is_part_of_a_cycle_too() {
        let mut kept = lock("a", &[]);
        kept.kept_for = Some(wait(5, &["a", "b"]));
        let round = explained(vec![kept, lock("b", &[(6, &["a"])])]);
        assert_eq!(cycle(&round), [("a", 5), ("b", 6)]);
    }

    #[test]
    fn a_hundred_locks_in_a_row_are_searched_at_once() {
        let names: Vec<String> = (0..=100).map(|number| number.to_string()).collect();
        let row = names
            .windows(2)
            .zip(1..)
            .map(|(pair, session)| lock(&pair[0], &[(session, &[&pair[1]])]));
        let row = explained(row.collect());
        assert_eq!(row.locks.len(), 100);
        assert_eq!(row.cycle(), None);
    }
}
