use std::sync::Arc;

use super::*;
use crate::Rejection;

fn name(text: &str) -> AccessName {
    AccessName::parse(text).unwrap()
}

fn caller(text: &str) -> Caller {
    Caller { identity: Identity::parse(text).unwrap(), is_admin: false }
}

fn right(verb: Verb, prefix: &str) -> Right {
    Right { verb, prefix: NamePrefix::parse(prefix).unwrap() }
}

/// Rules that are on: `app` may acquire `jobs/` and read `jobs/a`, `watcher` reads everything and sees
/// the metrics.
fn rules() -> Rules {
    let roles = [
        ("worker", vec![right(Verb::Acquire, "jobs/"), right(Verb::Read, "jobs/a")]),
        ("observer", vec![right(Verb::Read, ""), right(Verb::Metrics, "")]),
        ("empty", vec![]),
    ];
    let identities = [("cn:app", "worker"), ("dns:watcher", "observer"), ("cn:poor", "empty")];
    let roles = roles.map(|(role, rights)| (name(role), rights.into_iter().collect()));
    let identities = identities
        .map(|(identity, role)| (Identity::parse(identity).unwrap(), BTreeSet::from([name(role)])));
    Rules { on: true, roles: roles.into(), identities: identities.into(), ..Rules::default() }
}

/// I36: only grants, and nothing by default.
#[test]
fn what_no_role_grants_is_refused_and_the_refusal_says_which_verb_on_which_name() {
    let rules = rules();
    let allows = |who: &str, verb, names: &[&str]| {
        let missing = rules.allows(&caller(who), verb, names.iter().copied());
        missing.map_err(|missing| missing.to_string())
    };
    let refused = |text: &str| Err(text.to_owned());

    assert_eq!(allows("cn:app", Verb::Acquire, &["jobs/1", "jobs/"]), Ok(()));
    assert_eq!(allows("cn:app", Verb::Read, &["jobs/a/b"]), Ok(()));
    assert_eq!(allows("dns:watcher", Verb::Read, &["", "x"]), Ok(()));
    assert_eq!(allows("dns:watcher", Verb::Metrics, &[]), Ok(()));

    // A set with one forbidden name is refused whole.
    assert_eq!(allows("cn:app", Verb::Acquire, &["jobs/1", "pay/2"]), refused("acquire on pay/2"));
    // A prefix has to lie inside a granted one: the shorter one covers names that are not.
    assert_eq!(allows("cn:app", Verb::Read, &["jobs/"]), refused("read on jobs/"));
    assert_eq!(allows("cn:app", Verb::Read, &[""]), refused("read on all names"));
    // A right for names is none for the verb without names.
    assert_eq!(allows("cn:app", Verb::Acquire, &[]), refused("acquire on all names"));
    assert_eq!(allows("cn:app", Verb::Metrics, &[]), refused("metrics"));
    // Another kind of identity is another identity.
    for who in ["dns:app", "uri:app", "token:app", "cn:ap", "cn:app2", "anonymous", "cn:poor"] {
        assert_eq!(allows(who, Verb::Acquire, &["jobs/1"]), refused("acquire on jobs/1"), "{who}");
    }
}

#[test]
fn a_session_needs_any_right_at_all() {
    let rules = rules();
    assert_eq!(rules.allows_any(&caller("cn:app")), Ok(()));
    for who in ["cn:poor", "anonymous", "cn:nobody"] {
        assert_eq!(rules.allows_any(&caller(who)), Err(Missing::Any), "{who}");
    }
}

#[test]
fn administrators_of_the_settings_and_everybody_without_rules_have_every_right() {
    let rules = rules();
    let admin = Caller { is_admin: true, ..caller("cn:ops") };
    let off = Rules { on: false, ..rules.clone() };
    for verb in Verb::ALL {
        for (rules, who) in [(&rules, &admin), (&off, &Caller::default())] {
            assert_eq!(rules.allows(who, verb, ["x"]), Ok(()));
            assert_eq!(rules.allows(who, verb, []), Ok(()));
            assert_eq!(rules.allows_any(who), Ok(()));
        }
    }
}

#[test]
fn each_verb_has_a_name_of_its_own() {
    for verb in Verb::ALL {
        assert_eq!(Verb::parse(verb.name()), Some(verb));
    }
    assert_eq!(Verb::parse("ACQUIRE"), None);
}

#[test]
fn rules_that_no_table_wrote_are_found() {
    let good = rules();
    assert_eq!(good.clone().restore(), Ok(()));
    let mut without_role = good.clone();
    without_role.roles.remove(&name("worker"));
    let mut of_no_token = good.clone();
    of_no_token.identities.insert(Identity::of_token(&name("ci")), [name("worker")].into());
    let mut without_roles = good.clone();
    without_roles.identities.insert(Identity::default(), BTreeSet::new());
    let mut one_secret_twice = good;
    for token in ["a", "b"] {
        one_secret_twice.tokens.insert(name(token), Token { hash: [7; 32], ends_ms: None });
    }
    for mut rules in [without_role, of_no_token, without_roles, one_secret_twice] {
        assert!(rules.restore().is_err(), "{rules:?}");
    }
}

