//! Cutover on tables in memory: which clients prevent the step from `both` to `native`, and what
//! the operator's statement is worth.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use holdfast::{FencingToken, ImportGroup, ImportOutcome, RefusalReason};
use holdfast_keyspace::model::Model;
use holdfast_keyspace::statement::{Action, Ident, Statement, Value};
use holdfast_mutants::{Mutant, while_armed};
use holdfast_recipes::{Cassandra, ModesTable, ScopeModes};
use holdfast_runtime::simulated::Machine;

use super::*;
use crate::import::{Fault, Pace};
use crate::scan::Scan;
use crate::scan::tests::{InMemory, leases};
use crate::verify::{NativeLock, Party};

const SCOPE: &str = "orders/";

/// A native store that accepts every import, or refuses all.
#[derive(Debug, Default)]
struct Store {
    held: Mutex<Vec<(String, String)>>,
    /// Why it refuses.
    refuses: Option<&'static str>,
}

impl NativeStore for Store {
    async fn lock(&self, name: &str) -> Result<Option<NativeLock>, Fault> {
        let held = self.held.lock().unwrap();
        let party = |owner: &String| Party {
            label: owner.clone(),
            is_imported: true,
            left: Some(Duration::from_hours(1)),
            ..Party::default()
        };
        let holders: Vec<Party> =
            held.iter().filter(|(lock, _)| lock == name).map(|(_, owner)| party(owner)).collect();
        let name = name.to_owned();
        let lock = NativeLock { name, holders, ..NativeLock::default() };
        Ok((!lock.holders.is_empty()).then_some(lock))
    }

    async fn names(
        &self,
        _: &str,
        _: Option<&str>,
    ) -> Result<(Vec<String>, Option<String>), Fault> {
        Ok((Vec::new(), None))
    }
}

impl Importer for &Store {
    async fn cluster(&self) -> Result<String, Fault> {
        Ok("c1".to_owned())
    }

    async fn import(&self, groups: &[ImportGroup]) -> Result<Vec<Vec<ImportOutcome>>, Fault> {
        let mut held = self.held.lock().unwrap();
        let token = FencingToken::from_raw(1);
        if let Some(message) = self.refuses {
            let (reason, message) = (RefusalReason::Limit, message.to_owned());
            let refused = ImportOutcome::Refused { reason, message };
            return Ok(groups
                .iter()
                .map(|group| vec![refused.clone(); group.rows.len()])
                .collect());
        }
        let mut import = |group: &ImportGroup| {
            group.rows.iter().for_each(|row| held.push((row.name.clone(), group.owner.clone())));
            group.rows.iter().map(|_| ImportOutcome::Held { token }).collect()
        };
        Ok(groups.iter().map(&mut import).collect())
    }
}

/// Removes a process's row from the table of modes, as the process does at its end.
fn leave(model: &Model, process: &str) {
    let key = vec![
        (Ident::new("scope"), Value::from("orders/*")),
        (Ident::new("process"), Value::from(process)),
    ];
    let action = Action::DeleteIf { only_if: Vec::new() };
    model.apply(&Statement::new(Ident::new("locker_modes"), key, action));
}

struct Fixture {
    machine: Machine,
    model: Model,
    tables: Arc<InMemory>,
    scan: Scan,
    native: Store,
    modes: ScopeModes,
}

fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

impl Fixture {
    /// A scope at `both`.
    fn new() -> Self {
        let machine = Machine::new(1);
        let model = Model::new(&machine);
        let runtime = machine.world().runtime();
        let tables = Arc::new(InMemory::default());
        let scan = Scan::over(tables.clone(), leases(), runtime.clone());
        let cassandra = Cassandra::on(Arc::new(model.clone()), runtime);
        let moves = ScopeModes::new(&cassandra, SCOPE, ModesTable::default()).unwrap();
        let fixture = Self { machine, model, tables, scan, native: Store::default(), modes: moves };
        fixture.machine.run(async { fixture.modes.advance().await }).unwrap();
        fixture
    }

