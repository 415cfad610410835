//! Short functions for commands, and tables to which a few commands were applied.

#![allow(dead_code, reason = "each test file uses some of it")]
#![expect(clippy::unwrap_used, reason = "what cannot be unwrapped here fails the test")]

use std::num::NonZeroU32;

use holdfast_core::{
    AccessName, Answer, Applied, Batch, Caller, Command, Deed, FencingToken, Has, Identity,
    ImportRow, Item, Label, LockName, LockTable, LogIndex, NamePrefix, Need, Quota, RequestId,
    Right, RuleChange, SNAPSHOT_VERSION, ScopePrefix, SessionId, Tenure, Terms, Token, ValueChange,
    Verb,
};

pub(crate) const MAGIC_AND_VERSION: usize = 10;
const BLOCK_HEAD: usize = 8;

pub(crate) const TENURE: Tenure = Tenure::new(1);

pub(crate) fn name(text: &str) -> LockName {
    LockName::parse(text).unwrap()
}

pub(crate) fn open() -> Command {
    let label = Label::parse("test").unwrap();
    Command::OpenSession { ttl_ms: 10_000, label, secret_hash: [7; 32] }
}

pub(crate) fn acquire(session: u64, request: u64, lock: &str) -> Command {
    acquire_many(session, request, exclusive(&[lock]), Need::All)
}

pub(crate) fn share(session: u64, request: u64, lock: &str) -> Command {
    acquire_many(session, request, vec![Item::shared(name(lock))], Need::All)
}

pub(crate) fn acquire_many(session: u64, request: u64, items: Vec<Item>, need: Need) -> Command {
    Command::Acquire {
        session: SessionId::new(session),
        done_below: RequestId::new(0),
        request: RequestId::new(request),
        items,
        need,
        wait: true,
    }
}

/// With a head start, an owner and a note.
pub(crate) fn acquire_on(
    session: u64,
    request: u64,
    lock: &str,
    head_start_ms: u32,
    owner: u64,
) -> Command {
    let who = (SessionId::new(session), RequestId::new(0), RequestId::new(request));
    let note = Label::parse("nightly").unwrap();
    let terms = Terms { head_start_ms, owner, note, ..Terms::default() };
    Command::acquire(who, exclusive(&[lock]), (Need::All, true), terms)
}

/// With bounds of the hold.
pub(crate) fn hold_for(session: u64, request: u64, lock: &str, most: u32, least: u32) -> Command {
    let who = (SessionId::new(session), RequestId::new(0), RequestId::new(request));
    let terms = Terms { max_hold_ms: most, hold_at_least_ms: least, ..Terms::default() };
    Command::acquire(who, exclusive(&[lock]), (Need::All, true), terms)
}

pub(crate) fn as_admin(deed: Deed) -> Command {
    Command::By { caller: Caller { is_admin: true, ..Caller::default() }, deed }
}

pub(crate) fn freeze(prefix: &str, message: &str) -> Deed {
    let message = Label::parse(message).unwrap();
    Deed::Freeze { prefix: NamePrefix::parse(prefix).unwrap(), message }
}

pub(crate) fn advance(sequence: &str, by: u32) -> Deed {
    Deed::Advance { sequence: name(sequence), by }
}

pub(crate) fn begin_sequence(sequence: &str, at: u64) -> Deed {
    Deed::BeginSequence { sequence: name(sequence), at }
}

pub(crate) fn exclusive(names: &[&str]) -> Vec<Item> {
    names.iter().map(|text| Item::exclusive(name(text))).collect()
}

pub(crate) fn set_value(
    session: u64,
    request: u64,
    counter: u64,
    lock: &str,
    bytes: &[u8],
) -> Command {
    Command::SetValue {
        session: SessionId::new(session),
        done_below: RequestId::new(0),
        request: RequestId::new(request),
        token: FencingToken::new(1, counter).unwrap(),
        lock: name(lock),
        change: ValueChange::Set(bytes.to_vec()),
    }
}

