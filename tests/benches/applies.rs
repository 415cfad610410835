//! The longest apply of the commands that concern any number of locks, holders or sessions, beside a
//! million held locks: without a limit of work, as one command; with it, as that command and those that
//! carry on what it leaves; and the same right after a snapshot began, when each session that is written
//! to is copied first.
//!
//! ```text
//! cargo bench --locked -p holdfast-tests --bench applies [-- LOCKS [NAME]]
//! ```
#![allow(clippy::disallowed_methods, reason = "a bench reads the real clock")]
#![expect(clippy::panic, reason = "what does not come about here makes the bench worthless")]

mod support;

use std::hint::black_box;
use std::time::{Duration, Instant};

use holdfast_core::{
    Answer, Applied, Caller, Command, Deed, Identity, Item, Label, LockName, Need, Outcome,
    Rejection, RequestId, ScopePrefix, SessionId, WORK_STEPS,
};
use support::{Played, TENURE, acquire, batch, granted, open, opened, release};

/// Held locks beside which everything happens.
const LOCKS: u64 = 1_000_000;
/// Enough to see that the bench runs (`--test`).
const LOCKS_TEST: u64 = 2_000;
/// Requests of one session.
const REQUESTS: u64 = 1_000;
/// One in so many of the locks has a waiter, and there is one reader, or session to end, for so many locks.
const OTHERS: u64 = 10;

/// A table before its command, and the command.
type Scene = (Played, Command);
/// Makes one with so many locks.
type Make = fn(u64) -> Scene;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|one| one != "--bench").collect();
    let short = arguments.iter().any(|argument| argument == "--test");
    let locks = arguments.iter().find_map(|argument| argument.parse().ok());
    let locks = locks.unwrap_or(if short { LOCKS_TEST } else { LOCKS });
    let wanted = arguments.iter().find(|one| one.parse::<u64>().is_err() && !one.starts_with('-'));
    eprintln!("{locks} held locks; a tenth as many readers, waiters, sessions; {WORK_STEPS} steps");
    eprintln!("| command | at once | commands | longest | all | longest beside a snapshot |");
    eprintln!("|---|---|---|---|---|---|");
    let scenes: [(&str, Make); 10] = [
        ("acquire: tell readers", tell_readers),
        ("release: let readers in", let_readers_in),
        ("release: let in readers of large sessions", let_large_readers_in),
        ("raise the epoch of a scope", raise_epoch),
        ("set a scope", set_scope),
        ("resume a scope with waiters", resume),
        ("remove a scope with waiters", remove_scope),
        ("cut an identity off", cut_off),
        ("expire a session with 1,000 locks", expire),
        ("expire a session with 64,000 locks", expire_sets),
    ];
    for (name, scene) in scenes {
        if wanted.is_none_or(|wanted| name.contains(wanted.as_str())) {
            measure(name, || scene(locks));
        }
    }
    freeze(locks);
}

fn measure(name: &str, scene: impl Fn() -> Scene) {
    let (mut played, command) = scene();
    let at_once = timed(&mut played, &command).0;
    drop(played);
    let (commands, longest, all) = in_parts(scene(), false);
    let (_, beside, _) = in_parts(scene(), true);
    eprintln!(
        "| {name} | {:.1} ms | {commands} | {:.2} ms | {:.0} ms | {:.2} ms |",
        millis(at_once),
        millis(longest),
        millis(all),
        millis(beside)
    );
}

/// How many commands it takes within the limit, how long the longest, and how long all of them.
fn in_parts((mut played, command): Scene, frozen: bool) -> (u64, Duration, Duration) {
    played.apply(Command::LimitWork { steps: WORK_STEPS });
    let snapshot = frozen.then(|| played.table.freeze());
    let (mut commands, mut longest, mut all) = (0, Duration::ZERO, Duration::ZERO);
    let mut next = command.clone();
    loop {
        let (took, applied) = timed(&mut played, &next);
        (commands, longest, all) = (commands + 1, longest.max(took), all + took);
        if is_unfinished(&applied.outcome) {
            continue;
        }
        if !played.table.has_work_left() {
            break;
        }
        next = Command::CarryOn;
    }
    drop(snapshot);
    (commands, longest, all)
}

fn is_unfinished(outcome: &Outcome) -> bool {
    matches!(outcome, Err(Rejection::Unfinished { .. }))
}

/// Applies the command and tells how long that took; its events are dropped later.
fn timed(played: &mut Played, command: &Command) -> (Duration, Applied) {
    let entry = batch(command.clone());
    let begun = Instant::now();
    let applied = black_box(played.apply_batch(black_box(&entry)));
    (begun.elapsed(), applied)
}

fn millis(length: Duration) -> f64 {
    length.as_secs_f64() * 1_000.0
}

fn share(session: SessionId, request: u64, name: &str) -> Command {
    let Command::Acquire { session, done_below, request, need, wait, .. } =
        acquire(session, request, 0, name, true)
    else {
        return Command::CarryOn;
    };
    let items = vec![Item::shared(lock(name))];
    Command::Acquire { session, done_below, request, items, need, wait }
}

fn lock(name: &str) -> LockName {
    LockName::parse(name).unwrap_or_else(|error| panic!("{name}: {error}"))
}

fn scope() -> ScopePrefix {
    ScopePrefix::parse("held/").unwrap_or_else(|error| panic!("{error}"))
}