    fn write(&self, process: Option<&str>, cells: &[(&str, Value)]) {
        let mut key = vec![(Ident::new("scope"), Value::from("orders/*"))];
        key.extend(process.map(|process| (Ident::new("process"), Value::from(process))));
        let cell = |(name, value): &(&str, Value)| (Ident::new(name), Some(value.clone()));
        let cells = cells.iter().map(cell).collect();
        let action = Action::UpdateIf { cells, ttl_s: None, only_if: Vec::new() };
        self.model.apply(&Statement::new(Ident::new("locker_modes"), key, action));
    }

    /// Writes the process's row in the table of modes.
    fn register(&self, process: &str, mode: &str) {
        self.write(Some(process), &[("mode", mode.into()), ("seq", Value::from(1))]);
    }

    fn cutover(&self, old_clients: OldClients, wait: Duration) -> Cutover<'_, Store> {
        let options = Options {
            rules: Rules::new(SCOPE, Duration::from_mins(3)),
            ranges: 4,
            reads_at_once: 2,
            requests_at_once: 2,
            pace: Pace::new(None),
            checkpoint: None,
            writers_stopped: true,
            modes_table: None,
        };
        let scope = MovingScope {
            name: SCOPE,
            modes: &self.modes,
            scan: &self.scan,
            native: &self.native,
            wait,
            runtime: self.machine.world().runtime(),
        };
        Cutover { scope, options, old_clients, leave_out: false }
    }

    /// Cuts over to `native`; `on` receives the reports.
    fn run(
        &self,
        old_clients: OldClients,
        wait: Duration,
        mut on: impl FnMut(&MoveReport<'_>),
    ) -> Result<Stage, String> {
        let cutover = self.cutover(old_clients, wait);
        let moved = self.machine.run(cutover.run(Stage::Native, &mut |told| on(&told)));
        moved.map(|view| view.stage).map_err(|error| error.to_string())
    }

    fn stage(&self) -> Stage {
        self.machine.run(self.modes.view()).unwrap().stage
    }
}

/// An old client holds the lock for one second in ten and gives it back, so most passes see no row
/// of it. However long a cutover may wait, no pass moves the scope on.
#[test]
fn a_look_that_meets_no_old_client_is_no_word_that_there_is_none() {
    // The first pass sees its row in some of these cases.
    for (wait, begins) in [(secs(0), secs(5)), (secs(90), secs(0)), (secs(90), secs(5))] {
        let fixture = Fixture::new();
        let tables = fixture.tables.clone();
        let runtime = fixture.machine.world().runtime();
        let working = async move {
            runtime.sleep(begins).await;
            for round in 0.. {
                tables.lease("orders/1", "client_1", 60, round);
                runtime.sleep(secs(1)).await;
                tables.put(0, "orders/1", Vec::new());
                runtime.sleep(secs(9)).await;
            }
        };
        fixture.machine.world().runtime().spawn("old client", working).detach();
        let refused = fixture.run(OldClients::MayWrite, wait, |_| {}).unwrap_err();
        assert!(refused.contains("say --writers-stopped"), "{refused}");
        let says = "nobody has said that the clients which know only the recipe are stopped";
        assert!(refused.contains(says), "{refused}");
        assert_eq!(fixture.stage(), Stage::Both);
    }
}

#[test]
fn with_the_word_and_nothing_against_it_the_scope_moves_and_is_tied() {
    let fixture = Fixture::new();
    fixture.tables.lease("orders/1", "client_1", 60, 5);
    fixture.tables.lease("other/1", "client_2", 60, 5);
    let moved = fixture.run(OldClients::Stopped, secs(0), |_| {});
    assert_eq!(moved, Ok(Stage::Native));
    let left = ("orders/1".to_owned(), "client_1".to_owned());
    assert_eq!(*fixture.native.held.lock().unwrap(), [left]);
    let view = fixture.machine.run(fixture.modes.view()).unwrap();
    assert_eq!(view.recipe.as_deref(), Some("lease model.leases"));
    assert_eq!(view.cluster.as_deref(), Some("c1"));
}