pub(crate) fn cancel(session: u64, request: u64) -> Command {
    let (session, request) = (SessionId::new(session), RequestId::new(request));
    Command::Cancel { session, done_below: RequestId::new(0), request }
}

pub(crate) fn release(session: u64, counter: u64) -> Command {
    release_some(session, counter, &[])
}

pub(crate) fn release_some(session: u64, counter: u64, locks: &[&str]) -> Command {
    Command::Release {
        session: SessionId::new(session),
        done_below: RequestId::new(0),
        token: FencingToken::new(1, counter).unwrap(),
        locks: locks.iter().map(|lock| name(lock)).collect(),
    }
}

pub(crate) fn batch(commands: Vec<Command>) -> Batch {
    Batch { stamp_ms: 1_000, commands, ..Batch::default() }
}

/// A batch with most kinds of command.
pub(crate) fn some_batch() -> Batch {
    let configure = Command::Configure { limits: holdfast_core::Limits::default() };
    batch(
        vec![
            configure,
            open(),
            acquire(1, 1, "orders/42"),
            acquire_many(1, 2, exclusive(&["a", "b"]), Need::Any { min: 1 }),
            set_value(1, 3, 2, "a", b"note"),
            cancel(1, 1),
            release_some(1, 2, &["a"]),
            release(1, 1),
            import("old/1", &["i"], &["a"]),
            claim(1, 4, "i", "old/1"),
            Command::SetScope { scope: scope("s/") },
            Command::RaiseEpoch { scope: scope("s/"), epoch: 3 },
            Command::Resume { scope: scope("s/"), epoch: 3 },
            Command::Suspend { scope: scope("s/") },
            Command::RemoveScope { scope: scope("s/") },
            Command::LimitTable { max_bytes: 1 << 20 },
            by("cn:app", Deed::SetScope { scope: scope("s/") }),
            by("cn:app", Deed::RemoveScope { scope: scope("s/") }),
            Command::LimitWork { steps: 9 },
            Command::CarryOn,
            Command::GrantAgain,
            Command::BeginTokens { epoch: 331, counter: 1 << 40 },
            by("cn:app", Deed::Rule { change: set_role("night", &[right(Verb::Backup, "")]) }),
            by("cn:app", Deed::Rule { change: set_role("keeper", &[right(Verb::Limit, "g")]) }),
            by("cn:app", Deed::Rule { change: set_role("freezer", &[right(Verb::Freeze, "f")]) }),
            by("cn:app", freeze("f/", "backup")),
            by("cn:app", Deed::Thaw { prefix: NamePrefix::parse("f/").unwrap() }),
            acquire_on(1, 6, "orders/43", 1_500, 7),
            hold_for(1, 7, "cron/a", 2_000, 1_000),
            Command::EndLongHold {
                session: SessionId::new(1),
                token: FencingToken::new(1, 3).unwrap(),
            },
            Command::OpenLock { lock: name("cron/a"), token: FencingToken::new(1, 3).unwrap() },
            by("cn:app", Deed::Rule { change: set_role("counter", &[right(Verb::Sequence, "n")]) }),
            by("cn:app", begin_sequence("orders", 5)),
            by("cn:app", advance("orders", 100)),
            set_limit("gpu", 4),
            acquire_many(1, 5, permits("gpu", 2, 0), Need::All),
        ]
        .into_iter()
        .chain(commands_of_rules())
        .collect(),
    )
}

/// Applies one entry and returns its outcomes and events.
pub(crate) fn apply(table: &mut LockTable, index: u64, commands: Vec<Command>) -> Vec<Applied> {
    let mut applied = Vec::new();
    table.apply_batch(LogIndex::new(index), TENURE, &batch(commands), &mut applied).unwrap();
    table.check().unwrap();
    applied
}

