//! The commands of `docs/migration.md`, one after the other and as they stand there, on three real Cassandra nodes and real servers. What
//! the page shows below a command, the command prints.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "helpers of tests stop the test when something is not as it must be"
)]

use std::time::Duration;

use holdfast_recipes::{
    Lease, LeaseTable, LockerMode, LockerOptions, ModesTable, ScopeModes, Stage,
};
use holdfast_runtime::Runtime;
use holdfast_tests::moving::{LEASES, Move};
use holdfast_tests::program::Program;

/// A sequence stays on its way back for half a minute.
const LIMIT: Duration = Duration::from_mins(2);
const PAGE: &str = include_str!("../../../docs/migration.md");
/// The keyspace of the page.
const KEYSPACE: &str = "locks";

/// A command of the page, and what the page shows of its output.
struct Shown {
    command: String,
    lines: Vec<String>,
}

/// All commands of the page that print something, in order. What follows a `$` in a block is a command.
fn shown() -> impl Iterator<Item = Shown> {
    let mut all: Vec<Shown> = Vec::new();
    let mut is_in_block = false;
    for line in PAGE.lines() {
        if line.starts_with("```") {
            is_in_block = line == "```" && !is_in_block;
        } else if let Some(command) = line.strip_prefix("$ ").filter(|_| is_in_block) {
            all.push(Shown { command: command.to_owned(), lines: Vec::new() });
        } else if let Some(last) = all.last_mut().filter(|_| is_in_block) {
            last.lines.push(line.to_owned());
        }
    }
    all.into_iter().filter(|shown| !shown.command.starts_with("export "))
}

/// What a line of the page says of any run: ids and `…` stand for anything.
fn pieces(line: &str) -> Vec<String> {
    let any = |word: &str| {
        let is_id = word.contains("vm:");
        if is_id { "…".to_owned() } else { word.to_owned() }
    };
    let words: Vec<String> = line.split(' ').map(any).collect();
    words.join(" ").split('…').map(str::to_owned).collect()
}

/// Whether `printed` is the line of these pieces.
fn is_line(pieces: &[String], printed: &str) -> bool {
    let [first, between @ .., last] = pieces else { return pieces[0] == printed };
    let Some(mut rest) = printed.strip_prefix(first.as_str()) else { return false };
    for piece in between {
        let Some((_, behind)) = rest.split_once(piece.as_str()) else { return false };
        rest = behind;
    }
    rest.ends_with(last.as_str())
}

/// The page, as an operator works through it.
struct Guide<'a> {
    moved: &'a Move,
    left: Box<dyn Iterator<Item = Shown>>,
}

impl Guide<'_> {
    /// Runs the next command of the page, which is this one, and compares what it prints. Returns its exit code.
    async fn next(&mut self, command: &str) -> i32 {
        let shown = self.left.next().unwrap();
        assert_eq!(shown.command, command, "the next command of the page");
        let mut words = command.split(' ');
        let program = words.next().unwrap();
        let arguments: Vec<&str> = words.collect();
        let endpoints = self.moved.cluster.endpoints();
        let place = [
            ("HOLDFAST_CONTACT_POINTS", self.moved.stage.points()),
            ("HOLDFAST_KEYSPACE", KEYSPACE),
            ("HOLDFAST_ENDPOINTS", &endpoints),
        ];
        let ended = Program::start_in(program, &arguments, &place).end(LIMIT).await;
        let printed = format!("{}{}", ended.out, ended.err);
        let mut printed_lines = printed.lines();
        for line in shown.lines.iter().filter(|line| *line != "…") {
            let pieces = pieces(line);
            let is_there = printed_lines.any(|printed| is_line(&pieces, printed));
            assert!(is_there, "{command}: no line \"{line}\" (or out of order) in\n{printed}");
        }
        ended.code.unwrap()
    }
}