/// The import compares its rows with what the pass before it saw: a new row, and one that was
/// renewed.
#[test]
fn a_row_that_an_old_client_writes_while_it_is_imported_ends_the_run_by_name() {
    for written in [("orders/1", "client_1", 6), ("orders/2", "client_2", 5)] {
        let fixture = Fixture::new();
        fixture.tables.lease("orders/1", "client_1", 60, 5);
        let (lock, owner, at) = written;
        let refused = fixture.run(OldClients::Stopped, secs(600), |told| {
            if let MoveReport::Importing = told {
                fixture.tables.lease(lock, owner, 60, at);
            }
        });
        let refused = refused.unwrap_err();
        let says = format!(
            "\"{owner}\" wrote a row of \"{lock}\" while this ran, although --writers-stopped says that"
        );
        assert!(refused.contains(&says), "{refused}");
        assert_eq!(fixture.stage(), Stage::Both);
    }
}

/// A process that starts while the tables are read takes a lock before a look can show it in the scope. One that never comes there is no
/// process, and its row would not keep out those that lock natively.
#[test]
fn a_process_that_starts_during_an_import_is_no_old_client_and_one_that_never_registers_is_named() {
    const LATE: &str = "hf1:late@00000000000000cc/02";
    for registers in [true, false] {
        let fixture = Fixture::new();
        let moved = fixture.run(OldClients::Stopped, secs(0), |told| {
            if let MoveReport::Importing = told {
                fixture.tables.lease("orders/7", LATE, 60, 9);
                if registers {
                    fixture.register("hf1:late@00000000000000cc/01", "both/2");
                }
            }
        });
        if registers {
            assert_eq!(fixture.stage(), Stage::Native);
            assert!(moved.unwrap_err().contains("stays at native: 1 in the way: hf1:late@"));
            // It waits for what was imported of its row.
            let late = ("orders/7".to_owned(), LATE.to_owned());
            assert!(fixture.native.held.lock().unwrap().contains(&late));
        } else {
            let says = format!(
                "\"{LATE}\", a client of this library that is no process of the scope, wrote a row of \"orders/7\" while this ran"
            );
            let refused = moved.unwrap_err();
            assert!(refused.contains(&says), "{refused}");
            assert_eq!(fixture.stage(), Stage::Both);
        }
    }
}

/// Unregistered processes that have one busy lock in turn: whoever had it at the first look has given it back by the second.
#[test]
fn clients_of_ours_that_take_turns_at_one_lock_are_in_the_way() {
    let fixture = Fixture::new();
    let (tables, runtime) = (fixture.tables.clone(), fixture.machine.world().runtime());
    let working = async move {
        for turn in 0.. {
            let owner = format!("hf1:billing@{:016x}/03", turn % 7);
            tables.lease("orders/1", &owner, 60, turn);
            runtime.sleep(secs(2)).await;
        }
    };
    fixture.machine.world().runtime().spawn("old clients", working).detach();
    let refused = fixture.run(OldClients::Stopped, secs(0), |_| {}).unwrap_err();
    assert!(refused.contains("holds orders/1 in Cassandra alone"), "{refused}");
    assert_eq!(fixture.stage(), Stage::Both);
}

/// A job in `both` takes a lock while the tables are read, and is over before they are looked at again.
#[test]
fn a_process_that_is_over_before_the_next_look_is_no_old_client() {
    let fixture = Fixture::new();
    let moved = fixture.run(OldClients::Stopped, secs(0), |told| {
        if let MoveReport::Importing = told {
            fixture.tables.lease("orders/7", "hf1:job@00000000000000dd/02", 60, 9);
            fixture.register("hf1:job@00000000000000dd/01", "both/2");
            let (model, runtime) = (fixture.model.clone(), fixture.machine.world().runtime());
            let ends = async move {
                runtime.sleep(secs(2)).await;
                leave(&model, "hf1:job@00000000000000dd/01");
            };
            fixture.machine.world().runtime().spawn("job", ends).detach();
        }
    });
    assert_eq!(moved, Ok(Stage::Native));
}

