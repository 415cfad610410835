//! Random calls on the lease table against its promises, each written as one line.

use std::collections::BTreeMap;

use holdfast_core::{FencingToken, LeaseTable, LeaseView, NotRenewed, SessionId};
use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt, SeedableRng};

const MARGIN: u64 = 50;

/// A session as the promises describe it.
#[derive(Clone)]
struct Plain {
    ttl_ms: u64,
    /// The latest receipt of an acknowledged keepalive, or the start.
    heard_ms: u64,
    marks: u64,
    expiring: bool,
    revoked: bool,
    /// The closed holds: when each is due, and whether its end is proposed.
    closed: BTreeMap<FencingToken, (u64, bool)>,
}

impl Plain {
    fn opened(ttl_ms: u64, heard_ms: u64) -> Self {
        let (marks, expiring, revoked, closed) = (0, false, false, BTreeMap::new());
        Self { ttl_ms, heard_ms, marks, expiring, revoked, closed }
    }

    fn deadline(&self) -> u64 {
        self.heard_ms + self.ttl_ms + MARGIN
    }

    fn counts(&self) -> bool {
        (self.marks == 0 || self.revoked) && !self.expiring
    }

    /// The same session in a new lease.
    fn anew(&self, now: u64) -> Self {
        Self {
            revoked: self.revoked,
            closed: self.closed.clone(),
            ..Self::opened(self.ttl_ms, now)
        }
    }

    fn refuses(&self) -> Option<NotRenewed> {
        match self {
            Self { expiring: true, .. } => Some(NotRenewed::Expiring),
            Self { revoked: true, .. } => Some(NotRenewed::Revoked),
            _ => None,
        }
    }
}

/// I6, I7, I35: exactly the sessions that are past their deadline, wait for no round or were revoked,
/// and are not expiring are due; and the closed holds whose session's deadline has passed as it was.
#[test]
fn random_calls_leave_exactly_those_due_whom_the_promises_name() {
    let seed = rand::random();
    println!("seed {seed}");
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed);
    let mut leases = LeaseTable::new(MARGIN);
    let mut plain: BTreeMap<SessionId, Plain> = BTreeMap::new();
    let mut now = 0;
    for _ in 0..50_000 {
        now += rng.random_range(0..30);
        let id = SessionId::new(rng.random_range(0..8));
        call(&mut rng, &mut leases, &mut plain, id, now);
        from_outside(&mut rng, &mut leases, &mut plain, id);
        compare(&leases, &plain, now);
        end_closed(&mut rng, &mut leases, &mut plain, now);
    }
}

fn call(
    rng: &mut Xoshiro256PlusPlus,
    leases: &mut LeaseTable,
    plain: &mut BTreeMap<SessionId, Plain>,
    id: SessionId,
    now: u64,
) {
    let known = plain.get_mut(&id);
    let refused = match &known {
        None => Some(NotRenewed::Unknown),
        Some(session) => session.refuses(),
    };
    match rng.random_range(0..100) {
        0..10 if known.is_none() => {
            let ttl_ms = rng.random_range(100..1_000);
            leases.insert(id, ttl_ms, now);
            plain.insert(id, Plain::opened(ttl_ms, now));
        }
        10..40 => {
            let heard = now.saturating_sub(rng.random_range(0..200));
            assert_eq!(leases.renew(id, heard).err(), refused);
            if let (Some(session), None) = (known, refused) {
                session.heard_ms = session.heard_ms.max(heard);
            }
        }
        40..55 => {
            assert_eq!(leases.waiting(id).err(), refused);
            if let (Some(session), None) = (known, refused) {
                session.marks += 1;
            }
        }
        55..73 => {
            leases.answered(id);
            if let Some(session) = known {
                session.marks = session.marks.saturating_sub(1);
            }
        }
        73..88 => {
            let may = known.as_ref().is_some_and(|one| one.counts() && one.deadline() < now);
            assert_eq!(leases.begin_expiry(id, now), may);
            if let (Some(session), true) = (known, may) {
                session.expiring = true;
            }
        }
        88..97 => settle(rng.random_bool(0.5), leases, plain, id, now),
        97 => assert_eq!(leases.remove(id), plain.remove(&id).is_some()),
        98 if rng.random_bool(0.1) => {
            let lease = |(&session, plain): (&SessionId, &Plain)| LeaseView {
                session,
                ttl_ms: plain.ttl_ms,
                is_revoked: plain.revoked,
                closed: plain.closed.keys().copied().collect(),
            };
            *leases = LeaseTable::new(MARGIN);
            plain.iter().map(lease).for_each(|view| leases.enter(view, now));
            for session in plain.values_mut() {
                *session = session.anew(now);
                let deadline = session.deadline();
                session.closed.values_mut().for_each(|one| *one = (deadline, false));
            }
        }
        _ => {}
    }
}

