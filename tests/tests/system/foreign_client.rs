//! The unary calls, by a third-party client: Python stubs that grpcio-tools makes of our `.proto`,
//! against a real server. The checks are in `tests/foreign/client.py`.
//!
//! Needs `python3` and the packages in `tests/foreign/requirements.txt`, which pip puts into a
//! folder of its own below the target folder, once.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of a test fail it by a panic"
)]

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use holdfast_tests::cluster::{Cluster, Setup};
use holdfast_tests::program::Program;
use holdfast_tests::python::{Python, run};

/// How long the client may take in all.
const CLIENT_WITHIN: Duration = Duration::from_mins(2);

/// Makes the stubs of our `.proto` as any user would.
fn generate(python: &Python, stubs: &Path) -> Result<(), String> {
    let _ = fs::remove_dir_all(stubs);
    fs::create_dir_all(stubs).unwrap();
    let out = |option: &str| format!("--{option}={}", stubs.display());
    let proto = root().join("proto");
    let include = format!("-I{}", proto.display());
    let options = [include, out("python_out"), out("grpc_python_out")];
    run(python
        .command()
        .args(["-m", "grpc_tools.protoc"])
        .args(options)
        .arg(proto.join("holdfast/v1/lock.proto")))
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_path_buf()
}

fn foreign(file: &str) -> PathBuf {
    root().join("tests/foreign").join(file)
}

#[tokio::test]
async fn a_client_made_by_grpcio_tools_opens_waits_is_granted_and_gives_up() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("foreign-client");
    let stubs = folder.join("stubs");
    let ready = Python::with(&foreign("requirements.txt"), &folder)
        .and_then(|python| generate(&python, &stubs).map(|()| python));
    let python = ready.unwrap_or_else(|why| {
        panic!(
            "needs python3 with venv and the packages in tests/foreign/requirements.txt (or leave \
             it out: tests/run --leave-out foreign_client): {why}"
        )
    });
    let cluster = Cluster::start(&Setup::nodes(1)).await;
    let client = foreign("client.py");
    let address = &cluster.nodes()[0].listen;
    let arguments = [client.to_str().unwrap(), stubs.to_str().unwrap(), address];

    let ended = Program::start_at(python.program(), &arguments).end(CLIENT_WITHIN).await;

    assert_eq!(ended.code, Some(0), "{}{}", ended.out, ended.err);
    assert_eq!(ended.out.lines().last(), Some("all checks hold"), "{}", ended.out);
}
