//! What was observed besides the clients' records: faults, expiries, nodes.

use std::collections::BTreeMap;

use super::orders::Orders;
use crate::history::{ClientId, Record, What};

/// What was observed besides the clients' records.
#[derive(Default)]
pub(super) struct Facts {
    /// When no fault was active: from, until. The last span has no end if the run ended healed.
    pub(super) healthy: Vec<(u64, Option<u64>)>,
    /// The sessions of each client that the store ended, in order.
    pub(super) expired: BTreeMap<ClientId, Vec<Expired>>,
    /// How far nodes were observed to have applied the log, in order.
    pub(super) applied: Vec<Applied>,
    /// Since when each version of commands is known to every member.
    known: BTreeMap<u16, u64>,
    /// When an operator first ended something that each client has.
    taken_away: BTreeMap<ClientId, u64>,
    /// The sessions that were ended from outside: whose, and when.
    pub(super) revoked: Vec<(ClientId, u64)>,
    /// When a command had left work for later ones: from, until.
    work_left: Vec<(u64, u64)>,
    /// What the names of each scope begin with.
    pub(super) scopes: Vec<String>,
    /// What operators asked for.
    pub(super) orders: Orders,
    /// When the first node applied each grant.
    grants_seen: BTreeMap<u64, u64>,
    /// The last instant of the history.
    pub(super) end_ns: u64,
}

/// A session that the store ended.
pub(super) struct Expired {
    at_ns: u64,
    /// Every token that it was ever granted; `None`: all that its client had.
    tokens: Option<Vec<u64>>,
    /// Its number at the store, if that was observed.
    session: Option<u64>,
}

/// A node at an index of the log.
pub(super) struct Applied {
    pub(super) node: u64,
    pub(super) index: u64,
    pub(super) hash: String,
    pub(super) stamp_ms: u64,
}

impl Facts {
    pub(super) fn take(&mut self, record: &Record) {
        let at_ns = record.at_ns;
        match &record.what {
            What::Fault { .. } => {
                if let Some((_, end @ None)) = self.healthy.last_mut() {
                    *end = Some(at_ns);
                }
            }
            What::Healed if self.healed_ns().is_none() => self.healthy.push((at_ns, None)),
            What::Expired { of, tokens, session } => {
                let expired = Expired { at_ns, tokens: tokens.clone(), session: *session };
                self.expired.entry(*of).or_default().push(expired);
            }
            What::AllKnow { version } => drop(self.known.entry(*version).or_insert(at_ns)),
            What::TakesAway { of } => drop(self.taken_away.entry(*of).or_insert(at_ns)),
            What::WorkLeft { until_ns } => {
                self.work_left.push((at_ns, until_ns.unwrap_or(u64::MAX)));
            }
            What::Order { .. } | What::OrderDone { .. } => self.orders.take(record),
            What::Revoked { of } => self.revoked.push((*of, at_ns)),
            What::GrantSeen { token } => drop(self.grants_seen.entry(*token).or_insert(at_ns)),
            What::Scopes { prefixes } => self.scopes.extend_from_slice(prefixes),
            What::Applied { node, index, hash, stamp_ms } => self.applied.push(Applied {
                node: *node,
                index: *index,
                hash: hash.clone(),
                stamp_ms: *stamp_ms,
            }),
            _ => {}
        }
    }

    /// Whether every member knew commands of this version at `at_ns`, as was observed. A history
    /// without observers of nodes does not say.
    pub(super) fn all_knew(&self, version: u16, at_ns: u64) -> bool {
        self.known.range(version..).any(|(_, from_ns)| *from_ns < at_ns)
    }

    /// The instant since which no fault was active; `None` if one was active at the end.
    pub(super) fn healed_ns(&self) -> Option<u64> {
        self.healthy.last().and_then(|(from, end)| end.is_none().then_some(*from))
    }

    /// Whether no fault was active from `from_ns` to `until_ns`.
    pub(super) fn healthy_between(&self, from_ns: u64, until_ns: u64) -> bool {
        let after = self.healthy.partition_point(|(from, _)| *from <= from_ns);
        let window = after.checked_sub(1).map(|at| self.healthy[at]);
        window.is_some_and(|(_, end)| end.is_none_or(|end| end >= until_ns))
    }

    /// The first time after `from_ns` at which the store ended a session of `client`.
    pub(super) fn expired_after(&self, client: ClientId, from_ns: u64) -> Option<u64> {
        self.ended_after(client, from_ns).map(|ended| ended.at_ns).next()
    }

    /// When the store ended the session that was granted `token` before `from_ns`.
    pub(super) fn expired_holding(
        &self,
        client: ClientId,
        token: u64,
        from_ns: u64,
    ) -> Option<u64> {
        let held =
            |ended: &&Expired| ended.tokens.as_ref().is_none_or(|tokens| tokens.contains(&token));
        self.ended_after(client, from_ns).find(held).map(|ended| ended.at_ns)
    }

    /// When the store ended this session.
    pub(super) fn session_expired(&self, client: ClientId, session: u64) -> Option<u64> {
        let of_it = |ended: &&Expired| ended.session == Some(session);
        self.ended_after(client, 0).find(of_it).map(|ended| ended.at_ns)
    }

    fn ended_after(&self, client: ClientId, from_ns: u64) -> impl Iterator<Item = &Expired> {
        let ended = self.expired.get(&client).map_or(&[][..], Vec::as_slice);
        ended[ended.partition_point(|ended| ended.at_ns <= from_ns)..].iter()
    }

    /// Whether an operator had ended something of the client by `at_ns`.
    pub(super) fn took_from(&self, client: ClientId, at_ns: u64) -> bool {
        self.taken_from_ns(client).is_some_and(|from_ns| from_ns <= at_ns)
    }

    /// Since when operators may have ended anything of the client, or the store its session from outside.
    pub(super) fn taken_from_ns(&self, client: ClientId) -> Option<u64> {
        let revoked = self.revoked.iter().filter(|(of, _)| *of == client).map(|(_, at_ns)| *at_ns);
        revoked.chain(self.ordered_from_ns(client)).min()
    }

    /// Since when operators may have ended anything of the client.
    pub(super) fn ordered_from_ns(&self, client: ClientId) -> Option<u64> {
        self.taken_away.get(&client).copied()
    }

    /// When the first node applied a grant, if the nodes were observed.
    pub(super) fn grant_seen_ns(&self, token: u64) -> Option<u64> {
        self.grants_seen.get(&token).copied()
    }

    /// Whether a command may have left work for later ones between these two instants.
    pub(super) fn work_was_left(&self, from_ns: u64, until_ns: u64) -> bool {
        self.work_left.iter().any(|(left_ns, done_ns)| *left_ns <= until_ns && *done_ns >= from_ns)
    }

    /// The scope of a name: its prefix; `None` for every name in no scope.
    pub(super) fn scope_of(&self, name: &str) -> Option<&str> {
        self.scopes.iter().map(String::as_str).find(|prefix| name.starts_with(prefix))
    }

    /// Whether the store was observed, so that the end of sessions would have been recorded.
    pub(super) fn watched(&self) -> bool {
        !self.applied.is_empty() || !self.expired.is_empty()
    }
}
