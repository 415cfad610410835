//! `holdfast-migrate` without a cluster: a wrong command line, and a cluster that does not answer.

#![allow(clippy::expect_used, reason = "a helper of tests stops the test when something is wrong")]

use std::process::{Command, Output};

fn run(line: &str) -> Output {
    run_in(&[], line)
}

fn run_in(variables: &[(&str, &str)], line: &str) -> Output {
    Command::new(env!("CARGO_BIN_EXE_holdfast-migrate"))
        .args(line.split_whitespace())
        .env_remove("HOLDFAST_CONTACT_POINTS")
        .env_remove("HOLDFAST_KEYSPACE")
        .envs(variables.iter().copied())
        .output()
        .expect("it was built for this test")
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn a_wrong_command_line_ends_with_125_and_says_what_is_missing() {
    let cases = [
        ("plan --from lease", "--contact-points"),
        ("--contact-points 127.0.0.1 --keyspace k plan", "--from"),
        ("--contact-points 127.0.0.1 --keyspace k plan --from rows", "bakery"),
        ("--contact-points 127.0.0.1 --keyspace k plan --from lease --grace soon", "is not a time"),
        ("--contact-points , --keyspace k plan --from lease", "no contact point is given"),
    ];
    for (line, says) in cases {
        let output = run(line);
        assert_eq!(output.status.code(), Some(125), "{line}: {}", said(&output));
        assert!(said(&output).contains(says), "{line}: {}", said(&output));
    }
}

/// Nothing listens on port 9 of this address.
#[test]
fn a_cluster_that_does_not_answer_is_named_and_ends_with_123() {
    let output = run("--contact-points 127.255.255.1:9 --keyspace k plan --from lease");
    assert_eq!(output.status.code(), Some(123), "{}", said(&output));
    let place = [("HOLDFAST_CONTACT_POINTS", "127.255.255.1:9"), ("HOLDFAST_KEYSPACE", "k")];
    let from_the_environment = run_in(&place, "plan --from lease");
    assert_eq!(from_the_environment.status.code(), Some(123), "{}", said(&from_the_environment));
    let expected = "holdfast-migrate: no answer from Cassandra at 127.255.255.1:9 within";
    assert!(said(&output).starts_with(expected), "{}", said(&output));
    assert_eq!(said(&output).lines().count(), 1, "{}", said(&output));
    assert_eq!(output.stdout, b"");
}