/// The second owner of the lock is seen once, and has given it back by the next look. It came during the run.
#[test]
fn a_client_of_ours_that_was_seen_to_come_is_in_the_way_also_once_it_has_gone() {
    let fixture = Fixture::new();
    let (tables, runtime) = (fixture.tables.clone(), fixture.machine.world().runtime());
    fixture.tables.lease("orders/1", "hf1:billing@00000000000000bb/03", 60, 5);
    let working = async move {
        runtime.sleep(secs(2)).await;
        tables.lease("orders/1", "hf1:billing@00000000000000bb/04", 60, 6);
        runtime.sleep(secs(2)).await;
        tables.put(0, "orders/1", Vec::new());
    };
    fixture.machine.world().runtime().spawn("old client", working).detach();
    let refused = fixture.run(OldClients::Stopped, secs(0), |_| {}).unwrap_err();
    assert!(refused.contains("/04 holds orders/1 in Cassandra alone"), "{refused}");
    assert_eq!(fixture.stage(), Stage::Both);
}

/// `docs/migration.md` has these messages.
#[test]
fn what_the_store_refuses_is_in_the_way_with_its_reason() {
    let mut fixture = Fixture::new();
    fixture.native.refuses = Some("2 sessions are open, the limit (max_sessions)");
    fixture.tables.lease("orders/1", "client_1", 60, 5);
    let refused = fixture.run(OldClients::Stopped, secs(0), |_| {}).unwrap_err();
    for says in [
        "orders/1: client_1 holds it in the table, and nobody here",
        "the store refuses orders/1 of client_1: 2 sessions are open, the limit (max_sessions)",
    ] {
        assert!(refused.contains(says), "{refused}");
    }
    assert_eq!(fixture.stage(), Stage::Both);
}

/// An old client writes its row again while the cutover waits for something else.
#[test]
fn each_look_of_a_run_that_waits_is_compared_with_those_before() {
    let fixture = Fixture::new();
    fixture.tables.lease("orders/1", "client_1", 60, 5);
    fixture.tables.lease("orders/9", "hf1:billing@00000000000000bb/03", 60, 5);
    let refused = fixture.run(OldClients::Stopped, secs(600), |told| {
        if let MoveReport::Waiting(obstacles) = told {
            assert!(obstacles.to_string().contains("holds orders/9"), "{obstacles}");
            fixture.tables.lease("orders/1", "client_1", 60, 6);
        }
    });
    let refused = refused.unwrap_err();
    assert!(refused.contains("\"client_1\" wrote a row of \"orders/1\""), "{refused}");
    assert_eq!(fixture.stage(), Stage::Both);
}

/// Each pass takes three seconds here. A table of millions of rows takes minutes, and is not to be read without end (B21).
#[test]
fn who_waits_reads_the_tables_a_quarter_of_the_time() {
    let fixture = Fixture::new();
    fixture.tables.lease("orders/9", "hf1:billing@00000000000000bb/03", 600, 5);
    let refused = fixture.run(OldClients::Stopped, secs(600), |_| {}).unwrap_err();
    assert!(refused.contains("holds orders/9 in Cassandra alone"), "{refused}");
    let passes = fixture.tables.asked_for_time();
    assert!((45..=55).contains(&passes), "{passes} passes");
}

