//! A history in the form of requests, holds, states, looks and changes of values.

use std::collections::{BTreeMap, BTreeSet};

use super::facts::Facts;
use super::watches::Watched;
use super::{Tally, Violation};
use crate::history::{
    Asked, Became, Brought, Change, ClientId, Holding, Kept, LostCause, Permits, Shown,
};

/// The whole run.
#[derive(Default)]
pub(super) struct Story {
    pub(super) requests: Vec<Request>,
    /// One for each name of each grant.
    pub(super) holds: Vec<Hold>,
    pub(super) writes: Vec<Write>,
    pub(super) states: Vec<State>,
    pub(super) reads: Vec<Look>,
    pub(super) fences: Vec<Fence>,
    pub(super) watches: Vec<Watched>,
    pub(super) imports: Vec<Import>,
    pub(super) clients: BTreeMap<ClientId, Client>,
    /// What was observed besides the clients' records.
    pub(super) facts: Facts,
    /// What is wrong before any check runs: answers about requests that were never made (I23), and
    /// beliefs in holds that were given back or reported to be over (I24).
    pub(super) contradictions: Vec<Violation>,
    pub(super) request_of: BTreeMap<(ClientId, u64), usize>,
    pub(super) write_of: BTreeMap<(ClientId, u64), usize>,
    pub(super) import_of: BTreeMap<(ClientId, u64), usize>,
    /// The watches of each client, by their numbers.
    pub(super) watch_of: BTreeMap<(ClientId, u64), usize>,
    /// Looks that have not ended.
    pub(super) look_of: BTreeMap<(ClientId, u64), usize>,
    /// The holds of each grant.
    pub(super) holds_of: BTreeMap<(ClientId, u64), Vec<usize>>,
}

/// One acquire by one client, with every answer about it.
pub(super) struct Request {
    pub(super) client: ClientId,
    pub(super) number: u64,
    /// What it asks for, by name.
    pub(super) items: BTreeMap<String, Asked>,
    /// `None`: all of the names.
    pub(super) any: Option<u32>,
    pub(super) wait: bool,
    /// The owner of the import that it claims.
    pub(super) claims: Option<String>,
    /// When the client first asked.
    pub(super) called_ns: u64,
    /// When its own limit passes.
    pub(super) limit_ns: Option<u64>,
    /// When it was first acknowledged as waiting, before it was granted.
    pub(super) queued: Option<Queued>,
    pub(super) granted: Option<Grant>,
    /// Every answer about it, in order.
    pub(super) answers: Vec<(u64, Answer)>,
    /// When its client asked to end it.
    pub(super) cancel_ns: Option<u64>,
    /// The last answer that ended the call.
    pub(super) ended_ns: Option<u64>,
}

impl Request {
    /// Whether it was certainly never granted. A request that waited and was denied was given up by
    /// its own limit: a client that was stopped meanwhile may have missed both the grant and the
    /// loss of the hold.
    pub(super) fn is_certainly_ungranted(&self) -> bool {
        self.granted.is_none()
            && self.answers.iter().any(|(_, answer)| match answer {
                Answer::Denied => !self.wait,
                answer => answer.is_certainly_ungranted(),
            })
    }

    /// So much earlier than it came it counts as having come.
    pub(super) fn head_start_ms(&self) -> u64 {
        self.items.values().map(|asked| asked.head_start_ms).max().unwrap_or(0)
    }

    /// Its names, readable.
    pub(super) fn names(&self) -> String {
        let names: Vec<&str> = self.items.keys().map(String::as_str).collect();
        names.join(if self.any.is_some() { "|" } else { "+" })
    }

    pub(super) fn token(&self) -> Option<u64> {
        self.granted.as_ref().map(|grant| grant.token)
    }
}

/// The rows that were imported for one owner in one call.
pub(super) struct Import {
    pub(super) owner: String,
    pub(super) remaining_ns: u64,
    pub(super) rows: Vec<Brought>,
    /// When the caller first asked.
    pub(super) called_ns: u64,
    /// When an answer reported the result for each row; `None`: there was no answer.
    pub(super) told: Option<(u64, Vec<Became>)>,
}

#[derive(Clone, Copy)]
pub(super) struct Queued {
    pub(super) at_ns: u64,
    pub(super) index: Option<u64>,
}

/// The first grant that the client of a request learned of.
pub(super) struct Grant {
    pub(super) at_ns: u64,
    pub(super) token: u64,
    pub(super) names: BTreeSet<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    Queued,
    Granted { token: u64, names: BTreeSet<String> },
    Denied,
    Refused(String),
    Cancelled,
    SessionLost,
    Unknown,
}