#[tokio::test]
async fn every_command_of_the_guide_prints_what_the_guide_shows() {
    let moved = Move::set(KEYSPACE, LEASES).await;
    let row = "INSERT INTO k.leases (name, owner) VALUES ('orders/1', 'client_1') USING TTL 600";
    moved.cql(&[row]).await;
    let mut guide = Guide { moved: &moved, left: Box::new(shown()) };

    assert_eq!(guide.next("holdfast cassandra schema --apply").await, 0);
    assert_eq!(guide.next("holdfast-migrate plan --from lease --prefix orders/").await, 0);
    let process = moved.process("orders/", "vm:28548", LockerMode::Cassandra).await;
    let both = "holdfast-migrate cutover --scope orders/ --from lease --to both";
    assert_eq!(guide.next(both).await, 122);
    process.set_mode(LockerMode::Both).await.unwrap();
    moved.done("cutover", &["--scope", "orders/", "--from", "lease", "--to", "both"]).await;
    let native = "holdfast-migrate cutover --scope orders/ --from lease --writers-stopped";
    assert_eq!(guide.next(native).await, 122);
    process.set_mode(LockerMode::Native).await.unwrap();
    assert_eq!(guide.next("holdfast-migrate cutover --scope orders/ --from lease").await, 0);
    let verify = "holdfast-migrate verify --from lease --prefix orders/";
    assert_eq!(guide.next(verify).await, 0);

    process.set_mode(LockerMode::Both).await.unwrap();
    let alone = moved.client().await.lock("orders/3").await.unwrap();
    assert_eq!(guide.next("holdfast-migrate rollback --scope orders/ --from lease").await, 122);
    let live = "holdfast-migrate rollback --scope orders/ --from lease --live-for 10m";
    assert_eq!(guide.next(live).await, 0);
    alone.release().await.unwrap();

    sequences(&mut guide).await;
    assert!(guide.left.next().is_none(), "the page has more commands");
    drop(process);
    untied_and_forgotten(&moved).await;
}

async fn sequences(guide: &mut Guide<'_>) {
    let cassandra = guide.moved.stage.cassandra();
    let lease = Lease::new(&cassandra, &LockerOptions::default(), LeaseTable::default()).unwrap();
    assert_eq!(lease.sequence("orders/invoices").draw(3).await.unwrap(), 1..4);
    for command in [
        "holdfast-migrate sequences --scope orders/ --to native",
        "holdfast cassandra sequence next orders/invoices --mode both --scope orders/",
        "holdfast sequence next orders/invoices",
        "holdfast-migrate sequences --scope orders/ --to cassandra",
    ] {
        assert_eq!(guide.next(command).await, 0, "{command}");
    }
}

/// The statements of the page: one unties a scope, one forgets it.
async fn untied_and_forgotten(moved: &Move) {
    let modes = ScopeModes::new(&moved.stage.cassandra(), "orders/", ModesTable::default());
    let modes = modes.unwrap();
    let left = async {
        loop {
            let view = modes.view().await.unwrap();
            if view.processes.is_empty() {
                break view;
            }
            Runtime::system().sleep(Duration::from_millis(100)).await;
        }
    };
    let view = Runtime::system().timeout(LIMIT, left).await.unwrap();
    assert_eq!(view.stage, Stage::Cassandra);
    let recipe = view.recipe.unwrap();
    let statement = |start: &str| {
        let (_, rest) = PAGE.split_once(start).unwrap();
        let (rest, _) = rest.split_once(';').unwrap();
        format!("{start}{}", rest.replace('…', &recipe))
    };
    moved.stage.cql(&statement("UPDATE locks.locker_modes SET recipe = null")).await;
    assert_eq!(modes.view().await.unwrap().recipe, None);
    moved.stage.cql(&statement("DELETE FROM \"locks\".\"locker_modes\"")).await;
    assert_eq!(modes.view().await.unwrap().cluster, None);
}

#[test]
fn a_line_of_the_page_is_compared_as_a_whole_but_for_what_it_leaves_open() {
    let line = pieces(
        "scope \"orders/\" stays: 1 in the way: hf1:vm:28548@4417… is in both (change it: …)",
    );
    let printed =
        "scope \"orders/\" stays: 1 in the way: hf1:billing@00aa/01 is in both (change it: now)";
    assert!(is_line(&line, printed));
    assert!(!is_line(&line, &printed.replace("1 in", "2 in")));
    assert!(!is_line(&line, &format!("{printed} and more")));
    assert!(is_line(&pieces("4"), "4") && !is_line(&pieces("4"), "14"));
}
