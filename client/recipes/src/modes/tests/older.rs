//! Version 0.1 beside this one: the statements it sent, how it interprets what it reads, and the rows that it
//! left. See the module.

use super::*;
use crate::database::{Answer, Conditional, Row};
use crate::modes::MoveRefused;
use crate::statement::{Action, Cells, Ident, Statement, Value};

/// The texts of version 0.1, for keyspace `k`.
const ENTER: &str = "UPDATE \"k\".\"locker_modes\" USING TTL ? SET \"mode\" = ?, \"seq\" = ? WHERE \
                     \"scope\" = ? AND \"process\" = ? IF \"stage\" = ? AND \"turn\" = ? AND \"mode\" = ? AND \"seq\" = ?";
const RENEW: &str = "UPDATE \"k\".\"locker_modes\" USING TTL ? SET \"mode\" = ?, \"seq\" = ? WHERE \
                     \"scope\" = ? AND \"process\" = ? IF \"mode\" = ? AND \"seq\" = ?";
const MOVE: &str = "UPDATE \"k\".\"locker_modes\" SET \"stage\" = ?, \"turn\" = ? WHERE \"scope\" = ? IF \
                    \"stage\" = ? AND \"turn\" = ?";
const READ: &str = "SELECT \"process\", \"mode\", \"seq\", \"stage\", \"turn\" FROM \"k\".\"locker_modes\" WHERE \
                    \"scope\" = ?";
/// The modes and stages that it knows.
const KNOWN: [&str; 4] = ["cassandra", "both", "native", "fallback"];
const PROCESS: &str = "hf1:old/0123456789abcdef0123456789abcdef";

/// A process of version 0.1, or its tool.
struct Older {
    cassandra: Cassandra,
    seq: i64,
}

/// A scope as it reads it.
#[derive(Debug, PartialEq)]
struct Read {
    stage: String,
    turn: i64,
    /// The modes of all processes: its tools read them, its processes do not.
    modes: Vec<String>,
}

fn cell(name: &str, value: impl Into<Value>) -> (Ident, Option<Value>) {
    (Ident::new(name), Some(value.into()))
}

fn null(name: &str) -> (Ident, Option<Value>) {
    (Ident::new(name), None)
}

/// Before the first move it compares null with null.
fn at(stage: &str, turn: i64) -> Cells {
    if turn == 0 {
        return vec![null("stage"), null("turn")];
    }
    vec![cell("stage", stage), cell("turn", turn)]
}

fn statement(text: &str, process: bool, action: Action) -> Statement {
    let mut key = vec![(Ident::new("scope"), Value::from("*"))];
    key.extend(process.then(|| (Ident::new("process"), Value::from(PROCESS))));
    let statement = Statement::new(Ident::new("locker_modes"), key, action);
    // Where it gave no TTL we say that there is none: of a table without a default that is the same.
    assert_eq!(statement.text(&Ident::new("k")).replace(" USING TTL 0", ""), text);
    statement
}

impl Older {
    fn new(world: &World, process: &Process) -> Self {
        Self { cassandra: world.cassandra(process), seq: 0 }
    }

    async fn lwt(&self, statement: Statement) -> bool {
        let answer = self.cassandra.tables().conditional(statement).await.1;
        matches!(answer, Ok(Conditional::Applied))
    }

    async fn read(&self) -> Read {
        let columns = ["process", "mode", "seq", "stage", "turn"].map(Ident::new).to_vec();
        let read = statement(READ, false, Action::AllSerial { columns });
        let rows = self.cassandra.tables().read_all(read).await.unwrap();
        let text = |row: &Row, name: &str| row.text(&Ident::new(name)).map(str::to_owned);
        let first = rows.first();
        Read {
            stage: first.and_then(|row| text(row, "stage")).unwrap_or("cassandra".into()),
            turn: first.and_then(|row| row.long(&Ident::new("turn"))).unwrap_or(0),
            modes: rows.iter().filter_map(|row| text(row, "mode")).collect(),
        }
    }

    /// Enters the scope by what it reads; `None`: it refuses an unknown stage.
    async fn enter(&mut self, mode: &str) -> Option<bool> {
        let Read { stage, turn, .. } = self.read().await;
        if !KNOWN.contains(&stage.as_str()) {
            return None;
        }
        Some(self.enter_at(mode, at(&stage, turn)).await)
    }

    async fn enter_at(&mut self, mode: &str, at: Cells) -> bool {
        self.seq += 1;
        let only_if = [at, vec![null("mode"), null("seq")]].concat();
        let cells = vec![cell("mode", mode), cell("seq", self.seq)];
        let enter = Action::UpdateIf { cells, ttl_s: Some(30), only_if };
        self.lwt(statement(ENTER, true, enter)).await
    }

