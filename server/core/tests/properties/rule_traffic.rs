//! Random changes of the rules, and callers for commands.

use std::collections::BTreeSet;

use holdfast_core::{
    AccessName, Caller, Command, Deed, Identity, Label, LockName, NamePrefix, Quota, Right,
    RuleChange, Tenure, Token, Verb,
};
use rand::RngExt;
use rand::rngs::Xoshiro256PlusPlus;
use rand::seq::IndexedRandom;

use crate::model::{Model, Session};
use crate::traffic;

const ROLES: [&str; 4] = ["all", "some", "little", "more"];
const IDENTITIES: [&str; 6] = ["cn:ops", "cn:app", "dns:app", "uid:7", "anonymous", "token:ci"];
const TOKENS: [&str; 3] = ["ci", "ci", "cd"];

/// Rules under which most goes on: `cn:ops` may do everything, `cn:app` most.
pub(crate) fn first_rules() -> Vec<Command> {
    let all: Vec<_> = Verb::ALL.into_iter().map(|verb| right(verb, "")).collect();
    let some = ["a", "b", "s/", "t/"].map(|prefix| right(Verb::Acquire, prefix));
    let role = |role: &str, rights: &[Right]| RuleChange::SetRole {
        role: name(role),
        rights: rights.iter().cloned().collect(),
    };
    let roles = |who: &str, role: &str| RuleChange::SetRoles {
        identity: Identity::parse(who).unwrap(),
        roles: [name(role)].into(),
    };
    [
        role("all", &all),
        role("some", &some),
        role("little", &[right(Verb::Read, "")]),
        roles("cn:ops", "all"),
        roles("cn:app", "some"),
        RuleChange::Turn { on: true },
    ]
    .map(|change| Command::By { caller: caller("cn:ops"), deed: Deed::Rule { change } })
    .into()
}

/// The same command of somebody, if it has that form.
pub(crate) fn by_somebody(rng: &mut Xoshiro256PlusPlus, command: Command) -> Command {
    let is_session = matches!(command, Command::OpenSession { .. });
    let deed = match command {
        Command::OpenSession { ttl_ms, label, secret_hash } => {
            let knows_closed = rng.random_bool(0.8);
            Deed::OpenSession { ttl_ms, label, secret_hash, knows_closed }
        }
        Command::Import { owner, ttl_ms, rows } => Deed::Import { owner, ttl_ms, rows },
        Command::SetScope { scope } => Deed::SetScope { scope },
        Command::RemoveScope { scope } => Deed::RemoveScope { scope },
        other => return other,
    };
    let likely = if is_session { "cn:app" } else { "cn:ops" };
    Command::By { caller: somebody(rng, likely), deed }
}

/// An end from outside, or what the leader does about a hold that was closed.
pub(crate) fn from_outside(rng: &mut Xoshiro256PlusPlus, model: &Model, tenure: Tenure) -> Command {
    let reason = Label::parse(["", "on fire"].choose(rng).unwrap()).unwrap();
    let now = rng.random_bool(0.15);
    let deed = match rng.random_range(0..100) {
        0..25 => Deed::EndSession { session: traffic::session(rng, model), reason, now },
        25..30 => {
            let identity = Identity::parse(IDENTITIES.choose(rng).unwrap()).unwrap();
            Deed::CutOff { identity, reason, now }
        }
        30..65 => {
            let (_, token, holds) = traffic::held(rng, model);
            let of = LockName::parse("nothing").unwrap();
            let lock = holds.choose(rng).map_or(of, |item| item.lock.clone());
            let token = rng.random_bool(0.5).then_some(token);
            Deed::CloseHolds { lock, token, reason, now }
        }
        65..75 => Deed::OwnSession { session: traffic::session(rng, model) },
        _ => return end_closed(rng, model, tenure),
    };
    Command::By { caller: somebody(rng, "cn:ops"), deed }
}

