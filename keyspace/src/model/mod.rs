//! A deterministic model of the tables, for the recipes' tests: exactly what Cassandra's answers
//! depend on, on the virtual time of a [`Machine`].
//!
//! Its rules, each as measured on real nodes or as in the server's source:
//!
//! - LWTs and reads at SERIAL of one row happen one after the other, each at one instant between its request and its
//!   answer. A request goes on when its client dies.
//! - An answer may be lost: the statement was applied, was not applied, or is applied a while after its client got an
//!   unknown outcome (a coordinator goes on trying).
//! - A coordinator that finds too few replicas reports it. A read or a plain write has changed nothing then. An LWT may
//!   still be decided: Paxos v1 counts replicas once more when it commits what was accepted before.
//! - A TTL belongs to a cell. The clock of the coordinator that writes sets its end, a whole second; the clock of the
//!   one that reads decides whether it has passed. Every statement goes to any of the three nodes, and each node's
//!   clock is wrong by as much as the test sets.
//! - A plain delete may name a part of a row's key, and hides all rows below it that are no newer.
//! - A write without LWT reaches its three replicas one by one and is answered when two have it; a read at QUORUM
//!   merges two of them by timestamps. Reads repair nothing.
//! - A row exists as long as any cell of it, or its marker, exists: `INSERT` writes a marker, `UPDATE` none.
//! - An LWT writes with the timestamp of its ballot: the coordinator's time, and above all earlier ballots of the row.
//!   A plain delete of such a row has its coordinator's time, and hides every earlier or later write with an earlier
//!   timestamp.
//! - A partition key is not empty.
//! - A TTL of 0 is none.
//! - All rows of a table are read page by page, each page at an instant of its own; those of a partition, at SERIAL, at
//!   once.
//! - Static columns belong to the partition, and an LWT on one of its rows may compare them as well.

#![allow(
    clippy::panic,
    reason = "it runs in tests only, and stops one that asks what no table could"
)]

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::BoxFuture;
use holdfast_runtime::Rng;
use holdfast_runtime::simulated::{Machine, Process};
use tokio::sync::oneshot;

use crate::database::{Answer, Cell, Database, Fault, Row};
use crate::statement::{Action, Cells, Ident, NODE_TIME, Statement, TokenRange, Value};

/// The maximum time of a statement in one direction.
const LATENCY_MAX: Duration = Duration::from_millis(40);
/// How long a coordinator may go on after its client got an unknown outcome, at most.
const LATE_MAX: Duration = Duration::from_secs(8);
/// The maximum additional time of a slow statement.
const SLOW_MAX: Duration = Duration::from_secs(2);
/// How long a client waits for an answer that does not come.
const TIMEOUT: Duration = Duration::from_secs(2);
/// The error of a coordinator that finds too few replicas.
const TOO_FEW: &str = "1 of 2 replicas alive";
/// The number of rows of a page: few, so that tests read several pages.
const PAGE_ROWS: usize = 3;
/// The columns that are static, in any table that has them.
const STATICS: [&str; 4] = ["stage", "turn", "recipe", "cluster"];

/// How many of a thousand statements fail, by the kind of fault.
#[derive(Clone, Copy, Debug, Default)]
pub struct Odds {
    /// Applied, and the answer lost.
    pub answer_lost: u64,
    /// Never applied, with an unknown outcome.
    pub request_lost: u64,
    /// Applied after an unknown outcome was reported.
    pub late: u64,
    /// Refused for now: too few replicas. Half of the LWTs are applied all the same.
    pub unavailable: u64,
}

