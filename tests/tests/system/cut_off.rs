//! What an operator does about a holder that has to go (DESIGN §14, I35), with the programs of users.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of a test fail it by a panic")]

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use holdfast_runtime::Runtime;
use holdfast_tests::cluster::{Cluster, Setup};
use holdfast_tests::program::{Ended, Program};
use serde_json::Value;

/// Longer than any command's own limit.
const LIMIT: Duration = Duration::from_mins(1);
/// How often a condition is checked before the test fails.
const LOOKS: usize = 300;
/// The exit code of a command whose lock was lost, and of a refusal.
const LOST: Option<i32> = Some(121);
const REFUSED: Option<i32> = Some(122);

struct Scene {
    cluster: Cluster,
    token: PathBuf,
}

impl Scene {
    fn begin(&self, with_token: bool, arguments: &[&str]) -> Program {
        let endpoints = self.cluster.endpoints();
        let token = [("HOLDFAST_TOKEN_FILE", self.token.to_str().unwrap())];
        let variables = if with_token { &token[..] } else { &[] };
        Program::start_in(
            "holdfast",
            &[&["--endpoints", &endpoints], arguments].concat(),
            variables,
        )
    }

    /// An operator's command.
    async fn run(&self, arguments: &[&str]) -> Ended {
        self.begin(false, arguments).end(LIMIT).await
    }

    async fn json(&self, arguments: &[&str]) -> Value {
        let ended = self.run(&[&["--json"], arguments].concat()).await;
        assert_eq!(ended.code, Some(0), "{arguments:?}: {ended:?}");
        serde_json::from_str(&ended.out).unwrap()
    }

    /// A command that holds the lock `jobs`, and one that waits for it.
    async fn held_and_awaited(&self, with_token: bool) -> (Program, Program, Value) {
        let holder = self.begin(with_token, &["lock", "jobs", "--", "sleep", "1000"]);
        self.until(|jobs| jobs["held_by"] == 1).await;
        let waiter = self.begin(false, &["lock", "jobs", "--", "echo", "mine"]);
        let jobs = self.until(|jobs| jobs["waiting"] == 1).await;
        (holder, waiter, jobs["holders"][0].clone())
    }

    async fn until(&self, is_so: impl Fn(&Value) -> bool) -> Value {
        for _ in 0..LOOKS {
            let jobs = self.json(&["inspect", "jobs"]).await;
            if is_so(&jobs) {
                return jobs;
            }
            Runtime::system().sleep(Duration::from_millis(100)).await;
        }
        panic!("it never is so")
    }
}

/// The holder's command ended because of an operator, and the next one had the lock.
async fn taken_away((holder, waiter): (Program, Program), says: &str) {
    let ended = holder.end(LIMIT).await;
    assert_eq!(ended.code, LOST, "{ended:?}");
    assert!(ended.err.contains(says), "{ended:?}");
    let ended = waiter.end(LIMIT).await;
    assert_eq!((ended.code, ended.out.trim()), (Some(0), "mine"), "{ended:?}");
}

#[tokio::test]
async fn a_holder_that_has_to_go_is_told_why_and_the_next_one_gets_the_lock() {
    let cluster = Cluster::start(&Setup::nodes(1)).await;
    let token = cluster.folder().join("ci.token");
    let scene = Scene { cluster, token };
    let made = scene.run(&["auth", "role", "set", "worker", "acquire"]).await;
    assert_eq!(made.code, Some(0), "{made:?}");
    let made = scene.run(&["auth", "token", "create", "ci", "--role", "worker"]).await;
    fs::write(&scene.token, made.out).unwrap();

    let (holder, waiter, held) = scene.held_and_awaited(true).await;
    assert_eq!((&held["identity"], &held["ending"]), (&"token:ci".into(), &false.into()));
    let closed = scene.json(&["release", "--force", "jobs", "--reason", "on fire"]).await;
    assert_eq!(closed["guarantee_1_broken"], false);
    assert_eq!(closed["holds"][0]["token"], held["token"]);
    taken_away((holder, waiter), "an operator took the lock away: on fire").await;

    let (holder, waiter, held) = scene.held_and_awaited(false).await;
    let session = held["session"].as_str().unwrap();
    let ended = scene.run(&["session", "end", session, "--reason", "stuck"]).await;
    assert!(ended.out.starts_with(&format!("session {session} is ending")), "{ended:?}");
    taken_away((holder, waiter), "an operator ended the session: stuck").await;

    let (holder, waiter, _) = scene.held_and_awaited(true).await;
    let cut = scene.json(&["auth", "revoke", "token:ci", "--reason", "left us", "--now"]).await;
    assert_eq!((&cut["sessions"], &cut["guarantee_1_broken"]), (&1.into(), &true.into()));
    taken_away((holder, waiter), "an operator ended the session: left us").await;
    let with_token = scene.begin(true, &["try", "jobs", "--", "true"]).end(LIMIT).await;
    assert_eq!(with_token.code, REFUSED, "{with_token:?}");
    assert!(with_token.err.contains("revoked"), "{with_token:?}");
    for (arguments, says) in [
        (&["release", "--force", "jobs", "--reason", "x"][..], "jobs is not held"),
        (&["session", "end", "999", "--reason", "x"], "session 999 is not open"),
        (&["session", "end", "999", "--reason", ""], "say for what reason"),
        (&["auth", "revoke", "nobody", "--reason", "x"], "it begins with none of"),
    ] {
        let refused = scene.run(arguments).await;
        assert_eq!(refused.code, REFUSED, "{arguments:?}: {refused:?}");
        assert!(refused.err.contains(says), "{refused:?}");
    }
}