/// A kind of which there may be so many, rules that have one less, and a change that adds one.
type Kind = (&'static str, u64, Rules, fn(&str) -> RuleChange);

fn cn(text: &str) -> Identity {
    Identity::parse(&format!("cn:{text}")).unwrap()
}

fn token_named(text: &str) -> Token {
    let mut hash = [0; 32];
    hash[..text.len()].copy_from_slice(text.as_bytes());
    Token { hash, ends_ms: None }
}

fn one_hold() -> Quota {
    Quota { holds: Some(1), ..Quota::default() }
}

fn kinds() -> [Kind; 5] {
    let but_one = |max: u64| (1..max).map(|number| format!("n{number}"));
    let worker = || BTreeSet::from([name("worker")]);
    let roles = but_one(ROLES_MAX).map(|role| (name(&role), BTreeSet::new())).collect();
    let rights = but_one(RIGHTS_MAX).map(|lock| right(Verb::Acquire, &lock)).collect();
    let identities = but_one(IDENTITIES_MAX).map(|who| (cn(&who), worker())).collect();
    let tokens = but_one(TOKENS_MAX).map(|token| (name(&token), token_named(&token))).collect();
    let quotas = but_one(QUOTAS_MAX).map(|who| (cn(&who), one_hold())).collect();
    let of_worker = |rights| BTreeMap::from([(name("worker"), rights)]);
    let nothing = Rules::default;
    let set_role: fn(&str) -> RuleChange = |text| RuleChange::SetRole {
        role: name(text),
        rights: [right(Verb::Acquire, "jobs/")].into(),
    };
    [
        ("roles", ROLES_MAX, Rules { roles, ..nothing() }, set_role),
        (
            "rights of all roles together",
            RIGHTS_MAX,
            Rules { roles: of_worker(rights), ..nothing() },
            set_role,
        ),
        (
            "identities",
            IDENTITIES_MAX,
            Rules { roles: of_worker(BTreeSet::new()), identities, ..nothing() },
            |text| RuleChange::SetRoles { identity: cn(text), roles: [name("worker")].into() },
        ),
        ("tokens", TOKENS_MAX, Rules { tokens, ..nothing() }, |text| RuleChange::CreateToken {
            name: name(text),
            token: token_named(text),
            roles: BTreeSet::new(),
        }),
        (
            "identities with a quota of their own",
            QUOTAS_MAX,
            Rules { quotas, ..nothing() },
            |text| RuleChange::SetQuota { identity: Some(cn(text)), quota: one_hold() },
        ),
    ]
}

/// I27: the last that there may be is taken, and one more refused by its kind and its number.
#[test]
fn more_rules_than_there_may_be_are_refused_and_change_nothing() {
    let nobody = Caller::default();
    for (what, max, mut rules, add) in kinds() {
        rules.restore().unwrap();
        let mut table = LockTable { rules: Arc::new(rules), ..LockTable::new() };
        let last = table.change_rules(&nobody, &add("last"), &mut Vec::new());
        assert!(last.is_ok(), "{what}: {last:?}");

        let before = table.rules.clone();
        let refused = table.change_rules(&nobody, &add("more"), &mut Vec::new());
        let error = RulesError::TooMany { what: what.to_owned(), max };
        assert_eq!(error.to_string(), format!("there may be {max} {what} at most"));
        assert_eq!(refused, Err(Rejection::Rules(error)));
        assert!(table.rules == before, "{what}: they have changed");
    }
}

#[test]
fn an_identity_has_so_many_roles_and_no_more() {
    let all: Vec<_> = (0..=ROLES_OF_ONE_MAX).map(|role| name(&format!("r{role}"))).collect();
    let empty = all.iter().map(|role| (role.clone(), BTreeSet::new())).collect();
    let start = Arc::new(Rules { roles: empty, ..Rules::default() });
    let mut table = LockTable { rules: start, ..LockTable::new() };
    let mut give = |given: &[AccessName]| {
        let roles = given.iter().cloned().collect();
        let change = RuleChange::SetRoles { identity: cn("app"), roles };
        table.change_rules(&Caller::default(), &change, &mut Vec::new())
    };

    assert!(give(&all[1..]).is_ok());
    let what = "roles of one identity".to_owned();
    let error = RulesError::TooMany { what, max: ROLES_OF_ONE_MAX };
    assert_eq!(give(&all), Err(Rejection::Rules(error)));
}