    async fn renew(&mut self, mode: &str) -> bool {
        let only_if = vec![cell("mode", mode), cell("seq", self.seq)];
        self.seq += 1;
        let cells = vec![cell("mode", mode), cell("seq", self.seq)];
        let renew = Action::UpdateIf { cells, ttl_s: Some(30), only_if };
        self.lwt(statement(RENEW, true, renew)).await
    }

    /// Its tool: `None` if it refuses to proceed because of an unknown mode or stage.
    async fn advance(&self, to: &str) -> Option<bool> {
        let Read { stage, turn, modes } = self.read().await;
        let is_known = |text: &String| KNOWN.contains(&text.as_str());
        if !is_known(&stage) || !modes.iter().all(is_known) {
            return None;
        }
        let cells = vec![cell("stage", to), cell("turn", turn + 1)];
        let action = Action::UpdateIf { cells, ttl_s: None, only_if: at(&stage, turn) };
        Some(self.lwt(statement(MOVE, false, action)).await)
    }
}

/// It enters, renews its row, and blocks the steps that it has to block.
#[test]
fn a_process_of_0_1_is_seen_and_waited_for_at_cassandra_and_both() {
    let world = World::new(1);
    let [a, b] = ["a", "b"].map(|name| world.machine.process(name));
    world.machine.run(async {
        let mut older = Older::new(&world, &a);
        let _ours = world.locker(&b, LockerMode::Both).await.unwrap();
        assert_eq!(older.enter("cassandra").await, Some(true));
        for _ in 0..3 {
            world.sleep(secs(10)).await;
            assert!(older.renew("cassandra").await);
        }
        let view = world.scope().view().await.unwrap();
        let older_row = view.processes.iter().find(|one| one.service == "old").unwrap();
        assert_eq!((older_row.mode, &older_row.writer), (LockerMode::Cassandra, &None));
        let refused = world.scope().advance().await.unwrap_err();
        assert!(
            matches!(&refused, MoveRefused::InTheWay { processes, .. } if processes.len() == 1)
        );
    });
}

/// A tool of 0.1 would go on to `native` although it checks no ties and knows no writer.
#[test]
fn a_tool_of_0_1_refuses_a_scope_that_a_process_of_ours_is_in() {
    let world = World::new(2);
    let [a, b] = ["a", "b"].map(|name| world.machine.process(name));
    world.machine.run(async {
        let tool = Older::new(&world, &a);
        for mode in [LockerMode::Cassandra, LockerMode::Both] {
            let ours = world.locker(&b, mode).await.unwrap();
            assert_eq!(tool.advance("both").await, None, "{mode}");
            drop(ours);
            world.sleep(secs(1)).await;
        }
        assert_eq!(tool.advance("both").await, Some(true), "by itself it goes on as ever");
        assert_eq!(tool.advance("native").await, Some(true));
        let ours = world.locker(&b, LockerMode::Native).await.unwrap();
        assert!(ours.lock("jobs").await.is_ok(), "its stages are ours");
        assert_eq!(world.scope().view().await.unwrap().stage, Stage::Native);
    });
}

/// Whether it comes after the step, was paused all the while, or decided just before.
#[test]
fn no_process_of_0_1_enters_a_scope_that_we_have_moved_to_native() {
    let world = World::new(3);
    let a = world.machine.process("a");
    world.machine.run(async {
        let mut older = Older::new(&world, &a);
        world.move_to(Stage::Both).await;
        let Read { stage, turn, .. } = older.read().await;
        world.move_to(Stage::Native).await;
        assert!(!older.enter_at("cassandra", at(&stage, turn)).await, "decided before");
        for mode in ["cassandra", "both", "native"] {
            assert_eq!(older.enter(mode).await, None, "{mode}");
        }
        assert_eq!(older.read().await.stage, "native/2");
        world.move_to(Stage::Both).await;
        assert_eq!(older.enter("both").await, Some(true), "on the way back it may come again");
    });
}

/// The rows of `locker_modes` in the fixtures, each as the statement that leaves it in an empty table.
fn rows_of(written: &str) -> Vec<Statement> {
    let ours = |line: &&str| !line.starts_with("--") && line.contains("\"locker_modes\"");
    written.lines().filter(ours).map(left).collect()
}

