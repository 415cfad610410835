//! Short ways to say commands, and a table that a few of them were applied to.

#![allow(dead_code, reason = "each test file uses some of it")]
#![expect(clippy::unwrap_used, reason = "what cannot be unwrapped here fails the test")]

use holdfast_core::{
    Answer, Applied, Batch, Command, FencingToken, Item, Label, LockName, LockTable, LogIndex,
    Need, RequestId, SessionId, Tenure,
};

pub(crate) const TENURE: Tenure = Tenure::new(1);

pub(crate) fn name(text: &str) -> LockName {
    LockName::parse(text).unwrap()
}

pub(crate) fn open() -> Command {
    let label = Label::parse("test").unwrap();
    Command::OpenSession { ttl_ms: 10_000, label, secret_hash: [7; 32] }
}

pub(crate) fn acquire(session: u64, request: u64, lock: &str) -> Command {
    Command::Acquire {
        session: SessionId::new(session),
        done_below: RequestId::new(0),
        request: RequestId::new(request),
        items: vec![Item::exclusive(name(lock))],
        need: Need::All,
        wait: true,
    }
}

pub(crate) fn cancel(session: u64, request: u64) -> Command {
    let (session, request) = (SessionId::new(session), RequestId::new(request));
    Command::Cancel { session, done_below: RequestId::new(0), request }
}

pub(crate) fn release(session: u64, counter: u64) -> Command {
    Command::Release {
        session: SessionId::new(session),
        done_below: RequestId::new(0),
        token: FencingToken::new(1, counter).unwrap(),
        locks: Vec::new(),
    }
}

pub(crate) fn batch(commands: Vec<Command>) -> Batch {
    Batch { stamp_ms: 1_000, witness: None, commands }
}

/// Applies one entry and returns what came of it.
pub(crate) fn apply(table: &mut LockTable, index: u64, commands: Vec<Command>) -> Vec<Applied> {
    let mut applied = Vec::new();
    table.apply_batch(LogIndex::new(index), TENURE, &batch(commands), &mut applied).unwrap();
    table.check().unwrap();
    applied
}

/// Three sessions; 1 holds `a` and has a spent and an ended request; 2 and 3 wait for `a`, 3 holds
/// `b`; a try of 2 was denied.
pub(crate) fn busy_table() -> LockTable {
    let mut table = LockTable::new();
    let denied = match acquire(2, 2, "b") {
        Command::Acquire { session, done_below, request, items, need, .. } => {
            Command::Acquire { session, done_below, request, items, need, wait: false }
        }
        other => other,
    };
    let opened = apply(&mut table, 1, vec![open(), open(), open()]);
    assert!(opened.iter().all(|one| matches!(one.outcome, Ok(Answer::SessionOpened { .. }))));
    let asked = vec![
        acquire(1, 1, "a"),
        acquire(2, 1, "a"),
        acquire(3, 1, "a"),
        acquire(3, 2, "b"),
        denied,
        cancel(1, 2),
        acquire(1, 3, "c"),
        cancel(1, 3),
    ];
    apply(&mut table, 2, asked);
    table
}

pub(crate) fn bytes_of(table: &LockTable) -> Vec<u8> {
    let mut bytes = Vec::new();
    table.freeze().write_to(&mut bytes).unwrap();
    bytes
}
