//! What a shell, a service manager or an operator leaves to `holdfast lock`: a standard error that takes nothing, signals that are
//! ignored, a job that is stopped, a machine that sleeps.

use std::io::{Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::time::Duration;

use holdfast_runtime::Runtime;
use holdfast_tests::host_stall::retry_if_host_stalled;
use holdfast_tests::program::Program;
use nix::sys::signal::Signal;

use super::descendants::{Overlap, overlap_after};
use super::{DEAF, LIMIT, Shell, hold_and_lose_the_store};

/// A warning cannot be written; what is left of the command is waited for all the same (I6).
#[tokio::test]
async fn a_standard_error_that_is_full_ends_no_wrapper_before_its_command() {
    for arguments in [&["lock", "jobs"][..], &["--json", "lock", "jobs"]] {
        let full = "exec 2>/dev/full";

        let Overlap { first, seconds } =
            overlap_after(full, arguments, 100, "exit 7", |_| ()).await;

        assert!(seconds <= 0.0, "{seconds} s with two holders; {first:?}");
        assert_eq!(first.code, Some(7), "{first:?}");
    }
}

/// Nothing reads the pipe that standard error is, and it is full: the command is killed in time all the same (I6). What `holdfast` says
/// in the end, it waits to say.
#[tokio::test]
async fn a_standard_error_that_blocks_keeps_no_command_alive_beyond_its_lease() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("err");
    let blocked = format!("exec 2>{}", path.display());

    let scenario = async || {
        let runtime = Runtime::system();
        let _ = std::fs::remove_file(&path);
        let reading = read_later(&runtime, full_pipe(&path), Duration::from_secs(7));
        let _reader = runtime.spawn("reader", reading);
        hold_and_lose_the_store(|cluster| cluster.kill(0), DEAF, Some(&blocked)).await
    };
    retry_if_host_stalled(Duration::from_millis(100), scenario).await;
}

/// Begins to read after so long, when the lease is over for seconds.
fn read_later(
    runtime: &Runtime,
    mut pipe: std::fs::File,
    later: Duration,
) -> impl Future<Output = ()> + use<> {
    let runtime = runtime.clone();
    async move {
        runtime.sleep(later).await;
        loop {
            let mut some = [0; 4_096];
            if pipe.read(&mut some).is_err() {
                runtime.sleep(Duration::from_millis(50)).await;
            }
        }
    }
}

/// A pipe with a name that no byte more goes into.
fn full_pipe(path: &Path) -> std::fs::File {
    nix::unistd::mkfifo(path, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let nonblocking = nix::libc::O_NONBLOCK;
    let mut pipe = std::fs::OpenOptions::new();
    let mut pipe = pipe.read(true).write(true).custom_flags(nonblocking).open(path).unwrap();
    while pipe.write(&[b'.'; 4_096]).is_ok() {}
    while pipe.write(b".").is_ok() {}
    pipe
}

/// As bash, and perl's `$SIG{CHLD} = 'IGNORE'`, leave it; dash does not.
#[tokio::test]
async fn the_end_of_a_command_is_seen_although_its_signal_was_ignored() {
    let shell = Shell::start().await;
    let line = ["lock", "jobs", "--", "sh", "-c", "exit 7"];
    let mut program = shell.begin_after("trap '' CHLD", &line);

    assert!(program.ends_within(Duration::from_secs(10)).await, "it waits for a signal");
    assert_eq!(program.end(LIMIT).await.code, Some(7));
}

/// nohup.
#[tokio::test]
async fn a_signal_that_was_ignored_at_the_start_ends_no_wait() {
    let shell = Shell::start().await;
    let mut holder = shell.begin(&["lock", "jobs", "--", "sh", "-c", "echo held; exec sleep 60"]);
    holder.line("held", LIMIT).await;
    let waiter = shell.begin_after("trap '' HUP", &["lock", "jobs", "--", "echo", "mine"]);
    Runtime::system().sleep(Duration::from_millis(500)).await;

    waiter.signal(Signal::SIGHUP);
    Runtime::system().sleep(Duration::from_millis(300)).await;
    holder.signal(Signal::SIGTERM);

    let ended = waiter.end(LIMIT).await;
    assert_eq!((ended.code, ended.out.as_str()), (Some(0), "mine\n"), "{ended:?}");
}

/// Ctrl-Z for a job whose input is no terminal; then `kill %1`, as a shell sends it.
#[tokio::test]
async fn a_job_that_is_stopped_stops_with_its_command_and_can_go_on_or_be_ended() {
    let shell = Shell::start().await;
    // A shell would start a program for each pause, and one that is stopped between vfork and exec holds its shell up.
    let script = r#"$| = 1; while (1) { print "step\n"; select(undef, undef, undef, 0.05); }"#;
    let mut program = shell.begin(&["lock", "--ttl", "60s", "jobs", "--", "perl", "-e", script]);
    program.line("step", LIMIT).await;

    program.signal(Signal::SIGTSTP);
    stops(&program).await;
    let steps = program.out().len();
    Runtime::system().sleep(Duration::from_millis(300)).await;
    assert_eq!(program.out().len(), steps, "the command has stopped too");
    program.signal(Signal::SIGCONT);
    while program.out().len() == steps {
        Runtime::system().sleep(Duration::from_millis(20)).await;
    }

    program.signal(Signal::SIGTSTP);
    stops(&program).await;
    program.signal(Signal::SIGTERM);
    program.signal(Signal::SIGCONT);
    assert_eq!(program.end(LIMIT).await.code, Some(128 + 15));
}

async fn stops(program: &Program) {
    let runtime = Runtime::system();
    let give_up = runtime.clock.now() + LIMIT;
    let stat = format!("/proc/{}/stat", program.id());
    while !std::fs::read_to_string(&stat).unwrap().contains(") T ") {
        assert!(runtime.clock.now() < give_up, "it runs on");
        runtime.sleep(Duration::from_millis(10)).await;
    }
}

/// Its session has ended meanwhile, and it held nothing: no lock was lost.
#[tokio::test]
async fn a_wait_goes_on_after_a_sleep_longer_than_its_lease() {
    let shell = Shell::start().await;
    let mut holder = shell.begin(&["lock", "jobs", "--", "sh", "-c", "echo held; exec sleep 60"]);
    holder.line("held", LIMIT).await;
    let waiter = shell.begin(&["lock", "--ttl", "1s", "jobs", "--", "echo", "mine"]);
    Runtime::system().sleep(Duration::from_millis(500)).await;

    waiter.signal(Signal::SIGSTOP);
    Runtime::system().sleep(Duration::from_secs(3)).await;
    assert_eq!(shell.run(&["inspect", "jobs"]).await.out.matches("waits").count(), 0);
    waiter.signal(Signal::SIGCONT);
    Runtime::system().sleep(Duration::from_secs(1)).await;
    holder.signal(Signal::SIGTERM);

    let ended = waiter.end(LIMIT).await;
    assert_eq!((ended.code, ended.out.as_str()), (Some(0), "mine\n"), "{ended:?}");
}
