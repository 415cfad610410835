//! `holdfast-migrate cutover` and `rollback` on three real Cassandra nodes and real servers: the obstacles of each step, the native holds
//! after it, the rows after the way back, and a tool that is killed at any point.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "helpers of tests stop the test when something is not as it must be"
)]

use std::time::Duration;

use holdfast_recipes::{Locker, LockerMode, LockerOptions, RemoteLocker, ScopeModes, Stage};
use holdfast_runtime::Runtime;
use holdfast_tests::draw::Draw;
use holdfast_tests::moving::{LEASES, Move, RECIPES};
use holdfast_tests::recipe::Recipe;
use nix::sys::signal::Signal;
use serde_json::{Value, json};

/// The arguments of most tests: the scope, by the lease recipe.
const ORDERS: [&str; 4] = ["--scope", "orders/", "--from", "lease"];

/// `ORDERS` and more.
fn orders<'a>(more: &[&'a str]) -> Vec<&'a str> {
    [&ORDERS[..], more].concat()
}

/// The stages that a move reported, in order.
fn moves(told: &[Value]) -> Vec<&str> {
    let moved = told.iter().filter(|line| line["kind"] == "moved");
    moved.map(|line| line["stage"].as_str().unwrap()).collect()
}

fn modes(moved: &Move, scope: &str) -> ScopeModes {
    ScopeModes::new(&moved.stage.cassandra(), scope, holdfast_recipes::ModesTable::default())
        .unwrap()
}

/// DESIGN §10, step by step: each precondition is violated once.
#[tokio::test]
async fn a_scope_goes_to_native_and_back_and_every_step_names_what_is_in_its_way() {
    let moved = Move::set("cutover_story", LEASES).await;
    moved
        .cql(&[
            "INSERT INTO k.leases (name, owner, value) VALUES ('orders/1', 'client_1', '10.0.0.7') USING TTL 600",
            "INSERT INTO k.leases (name, owner) VALUES ('other/1', 'client_2') USING TTL 600",
        ])
        .await;
    let scope = modes(&moved, "orders/");
    let process = moved.process("orders/", "billing", LockerMode::Cassandra).await;

    on_to_native(&moved, &process).await;
    back_to_cassandra(&moved, &process).await;
    let view = scope.view().await.unwrap();
    assert_eq!((view.stage, view.turn), (Stage::Cassandra, 4), "each step was made once");
}

async fn on_to_native(moved: &Move, process: &Locker) {
    // On to `both`: no process may be in `cassandra`.
    let said = moved.refused("cutover", &orders(&[])).await;
    assert!(
        said.contains("scope \"orders/\" stays at cassandra: 1 in the way: hf1:billing@"),
        "{said}"
    );
    assert!(said.contains("is in cassandra"), "{said}");
    process.set_mode(LockerMode::Both).await.unwrap();
    let told = moved.done("cutover", &orders(&["--to", "both"])).await;
    assert_eq!(moves(&told), ["both"]);
    assert_eq!(told.last().unwrap(), &json!({ "kind": "done", "stage": "both" }));

    // On to `native`: no client may lock by the recipe alone, and every standing row is held natively.
    let guard = process.lock("orders/7").await.unwrap();
    let said = moved.refused("cutover", &orders(&[])).await;
    assert!(said.contains("client_1, no client of ours, changed the row of orders/1"), "{said}");
    assert!(!said.contains("orders/7") && !said.contains("other/1"), "{said}");
    let said = moved.refused("cutover", &orders(&["--writers-stopped"])).await;
    assert!(said.contains("stays at native: 1 in the way: hf1:billing@"), "{said}");
    assert!(said.contains("is in both"), "{said}");
    let old = moved.native("orders/1").await;
    assert!(old.holders[0].is_imported && old.holders[0].label == "client_1", "{old:?}");
    assert_eq!(old.value.unwrap().bytes, b"10.0.0.7"[..]);
    assert!(!moved.native("orders/7").await.holders[0].is_imported);
    let same = moved.done("verify", &["--from", "lease", "--prefix", "orders/"]).await;
    assert_eq!(same, [json!({ "kind": "summary", "locks": 1, "differing": 0 })]);
    let said = moved.refused("import", &["--from", "lease", "--prefix", "orders/"]).await;
    assert!(said.contains("scope \"orders/\" is at native"), "{said}");
    let other = ["--from", "lease", "--prefix", "other/", "--writers-stopped"];
    assert_eq!(moved.done("import", &other).await[0]["imported"], 1);
    guard.release().await.unwrap();
    process.set_mode(LockerMode::Native).await.unwrap();
    let told = moved.done("cutover", &orders(&[])).await;
    assert_eq!(moves(&told), [""; 0], "it is there");
    assert!(process.try_lock("orders/1").await.unwrap().is_none(), "client_1 has it");
    let said = moved.refused("cutover", &orders(&["--to", "both"])).await;
    assert!(said.contains("is at native, beyond both; holdfast-migrate rollback"), "{said}");
}

