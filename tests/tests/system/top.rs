//! `holdfast top` in a terminal, whose screens are read as people see them.
#![allow(clippy::unwrap_used, reason = "helpers of a test fail it by a panic")]

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::num::NonZero;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use holdfast_runtime::Runtime;
use holdfast_tests::cluster::{Cluster, Setup, binary, end_with_parent};
use holdfast_tests::program::{Program, run};
use nix::pty::{OpenptyResult, Winsize, openpty};

const LIMIT: Duration = Duration::from_secs(30);

/// A terminal with the program in it, which ends with this.
struct Terminal {
    program: Child,
    keyboard: File,
    screen: Arc<Mutex<vt100::Parser>>,
}

impl Terminal {
    fn start(columns: u16, lines: u16, arguments: &[&str]) -> Self {
        let [rows, wide] = [lines, columns].map(|size| NonZero::new(size).unwrap());
        let size = Winsize { ws_row: lines, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        let OpenptyResult { master, slave } = openpty(&size, None).unwrap();
        let end = || Stdio::from(slave.try_clone().unwrap());
        let mut command = Command::new(binary("holdfast"));
        command.args(arguments).env("TERM", "xterm-256color");
        command.stdin(end()).stdout(end()).stderr(end());
        end_with_parent(&mut command);
        let program = command.spawn().unwrap();
        // The program alone keeps the other end: it is read to its end.
        drop((command, slave));
        let screen = Arc::new(Mutex::new(vt100::Parser::new(rows, wide, 0)));
        let (mut shown, drawn) = (File::from(master), screen.clone());
        let keyboard = shown.try_clone().unwrap();
        thread::spawn(move || {
            let mut bytes = [0; 4_096];
            // A terminal whose program has ended is read with an error.
            while let Ok(length @ 1..) = shown.read(&mut bytes) {
                drawn.lock().unwrap().process(&bytes[..length]);
            }
        });
        Self { program, keyboard, screen }
    }

    fn keys(&mut self, keys: &str) {
        self.keyboard.write_all(keys.as_bytes()).unwrap();
    }

    fn screen(&self) -> String {
        self.screen.lock().unwrap().screen().contents()
    }

    /// Waits until the screen has a line with all of these words.
    async fn shows(&self, words: &[&str]) -> String {
        let runtime = Runtime::system();
        let give_up_at = runtime.clock.now() + LIMIT;
        loop {
            let screen = self.screen();
            let has = |line: &str| words.iter().all(|word| line.contains(word));
            if screen.lines().any(has) {
                return screen;
            }
            assert!(runtime.clock.now() < give_up_at, "{words:?} is not in:\n{screen}");
            runtime.sleep(Duration::from_millis(100)).await;
        }
    }

    /// Its exit code, once it has ended.
    async fn end(&mut self) -> Option<i32> {
        let runtime = Runtime::system();
        let give_up_at = runtime.clock.now() + LIMIT;
        loop {
            if let Some(status) = self.program.try_wait().unwrap() {
                return status.code();
            }
            assert!(runtime.clock.now() < give_up_at, "it goes on:\n{}", self.screen());
            runtime.sleep(Duration::from_millis(50)).await;
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.program.kill();
        let _ = self.program.wait();
    }
}

/// A screen without what differs from run to run: numbers, rates, times of day, and how far columns are apart.
fn still(screen: &str) -> String {
    let mut still = String::new();
    for line in screen.lines() {
        let words = line
            .split_whitespace()
            .filter(|word| word.parse::<f64>().is_err() || !word.contains('.'));
        let words = words.map(|word| {
            let is_number = word
                .trim_matches(['(', ')', ','])
                .chars()
                .all(|letter| letter.is_ascii_digit() || letter == ':');
            if is_number { "#".to_owned() } else { word.to_owned() }
        });
        still.push_str(&words.collect::<Vec<_>>().join(" "));
        still.push('\n');
    }
    still
}

#[tokio::test]
async fn on_a_small_terminal_a_queue_is_seen_a_lock_looked_at_and_taken_away() {
    let cluster = Cluster::start(&Setup::nodes(3)).await;
    cluster.leader().await;
    let endpoints = cluster.endpoints();
    let job = |label: &str, lock: &str| {
        let arguments = [
            "--endpoints",
            &endpoints,
            "lock",
            lock,
            "--label",
            label,
            "--note",
            "n1",
            "--",
            "sleep",
            "120",
        ];
        Program::start("holdfast", &arguments)
    };
    let holder = job("w7", "jobs/nightly");
    let mut top = Terminal::start(80, 24, &["--endpoints", &endpoints, "top"]);
    top.shows(&["jobs/nightly", "w7"]).await;
    let second = job("w8", "jobs/nightly");
    top.shows(&[" 1 wait "]).await;
    let third = job("w9", "jobs/nightly");
    top.keys("w");
    top.shows(&["longest queues"]).await;
    let screen = top.shows(&[" 2 wait "]).await;
    let mut golden = still(&screen);
    assert!(screen.contains("longest queues"), "{screen}");
    assert!(screen.contains("3 members, node"), "{screen}");
    assert!(screen.lines().count() <= 24 && screen.lines().all(|line| line.chars().count() <= 80));

    top.keys("\r");
    let screen = top.shows(&["granted to w7"]).await;
    golden.push_str(&still(&screen));
    assert_eq!(golden, include_str!("top_screens.txt"));
    for word in ["held by: 1", "waiting: 2", "w8", "w9", "\"n1\"", "what happened"] {
        assert!(screen.contains(word), "{word}:\n{screen}");
    }
    top.keys("f");
    top.shows(&["take it away?"]).await;
    top.keys("stuck");
    top.keys("\r");
    top.shows(&["force", "stuck"]).await;
    top.shows(&["granted to w8"]).await;
    let ended = holder.end(LIMIT).await;
    assert_eq!(ended.code, Some(121), "{}", ended.err);

    freezes_and_filters(&mut top).await;
    top.keys("q");
    assert_eq!(top.end().await, Some(0));
    drop((second, third));
}

/// What is frozen is called that, and thawed; then other names are shown.
async fn freezes_and_filters(top: &mut Terminal) {
    top.keys("z");
    top.shows(&["freeze?"]).await;
    top.keys("upgrade");
    top.keys("\r");
    top.shows(&["frozen", "upgrade"]).await;
    top.keys("t");
    top.keys("\r");
    top.shows(&["is thawed"]).await;
    top.keys("\x1b");
    top.shows(&["longest queues"]).await;
    top.keys("/");
    top.keys("none/");
    top.keys("\r");
    top.shows(&["no such lock is held or waited for"]).await;
}

#[tokio::test]
async fn without_a_terminal_it_says_what_to_use_instead() {
    let ended = run("holdfast", &["top"]).await;
    assert_eq!(ended.code, Some(125));
    assert!(ended.err.contains("list, history and watch"), "{}", ended.err);
}