impl Answer {
    /// Whether it means that the request holds nothing and never will.
    pub(super) fn is_certainly_ungranted(&self) -> bool {
        match self {
            Self::Denied | Self::Refused(_) => true,
            // A cancelled request may have been held before.
            Self::Queued
            | Self::Granted { .. }
            | Self::Cancelled
            | Self::SessionLost
            | Self::Unknown => false,
        }
    }
}

/// One lock under one grant, as its client saw it.
pub(super) struct Hold {
    pub(super) client: ClientId,
    pub(super) name: String,
    pub(super) shared: bool,
    pub(super) permits: Option<Permits>,
    pub(super) token: u64,
    /// When its client first asked for it.
    pub(super) called_ns: u64,
    /// When the client learned of it.
    pub(super) from_ns: u64,
    /// After so long the store ends it; 0: it does not.
    pub(super) most_ns: u64,
    /// Nobody else is granted the lock before so long after the grant.
    pub(super) least_ns: u64,
    /// The value that came with the grant.
    pub(super) value: Option<Shown>,
    /// Until when the client certainly believed it safe; `None`: not even at once.
    pub(super) until_ns: Option<u64>,
    /// When the client gave it up, or learned that it is over.
    pub(super) over: Option<(u64, Over)>,
    /// How often its client asked to release it.
    pub(super) releases: usize,
    /// Whether names of the same grant were left when it was released.
    pub(super) in_part: bool,
    /// The answer to its release.
    pub(super) release_told: Option<(u64, ReleaseTold)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Over {
    /// Its client released it, cancelled it or closed its session.
    GivenUp,
    /// The client was notified.
    Told(LostCause),
    /// Its safe deadline passed without news.
    Lapsed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReleaseTold {
    Released,
    NotHolder,
    Unknown,
}

/// One change of a value by a client.
pub(super) struct Write {
    pub(super) client: ClientId,
    pub(super) token: u64,
    pub(super) name: String,
    pub(super) change: Change,
    pub(super) asked_ns: u64,
    /// When its outcome became known.
    pub(super) told_ns: Option<u64>,
    pub(super) fate: Fate,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// It took effect.
    Done,
    /// It certainly did not take effect.
    Refused,
    /// It may have taken effect.
    Unknown,
}

pub(super) struct State {
    pub(super) client: ClientId,
    pub(super) at_ns: u64,
    pub(super) kept: BTreeMap<u64, Kept>,
    pub(super) next_request: u64,
}

pub(super) struct Look {
    pub(super) client: ClientId,
    pub(super) name: String,
    pub(super) called_ns: u64,
    pub(super) done: Option<Seen>,
}

/// The decision of a resource on a client's write.
pub(super) struct Fence {
    pub(super) client: ClientId,
    pub(super) at_ns: u64,
    pub(super) token: u64,
    pub(super) name: String,
    /// The larger token because of which it refused; `None`: it accepted.
    pub(super) refused_for: Option<u64>,
}

pub(super) struct Seen {
    pub(super) at_ns: u64,
    pub(super) holders: Vec<Holding>,
    pub(super) value: Option<Shown>,
    pub(super) waiting: u64,
    /// The grant after whose end it is closed.
    pub(super) closed: Option<u64>,
    pub(super) frozen: bool,
}

#[derive(Default)]
pub(super) struct Client {
    pub(super) ttl_ns: Option<u64>,
    /// When its last session was opened.
    pub(super) opened_ns: u64,
    pub(super) closed_ns: Option<u64>,
    pub(super) killed_ns: Option<u64>,
    pub(super) ended_ns: Option<u64>,
    pub(super) leases: Leases,
    /// What it reported of its leases, and what it received about them.
    pub(super) rights: Rights,
    pub(super) open_holds: BTreeSet<usize>,
}

/// What a client believed of its leases, and what justified it.
#[derive(Default)]
pub(super) struct Rights {
    /// (at, until): at the first instant the client reported its holds as certain until the second.
    pub(super) beliefs: Vec<(u64, u64)>,
    /// Each acknowledgement that it received.
    pub(super) given: Vec<Right>,
}

/// An acknowledgement.
pub(super) struct Right {
    pub(super) at_ns: u64,
    pub(super) session: u64,
    pub(super) until_ns: u64,
}

/// When a client's session was certainly alive: spans in order, each the lifetime of one session as
/// far as the records show it. Between two of them the session may have run out, and the later span
/// may belong to another session.
#[derive(Default)]
pub(super) struct Leases(Vec<(u64, u64)>);

impl Leases {
    /// At `at_ns` the client recorded that its session is certain until `until_ns`.
    pub(super) fn renewed(&mut self, at_ns: u64, until_ns: u64) {
        match self.0.last_mut() {
            Some((_, until)) if at_ns <= *until => *until = until_ns.max(*until),
            _ if at_ns <= until_ns => self.0.push((at_ns, until_ns)),
            _ => {}
        }
    }

    /// Until when the session of the instant `at_ns` was certainly alive; `None` if it is not
    /// certain even then.
    pub(super) fn certain_until(&self, at_ns: u64) -> Option<u64> {
        let later = self.0.partition_point(|(from, _)| *from <= at_ns);
        let (_, until) = *self.0.get(later.checked_sub(1)?)?;
        (at_ns <= until).then_some(until)
    }

    /// Until when the newest session was last reported as certain.
    pub(super) fn newest_until(&self) -> Option<u64> {
        self.0.last().map(|(_, until)| *until)
    }
}

impl Client {
    /// From when on the lease of the session at `at_ns` may have run out, as far as is known;
    /// `None`: it never did.
    pub(super) fn may_expire_from_ns(&self, at_ns: u64) -> Option<u64> {
        let certain_ns = self.leases.certain_until(at_ns).unwrap_or(0);
        if self.closed_ns.is_some_and(|closed| closed <= certain_ns) && self.ended_ns.is_none() {
            return None;
        }
        let at_any_time = self.killed_ns.is_some() || self.ended_ns.is_some();
        Some(if at_any_time { 0 } else { certain_ns.saturating_add(1) })
    }
}

impl Hold {
    /// Until when the client certainly believed it safe; `from_ns` if never.
    pub(super) fn safe_end_ns(&self) -> u64 {
        let until = self.until_ns.unwrap_or(self.from_ns);
        self.over.map_or(until, |(at, _)| until.min(at)).max(self.from_ns)
    }

    pub(super) fn was_safe(&self) -> bool {
        self.safe_end_ns() > self.from_ns
    }
}

impl Story {
    /// How much there was to look at. What the values gave is counted where they are judged.
    pub(super) fn tally(&self) -> Tally {
        let is_unknown = |request: &&Request| {
            matches!(request.answers.last(), Some((_, Answer::Unknown)) | None)
        };
        let granted = |kind: fn(&Request) -> bool| {
            self.requests
                .iter()
                .filter(|request| request.granted.is_some() && kind(request))
                .count()
        };
        let released = |hold: &&Hold| matches!(hold.release_told, Some((_, ReleaseTold::Released)));
        Tally {
            requests: self.requests.len(),
            grants: granted(|_| true),
            waits: self.requests.iter().filter(|request| request.queued.is_some()).count(),
            safe_holds: self.holds.iter().filter(|hold| hold.was_safe()).count(),
            unknown: self.requests.iter().filter(is_unknown).count(),
            states: self.states.len(),
            fenced: self.fences.iter().filter(|fence| fence.refused_for.is_some()).count(),
            reads: self.reads.iter().filter(|look| look.done.is_some()).count(),
            shared: granted(|request| request.items.values().any(|asked| asked.shared)),
            sets: granted(|request| request.any.is_none() && request.items.len() > 1),
            anys: granted(|request| request.any.is_some()),
            released_in_part: self
                .holds
                .iter()
                .filter(|hold| hold.in_part)
                .filter(released)
                .count(),
            accepted: self.fences.iter().filter(|fence| fence.refused_for.is_none()).count(),
            expiries: self.facts.expired.values().map(Vec::len).sum(),
            writes: self.writes.iter().filter(|write| write.fate == Fate::Done).count(),
            ..Tally::default()
        }
    }

    /// The hold of one name under a grant.
    pub(super) fn hold(&self, client: ClientId, token: u64, name: &str) -> Option<&Hold> {
        self.holds_of(client, token).find(|hold| hold.name == name)
    }

    /// The holds of all names of a grant.
    pub(super) fn holds_of(&self, client: ClientId, token: u64) -> impl Iterator<Item = &Hold> {
        let holds = self.holds_of.get(&(client, token)).map_or(&[][..], Vec::as_slice);
        holds.iter().map(|&hold| &self.holds[hold])
    }

    /// The names of which a row was imported.
    pub(super) fn imported_names(&self) -> BTreeSet<&str> {
        let rows = self.imports.iter().flat_map(|import| &import.rows);
        rows.map(|row| row.name.as_str()).collect()
    }

    /// The holds of each name.
    pub(super) fn holds_by_name(&self) -> BTreeMap<&str, Vec<&Hold>> {
        let mut by_name: BTreeMap<&str, Vec<&Hold>> = BTreeMap::new();
        for hold in &self.holds {
            by_name.entry(&hold.name).or_default().push(hold);
        }
        by_name
    }
}