/// Half of a rolling release: a registered and an unregistered process have the same service name.
#[test]
fn a_client_of_ours_that_never_registered_is_not_hidden_by_its_service_name() {
    const REGISTERED: &str = "hf1:billing@00000000000000aa/01";
    for (owner, hidden) in [
        ("hf1:billing@00000000000000aa/02", true),
        ("hf1:billing@00000000000000bb/03", false),
        // Of version 0.1.
        ("hf1:billing/04", false),
    ] {
        for word in [OldClients::Stopped, OldClients::MayWrite] {
            let fixture = Fixture::new();
            fixture.register(REGISTERED, "both/2");
            fixture.tables.lease("orders/1", owner, 60, 5);
            let refused = fixture.run(word, secs(0), |_| {}).unwrap_err();
            let says = format!("{owner} holds orders/1 in Cassandra alone");
            assert_eq!(refused.contains(&says), !hidden, "{word:?} {owner}: {refused}");
            let moved = fixture.stage() == Stage::Native;
            assert_eq!(moved, hidden && word == OldClients::Stopped, "{refused}");
        }
    }
}

/// A release is under way: 1,500 locks of unregistered processes are given back between the two looks, and one is not. Wherever the
/// scan meets that one, it prevents the step.
#[test]
fn an_unregistered_client_is_found_behind_any_number_of_others() {
    for stays in ["orders/0", "orders/700", "orders/1499"] {
        let fixture = Fixture::new();
        let names: Vec<String> = (0..1_500).map(|number| format!("orders/{number}")).collect();
        for name in &names {
            fixture.tables.lease(name, "hf1:billing@00000000000000bb/03", 60, 5);
        }
        let (tables, runtime) = (fixture.tables.clone(), fixture.machine.world().runtime());
        let ending = async move {
            runtime.sleep(secs(1)).await;
            for name in names.iter().filter(|name| *name != stays) {
                tables.put(0, name, Vec::new());
            }
        };
        fixture.machine.world().runtime().spawn("release", ending).detach();
        let refused = fixture.run(OldClients::Stopped, secs(0), |_| {}).unwrap_err();
        assert!(refused.contains(&format!("holds {stays} in Cassandra alone")), "{refused}");
        assert_eq!(fixture.stage(), Stage::Both);
    }
}

#[test]
fn a_process_of_0_1_is_in_the_way_of_native_by_name() {
    let fixture = Fixture::new();
    fixture.register("hf1:billing/0123", "both");
    let refused = fixture.run(OldClients::Stopped, secs(0), |_| {}).unwrap_err();
    assert!(refused.contains("hf1:billing/0123 is of version 0.1 (update it"), "{refused}");
    assert_eq!(fixture.stage(), Stage::Both);
}

/// An empty table of another recipe would let everything pass.
#[test]
fn a_scope_of_another_recipe_or_cluster_is_not_moved() {
    let ties = [("recipe", "queue model.lock_main model.lock_queue"), ("cluster", "c2")];
    for (column, tied) in ties {
        let fixture = Fixture::new();
        fixture.write(None, &[(column, tied.into())]);
        let refused = fixture.run(OldClients::Stopped, secs(0), |_| {}).unwrap_err();
        let says = format!("scope \"orders/\" is tied to the {column} \"{tied}\", and this is");
        assert!(refused.contains(&says), "{refused}");
        assert_eq!(fixture.stage(), Stage::Both);
    }
}

#[test]
fn each_of_the_rules_is_missed_when_it_is_broken() {
    let cases: [(Mutant, fn()); 3] = [
        (Mutant::TiesNotCompared, a_scope_of_another_recipe_or_cluster_is_not_moved),
        (Mutant::OneLookIsEnough, a_look_that_meets_no_old_client_is_no_word_that_there_is_none),
        (
            Mutant::UnregisteredIsHidden,
            a_client_of_ours_that_never_registered_is_not_hidden_by_its_service_name,
        ),
    ];
    for (mutant, test) in cases {
        let run = while_armed(mutant, || std::panic::catch_unwind(test));
        assert!(run.is_err(), "nothing showed that {mutant} was armed");
    }
}
