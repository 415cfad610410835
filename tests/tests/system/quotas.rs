//! How much an identity may have (DESIGN §14), with the programs of users.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of a test fail it by a panic")]

use std::time::Duration;

use holdfast_runtime::Runtime;
use holdfast_tests::cluster::{Cluster, Setup};
use holdfast_tests::program::{Ended, Program};
use serde_json::Value;

/// Longer than any command's own limit.
const LIMIT: Duration = Duration::from_mins(1);
const REFUSED: Option<i32> = Some(122);
/// How often a condition is checked before the test fails.
const LOOKS: usize = 300;

struct Scene(Cluster);

impl Scene {
    fn begin(&self, arguments: &[&str]) -> Program {
        let endpoints = self.0.endpoints();
        Program::start("holdfast", &[&["--endpoints", &endpoints], arguments].concat())
    }

    async fn run(&self, arguments: &[&str]) -> Ended {
        self.begin(arguments).end(LIMIT).await
    }

    async fn must(&self, arguments: &[&str]) -> String {
        let ended = self.run(arguments).await;
        assert_eq!(ended.code, Some(0), "{arguments:?}: {ended:?}");
        ended.out
    }

    async fn refused(&self, arguments: &[&str], says: &str) {
        let ended = self.run(arguments).await;
        assert_eq!(ended.code, REFUSED, "{arguments:?}: {ended:?}");
        assert!(ended.err.contains(says), "{says}: {ended:?}");
    }

    /// Runs a command again and again, until it ends with this code.
    async fn until(&self, arguments: &[&str], code: Option<i32>) -> Ended {
        for _ in 0..LOOKS {
            let ended = self.run(arguments).await;
            if ended.code == code {
                return ended;
            }
            Runtime::system().sleep(Duration::from_millis(100)).await;
        }
        panic!("{arguments:?} never ends with {code:?}");
    }

    /// Waits until somebody who proves nothing has so many locks held or waited for, and returns the row.
    async fn until_holds(&self, holds: u64) -> Value {
        for _ in 0..LOOKS {
            // The node may still count the connection of a command that has ended.
            let listed = self.until(&["--json", "auth", "quota", "list"], Some(0)).await;
            let listed: Value = serde_json::from_str(&listed.out).unwrap();
            let row = listed["identities"].as_array().unwrap().first().cloned();
            if let Some(row) = row.filter(|row| row["has"]["holds"] == holds) {
                return row;
            }
            Runtime::system().sleep(Duration::from_millis(100)).await;
        }
        panic!("there never are {holds} holds");
    }

    /// Starts commands that lock `name`, until one holds it.
    async fn holder(&self, name: &str) -> Program {
        for _ in 0..LOOKS {
            let hold = ["lock", name, "--", "sh", "-c", "echo held; exec sleep 1000"];
            let mut program = self.begin(&hold);
            for _ in 0..LOOKS {
                if program.out().contains("held") {
                    return program;
                }
                if program.ends_within(Duration::from_millis(100)).await {
                    break;
                }
            }
        }
        panic!("{name} is never held");
    }
}

#[tokio::test]
async fn what_would_be_more_than_a_quota_is_refused_by_its_name_and_nothing_ends() {
    let scene = Scene(Cluster::start(&Setup::nodes(1)).await);
    scene.must(&["auth", "quota", "set", "anonymous", "--holds", "1"]).await;
    let mut holder = scene.begin(&["lock", "a", "--", "sleep", "1000"]);
    let row = scene.until_holds(1).await;
    assert_eq!(row["identity"], "anonymous");
    assert_eq!((&row["quota"]["holds"], &row["has"]["sessions"]), (&1.into(), &1.into()), "{row}");

    let lock_b = ["lock", "b", "--", "true"];
    scene.refused(&lock_b, "quota of locks held or waited for, 1").await;
    let table = scene.must(&["auth", "quota", "list"]).await;
    assert!(table.contains("1 of 1"), "{table}");

    scene.must(&["auth", "quota", "set", "anonymous", "--sessions", "1"]).await;
    scene.refused(&lock_b, "quota of sessions, 1").await;

    // The holder has one connection, and each command another one.
    scene.must(&["auth", "quota", "set", "all", "--connections", "2"]).await;
    // A command is refused while the node has not seen the end of the connection of the one before.
    scene.until(&["auth", "quota", "remove", "anonymous"], Some(0)).await;
    scene.until(&lock_b, Some(0)).await;
    let second = scene.holder("c").await;
    let refused = scene.until(&["list"], REFUSED).await;
    assert!(refused.err.contains("quota of connections to a node, 2"), "{refused:?}");
    drop(second);
    scene.until_holds(1).await;
    scene.until(&["auth", "quota", "remove", "all"], Some(0)).await;

    assert!(
        !holder.ends_within(Duration::from_millis(100)).await,
        "nothing ends because of a quota"
    );
    scene.refused(&["auth", "quota", "set", "all", "--connections", "0"], "0 connections").await;
    let nothing = scene.run(&["auth", "quota", "set", "all"]).await;
    assert!(nothing.code != Some(0) && nothing.err.contains("--sessions"), "{nothing:?}");
}