/// It ends before the hold of the client that has `orders/9` natively.
async fn no_row_of_another_process_stands_for_a_hold(moved: &Move) {
    let left = "hf1:billing@00112233aabbccdd/1";
    moved
        .cql(&[&format!(
            "INSERT INTO k.leases (name, owner) VALUES ('orders/9', '{left}') USING TTL 170"
        )])
        .await;
    let said = moved.refused("rollback", &orders(&[])).await;
    assert!(said.contains(&format!("holds orders/9 natively, and the row is {left}'s")), "{said}");
    moved.cql(&["DELETE FROM k.leases WHERE name = 'orders/9'"]).await;
}

async fn back_to_cassandra(moved: &Move, process: &Locker) {
    // Back to `both`: no process may be in `native`.
    let said = moved.refused("rollback", &orders(&[])).await;
    assert!(said.contains("is in native"), "{said}");
    process.set_mode(LockerMode::Both).await.unwrap();

    // Back to `cassandra`: every native hold has a row. One was removed, and one never existed.
    moved.cql(&["DELETE FROM k.leases WHERE name = 'orders/1'"]).await;
    let client = moved.client().await;
    let alone = client.lock("orders/9").await.unwrap();
    let both = process.lock("orders/7").await.unwrap();
    let said = moved.refused("rollback", &orders(&[])).await;
    assert!(said.contains("scope \"orders/\" stays at both: 1 in the way: "), "{said}");
    assert!(said.contains("has orders/9 natively, and no row in Cassandra"), "{said}");
    let (owner, left_s) = moved.lease("orders/1").await.unwrap();
    assert!(owner == "client_1" && (400..=602).contains(&left_s), "{owner} {left_s}");
    assert_eq!(moved.lease("orders/9").await, None);
    no_row_of_another_process_stands_for_a_hold(moved).await;
    // A value that the table's column of text cannot have (B21).
    alone.set_value(&b"\xff\x00"[..]).await.unwrap();
    let said = moved.refused("rollback", &orders(&["--live-for", "10m"])).await;
    assert!(
        said.contains(
            "holds orders/9 natively, and its row cannot be written: its value is not UTF-8"
        ),
        "{said}"
    );
    assert_eq!(moved.lease("orders/9").await, None);
    alone.set_value(&b"10.0.0.9"[..]).await.unwrap();
    // One row stands for one hold, and not for the next.
    let mut waiting = client.lock("orders/9").enqueue();
    assert!(waiting.next().await.is_some());
    let said = moved.refused("rollback", &orders(&["--live-for", "10m"])).await;
    assert!(said.contains("waits for orders/9 natively"), "{said}");
    assert_eq!(moved.lease("orders/9").await, None);
    drop(waiting);
    let told = moved.done("rollback", &orders(&["--live-for", "10m"])).await;
    assert_eq!(moves(&told), ["cassandra"]);
    let (owner, left_s) = moved.lease("orders/9").await.unwrap();
    assert!(owner.ends_with(&format!("/native-{}", alone.token())), "{owner}");
    assert!((590..=602).contains(&left_s), "{left_s}");
    let old = Recipe::Lease.locker(&moved.stage.cassandra(), &LockerOptions::default());
    for held in ["orders/1", "orders/7", "orders/9"] {
        assert!(old.try_lock(held).await.unwrap().is_none(), "{held} is held");
    }

    // As long as it is held its row stands; once the hold has ended, the tool takes that row back, and no other one.
    moved.done("rollback", &orders(&[])).await;
    assert!(moved.lease("orders/9").await.is_some());
    alone.release().await.unwrap();
    // Nobody is to lock natively now. Where somebody does, the row keeps the recipe's clients out of it.
    let late = client.lock("orders/9").await.unwrap();
    moved.done("rollback", &orders(&[])).await;
    assert!(moved.lease("orders/9").await.is_some());
    late.release().await.unwrap();
    both.release().await.unwrap();
    let told = moved.done("rollback", &orders(&[])).await;
    assert!(told.contains(&json!({ "kind": "rows", "written": 0, "taken_back": 1 })), "{told:?}");
    assert_eq!(moved.lease("orders/9").await, None);
    assert_eq!(moved.lease("orders/1").await.unwrap().0, "client_1");
}