/// Three sessions; 1 holds `a` and has a spent and an ended request; 2 and 3 wait for `a`, 3 holds
/// `b`; a try of 2 was denied. 2 and 3 share `s`; 3 holds `y` of a set, `y` and `z` carry values; 2
/// waits for the set of `b` and `d`, 1 for any of `b` and `s`.
pub(crate) fn table_before_imports() -> LockTable {
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
        share(2, 5, "s"),
        share(3, 5, "s"),
        acquire_many(3, 6, exclusive(&["x", "y", "z"]), Need::All),
        release_some(3, 6, &["x"]),
        set_value(3, 7, 6, "y", b"half way"),
        set_value(3, 8, 6, "z", b""),
        release_some(3, 6, &["z"]),
        acquire_many(2, 6, exclusive(&["b", "d"]), Need::All),
        acquire_many(1, 4, exclusive(&["b", "s"]), Need::Any { min: 1 }),
    ];
    apply(&mut table, 2, asked);
    table
}

/// The same, and an import for `old/1`: it holds `i`, waits for `a`, and held `j`, which 2 claimed.
pub(crate) fn table_before_scopes() -> LockTable {
    let mut table = table_before_imports();
    apply(&mut table, 3, vec![import("old/1", &["i", "j"], &["a"]), claim(2, 7, "j", "old/1")]);
    table
}

/// The same, and two scopes: in `u/`, in epoch 5, session 1 holds `u/1` and 2 waits for it; `v/` is
/// suspended, 3 waits for `v/1`, which has no holder, and was denied `v/2`.
pub(crate) fn table_before_limit() -> LockTable {
    let mut table = table_before_scopes();
    apply(&mut table, 4, commands_in_scopes());
    table
}

/// The same, and a limit of the table's bytes.
pub(crate) fn table_before_rules() -> LockTable {
    let mut table = table_before_scopes();
    apply(&mut table, 4, commands_before_rules());
    table
}

fn commands_before_rules() -> Vec<Command> {
    let mut commands = commands_in_scopes();
    commands.push(Command::LimitTable { max_bytes: 1 << 20 });
    commands
}

/// The same, and rules that are on: all sessions so far may go on, and `cn:app`, who has a session,
/// may acquire `app/`, holds `app/1` with a value of its own, and has a quota.
pub(crate) fn table_before_work() -> LockTable {
    table_with_rules(Vec::new())
}

/// The same, with a limit of work.
pub(crate) fn table_before_restores() -> LockTable {
    table_with_rules(vec![Command::LimitWork { steps: 1 << 20 }])
}

/// The same, and permits: of `gpu`, whose limit is for good, 1 holds three and 2 waits for two; of `pool`, 3 holds
/// one. `idle` has a limit alone. The sequences `orders` and `invoices` gave out numbers up to 104 and 1. `cron/a` and `cron/b`
/// are closed; 1 holds `cron/c`, for at least 60 s and at most 90 s.
pub(crate) fn busy_table() -> LockTable {
    let commands = vec![
        set_limit("gpu", 4),
        set_limit("idle", 9),
        acquire_many(1, 20, permits("gpu", 3, 4), Need::All),
        acquire_many(2, 20, permits("gpu", 2, 0), Need::All),
        acquire_many(3, 20, permits("pool", 1, 2), Need::All),
        acquire_on(2, 21, "pool", 1_500, 7),
        as_admin(freeze("f/", "backup")),
        acquire_on(1, 21, "f/1", 0, 9),
        as_admin(begin_sequence("orders", 5)),
        as_admin(advance("orders", 100)),
        as_admin(advance("invoices", 1)),
        hold_for(1, 22, "cron/a", 0, 60_000),
        cancel(1, 22),
        hold_for(1, 23, "cron/b", 0, 60_000),
        cancel(1, 23),
        hold_for(1, 24, "cron/c", 90_000, 60_000),
    ];
    let table = table_with_rules([commands_before_permits(), commands].concat());
    assert_eq!(table.counts().held, table_before_permits().counts().held + 3);
    table
}

pub(crate) fn permits(lock: &str, count: u32, limit: u32) -> Vec<Item> {
    vec![Item::permits(name(lock), count, limit)]
}

