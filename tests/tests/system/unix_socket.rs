//! Clients on the machine of a node, which it knows by their users (DESIGN §14).
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of a test fail it by a panic")]

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::time::Duration;

use holdfast::{Client, ImportGroup, ImportRow, ImportedState};
use holdfast_runtime::Runtime;
use holdfast_tests::cluster::{Cluster, Setup, binary};
use holdfast_tests::program::{Ended, Program};
use nix::sys::signal::Signal;
use tempfile::TempDir;

/// Longer than any command's own limit.
const LIMIT: Duration = Duration::from_mins(1);
/// How often a condition is checked before the test fails.
const LOOKS: usize = 300;
const REFUSED: Option<i32> = Some(122);

async fn run(endpoints: &str, arguments: &[&str]) -> Ended {
    Program::start("holdfast", &[&["--endpoints", endpoints], arguments].concat()).end(LIMIT).await
}

/// A node with a Unix socket, whose administrator is the user of this test.
struct Local {
    cluster: Cluster,
    socket: PathBuf,
    /// The socket as an endpoint.
    here: String,
    /// The identity.
    user: String,
    _folder: TempDir,
}

impl Local {
    async fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("holdfast.sock");
        let user = format!("uid:{}", rustix::process::getuid().as_raw());
        let setup = Setup::nodes(1)
            .node("unix_socket", format!("\"{}\"", socket.display()))
            .cluster("admins", format!("{:?}", [&user]));
        let cluster = Cluster::start(&setup).await;
        cluster.all_ready().await;
        let here = format!("unix:{}", socket.display());
        Self { cluster, socket, here, user, _folder: folder }
    }

    /// Waits until there is a line with all these words in the log behind `from`.
    async fn until_logged(&self, from: usize, words: &[&str]) {
        let mut log = String::new();
        for _ in 0..LOOKS {
            log = self.cluster.log(0);
            let new = log.get(from..).unwrap_or_default();
            if new.lines().any(|line| words.iter().all(|word| line.contains(word))) {
                return;
            }
            Runtime::system().sleep(Duration::from_millis(10)).await;
        }
        panic!("no line with {words:?} in {log}");
    }

    /// Waits until an act is logged behind `from`: that it was asked for, and how it ended, by this user.
    async fn until_act(&self, from: usize, about: &str, end: &str) {
        let by = format!("by={} from the Unix socket, user ", self.user);
        for stage in ["is asked for", end] {
            self.until_logged(from, &["an administrative act", stage, &by, about]).await;
        }
    }
}

#[tokio::test]
async fn a_user_of_the_machine_is_known_without_certificate_or_token() {
    let Local { mut cluster, socket, here, user, _folder } = Local::start().await;
    let there = cluster.endpoints();

    assert_eq!(fs::metadata(&socket).unwrap().permissions().mode() & 0o777, 0o660);
    let enabled = run(&here, &["auth", "enable"]).await;
    assert_eq!(enabled.code, Some(0), "{enabled:?}");
    let told = run(&here, &["auth", "status"]).await;
    assert!(told.out.contains(&user), "{told:?}");
    let holdfast = binary("holdfast").display().to_string();
    let inspect = [&*holdfast, "--endpoints", &here, "inspect", "jobs"];
    let held = run(&here, &[&["lock", "jobs", "--"], &inspect[..]].concat()).await;
    assert_eq!(held.code, Some(0), "{held:?}");
    assert!(held.out.contains(&user), "{held:?}");

    // Over the network the same user is nobody.
    let refused = run(&there, &["lock", "jobs", "--", "true"]).await;
    assert_eq!(refused.code, REFUSED, "{refused:?}");
    // It names its act and its place in the log.
    let expected = format!("by={user} from the Unix socket, user ");
    let log = cluster.log(0);
    assert!(log.contains(&expected), "no {expected} in {log}");

    cluster.signal(0, Signal::SIGTERM);
    cluster.wait_for_exit(0).await;
    assert!(!socket.exists(), "it is removed with its node");
    let gone = run(&here, &["list"]).await;
    assert!(gone.err.contains("holdfast.sock"), "{gone:?}");
}

/// Each act once, from its program or the library: who, what, from where, and what came of it.
#[tokio::test]
async fn every_administrative_act_is_logged_with_its_caller_and_what_came_of_it() {
    const DONE: &str = "is done";
    const FAILED: &str = "failed";
    let local = Local::start().await;
    let lock = ["lock", "jobs/1", "--", "sh", "-c", "echo held; exec sleep 1000"];
    let mut holder =
        Program::start("holdfast", &[&["--endpoints", &*local.here], &lock[..]].concat());
    holder.line("held", LIMIT).await;
    let reason = ["--reason", "a rehearsal"];
    let with_reason = |act: &[&'static str]| [act, &reason[..]].concat();

    for (arguments, about, end) in [
        (
            vec!["auth", "role", "set", "worker", "acquire:jobs/"],
            "SetRole { role: \"worker\"",
            DONE,
        ),
        (vec!["auth", "role", "set", "spare", "status"], "SetRole { role: \"spare\"", DONE),
        (vec!["auth", "role", "remove", "spare"], "RemoveRole { role: \"spare\"", DONE),
        (vec!["auth", "assign", "cn:app", "worker"], "SetRoles { identity: \"cn:app\"", DONE),
        (vec!["auth", "assign", "cn:app", "nobody"], "SetRoles { identity: \"cn:app\"", FAILED),
        (
            vec!["auth", "token", "create", "build", "--role", "worker"],
            "CreateToken { name: \"build\"",
            DONE,
        ),
        (vec!["auth", "token", "revoke", "build"], "RevokeToken { name: \"build\"", DONE),
        (vec!["auth", "quota", "set", "cn:app", "--holds", "5"], "SetQuota { identity: ", DONE),
        (with_reason(&["release", "--force", "jobs/1"]), "CloseHolds { lock: ", DONE),
        (with_reason(&["session", "end", "999"]), "EndSession { session: ", FAILED),
        (with_reason(&["auth", "revoke", "cn:app"]), "CutOff { identity: \"cn:app\"", DONE),
        (vec!["cluster", "promote", "9"], "Promote { node_id: 9 }", FAILED),
        (vec!["auth", "enable"], "Turn { on: true }", DONE),
        (vec!["auth", "disable"], "Turn { on: false }", DONE),
    ] {
        let from = local.cluster.log(0).len();
        let ended = run(&local.here, &arguments).await;
        assert_eq!(ended.code == Some(0), end == DONE, "{arguments:?}: {ended:?}");
        local.until_act(from, about, end).await;
    }

    let from = local.cluster.log(0).len();
    let admin = Client::builder().endpoints([local.here.as_str()]).admin(LIMIT).unwrap();
    let has = ImportedState::Hold { value: None };
    let rows = vec![ImportRow { name: "old/1".to_owned(), has }];
    let remaining = Duration::from_mins(1);
    admin.import(&[ImportGroup { owner: "old".to_owned(), remaining, rows }]).await.unwrap();
    local.until_act(from, "Import { groups: 1 }", DONE).await;
}