fn settle(
    alive: bool,
    leases: &mut LeaseTable,
    plain: &mut BTreeMap<SessionId, Plain>,
    id: SessionId,
    now: u64,
) {
    leases.expiry_settled(id, alive, now);
    if let Some(session) = plain.get_mut(&id).filter(|session| session.expiring) {
        *session = session.anew(now);
        if !alive {
            plain.remove(&id);
        }
    }
}

/// Now and then a session is revoked, or one of its holds closed, or that hold is over.
fn from_outside(
    rng: &mut Xoshiro256PlusPlus,
    leases: &mut LeaseTable,
    plain: &mut BTreeMap<SessionId, Plain>,
    id: SessionId,
) {
    let token = FencingToken::from_raw(rng.random_range(0..4));
    let Some(session) = plain.get_mut(&id) else { return };
    match rng.random_range(0..1_000) {
        0..3 => {
            leases.revoke(id);
            session.revoked = true;
        }
        3..30 => {
            leases.close_hold(id, token);
            let deadline = session.deadline();
            session.closed.entry(token).or_insert((deadline, false));
        }
        30..40 => {
            leases.hold_over(id, token);
            session.closed.remove(&token);
        }
        40..60 => {
            leases.end_unsettled(id, token);
            if let Some((_, proposed)) = session.closed.get_mut(&token) {
                *proposed = false;
            }
        }
        _ => {}
    }
}

/// Now and then the leader looks for closed holds.
fn end_closed(
    rng: &mut Xoshiro256PlusPlus,
    leases: &mut LeaseTable,
    plain: &mut BTreeMap<SessionId, Plain>,
    now: u64,
) {
    if !rng.random_bool(0.1) {
        return;
    }
    let mut due = Vec::new();
    for (&id, session) in plain {
        for (&token, (deadline, proposed)) in &mut session.closed {
            if *deadline < now && !*proposed {
                *proposed = true;
                due.push((*deadline, id, token));
            }
        }
    }
    due.sort_unstable();
    let due: Vec<_> = due.into_iter().map(|(_, id, token)| (id, token)).collect();
    assert_eq!(leases.begin_ends(now, usize::MAX), due);
}

fn compare(leases: &LeaseTable, plain: &BTreeMap<SessionId, Plain>, now: u64) {
    let mut counting: Vec<(u64, SessionId)> = plain
        .iter()
        .filter(|(_, session)| session.counts())
        .map(|(&id, session)| (session.deadline(), id))
        .collect();
    counting.sort_unstable();
    let due: Vec<SessionId> =
        counting.iter().filter(|&&(deadline, _)| deadline < now).map(|&(_, id)| id).collect();
    assert_eq!(leases.due(now, usize::MAX), due);
    let closed = plain.values().flat_map(|session| session.closed.values());
    let closed = closed.filter(|(_, proposed)| !proposed).map(|&(deadline, _)| deadline);
    let first = counting.first().map(|&(deadline, _)| deadline).into_iter().chain(closed).min();
    assert_eq!(leases.next_deadline(), first.map(|deadline| deadline + 1));
    assert_eq!(leases.len(), plain.len());
    for (&id, session) in plain {
        assert_eq!(leases.deadline_of(id), Some(session.deadline()));
    }
}