pub(crate) fn set_limit(lock: &str, limit: u32) -> Command {
    let caller = Caller { identity: identity("cn:root"), is_admin: true };
    Command::By { caller, deed: Deed::SetLimit { lock: name(lock), limit: NonZeroU32::new(limit) } }
}

/// As `table_before_restores`, and a role that may take backups.
pub(crate) fn table_before_permits() -> LockTable {
    table_with_rules(commands_before_permits())
}

fn commands_before_permits() -> Vec<Command> {
    let role = set_role("night", &[right(Verb::Backup, "")]);
    let role = by("anonymous", Deed::Rule { change: role });
    vec![Command::LimitWork { steps: 1 << 20 }, role]
}

fn table_with_rules(more: Vec<Command>) -> LockTable {
    let mut table = table_before_scopes();
    // One is granted in a scope before.
    let token = table.counters().token + 2;
    let own = vec![acquire(5, 1, "app/1"), set_value(5, 2, token, "app/1", b"theirs")];
    apply(&mut table, 4, [commands_before_rules(), commands_of_rules(), own, more].concat());
    assert!(table.rules().are_on() && table.session(SessionId::new(5)).is_some());
    let owned = table.usages().find(|(owner, _)| **owner == identity("cn:app")).unwrap();
    assert!(owned.1.value_bytes > 0 && owned.1.holds == 1, "{owned:?}");
    table
}

fn commands_of_rules() -> Vec<Command> {
    let label = Label::parse("test").unwrap();
    let opens =
        Deed::OpenSession { ttl_ms: 10_000, label, secret_hash: [8; 32], knows_closed: true };
    // As fixtures of earlier releases have it.
    let known = Verb::ALL.into_iter().filter(|verb| {
        let later = [Verb::Backup, Verb::Limit, Verb::Freeze, Verb::Sequence, Verb::History];
        !later.contains(verb)
    });
    let everything: Vec<_> = known.map(|verb| right(verb, "")).collect();
    let of_one = |role: &str| [access_name(role)].into();
    let changes = [
        set_role("all", &everything),
        set_role("app", &[right(Verb::Acquire, "app/"), right(Verb::Read, "")]),
        RuleChange::SetRoles { identity: Identity::default(), roles: of_one("all") },
        RuleChange::SetRoles { identity: identity("cn:app"), roles: of_one("app") },
        RuleChange::CreateToken {
            name: access_name("ci"),
            token: Token { hash: [9; 32], ends_ms: Some(1_000) },
            roles: of_one("app"),
        },
        RuleChange::SetQuota {
            identity: Some(identity("cn:app")),
            quota: Quota { holds: Some(3), value_bytes: Some(1_000), ..Quota::default() },
        },
        RuleChange::SetQuota {
            identity: None,
            quota: Quota { sessions: Some(100), connections: Some(10), ..Quota::default() },
        },
        RuleChange::Turn { on: true },
    ];
    let changes = changes.map(|change| by("anonymous", Deed::Rule { change }));
    changes.into_iter().chain([by("cn:app", opens)]).collect()
}

pub(crate) fn set_role(role: &str, rights: &[Right]) -> RuleChange {
    RuleChange::SetRole { role: access_name(role), rights: rights.iter().cloned().collect() }
}

pub(crate) fn by(who: &str, deed: Deed) -> Command {
    Command::By { caller: Caller { identity: identity(who), is_admin: false }, deed }
}

pub(crate) fn right(verb: Verb, prefix: &str) -> Right {
    Right { verb, prefix: NamePrefix::parse(prefix).unwrap() }
}

pub(crate) fn access_name(text: &str) -> AccessName {
    AccessName::parse(text).unwrap()
}

pub(crate) fn identity(text: &str) -> Identity {
    Identity::parse(text).unwrap()
}

