use super::*;

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