/// The tables. Cheap to clone; all clones share their state.
#[derive(Clone)]
pub struct Model {
    world: Process,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    odds: Odds,
    /// How many of a thousand other statements are slow.
    slow: u64,
    /// How much longer each statement takes that Paxos decides.
    brown_out: Duration,
    /// How long a node takes for each deleted row that it walks for a page.
    walk: Duration,
    /// The fate of the next matching statement.
    chosen: Option<(Which, Fate)>,
    /// How far each node's wall clock is ahead, milliseconds.
    skew_ms: [i64; 3],
    rows: BTreeMap<(Ident, Vec<Value>), StoredRow>,
    /// The key columns of each table, as far as statements have named them.
    keys: BTreeMap<Ident, Vec<Ident>>,
    /// What each replica has of the tables that are written without LWT, by table, partition and
    /// clustering columns.
    replicas: [BTreeMap<(Ident, Vec<Value>), Version>; 3],
    /// The number of statements of unknown outcome that were applied.
    unknown_but_applied: usize,
    /// The number of statements that arrived.
    arrived: usize,
}

#[derive(Clone, Default)]
struct StoredRow {
    /// The largest timestamp of its LWTs.
    ballot_us: i64,
    /// The timestamp of the newest plain delete.
    erased_us: Option<i64>,
    /// When the row's marker ends; `None`: it has none. Without cells the row ends with it.
    marker: Option<Ends>,
    cells: BTreeMap<String, (Value, Ends)>,
}

/// What one replica has of a row that is written as a whole.
#[derive(Clone, Debug)]
struct Version {
    at_us: i64,
    /// `None`: erased. Of equal timestamps the erased version wins.
    cells: Option<Vec<(String, Value)>>,
    ends: Ends,
}

impl Version {
    fn beats(&self, other: &Self) -> bool {
        (self.at_us, self.cells.is_none()) > (other.at_us, other.cells.is_none())
    }
}

/// A second of a wall clock; `None`: never.
type Ends = Option<i64>;

/// Selects a statement.
pub type Which = fn(&Statement) -> bool;

/// What becomes of a statement.
#[derive(Clone, Copy)]
pub enum Fate {
    /// Applied and answered.
    Answered,
    /// Applied and answered after this additional time.
    Slowly(Duration),
    /// Applied, with an unknown outcome.
    AnswerLost,
    /// Never applied, with an unknown outcome.
    RequestLost,
    /// Applied so long after an unknown outcome was reported.
    Late(Duration),
    /// Refused for now: too few replicas.
    Unavailable {
        /// The LWT was decided before the coordinator found too few replicas. Any other statement
        /// is never applied.
        applied: bool,
    },
}