/// Also clients of ours that have registered no mode: nothing would keep them out of what is natively held.
#[tokio::test]
async fn clients_without_a_mode_and_rows_that_cannot_be_imported_are_in_the_way() {
    let moved = Move::set_with_one_server("cutover_unfit", LEASES).await;
    moved
        .cql(&[
            "INSERT INTO k.leases (name, owner) VALUES ('orders/2', 'client_2') USING TTL 0",
            "INSERT INTO k.leases (name, owner) VALUES ('orders/4', 'client_4') USING TTL 600",
        ])
        .await;
    moved.done("cutover", &orders(&["--to", "both"])).await;
    let plain = LockerOptions::default().service("reports");
    let plain = Recipe::Lease.locker(&moved.stage.cassandra(), &plain);
    let guard = plain.lock("orders/3").await.unwrap();

    let said = moved.refused("cutover", &orders(&[])).await;
    let alone = "holds orders/3 in Cassandra alone, and is no process of the scope";
    assert!(said.contains("hf1:reports@") && said.contains(alone), "{said}");
    assert!(said.contains("changed the row of orders/4"), "{said}");
    let no_ttl = "orders/2 of client_2 cannot be imported: no TTL: it would never end";
    assert!(said.contains(no_ttl), "{said}");
    assert!(said.contains("say --writers-stopped"), "{said}");
    // Whatever the flag says about old clients, one of ours that never registered is in the way until its row is over.
    let said = moved.refused("cutover", &orders(&["--writers-stopped"])).await;
    assert!(said.contains(no_ttl) && said.contains(alone), "{said}");
    assert!(!said.contains("orders/4"), "{said}");
    guard.release().await.unwrap();
    assert!(moved.client().await.reader().list("").await.unwrap().is_empty(), "nothing came in");

    let told = moved.done("cutover", &orders(&["--writers-stopped", "--leave-out"])).await;
    assert_eq!(moves(&told), ["native"]);
    let sum = told.iter().find(|line| line["kind"] == "imported").unwrap();
    assert_eq!((&sum["sum"]["imported"], &sum["sum"]["left_out"]), (&json!(1), &json!(1)));
}