/// Mostly of a hold that was closed, over or not.
fn end_closed(rng: &mut Xoshiro256PlusPlus, model: &Model, tenure: Tenure) -> Command {
    let closed =
        |open: &Session| open.closed.iter().map(|(t, _)| (open.id, *t)).collect::<Vec<_>>();
    let closed: Vec<_> = model.sessions.iter().flat_map(closed).collect();
    let (session, token, _) = traffic::held(rng, model);
    let (session, token) = match closed.choose(rng) {
        Some(&one) if rng.random_bool(0.9) => one,
        _ => (session, token),
    };
    let heard_in = if rng.random_bool(0.2) { rng.random_range(0..9) } else { tenure.get() };
    Command::EndClosed { session, token, tenure: Tenure::new(heard_in) }
}

/// Mostly that one.
pub(crate) fn somebody(rng: &mut Xoshiro256PlusPlus, likely: &str) -> Caller {
    match rng.random_range(0..10) {
        0..7 => caller(likely),
        7 => Caller { is_admin: true, ..caller("cn:root") },
        _ => caller(IDENTITIES.choose(rng).unwrap()),
    }
}

/// A change of the rules, now and then one that cannot be.
pub(crate) fn change(rng: &mut Xoshiro256PlusPlus, model: &Model) -> Command {
    let one_role = |rng: &mut Xoshiro256PlusPlus| name(ROLES.choose(rng).unwrap());
    let change = match rng.random_range(0..100) {
        // They are mostly on.
        0..10 => RuleChange::Turn { on: !model.rules.on || rng.random_bool(0.7) },
        10..40 => RuleChange::SetRole { role: one_role(rng), rights: rights(rng) },
        40..50 => RuleChange::RemoveRole { role: one_role(rng) },
        50..70 => RuleChange::SetRoles {
            identity: Identity::parse(IDENTITIES.choose(rng).unwrap()).unwrap(),
            roles: roles(rng),
        },
        88..94 => {
            let identity = Identity::parse(IDENTITIES.choose(rng).unwrap()).unwrap();
            let identity = rng.random_bool(0.8).then_some(identity);
            RuleChange::SetQuota { identity, quota: quota(rng) }
        }
        70..88 => {
            let hash = [rng.random_range(0..3); 32];
            let ends_ms = rng.random_bool(0.5).then_some(1_000);
            let (name, token) = (name(TOKENS.choose(rng).unwrap()), Token { hash, ends_ms });
            RuleChange::CreateToken { name, token, roles: roles(rng) }
        }
        _ => RuleChange::RevokeToken { name: name(TOKENS.choose(rng).unwrap()) },
    };
    Command::By { caller: somebody(rng, "cn:ops"), deed: Deed::Rule { change } }
}

/// Mostly such that something goes on.
fn quota(rng: &mut Xoshiro256PlusPlus) -> Quota {
    let mut some = |most: u64| rng.random_bool(0.4).then(|| rng.random_range(0..=most));
    Quota {
        sessions: some(6),
        holds: some(12),
        waits: some(6),
        value_bytes: some(2_000),
        connections: some(3),
    }
}

fn roles(rng: &mut Xoshiro256PlusPlus) -> BTreeSet<AccessName> {
    if rng.random_bool(0.01) {
        return (0..17).map(|number| name(&format!("role-{number}"))).collect();
    }
    (0..rng.random_range(0..3)).map(|_| name(ROLES.choose(rng).unwrap())).collect()
}

/// Mostly such that much can go on.
fn rights(rng: &mut Xoshiro256PlusPlus) -> BTreeSet<Right> {
    if rng.random_bool(0.4) {
        return Verb::ALL.into_iter().map(|verb| right(verb, "")).collect();
    }
    let one = |rng: &mut Xoshiro256PlusPlus| {
        let verb = *Verb::ALL.choose(rng).unwrap();
        right(verb, ["", "", "a", "s/", "s/a", "more"].choose(rng).unwrap())
    };
    (0..rng.random_range(0..6)).map(|_| one(rng)).collect()
}

fn right(verb: Verb, prefix: &str) -> Right {
    Right { verb, prefix: NamePrefix::parse(prefix).unwrap() }
}

fn name(text: &str) -> AccessName {
    AccessName::parse(text).unwrap()
}

fn caller(text: &str) -> Caller {
    Caller { identity: Identity::parse(text).unwrap(), is_admin: false }
}