impl Model {
    /// Empty tables, without faults.
    pub fn new(machine: &Machine) -> Self {
        Self { world: machine.world(), state: Arc::default() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets how often statements fail from now on.
    pub fn set_odds(&self, odds: Odds) {
        self.lock().odds = odds;
    }

    /// Makes so many of a thousand answered statements take up to `SLOW_MAX` longer from now on.
    pub fn set_slow(&self, per_mille: u64) {
        self.lock().slow = per_mille;
    }

    /// Makes every LWT, and every read at SERIAL, take that much longer from now on.
    pub fn set_brown_out(&self, longer: Duration) {
        self.lock().brown_out = longer;
    }

    /// Sets the fate of the next matching statement, of whatever kind.
    pub fn choose(&self, which: Which, fate: Fate) {
        self.lock().chosen = Some((which, fate));
    }

    /// Whether the fate set last was used.
    pub fn nothing_is_chosen(&self) -> bool {
        self.lock().chosen.is_none()
    }

    /// Sets how far a node's wall clock is ahead of true time from now on.
    pub fn set_skew(&self, node: usize, milliseconds: i64) {
        self.lock().skew_ms[node] = milliseconds;
    }

    /// The number of statements that were applied with an unknown outcome.
    pub fn unknown_but_applied(&self) -> usize {
        self.lock().unknown_but_applied
    }

    /// The number of statements that clients have sent so far.
    pub fn arrived(&self) -> usize {
        self.lock().arrived
    }

    /// The number of rows of a table at this instant, if none has a TTL.
    pub fn number_of_rows(&self, table: &Ident) -> usize {
        let state = self.lock();
        let rows = state.rows.iter().filter(|((of, _), _)| of == table);
        rows.filter(|(_, stored)| stored.seen_at(0).is_there).count()
    }

    fn draw(&self, below: u64) -> u64 {
        Rng::next_u64(&self.world) % below
    }

    fn draw_up_to(&self, length: Duration) -> Duration {
        Duration::from_micros(self.draw(u64::try_from(length.as_micros()).unwrap_or(1) + 1))
    }

    fn fate_of(&self, statement: &Statement) -> Fate {
        let chosen = self.lock().chosen.take_if(|(which, _)| which(statement));
        chosen.map_or_else(|| self.fate(), |(_, fate)| fate)
    }

    fn fate(&self) -> Fate {
        let Odds { answer_lost, request_lost, late, unavailable } = self.lock().odds;
        let slow = self.lock().slow;
        let drawn = self.draw(1_000);
        match drawn {
            _ if drawn < answer_lost => Fate::AnswerLost,
            _ if drawn < answer_lost + request_lost => Fate::RequestLost,
            _ if drawn < answer_lost + request_lost + late => Fate::Late(self.draw_up_to(LATE_MAX)),
            _ if drawn < answer_lost + request_lost + late + unavailable => {
                Fate::Unavailable { applied: self.draw(2) == 0 }
            }
            _ if slow > 0 && self.draw(1_000) < slow => Fate::Slowly(self.draw_up_to(SLOW_MAX)),
            _ => Fate::Answered,
        }
    }

    /// Executes a statement at this instant, through a random node.
    pub fn apply(&self, statement: &Statement) -> Answer {
        let node = usize::try_from(self.draw(3)).unwrap_or(0);
        self.apply_at(node, statement)
    }

    /// Executes a statement at this instant, through this node.
    pub fn apply_at(&self, node: usize, statement: &Statement) -> Answer {
        let wall_ms = self.world.runtime().clock.wall_ms();
        let mut state = self.lock();
        let now_ms = i64::try_from(wall_ms).unwrap_or(i64::MAX) + state.skew_ms[node];
        state.learn_key(statement);
        if let Action::AllSerial { columns } = &statement.action {
            return state.partition(statement, columns, now_ms / 1_000);
        }
        let (own, refusal) = state.compare_statics(statement, now_ms / 1_000);
        if let Some(refusal) = refusal {
            return refusal;
        }
        let values = statement.key.iter().map(|(_, value)| value.clone()).collect();
        let row = state.rows.entry((statement.table.clone(), values)).or_default();
        row.execute(&own, now_ms)
    }

    /// A page of a table's rows at this instant, through a random node. Its last key marks its end.
    /// With it the number of deleted rows that the node has walked.
    fn page(
        &self,
        statement: &Statement,
        columns: &[Ident],
        (range, from): Part<'_>,
    ) -> (Answer, u32) {
        let now_s = self.now_s(self.any_node());
        let state = self.lock();
        let mut walked = 0;
        let Some((key_column, columns)) = columns.split_first() else {
            panic!("a page without its key: {statement:?}")
        };
        let mut rows = Vec::new();
        let mut last = None;
        for ((table, key), stored) in &state.rows {
            let seen = stored.seen_at(now_s);
            let Some(key) = key.first().and_then(Value::text) else { continue };
            let is_past = from.is_some_and(|from| key.as_bytes() <= from);
            let is_elsewhere = range.is_some_and(|range| !range.has(token_of(key)));
            if *table != statement.table || is_past || is_elsewhere {
                continue;
            }
            if !seen.is_there {
                walked += 1;
                continue;
            }
            if rows.len() == PAGE_ROWS {
                return (Answer::Page(rows, last), walked);
            }
            let mut row = seen.shown(|name| columns.iter().any(|column| column.as_str() == name));
            let cell = Cell { value: Value::from(key), ttl_s: None };
            row.0.insert(key_column.as_str().to_owned(), cell);
            last = Some(key.as_bytes().to_vec());
            rows.push(row);
        }
        (Answer::Page(rows, None), walked)
    }

    /// From now on a node needs so long for each deleted row that it walks for a page.
    pub fn set_walk(&self, each: Duration) {
        self.lock().walk = each;
    }

    async fn serve(self, statement: Statement, reply: oneshot::Sender<Result<Answer, Fault>>) {
        let runtime = self.world.runtime();
        match &statement.action {
            Action::Put { .. } | Action::Erase { .. } => return self.write(statement, reply).await,
            Action::First { .. } | Action::FirstFrom { .. } => {
                let _ = reply.send(self.scan(&statement).await);
                return;
            }
            Action::NodeTime => {
                let _ = reply.send(self.read_clock(&statement).await);
                return;
            }
            Action::Page { columns, range, from, .. } => {
                let part = (*range, from.as_deref());
                let read = self.read_page(&statement, columns, part).await;
                let _ = reply.send(read);
                return;
            }
            _ => {}
        }
        let unknown = || Err(Fault::Unknown("write timeout of type CAS".into()));
        let is_plain = matches!(statement.action, Action::Select { .. });
        let brown_out = if is_plain { Duration::ZERO } else { self.lock().brown_out };
        runtime.sleep(self.draw_up_to(LATENCY_MAX) + brown_out).await;
        let answer = match self.fate_of(&statement) {
            Fate::Answered => Ok(self.apply(&statement)),
            Fate::Slowly(by) => {
                runtime.sleep(by).await;
                Ok(self.apply(&statement))
            }
            Fate::Unavailable { applied } => {
                if applied && statement.is_conditional() {
                    self.apply_unseen(&statement);
                }
                Err(Fault::of_too_few_replicas(&statement, TOO_FEW.into()))
            }
            Fate::RequestLost => {
                runtime.sleep(TIMEOUT).await;
                unknown()
            }
            Fate::AnswerLost => {
                self.apply_unseen(&statement);
                runtime.sleep(TIMEOUT).await;
                unknown()
            }
            Fate::Late(by) => {
                runtime.sleep(TIMEOUT).await;
                // The client may be dead.
                let _ = reply.send(unknown());
                runtime.sleep(by).await;
                self.apply_unseen(&statement);
                return;
            }
        };
        runtime.sleep(self.draw_up_to(LATENCY_MAX)).await;
        let _ = reply.send(answer);
    }

    fn now_ms(&self, node: usize) -> i64 {
        let wall_ms = self.world.runtime().clock.wall_ms();
        i64::try_from(wall_ms).unwrap_or(i64::MAX) + self.lock().skew_ms[node]
    }

    fn now_s(&self, node: usize) -> i64 {
        self.now_ms(node) / 1_000
    }

    fn any_node(&self) -> usize {
        usize::try_from(self.draw(3)).unwrap_or(0)
    }

    /// A write without LWT: it reaches each replica after a random time, and is answered when two have it. After an
    /// unknown outcome some replicas have it, or none, or all a while later.
    async fn write(self, statement: Statement, reply: oneshot::Sender<Result<Answer, Fault>>) {
        let runtime = self.world.runtime();
        let fate = self.fate_of(&statement);
        if let Fate::Slowly(by) = fate {
            // Before it reaches the coordinator, whose clock determines the end of its TTL.
            runtime.sleep(by).await;
        }
        let (row, version) = self.version(&statement);
        if let Fate::AnswerLost | Fate::Late(_) = fate {
            self.lock().unknown_but_applied += 1;
        }
        let (reached, reply_after) = match fate {
            Fate::Unavailable { .. } => {
                let _ = reply.send(Err(Fault::of_too_few_replicas(&statement, TOO_FEW.into())));
                return;
            }
            Fate::Answered | Fate::Slowly(_) => (3, 2),
            Fate::AnswerLost | Fate::Late(_) => (3, 4),
            Fate::RequestLost => (usize::try_from(self.draw(2)).unwrap_or(0), 4),
        };
        if let Fate::Late(by) = fate {
            let _ = reply.send(Err(Fault::Unknown("write timeout".into())));
            runtime.sleep(by).await;
            (0..3).for_each(|replica| self.store(replica, &row, version.clone()));
            return;
        }
        let first = self.any_node();
        let mut reply = Some(reply);
        for nth in 0..reached {
            // The last replica may be far behind, as with a hint that is delivered late.
            let limit = if nth == 2 { LATE_MAX } else { LATENCY_MAX };
            runtime.sleep(self.draw_up_to(limit)).await;
            self.store((first + nth) % 3, &row, version.clone());
            if nth + 1 == reply_after {
                let _ = reply.take().map(|reply| reply.send(Ok(Answer::Written)));
            }
        }
        runtime.sleep(TIMEOUT).await;
        let _ = reply.map(|reply| reply.send(Err(Fault::Unknown("write timeout".into()))));
    }

    fn version(&self, statement: &Statement) -> ((Ident, Vec<Value>), Version) {
        let now_s = self.now_s(self.any_node());
        let values = statement.key.iter().map(|(_, value)| value.clone()).collect();
        let mut named: Vec<(String, Value)> = statement
            .key
            .iter()
            .map(|(column, value)| (column.as_str().to_owned(), value.clone()))
            .collect();
        let version = match &statement.action {
            Action::Put { cells, ttl_s, at_us } => {
                let cells = cells.iter().filter_map(|(column, value)| {
                    Some((column.as_str().to_owned(), value.clone()?))
                });
                named.extend(cells);
                let ends = (*ttl_s > 0).then(|| now_s + i64::from(*ttl_s));
                Version { at_us: *at_us, cells: Some(named), ends }
            }
            Action::Erase { at_us } => Version { at_us: *at_us, cells: None, ends: None },
            other => panic!("not a write: {other:?}"),
        };
        ((statement.table.clone(), values), version)
    }

    fn store(&self, replica: usize, row: &(Ident, Vec<Value>), version: Version) {
        let mut state = self.lock();
        let there = state.replicas[replica].get(row);
        if there.is_none_or(|there| version.beats(there)) {
            state.replicas[replica].insert(row.clone(), version);
        }
    }

    /// A read at QUORUM: it merges two of the replicas, each read at an instant of its own.
    async fn scan(&self, statement: &Statement) -> Result<Answer, Fault> {
        let runtime = self.world.runtime();
        let (limit, from) = match &statement.action {
            Action::First { limit, .. } => (limit, None),
            Action::FirstFrom { limit, from: (_, from), .. } => (limit, Some(from)),
            other => panic!("not a scan: {other:?}"),
        };
        let partition: Vec<Value> = statement.key.iter().map(|(_, value)| value.clone()).collect();
        self.fate_of_read(statement).await?;
        let mut merged: BTreeMap<Vec<Value>, Version> = BTreeMap::new();
        let (node, first) = (self.any_node(), self.any_node());
        for nth in 0..2 {
            runtime.sleep(self.draw_up_to(LATENCY_MAX)).await;
            let state = self.lock();
            let replica = &state.replicas[(first + nth) % 3];
            for (key, version) in versions_for(replica, &statement.table, &partition) {
                let there = merged.get(key);
                if there.is_none_or(|there| version.beats(there)) {
                    merged.insert(key.clone(), version.clone());
                }
            }
        }
        let now_s = self.now_s(node);
        // Deletes of a row, or of all rows below a part of its key.
        let erased: Vec<(Vec<Value>, i64)> = merged
            .iter()
            .filter(|(_, version)| version.cells.is_none())
            .map(|(key, version)| (key.clone(), version.at_us))
            .collect();
        let is_erased = |key: &[Value], version: &Version| {
            erased.iter().any(|(above, at_us)| key.starts_with(above) && version.at_us <= *at_us)
        };
        merged.retain(|key, version| {
            let lives = version.ends.is_none_or(|ends| now_s < ends);
            let is_before = from > key.get(partition.len());
            version.cells.is_some() && lives && !is_before && !is_erased(key, version)
        });
        let rows = merged.into_values().filter_map(|version| {
            let cell = |(name, value)| (name, Cell { value, ttl_s: None });
            Some(Row(version.cells?.into_iter().map(cell).collect()))
        });
        runtime.sleep(self.draw_up_to(LATENCY_MAX)).await;
        Ok(Answer::Rows(rows.take(usize::try_from(*limit).unwrap_or(0)).collect()))
    }

    /// Reads a random node's wall clock.
    async fn read_clock(&self, statement: &Statement) -> Result<Answer, Fault> {
        self.fate_of_read(statement).await?;
        self.world.runtime().sleep(self.draw_up_to(LATENCY_MAX)).await;
        let shown = Cell { value: Value::Long(self.now_ms(self.any_node())), ttl_s: None };
        self.world.runtime().sleep(self.draw_up_to(LATENCY_MAX)).await;
        Ok(Answer::Rows(vec![Row([(NODE_TIME.to_owned(), shown)].into())]))
    }

    /// A read changes nothing, so a lost request and a lost answer are equivalent.
    async fn fate_of_read(&self, statement: &Statement) -> Result<(), Fault> {
        match self.fate_of(statement) {
            Fate::Unavailable { .. } => Err(Fault::of_too_few_replicas(statement, TOO_FEW.into())),
            Fate::AnswerLost | Fate::RequestLost | Fate::Late(_) => {
                self.world.runtime().sleep(TIMEOUT).await;
                Err(Fault::Unknown("read timeout".into()))
            }
            Fate::Answered => Ok(()),
            Fate::Slowly(by) => {
                self.world.runtime().sleep(by).await;
                Ok(())
            }
        }
    }

    async fn read_page(
        &self,
        statement: &Statement,
        columns: &[Ident],
        part: Part<'_>,
    ) -> Result<Answer, Fault> {
        let runtime = self.world.runtime();
        self.fate_of_read(statement).await?;
        runtime.sleep(self.draw_up_to(LATENCY_MAX)).await;
        let (answer, walked) = self.page(statement, columns, part);
        let walk = self.lock().walk * walked;
        if walk > TIMEOUT {
            runtime.sleep(TIMEOUT).await;
            return Err(Fault::Unknown("read timeout".into()));
        }
        runtime.sleep(self.draw_up_to(LATENCY_MAX) + walk).await;
        Ok(answer)
    }

    fn apply_unseen(&self, statement: &Statement) {
        if self.apply(statement) == Answer::Applied {
            self.lock().unknown_but_applied += 1;
        }
    }
}

/// The part of the ring that a page is of, and where the page before it ended.
type Part<'a> = (Option<TokenRange>, Option<&'a [u8]>);

/// Where a key lies on the ring: any function does that spreads keys over it.
fn token_of(key: &str) -> i64 {
    let sum = key.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |sum, byte| {
        (sum ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    let mixed = (sum ^ (sum >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (mixed ^ (mixed >> 32)).cast_signed()
}

/// What a replica has of a partition's rows, and of deletes that hide some of them.
fn versions_for<'a>(
    replica: &'a BTreeMap<(Ident, Vec<Value>), Version>,
    table: &Ident,
    partition: &[Value],
) -> impl Iterator<Item = (&'a Vec<Value>, &'a Version)> {
    let row = |key: &[Value]| (table.clone(), key.to_vec());
    let above = (1..partition.len())
        .filter_map(move |columns| replica.get_key_value(&row(&partition[..columns])));
    let first = (table.clone(), partition.to_vec());
    let below = replica.range(first.clone()..);
    let below = below.take_while(move |((of, key), _)| *of == first.0 && key.starts_with(&first.1));
    let found: Vec<_> = above.chain(below).collect();
    found.into_iter().map(|((_, key), version)| (key, version))
}

impl Database for Model {
    fn execute(&self, statement: Statement) -> BoxFuture<'static, Result<Answer, Fault>> {
        let model = self.clone();
        Box::pin(async move {
            model.lock().arrived += 1;
            if let Some((_, Value::Text(text))) = statement.key.first()
                && text.is_empty()
            {
                return Err(Fault::Refused("Key may not be empty".into()));
            }
            let (reply, answer) = oneshot::channel();
            let runtime = model.world.runtime();
            runtime.spawn("statement", model.serve(statement, reply)).detach();
            answer.await.unwrap_or_else(|_| Err(Fault::Unknown("the world has ended".into())))
        })
    }

    fn endpoints(&self) -> Vec<String> {
        vec!["model:9042".into()]
    }

    fn keyspace(&self) -> String {
        "model".into()
    }
}

impl State {
    fn learn_key(&mut self, statement: &Statement) {
        let known = self.keys.entry(statement.table.clone()).or_default();
        if known.len() < statement.key.len() {
            *known = statement.key.iter().map(|(column, _)| column.clone()).collect();
        }
    }

    /// Splits an LWT on one row: returns the part to compare with the row itself, and the refusal if the static cells,
    /// which lie under the partition's key alone, differ from the condition.
    fn compare_statics(&self, statement: &Statement, now_s: i64) -> (Statement, Option<Answer>) {
        let mut own = statement.clone();
        let Action::UpdateIf { only_if, .. } = &mut own.action else { return (own, None) };
        if statement.key.len() == statement.partition {
            return (own, None);
        }
        let key: Vec<Value> = statement
            .key
            .iter()
            .take(statement.partition)
            .map(|(_, value)| value.clone())
            .collect();
        let is_static = |column: &Ident| STATICS.contains(&column.as_str());
        let (statics, others): (Cells, Cells) =
            std::mem::take(only_if).into_iter().partition(|(column, _)| is_static(column));
        *only_if = others;
        let nothing = StoredRow::default();
        let partition = self.rows.get(&(statement.table.clone(), key));
        let refusal = partition.unwrap_or(&nothing).seen_at(now_s).refusal(&statics);
        (own, refusal)
    }

    /// All rows of a partition, each with the static cells; one row with only these if there is no other.
    fn partition(&self, statement: &Statement, columns: &[Ident], now_s: i64) -> Answer {
        let partition: Vec<Value> = statement.key.iter().map(|(_, value)| value.clone()).collect();
        let wanted = |name: &str| columns.iter().any(|column| column.as_str() == name);
        let statics = self.rows.get(&(statement.table.clone(), partition.clone()));
        let statics = statics.map(|row| row.seen_at(now_s).shown(wanted)).unwrap_or_default();
        let mut rows = Vec::new();
        for ((table, key), stored) in &self.rows {
            let Some(clustering) = key.get(partition.len()) else { continue };
            let seen = stored.seen_at(now_s);
            if *table != statement.table || !key.starts_with(&partition) || !seen.is_there {
                continue;
            }
            let mut row = seen.shown(wanted);
            row.0.extend(statics.0.clone());
            if let Some(column) = self.keys.get(table).and_then(|key| key.get(partition.len())) {
                let cell = Cell { value: clustering.clone(), ttl_s: None };
                row.0.insert(column.as_str().to_owned(), cell);
            }
            rows.push(row);
        }
        if rows.is_empty() && !statics.0.is_empty() {
            rows.push(statics);
        }
        Answer::Rows(rows)
    }
}

impl StoredRow {
    /// The row as a node sees it whose clock shows this second.
    fn seen_at(&self, now_s: i64) -> SeenRow<'_> {
        let lives = |ends: &Ends| ends.is_none_or(|ends| now_s < ends);
        let cells = self.cells.iter().filter(|(_, (_, ends))| lives(ends));
        let cells: BTreeMap<&str, (&Value, Ends)> =
            cells.map(|(name, (value, ends))| (name.as_str(), (value, *ends))).collect();
        let is_there = !cells.is_empty() || self.marker.as_ref().is_some_and(lives);
        SeenRow { is_there, cells, now_s }
    }

    fn execute(&mut self, statement: &Statement, wall_ms: i64) -> Answer {
        let now_s = wall_ms / 1_000;
        let ends = |ttl_s: &Option<i32>| ttl_s.map(|ttl_s| now_s + i64::from(ttl_s));
        let seen = self.seen_at(now_s);
        match &statement.action {
            Action::InsertIfAbsent { cells, ttl_s } => {
                if seen.is_there {
                    return Answer::NotApplied(Some(seen.shown(|_| true)));
                }
                if self.takes_a_write(wall_ms) {
                    self.marker = Some(ends(ttl_s));
                    self.write(cells, ends(ttl_s));
                }
                Answer::Applied
            }
            Action::UpdateIf { cells, ttl_s, only_if } => {
                if let Some(refusal) = seen.refusal(only_if) {
                    return refusal;
                }
                if self.takes_a_write(wall_ms) {
                    self.write(cells, ends(ttl_s));
                }
                Answer::Applied
            }
            Action::DeleteIf { only_if } => {
                let is_there = seen.is_there;
                if only_if.is_empty() && !is_there {
                    return Answer::NotApplied(None);
                }
                if let Some(refusal) = seen.refusal(only_if) {
                    return refusal;
                }
                self.takes_a_write(wall_ms);
                self.clear();
                Answer::Applied
            }
            Action::Erase { at_us } => {
                self.erased_us = self.erased_us.max(Some(*at_us));
                if self.ballot_us <= *at_us {
                    self.clear();
                }
                Answer::Written
            }
            Action::Put { .. }
            | Action::First { .. }
            | Action::FirstFrom { .. }
            | Action::Page { .. } => {
                panic!("not of one row, or no LWT: {statement:?}")
            }
            Action::AllSerial { .. } | Action::NodeTime => panic!("not of one row: {statement:?}"),
            Action::SelectSerial { columns } | Action::Select { columns } => {
                Answer::Read(seen.is_there.then(|| {
                    seen.shown(|name| columns.iter().any(|column| column.as_str() == name))
                }))
            }
        }
    }

    /// Advances the ballot; returns false if a plain delete hides writes with its timestamp.
    fn takes_a_write(&mut self, wall_ms: i64) -> bool {
        self.ballot_us = (wall_ms * 1_000).max(self.ballot_us + 1);
        self.erased_us.is_none_or(|erased_us| self.ballot_us > erased_us)
    }

    fn clear(&mut self) {
        self.marker = None;
        self.cells.clear();
    }

    fn write(&mut self, cells: &Cells, ends: Ends) {
        for (column, value) in cells {
            match value {
                Some(value) => {
                    self.cells.insert(column.as_str().to_owned(), (value.clone(), ends));
                }
                None => {
                    self.cells.remove(column.as_str());
                }
            }
        }
    }
}

/// The cells that have not expired by one node's clock.
struct SeenRow<'a> {
    is_there: bool,
    cells: BTreeMap<&'a str, (&'a Value, Ends)>,
    now_s: i64,
}

impl SeenRow<'_> {
    /// The answer if the condition is false; without a row it contains none.
    fn refusal(&self, only_if: &Cells) -> Option<Answer> {
        let met = only_if.iter().all(|(column, wanted)| {
            self.cells.get(column.as_str()).map(|(value, _)| *value) == wanted.as_ref()
        });
        let compared = |name: &str| only_if.iter().any(|(column, _)| column.as_str() == name);
        (!met).then(|| Answer::NotApplied(self.is_there.then(|| self.shown(compared))))
    }

    fn shown(&self, wanted: impl Fn(&str) -> bool) -> Row {
        let wanted = self.cells.iter().filter(|(name, _)| wanted(name));
        let shown = wanted.map(|(name, (value, ends))| {
            let ttl_s = ends.and_then(|ends| i32::try_from(ends - self.now_s).ok());
            ((*name).to_owned(), Cell { value: (*value).clone(), ttl_s })
        });
        Row(shown.collect())
    }
}

#[cfg(test)]
mod tests;