/// Everybody reads `config`, each in a session of its own.
fn tell_readers(locks: u64) -> Scene {
    let mut played = Played::with_locks(locks);
    for _ in 0..locks / OTHERS {
        let session = played.open();
        played.apply(share(session, 0, "config"));
    }
    let writer = played.open();
    (played, acquire(writer, 0, 0, "config", true))
}

/// Everybody waits to read `config`, each in a session of its own.
fn let_readers_in(locks: u64) -> Scene {
    behind_a_writer(locks, 1)
}

/// The same, with sessions that hold a thousand locks.
fn let_large_readers_in(locks: u64) -> Scene {
    behind_a_writer(locks, REQUESTS / OTHERS)
}

/// So many readers of each session wait for `config`; if there is more than one, the sessions are those
/// that hold the other locks.
fn behind_a_writer(locks: u64, of_one: u64) -> Scene {
    let mut played = Played::with_locks(locks);
    let mut sessions: Vec<SessionId> = played.table.sessions().map(|view| view.session).collect();
    sessions.sort_unstable();
    let writer = played.open();
    let token = played.hold(writer, 0, "config");
    for number in 0..locks / OTHERS {
        let session =
            match sessions.get(usize::try_from(number).unwrap_or(0) % sessions.len().max(1)) {
                Some(&session) if of_one > 1 => session,
                _ => played.open(),
            };
        played.apply(share(session, REQUESTS + number, "config"));
    }
    (played, release(writer, 0, token))
}

fn raise_epoch(locks: u64) -> Scene {
    let mut played = Played::with_locks(locks);
    played.apply(Command::SetScope { scope: scope() });
    played.apply(Command::Resume { scope: scope(), epoch: 1 });
    (played, Command::RaiseEpoch { scope: scope(), epoch: 2 })
}

fn set_scope(locks: u64) -> Scene {
    (Played::with_locks(locks), Command::SetScope { scope: scope() })
}

/// One in ten locks is free, and waited for.
fn suspended(locks: u64) -> Played {
    let mut played = Played::with_locks(locks);
    played.apply(Command::SetScope { scope: scope() });
    let mut session = played.open();
    for number in 0..locks / OTHERS {
        if number % REQUESTS == REQUESTS - 1 {
            session = played.open();
        }
        played.apply(acquire(session, number, 0, &format!("held/waits/{number:07}"), true));
    }
    played
}

fn resume(locks: u64) -> Scene {
    (suspended(locks), Command::Resume { scope: scope(), epoch: 1 })
}

fn remove_scope(locks: u64) -> Scene {
    (suspended(locks), Command::RemoveScope { scope: scope() })
}

fn cut_off(locks: u64) -> Scene {
    let mut played = Played::with_locks(locks);
    let identity = Identity::parse("cn:app").unwrap_or_default();
    let caller = Caller { identity: identity.clone(), is_admin: false };
    for number in 0..locks / OTHERS {
        let Command::OpenSession { ttl_ms, label, secret_hash } = open() else { continue };
        let deed = Deed::OpenSession { ttl_ms, label, secret_hash, knows_closed: true };
        let session = opened(&played.apply(Command::By { caller: caller.clone(), deed }));
        played.apply(acquire(session, 0, 0, &format!("own/{number:07}"), true));
    }
    let deed = Deed::CutOff { identity, reason: Label::default(), now: false };
    (played, Command::By { caller: Caller { is_admin: true, ..Caller::default() }, deed })
}

fn expire(locks: u64) -> Scene {
    let played = Played::with_locks(locks);
    let first = played.table.sessions().map(|view| view.session).min();
    let session = first.unwrap_or(SessionId::new(1));
    (played, Command::ExpireSession { session, tenure: TENURE })
}

/// A thousand sets of 64 locks.
fn expire_sets(locks: u64) -> Scene {
    let mut played = Played::with_locks(locks);
    let session = played.open();
    for set in 0..REQUESTS.min(locks / OTHERS) {
        let items = (0..64).map(|at| Item::exclusive(lock(&format!("set/{set:04}/{at:02}"))));
        played.apply(Command::Acquire {
            session,
            done_below: RequestId::new(0),
            request: RequestId::new(set + 1),
            items: items.collect(),
            need: Need::All,
            wait: true,
        });
    }
    (played, Command::ExpireSession { session, tenure: TENURE })
}

/// A snapshot begins; then the first write to each of a thousand sessions.
fn freeze(locks: u64) {
    let mut played = Played::with_locks(locks);
    let mut sessions: Vec<SessionId> = played.table.sessions().map(|view| view.session).collect();
    sessions.sort_unstable();
    let begun = Instant::now();
    let frozen = black_box(played.table.freeze());
    let froze = begun.elapsed();
    let mut longest = Duration::ZERO;
    for session in sessions {
        let command = Command::Acquire {
            session,
            done_below: RequestId::new(0),
            request: RequestId::new(10 * REQUESTS),
            items: vec![Item::exclusive(lock(&format!("free/{session}")))],
            need: Need::All,
            wait: true,
        };
        let (took, applied) = timed(&mut played, &command);
        assert!(matches!(applied.outcome, Ok(Answer::Acquired { .. })));
        longest = longest.max(took);
        black_box(granted(&applied));
    }
    eprintln!(
        "a snapshot begins in {:.3} ms; the longest first write to a session after it takes {:.2} ms",
        millis(froze),
        millis(longest)
    );
    drop(frozen);
}