#[tokio::test]
async fn a_move_that_may_wait_goes_on_as_soon_as_nothing_is_in_its_way() {
    let moved = Move::set_with_one_server("cutover_wait", LEASES).await;
    let process = moved.process("orders/", "billing", LockerMode::Cassandra).await;
    let cutover = moved.start("cutover", &orders(&["--wait", "2m", "--writers-stopped"]));
    let changing = async {
        for mode in [LockerMode::Both, LockerMode::Native] {
            Runtime::system().sleep(Duration::from_secs(4)).await;
            // Refused until the scope has that stage.
            while process.set_mode(mode).await.is_err() {
                Runtime::system().sleep(Duration::from_millis(300)).await;
            }
        }
    };
    let (ended, ()) = tokio::join!(cutover.end(Duration::from_mins(3)), changing);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let told: Vec<Value> =
        ended.out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(moves(&told), ["both", "native"]);
    let waited: Vec<&str> = told
        .iter()
        .filter(|line| line["kind"] == "waiting")
        .map(|line| line["for"][0]["obstacle"].as_str().unwrap())
        .collect();
    assert_eq!(waited, ["process", "process"]);
}

#[tokio::test]
async fn a_dry_run_shows_the_next_step_and_what_is_in_its_way_and_changes_nothing() {
    let moved = Move::set_with_one_server("cutover_dry", LEASES).await;
    moved
        .cql(&["INSERT INTO k.leases (name, owner) VALUES ('orders/1', 'client_1') USING TTL 600"])
        .await;
    let scope = modes(&moved, "orders/");
    let dry = ["--dry-run"];

    let told = moved.done("cutover", &orders(&dry)).await;
    assert_eq!((&told[0]["at"]["stage"], &told[0]["next"]), (&json!("cassandra"), &json!("both")));
    assert_eq!(scope.view().await.unwrap().stage, Stage::Cassandra);

    moved.done("cutover", &orders(&["--to", "both"])).await;
    let said = moved.refused("cutover", &orders(&dry)).await;
    assert!(said.contains("stays at both: 2 in the way"), "{said}");
    assert!(said.contains("client_1, no client of ours, changed the row of orders/1"), "{said}");
    assert!(said.contains("say --writers-stopped"), "{said}");
    let told = moved.done("cutover", &orders(&["--dry-run", "--writers-stopped"])).await;
    assert_eq!((&told[0]["next"], &told[0]["to_import"]), (&json!("native"), &json!(1)));
    assert!(moved.client().await.reader().list("").await.unwrap().is_empty(), "nothing came in");
    let view = scope.view().await.unwrap();
    assert_eq!((view.stage, view.recipe), (Stage::Both, None));
    moved.done("cutover", &orders(&["--writers-stopped"])).await;
    assert_eq!(moved.done("cutover", &orders(&dry)).await[0]["next"], Value::Null);

    let told = moved.done("rollback", &orders(&dry)).await;
    assert_eq!((&told[0]["next"], &told[0]["to_write"]), (&json!("both"), &json!(0)));
    moved.done("rollback", &orders(&["--to", "both"])).await;
    let client = moved.client().await;
    let alone = client.lock("orders/9").await.unwrap();
    let said = moved.refused("rollback", &orders(&dry)).await;
    assert!(said.contains("has orders/9 natively, and no row in Cassandra"), "{said}");
    let live = orders(&["--live-for", "10m"]);
    let told = moved.done("rollback", &[&live[..], &dry].concat()).await;
    assert_eq!((&told[0]["next"], &told[0]["to_write"]), (&json!("cassandra"), &json!(1)));
    assert_eq!(moved.lease("orders/9").await, None);
    moved.done("rollback", &live).await;
    alone.release().await.unwrap();
    let told = moved.done("rollback", &orders(&dry)).await;
    assert_eq!((&told[0]["next"], &told[0]["to_take_back"]), (&Value::Null, &json!(1)));
    assert!(moved.lease("orders/9").await.is_some());
}

