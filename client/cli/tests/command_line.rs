//! `holdfast lock`, `try`, `list`, `inspect` and `check-token` as processes, with real children,
//! against a minimal server on a real socket.
#![expect(
    clippy::unwrap_used,
    reason = "helpers of tests stop the test when something is not as it must be"
)]

#[expect(unreachable_pub, reason = "a helper's items are as public as its users are many")]
mod fake_server;

use std::ffi::OsStr;
use std::io::{BufRead as _, BufReader, Write};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::process::{CommandExt as _, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use fake_server::{FakeServer, HELD, SHARED, now};
use holdfast_proto::v1;
use holdfast_proto::v1::client_frame::Body;
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, getuid};
use tempfile::TempDir;

/// `holdfast` with these arguments, without the variables that it reads.
fn holdfast(endpoint: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_holdfast"));
    command.env_remove("HOLDFAST_ENDPOINTS").args(["--endpoints", endpoint]).args(arguments);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn run(arguments: &[&str]) -> Output {
    let (_server, address) = FakeServer::start();
    holdfast(&address.to_string(), arguments).output().unwrap()
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn send(child: &Child, signal: Signal) {
    kill(Pid::from_raw(child.id().cast_signed()), signal).unwrap();
}

/// Waits for a file that the command writes.
fn wait_for_file(path: &Path) -> String {
    let until = now() + Duration::from_secs(10);
    loop {
        match std::fs::read_to_string(path) {
            Ok(text) if text.ends_with('\n') => return text.trim().to_owned(),
            _ => assert!(now() < until, "{} never came", path.display()),
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn lives(pid: &str) -> bool {
    // A process that was killed and not reaped yet counts as dead.
    let status = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    status.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with('Z'))
}

fn wait_until_dead(pid: &str) {
    let until = now() + Duration::from_secs(10);
    while lives(pid) {
        assert!(now() < until, "{pid} lives on");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn the_exit_code_is_the_commands_and_nothing_else_is_said() {
    let output = run(&["lock", "jobs", "--", "sh", "-c", "exit 7"]);

    assert_eq!((output.status.code(), said(&output).as_str()), (Some(7), ""));
}

#[test]
fn a_command_ended_by_a_signal_is_128_and_its_number() {
    let output = run(&["lock", "jobs", "--", "sh", "-c", "kill -USR1 $$"]);

    assert_eq!(output.status.code(), Some(128 + 10));
}

/// Its keys and tokens. The files in `/proc` of a process that cannot be dumped are root's; root's own tells it by its
/// group.
#[test]
fn its_memory_gets_into_no_core_dump() {
    let (server, address) = FakeServer::start();
    let mut lock = holdfast(&address.to_string(), &["lock", HELD, "--", "true"]);
    if getuid().is_root() {
        lock.gid(65_534);
    }
    let mut lock = lock.spawn().unwrap();
    server.wait_for("the acquire", |frame| matches!(frame, Body::Acquire(_)));

    let found = std::fs::metadata(format!("/proc/{}/environ", lock.id())).unwrap();

    lock.kill().unwrap();
    lock.wait().unwrap();
    assert_eq!((found.uid(), found.gid()), (0, 0), "it can be dumped");
}

#[test]
fn the_command_finds_the_lock_and_its_token_in_its_environment_and_has_our_input() {
    let (_server, address) = FakeServer::start();
    let mut lock = holdfast(
        &address.to_string(),
        &["lock", "jobs", "--", "sh", "-c", "echo $HOLDFAST_LOCK $HOLDFAST_TOKEN; cat"],
    );
    let mut lock = lock.stdin(Stdio::piped()).spawn().unwrap();
    lock.stdin.take().unwrap().write_all(b"input\n").unwrap();

    let output = lock.wait_with_output().unwrap();

    assert_eq!(String::from_utf8_lossy(&output.stdout), "jobs 77\ninput\n");
}

#[test]
fn the_command_finds_all_locks_it_was_given() {
    let shown = "echo $HOLDFAST_LOCK $HOLDFAST_TOKEN; echo \"$HOLDFAST_LOCKS\"";
    let all = run(&["lock", "a", "b", "--", "sh", "-c", shown]);
    let any = run(&["lock", "--any", HELD, "b", "c", "--", "sh", "-c", shown]);

    assert_eq!(String::from_utf8_lossy(&all.stdout), "a 77\na\nb\n");
    assert_eq!(String::from_utf8_lossy(&any.stdout), "b 77\nb\nc\n", "what was got, not asked");
}

#[test]
fn the_options_say_how_locks_are_asked_for() {
    let (server, address) = FakeServer::start();
    let arguments = ["try", "--shared", "--any", "a", "b", "--", "true"];
    let output = holdfast(&address.to_string(), &arguments).output().unwrap();

    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    server.wait_for("the acquire", |frame| match frame {
        Body::Acquire(acquire) => {
            acquire.any == Some(v1::AnyOf { min: 0 })
                && acquire.items.iter().all(|item| item.mode() == v1::Mode::Shared)
        }
        _ => false,
    });
}

#[test]
fn a_set_of_which_one_is_held_is_not_granted() {
    let output = run(&["try", "a", HELD, "--", "true"]);

    assert_eq!(output.status.code(), Some(124));
    let said = said(&output);
    assert!(said.contains("a, held are not granted: held by other"), "{said}");
}

#[test]
fn a_set_that_makes_no_sense_is_122_and_one_line() {
    let output = run(&["lock", "a", "b", "a", "--", "true"]);

    assert_eq!(output.status.code(), Some(122));
    assert_eq!(said(&output), "holdfast: refused: a is named twice in one request\n");
}

#[test]
fn a_token_is_current_or_it_is_not() {
    let current = run(&["check-token", "jobs", "77"]);
    let old = run(&["--json", "check-token", "jobs", "76"]);
    let nonsense = run(&["check-token", "jobs", "-1"]);

    assert_eq!(current.status.code(), Some(0));
    assert_eq!(String::from_utf8_lossy(&current.stdout), "jobs is held under token 77\n");
    assert_eq!(old.status.code(), Some(1));
    let answer: serde_json::Value = serde_json::from_slice(&old.stdout).unwrap();
    assert_eq!(answer, serde_json::json!({"name": "jobs", "token": "76", "current": false}));
    assert_eq!(nonsense.status.code(), Some(125));
}

#[test]
fn a_command_that_cannot_be_run_is_126_and_one_that_is_not_there_127() {
    let missing = run(&["lock", "jobs", "--", "no-such-command-here"]);
    let unusable = run(&["lock", "jobs", "--", "/etc/passwd"]);

    assert_eq!(missing.status.code(), Some(127));
    assert!(said(&missing).contains("no-such-command-here: command not found"));
    assert_eq!(unusable.status.code(), Some(126));
}

#[test]
fn a_try_of_a_held_lock_is_124_and_names_the_holder_without_its_control_characters() {
    let output = run(&["try", HELD, "--", "true"]);

    assert_eq!(output.status.code(), Some(124));
    let said = said(&output);
    assert!(said.contains("held is not granted: held by other\\u{1b}:1 for 12 s"), "{said}");
}

#[test]
fn a_wait_that_is_over_is_124_and_cancels_the_request() {
    let (server, address) = FakeServer::start();
    let arguments = ["lock", HELD, "--wait", "300ms", "--", "true"];
    let output = holdfast(&address.to_string(), &arguments).output().unwrap();

    assert_eq!(output.status.code(), Some(124), "{}", said(&output));
    server.wait_for("the cancel or the close", |frame| {
        matches!(frame, Body::Cancel(_) | Body::Close(_))
    });
}

#[test]
fn a_store_that_is_not_there_is_123_and_named() {
    let output = holdfast("127.0.0.1:1", &["lock", "jobs", "--wait", "300ms", "--", "true"])
        .output()
        .unwrap();

    assert_eq!(output.status.code(), Some(123));
    let said = said(&output);
    assert!(said.contains("127.0.0.1:1") && said.contains("is holdfastd running?"), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
}

#[test]
fn a_wrong_command_line_is_125() {
    let (no_lock, no_time) =
        (run(&["lock"]), run(&["lock", "jobs", "--wait", "soon", "--", "true"]));

    assert_eq!(no_lock.status.code(), Some(125));
    assert_eq!(no_time.status.code(), Some(125));
    assert!(said(&no_time).contains("is not a time such as 10s"), "{}", said(&no_time));
}

#[test]
fn a_name_the_store_refuses_is_122() {
    let output = run(&["lock", &"n".repeat(513), "--", "true"]);

    assert_eq!(output.status.code(), Some(122));
}

#[test]
fn signals_are_passed_on_to_the_command() {
    let folder = TempDir::new().unwrap();
    let ready = folder.path().join("ready");
    let (_server, address) = FakeServer::start();
    let script =
        format!("trap 'exit 9' TERM; echo > {}; while :; do sleep 0.05; done", ready.display());
    let mut lock = holdfast(&address.to_string(), &["lock", "jobs", "--", "sh", "-c", &script])
        .spawn()
        .unwrap();
    wait_for_file(&ready);

    send(&lock, Signal::SIGTERM);

    assert_eq!(lock.wait().unwrap().code(), Some(9));
}

#[test]
fn a_signal_while_waiting_takes_the_request_back() {
    let (server, address) = FakeServer::start();
    let mut lock = holdfast(&address.to_string(), &["lock", HELD, "--", "true"]).spawn().unwrap();
    server.wait_for("the acquire", |frame| matches!(frame, Body::Acquire(_)));

    send(&lock, Signal::SIGINT);

    assert_eq!(lock.wait().unwrap().code(), Some(130));
    server.wait_for("the cancel or the close", |frame| {
        matches!(frame, Body::Cancel(_) | Body::Close(_))
    });
}

#[test]
fn the_command_dies_with_us() {
    let folder = TempDir::new().unwrap();
    let ready = folder.path().join("ready");
    let (_server, address) = FakeServer::start();
    let script = format!("echo $$ > {}; exec sleep 60", ready.display());
    let mut lock = holdfast(&address.to_string(), &["lock", "jobs", "--", "sh", "-c", &script])
        .spawn()
        .unwrap();
    let command = wait_for_file(&ready);

    send(&lock, Signal::SIGKILL);

    assert_eq!(lock.wait().unwrap().signal(), Some(9));
    wait_until_dead(&command);
}

/// holdfast is stopped past the deadline; after SIGCONT it kills the command first.
#[test]
fn a_stop_past_the_deadline_kills_the_command() {
    let folder = TempDir::new().unwrap();
    let ready = folder.path().join("ready");
    let (_server, address) = FakeServer::start();
    let script = format!("echo $$ > {}; exec sleep 60", ready.display());
    let arguments = ["lock", "--ttl", "1s", "jobs", "--", "sh", "-c", &script];
    let mut lock = holdfast(&address.to_string(), &arguments).spawn().unwrap();
    let command = wait_for_file(&ready);

    send(&lock, Signal::SIGSTOP);
    std::thread::sleep(Duration::from_millis(1_500));
    send(&lock, Signal::SIGCONT);

    wait_until_dead(&command);
    assert_eq!(lock.wait().unwrap().code(), Some(121));
}

#[test]
fn json_shows_tokens_as_strings() {
    let output = run(&["--json", "inspect", "jobs"]);

    let answer: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(answer["holders"][0]["token"], "9223372036854775807");
    assert_eq!(answer["queue"][0]["label"], "next");
}

#[test]
fn what_the_store_says_cannot_drive_the_terminal() {
    let output = run(&["inspect", "jobs"]);

    let shown = String::from_utf8_lossy(&output.stdout).into_owned();
    let first = shown.lines().next().unwrap();
    assert_eq!(
        first,
        "jobs is held by a\\u{1b}[2Jb, session 1152921504606846976, for 1 min 1 s under token 9223372036854775807"
    );
}

#[test]
fn a_session_is_shown_with_what_it_has_and_whether_it_was_imported() {
    let shown = |id: &str| String::from_utf8_lossy(&run(&["session", id]).stdout).into_owned();

    assert_eq!(
        shown("7"),
        "session 7 was imported for a\\u{1b}[2Jb 5 s ago, and ends in 1 min 20 s\n  \
         holds jobs for 4 s under token 9223372036854775807\n  \
         waits for orders for 4 s, 2nd in line\n  \
         and 1 more\n"
    );
    let first =
        "session 8 of a\\u{1b}[2Jb, opened 5 s ago, lease 1 min 30 s, 1 min 20 s of it left\n";
    assert!(shown("8").starts_with(first), "{}", shown("8"));
    let programs = run(&["--json", "session", "7"]);
    let answer: serde_json::Value = serde_json::from_slice(&programs.stdout).unwrap();
    assert_eq!(answer["requests"][0]["token"], "9223372036854775807");
    assert_eq!((&answer["imported"], &answer["ttl_ms"]), (&true.into(), &90_000.into()));
    assert_eq!(answer["left_ms"], 80_000);
    let none = run(&["session", "9"]);
    assert_eq!(none.status.code(), Some(122));
    let said = String::from_utf8_lossy(&none.stderr).into_owned();
    assert!(said.contains("there is no session 9"), "{said}");
}

#[test]
fn readers_and_a_value_are_shown() {
    let people = run(&["inspect", SHARED]);
    let programs = run(&["--json", "inspect", SHARED]);

    assert_eq!(
        String::from_utf8_lossy(&people.stdout),
        "shared is shared by one for 3 s under token 5\n\
         shared is shared by two for 3 s under token 6\n  \
         and 1 more\n  \
         next in line: writer, waiting for 0 s, and 2 other locks\n  \
         value \"\\xffa\", set under token 4; suspect: the grant was lost\n"
    );
    let answer: serde_json::Value = serde_json::from_slice(&programs.stdout).unwrap();
    assert_eq!(answer["holders"][1]["mode"], "shared");
    assert_eq!(answer["queue"][0]["mode"], "exclusive");
    let value = serde_json::json!({
        "encoding": "base64", "data": "/2E=", "token": "4", "suspect": true,
    });
    assert_eq!(answer["value"], value);
}

#[test]
fn a_question_the_store_refuses_is_122_with_its_words() {
    let output = run(&["--json", "list"]);

    assert_eq!(output.status.code(), Some(122));
    let said: serde_json::Value = serde_json::from_slice(&output.stderr).unwrap();
    assert_eq!(said["exit_code"], 122);
    assert!(said["error"].as_str().unwrap().contains("page_size is 0"));
}

/// It uses the default address; another server there makes this test fail, as it should.
#[test]
fn the_example_of_the_readme_runs() {
    let (_server, _address) = FakeServer::start_at("127.0.0.1:7420");
    let example = Path::new(env!("CARGO_BIN_EXE_holdfast")).with_file_name("examples/readme");
    assert!(
        example.is_file(),
        "cargo test --workspace builds it, unless only some targets are asked for"
    );

    let output = Command::new(example).output().unwrap();

    let shown = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(shown, "orders/42 is held under token 77\n", "{}", said(&output));
    assert!(output.status.success());
}

/// Each event is one line without times; no character that a terminal might act on is printed.
#[test]
fn watch_prints_a_line_for_each_event_until_it_is_asked_to_end() {
    for (json, lines) in [
        (
            false,
            vec![
                "orders/\\u{ad}42  held by a\\u{1b}[2Jb (token 9223372036854775807, shared); \
                 held by c (token 9223372036854775807); 2 waiting",
                "# that is the only lock; changes follow",
                "orders/\\u{ad}42  \\u{7}w waits (2 waiting)",
                "orders/\\u{ad}42  session 8 waits no more (2 waiting)",
                "orders/\\u{ad}42  lost by c (token 9223372036854775807): the session expired",
                "orders/\\u{ad}42  value removed",
            ],
        ),
        (
            true,
            vec![r#""event":"lock""#, r#""event":"synced""#, r#""token":"9223372036854775807""#],
        ),
    ] {
        let (_server, address) = FakeServer::start();
        let format = if json { &["--json", "watch"][..] } else { &["watch"] };
        let mut watch = holdfast(&address.to_string(), format).spawn().unwrap();
        let mut printed = BufReader::new(watch.stdout.take().unwrap()).lines();
        let mut text = String::new();
        for _ in 0..6 {
            text += &printed.next().unwrap().unwrap();
            text.push('\n');
        }
        for line in lines {
            assert!(text.contains(line), "{line:?} is not in: {text}");
        }
        assert!(json || !text.contains('\u{1b}'), "{text:?}");
        send(&watch, Signal::SIGINT);
        assert_eq!(watch.wait().unwrap().code(), Some(0));
    }
}

/// What is no text can begin the name of no lock. Nothing is sent.
#[test]
fn a_right_whose_prefix_is_no_utf_8_is_refused() {
    let mut command = holdfast("127.0.0.1:9", &["auth", "role", "set", "worker"]);
    let output = command.arg(OsStr::from_bytes(b"acquire:jobs\xff")).output().unwrap();

    assert_eq!(output.status.code(), Some(125), "{}", said(&output));
    assert!(said(&output).contains("UTF-8"), "{}", said(&output));
}

/// Standard error is a pipe here: it has colours only where they are asked for.
#[test]
fn colours_are_for_terminals_and_for_those_who_ask_for_them() {
    let (_server, address) = FakeServer::start();
    let list = |arguments: &[&str]| {
        let output = holdfast(&address.to_string(), arguments).arg("list").output().unwrap();
        let text = String::from_utf8(output.stderr).unwrap();
        assert!(text.contains("page_size is 0"), "{text}");
        text.contains('\u{1b}')
    };
    assert!(!list(&[]));
    assert!(list(&["--color", "always"]));
    assert!(!list(&["--color", "never"]));
    assert!(!list(&["--color", "auto"]));
}