fn commands_in_scopes() -> Vec<Command> {
    let denied = match acquire(3, 12, "v/2") {
        Command::Acquire { session, done_below, request, items, need, .. } => {
            Command::Acquire { session, done_below, request, items, need, wait: false }
        }
        other => other,
    };
    vec![
        Command::SetScope { scope: scope("u/") },
        Command::RaiseEpoch { scope: scope("u/"), epoch: 5 },
        Command::Resume { scope: scope("u/"), epoch: 5 },
        acquire(1, 12, "u/1"),
        acquire(2, 12, "u/1"),
        Command::SetScope { scope: scope("v/") },
        acquire(3, 11, "v/1"),
        denied,
    ]
}

pub(crate) fn scope(text: &str) -> ScopePrefix {
    ScopePrefix::parse(text).unwrap()
}

pub(crate) fn import(owner: &str, has: &[&str], waited_for: &[&str]) -> Command {
    let hold = |lock: &&str| ImportRow { lock: name(lock), has: Has::Hold(Some(b"v".to_vec())) };
    let place = |lock: &&str| ImportRow { lock: name(lock), has: Has::Place };
    let rows = has.iter().map(hold).chain(waited_for.iter().map(place)).collect();
    Command::Import { owner: Label::parse(owner).unwrap(), ttl_ms: 60_000, rows }
}

pub(crate) fn claim(session: u64, request: u64, lock: &str, owner: &str) -> Command {
    Command::Claim {
        session: SessionId::new(session),
        done_below: RequestId::new(0),
        request: RequestId::new(request),
        lock: name(lock),
        owner: Label::parse(owner).unwrap(),
    }
}

pub(crate) fn bytes_of(table: &LockTable) -> Vec<u8> {
    let mut bytes = Vec::new();
    table.freeze().write_to(&mut bytes).unwrap();
    bytes
}

/// Checks that a table still works: applies most kinds of command, then checks every invariant.
pub(crate) fn put_to_work(mut table: LockTable) {
    let index = LogIndex::new(table.applied_index().get().saturating_add(1));
    let commands = vec![
        open(),
        acquire(2, 9, "new"),
        acquire(5, 1, "app/1"),
        acquire(5, 2, "new"),
        by("cn:app", Deed::SetScope { scope: scope("x") }),
        by("token:ci", Deed::Rule { change: RuleChange::Turn { on: false } }),
        cancel(1, 1),
        release(3, 2),
        acquire(3, 9, "a"),
        acquire_many(1, 9, exclusive(&["s", "y"]), Need::All),
        set_value(3, 10, 6, "y", b"done"),
        claim(2, 11, "a", "old/1"),
        import("old/1", &["i", "n"], &["y"]),
        Command::Resume { scope: scope("v/"), epoch: 1 },
        Command::RaiseEpoch { scope: scope("u/"), epoch: 6 },
        Command::SetScope { scope: scope("w") },
        Command::RemoveScope { scope: scope("u/") },
        Command::ExpireSession { session: SessionId::new(3), tenure: TENURE },
        Command::ExpireSession { session: SessionId::new(4), tenure: TENURE },
        Command::CloseSession { session: SessionId::new(5) },
        by("anonymous", Deed::Rule { change: RuleChange::Turn { on: false } }),
    ];
    let mut applied = Vec::new();
    if table.apply_batch(index, TENURE, &batch(commands), &mut applied).is_ok() {
        table.check().unwrap();
    }
}

/// The content of the only block of a small snapshot.
pub(crate) fn content_of(snapshot: &[u8]) -> Vec<u8> {
    let end = snapshot.len() - BLOCK_HEAD;
    snapshot[MAGIC_AND_VERSION + BLOCK_HEAD..end].to_vec()
}

/// A snapshot with that content, as if a table had written it.
pub(crate) fn forge(content: &[u8]) -> Vec<u8> {
    let len = u32::try_from(content.len()).unwrap();
    let crc = crc32fast::hash(content).to_le_bytes();
    let version = SNAPSHOT_VERSION.to_le_bytes();
    [b"HOLDFAST", &version[..], &len.to_le_bytes(), &crc, content, &[0; 4], &crc].concat()
}