fn left(line: &str) -> Statement {
    let named = |column: &str, value: &str| {
        let number = value.parse().map(Value::Long);
        let value = number.unwrap_or_else(|_| Value::from(value.trim_matches('\'')));
        (Ident::new(column.trim_matches('"')), value)
    };
    let cells = |named: Vec<(Ident, Value)>| -> Cells {
        named.into_iter().map(|(column, value)| (column, Some(value))).collect()
    };
    let line = line.trim_end_matches(';');
    let (key, action) = if let Some((columns, values)) = line.split_once(") VALUES (") {
        let (_, columns) = columns.split_once(" (").unwrap();
        let (values, ttl_s) = values.split_once(") USING TTL ").unwrap();
        let both = columns.split(", ").zip(values.split(", "));
        let mut key: Vec<_> = both.map(|(column, value)| named(column, value)).collect();
        let cells = cells(key.split_off(2));
        (key, Action::InsertIfAbsent { cells, ttl_s: Some(ttl_s.parse().unwrap()) })
    } else {
        let equation = |text: &str| {
            let (column, value) = text.split_once(" = ").unwrap();
            named(column, value)
        };
        let (_, set) = line.split_once(" SET ").unwrap();
        let (set, key) = set.split_once(" WHERE ").unwrap();
        let cells = cells(set.split(", ").map(equation).collect());
        (vec![equation(key)], Action::UpdateIf { cells, ttl_s: None, only_if: Vec::new() })
    };
    Statement::new(Ident::new("locker_modes"), key, action)
}

/// What a release left, and what of it is in the ids and columns of its rows.
struct Left {
    rows: &'static str,
    writer: Option<&'static str>,
    /// Of the scope `orders/`.
    recipe: Option<&'static str>,
    cluster: Option<&'static str>,
}

const LEFT: [Left; 2] = [
    Left {
        rows: include_str!("../../../../../tests/fixtures/0.1/rows.cql"),
        writer: None,
        recipe: None,
        cluster: None,
    },
    Left {
        rows: include_str!("../../../../../tests/fixtures/0.2/rows.cql"),
        writer: Some("a5a5a5a5a5a5a5a5"),
        recipe: Some("lease holdfast.leases"),
        cluster: Some("07070707070707070707070707070707"),
    },
];

impl Left {
    fn process(&self, digits: &str) -> String {
        let writer = self.writer.map_or_else(String::new, |writer| format!("@{writer}"));
        format!("hf1:billing{writer}/{}", digits.repeat(16))
    }

    /// A scope's stage and turn, and the id and mode of each of its processes.
    async fn seen(&self, scope: &ScopeModes) -> (Stage, i64, Vec<(String, LockerMode)>) {
        let view = scope.view().await.unwrap();
        let is_orders = view.turn == 2;
        let tied = |to: Option<&str>| to.filter(|_| is_orders).map(str::to_owned);
        assert_eq!((view.recipe, view.cluster), (tied(self.recipe), tied(self.cluster)));
        let process = |one: crate::modes::Registered| {
            assert_eq!(
                (one.service.as_str(), one.writer.is_some()),
                ("billing", self.writer.is_some())
            );
            (one.process, one.mode)
        };
        (view.stage, view.turn, view.processes.into_iter().map(process).collect())
    }
}

/// Later releases find these rows where earlier ones have run. They mean what they meant, and a process that died
/// stands in the way for its TTL.
#[test]
fn the_rows_of_modes_that_earlier_releases_left_are_read_and_stand_in_the_way_for_their_ttl() {
    for left in LEFT {
        let world = World::new(4);
        world.machine.run(async {
            let rows = rows_of(left.rows);
            assert_eq!(rows.len(), 5);
            for row in &rows {
                assert_eq!(world.model.apply(row), Answer::Applied, "{row:?}");
            }
            let [early, orders, all] = ["early/", "orders/", ""].map(|scope| {
                let cassandra = world.cassandra(&world.machine.world());
                ScopeModes::new(&cassandra, scope, ModesTable::default()).unwrap()
            });
            let in_cassandra = vec![(left.process("a5"), LockerMode::Cassandra)];
            let natively =
                [(left.process("5a"), LockerMode::Both), (left.process("a5"), LockerMode::Native)];
            assert_eq!(left.seen(&early).await, (Stage::Cassandra, 0, in_cassandra));
            assert_eq!(left.seen(&orders).await, (Stage::Native, 2, natively.to_vec()));
            assert_eq!(left.seen(&all).await, (Stage::Fallback, 3, Vec::new()));
            for scope in [&early, &orders] {
                let refused = scope.advance().await.unwrap_err();
                assert!(matches!(refused, MoveRefused::InTheWay { .. }), "{refused}");
            }

            world.sleep(secs(181)).await;
            assert_eq!(left.seen(&early).await, (Stage::Cassandra, 0, Vec::new()));
            assert_eq!(left.seen(&orders).await, (Stage::Native, 2, Vec::new()));
            assert_eq!(early.advance().await, Ok(Stage::Both));
            assert_eq!(orders.advance().await, Ok(Stage::Fallback));
            assert_eq!(all.go_back().await, Ok(Stage::Native));
        });
    }
}