#[tokio::test]
async fn scopes_of_a_file_are_moved_one_by_one_and_one_that_stays_holds_up_no_other() {
    let moved = Move::set_with_one_server("cutover_several", LEASES).await;
    let _process = moved.process("orders/", "billing", LockerMode::Cassandra).await;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("scopes");
    let several = ["--scopes", file.to_str().unwrap(), "--from", "lease", "--writers-stopped"];

    std::fs::write(&file, "orders/\n\nreports/\n").unwrap();
    let said = moved.refused("cutover", &several).await;
    assert!(said.contains("scope \"orders/\" stays at cassandra: 1 in the way"), "{said}");
    assert_eq!(modes(&moved, "orders/").view().await.unwrap().stage, Stage::Cassandra);
    assert_eq!(modes(&moved, "reports/").view().await.unwrap().stage, Stage::Native);

    std::fs::write(&file, "\n").unwrap();
    let ended = moved.run("cutover", &several).await;
    assert_eq!(ended.code, Some(125), "{ended:?}");
    assert!(ended.err.contains("it names no scope"), "{ended:?}");
}

/// A native hold without a row gets one that the recipe's own clients respect.
#[tokio::test]
async fn after_the_way_back_a_native_hold_keeps_out_the_recipes_clients() {
    let moved = Move::set_with_one_server("cutover_recipes", RECIPES).await;
    let client = moved.client().await;
    for (from, recipe) in [
        ("queue", Some(Recipe::Queue)),
        ("tokens", Some(Recipe::TokensLwt)),
        ("shadow", Some(Recipe::Shadow)),
        ("bakery", None),
    ] {
        let (scope, name) = (format!("{from}/"), format!("{from}/1"));
        let line = ["--scope", &scope, "--from", from];
        let there = [&line[..], &["--writers-stopped"]].concat();
        let told = moved.done("cutover", &there).await;
        assert_eq!(moves(&told), ["both", "native"], "{from}");
        let guard = client.lock(&name).await.unwrap();
        let back = [&line[..], &["--live-for", "5m"]].concat();
        if from == "bakery" {
            let said = moved.refused("rollback", &back).await;
            assert!(said.contains("cannot be drawn for somebody else"), "{said}");
            continue;
        }
        let told = moved.done("rollback", &back).await;
        assert_eq!(moves(&told), ["both", "cassandra"], "{from}");
        // With all cells that the recipe has for it.
        let plan = moved.done("plan", &["--from", from, "--prefix", &scope]).await;
        assert_eq!(plan[0]["kind"], "holder", "{from}: {plan:?}");
        let owner = plan[0]["owner"].as_str().unwrap();
        assert!(owner.contains(&format!("/native-{}", guard.token())), "{from}: {owner}");
        if let Some(recipe) = recipe {
            let old = recipe.locker(&moved.stage.cassandra(), &LockerOptions::default());
            assert!(old.try_lock(&name).await.unwrap().is_none(), "{from}: it is held");
            guard.release().await.unwrap();
            let told = moved.done("rollback", &back).await;
            assert_eq!(told[1], json!({ "kind": "rows", "written": 0, "taken_back": 1 }), "{from}");
            let guard = old.try_lock(&name).await.unwrap().unwrap();
            guard.release().await.unwrap();
        }
    }
}

/// Rows of each scope.
const ROWS: u32 = 20;

/// I25 and the stages of a move: whatever the tool was doing when it was killed, the next run continues from there, and nothing is done
/// twice. Twelve points, drawn anew.
#[tokio::test]
async fn a_tool_that_is_killed_anywhere_is_run_again_and_nothing_is_lost_or_done_twice() {
    killed_anywhere("cutover_kills", 4).await;
}

#[tokio::test]
#[ignore = "long: 48 points; every change has twelve, drawn anew"]
async fn a_tool_that_is_killed_at_many_points_is_run_again_and_nothing_is_lost_or_done_twice() {
    killed_anywhere("cutover_many_kills", 16).await;
}

/// When a command that takes so long is killed in this round: the rounds divide its time but for the tenths at both ends, and a seed draws the
/// point in its round's share.
fn drawn(draw: &mut Draw, took: Duration, round: u32, kills: u32) -> Duration {
    let share = u32::try_from(draw.below(1_000)).unwrap();
    took / 10 + took * 8 / 10 * ((round - 1) * 1_000 + share) / (kills * 1_000)
}

