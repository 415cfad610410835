//! Clients on the machine of a node, which it knows by their users (DESIGN §14).
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of a test fail it by a panic")]

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::time::Duration;

use holdfast_tests::cluster::{Cluster, Setup, binary};
use holdfast_tests::program::{Ended, Program};
use nix::sys::signal::Signal;

/// Longer than any command's own limit.
const LIMIT: Duration = Duration::from_mins(1);
const REFUSED: Option<i32> = Some(122);

async fn run(endpoints: &str, arguments: &[&str]) -> Ended {
    Program::start("holdfast", &[&["--endpoints", endpoints], arguments].concat()).end(LIMIT).await
}

#[tokio::test]
async fn a_user_of_the_machine_is_known_without_certificate_or_token() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("holdfast.sock");
    let user = format!("uid:{}", rustix::process::getuid().as_raw());
    let setup = Setup::nodes(1)
        .node("unix_socket", format!("{socket:?}"))
        .cluster("admins", format!("{:?}", [&user]));
    let mut cluster = Cluster::start(&setup).await;
    cluster.all_ready().await;
    let (here, there) = (format!("unix:{}", socket.display()), cluster.endpoints());

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
