//! Random calls on the lease table against its promises, each written as one line.

use std::collections::BTreeMap;

use holdfast_core::{LeaseTable, NotRenewed, SessionId};
use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt, SeedableRng};

const MARGIN: u64 = 50;

/// A session as the promises describe it.
#[derive(Clone, Copy)]
struct Plain {
    ttl_ms: u64,
    /// The latest receipt of an acknowledged keepalive, or the start.
    heard_ms: u64,
    marks: u64,
    expiring: bool,
}

impl Plain {
    fn opened(ttl_ms: u64, heard_ms: u64) -> Self {
        Self { ttl_ms, heard_ms, marks: 0, expiring: false }
    }

    fn deadline(&self) -> u64 {
        self.heard_ms + self.ttl_ms + MARGIN
    }

    fn counts(&self) -> bool {
        self.marks == 0 && !self.expiring
    }
}

/// I6, I7: exactly the sessions that are past their deadline, wait for no round and are not
/// expiring are due.
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
        compare(&leases, &plain, now);
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
        Some(session) => session.expiring.then_some(NotRenewed::Expiring),
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
            leases.restart(now, plain.iter().map(|(&id, session)| (id, session.ttl_ms)));
            for session in plain.values_mut() {
                *session = Plain::opened(session.ttl_ms, now);
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
        *session = Plain::opened(session.ttl_ms, now);
        if !alive {
            plain.remove(&id);
        }
    }
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
    assert_eq!(leases.next_deadline(), counting.first().map(|&(deadline, _)| deadline + 1));
    assert_eq!(leases.len(), plain.len());
    for (&id, session) in plain {
        assert_eq!(leases.deadline_of(id), Some(session.deadline()));
    }
}