/// Each command is killed so often.
async fn killed_anywhere(keyspace: &'static str, kills: u32) {
    let seed = Runtime::system().rng.next_u64();
    println!("seed {seed}");
    let mut draw = Draw::new(seed);
    let moved = Move::set_with_one_server(keyspace, LEASES).await;
    // The first scope is measured without a kill, and again whenever the tool ended before it was to be killed.
    let mut took = [Duration::ZERO; 3];
    let mut killed = [0; 3];
    for round in 0..=kills {
        let scope = format!("s{round}/");
        let of_all =
            |statement: &dyn Fn(u32) -> String| (0..ROWS).map(statement).collect::<Vec<_>>();
        let insert = |row| {
            format!(
                "INSERT INTO k.leases (name, owner) VALUES ('{scope}{row}', 'old-{row}') USING TTL 900"
            )
        };
        all(&moved, &of_all(&insert)).await;
        let import = ["--prefix", &scope, "--from", "lease", "--writers-stopped"];
        let there = ["--scope", &scope, "--from", "lease", "--writers-stopped"];
        let back = ["--scope", &scope, "--from", "lease"];
        let tries = [("import", &import[..]), ("cutover", &there[..]), ("rollback", &back[..])];
        for (at, (command, arguments)) in tries.into_iter().enumerate() {
            if command == "rollback" {
                // As if an operator had cleared up: the tool writes all of them again.
                let delete = |row| format!("DELETE FROM k.leases WHERE name = '{scope}{row}'");
                all(&moved, &of_all(&delete)).await;
            }
            if round > 0 {
                let after = drawn(&mut draw, took[at], round, kills);
                match killed_after(&moved, command, arguments, after).await {
                    None => killed[at] += 1,
                    Some(ended_after) => took[at] = ended_after,
                }
            }
            let clock = Runtime::system().clock;
            let began = clock.now();
            moved.done(command, arguments).await;
            if round == 0 {
                took[at] = clock.now().saturating_since(began);
            }
            match command {
                "rollback" => all_have_their_rows(&moved, &scope).await,
                _ => all_are_held_once(&moved, &scope).await,
            }
        }
        let view = modes(&moved, &scope).view().await.unwrap();
        assert_eq!(
            (view.stage, view.turn),
            (Stage::Cassandra, 4),
            "{scope}: each step was made once"
        );
    }
    println!("took {took:?}, killed {killed:?}");
    assert!(killed.iter().all(|killed| *killed >= kills / 2), "{killed:?}");
}

async fn all(moved: &Move, statements: &[String]) {
    moved.cql(&statements.iter().map(String::as_str).collect::<Vec<_>>()).await;
}

async fn all_are_held_once(moved: &Move, scope: &str) {
    let client = moved.client().await;
    for row in 0..ROWS {
        let lock = client.reader().inspect(&format!("{scope}{row}")).await.unwrap().unwrap();
        let parties = (lock.holders.len(), lock.queue.len(), lock.holders[0].label.clone());
        assert_eq!(parties, (1, 0, format!("old-{row}")), "{lock:?}");
    }
}

async fn all_have_their_rows(moved: &Move, scope: &str) {
    for row in 0..ROWS {
        let (owner, left_s) = moved.lease(&format!("{scope}{row}")).await.unwrap();
        assert!(owner == format!("old-{row}") && left_s > 700, "{owner} {left_s}");
    }
}

/// Returns how long it took if it had ended by itself.
async fn killed_after(
    moved: &Move,
    command: &str,
    arguments: &[&str],
    after: Duration,
) -> Option<Duration> {
    let clock = Runtime::system().clock;
    let began = clock.now();
    let mut tool = moved.start(command, arguments);
    if tool.ends_within(after).await {
        return Some(clock.now().saturating_since(began));
    }
    tool.signal(Signal::SIGKILL);
    tool.end(Duration::from_secs(10)).await;
    None
}
