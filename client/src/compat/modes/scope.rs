//! One scope in the table of modes: who is in which mode, and how its stage is moved.

use std::fmt;
use std::time::Duration;

use holdfast_mutants::mutant;
use holdfast_seams::Moment;

use super::{LockerMode, ModesTable, Stage};
use crate::backoff::Backoff;
use crate::compat::cassandra::Cassandra;
use crate::compat::database::{Conditional, Fault, Row};
use crate::compat::owner::{Writer, thread_id};
use crate::compat::statement::{Action, Cells, Ident, Statement, Value};
use crate::items::invalid;
use crate::{Error, Result};

/// The longest pause between two attempts to get an answer.
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// How long a call goes on trying.
const ANSWER_LIMIT: Duration = Duration::from_secs(30);

/// A scope and its stage, for operators; see the [module](crate::compat::modes) for what a move promises.
#[derive(Clone, Debug)]
pub struct ScopeModes {
    rows: Rows,
}

/// What a scope was like at one instant, by a SERIAL read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScopeView {
    /// Its stage.
    pub stage: Stage,
    /// How often that was changed.
    pub turn: i64,
    /// The recipe, with its tables, that its processes lock by in Cassandra; `None`: none has said so yet.
    pub recipe: Option<String>,
    /// The cluster of the native store that they lock in, its id in hexadecimal digits; `None` likewise.
    pub cluster: Option<String>,
    /// Its processes, in the order of their ids: those that live, and those that died less than a TTL ago.
    pub processes: Vec<Registered>,
    /// Stage and turn as they were read.
    at: Cells,
}

/// A process of a scope.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Registered {
    /// Its id, which no other one ever has.
    pub process: String,
    /// What it calls itself.
    pub service: String,
    /// What its row says: it holds no lock in another mode, but perhaps in [`LockerMode::Both`].
    pub mode: LockerMode,
    /// Who wrote its rows in the recipe's tables; `None`: it is of version 0.1, and which rows are its own is not known.
    pub writer: Option<Writer>,
}

/// Why a scope was not moved. Certain, but for [`MoveRefused::Store`]: its stage is as it was.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MoveRefused {
    /// Processes are in a mode that the move would leave behind. Move them, or stop them and wait until the TTL of
    /// their rows is over.
    #[error(
        "scope {scope:?} stays at {stage}: {} in the way: {}",
        count(.processes.len()), listed(.processes)
    )]
    InTheWay {
        /// The scope.
        scope: String,
        /// Its stage.
        stage: Stage,
        /// Those in the way.
        processes: Vec<Registered>,
    },
    /// There is no stage beyond.
    #[error("scope {scope:?} is at {stage}, and there is no stage beyond")]
    AtTheEnd {
        /// The scope.
        scope: String,
        /// Its stage.
        stage: Stage,
    },
    /// Cassandra refused, or did not answer. The move may or may not have been made; [`ScopeModes::view`] tells.
    #[error("{0}")]
    Store(#[from] Error),
}

fn count(processes: usize) -> String {
    if processes == 1 { "1 process is".into() } else { format!("{processes} processes are") }
}

fn listed(processes: &[Registered]) -> String {
    let each = processes.iter().map(|one| format!("{} ({})", one.process.escape_debug(), one.mode));
    each.collect::<Vec<_>>().join(", ")
}

impl ScopeModes {
    /// The scope of names that begin with `scope`. Nothing is asked yet.
    ///
    /// # Errors
    ///
    /// [`Error::Refused`] if no lock could be called so.
    pub fn new(cassandra: &Cassandra, scope: &str, table: ModesTable) -> Result<Self> {
        Ok(Self { rows: Rows::new(cassandra, scope, table)? })
    }

    /// Its stage, and who is in which mode.
    ///
    /// # Errors
    ///
    /// [`Error::Unreachable`] without an answer in 30 s, [`Error::Refused`] if the table cannot be used.
    pub async fn view(&self) -> Result<ScopeView> {
        let mut patience = Patience::new(&self.rows.cassandra);
        loop {
            match self.rows.view().await {
                Ok(view) => return Ok(view),
                Err(fault) => patience.after(fault).await?,
            }
        }
    }

    /// Moves the scope one stage towards `fallback`, and says where it is then. Asking again after an answer that was
    /// lost may move it twice: look first.
    ///
    /// Cancel safe, in that the stage is moved or is not.
    ///
    /// # Errors
    ///
    /// [`MoveRefused`], which names who is in the way.
    pub async fn advance(&self) -> Result<Stage, MoveRefused> {
        self.advance_from(&self.view().await?).await
    }

    /// The same, from where the scope was `seen`: if it was moved since, it is not moved. What was looked at
    /// beside it in the meantime was looked at while it was there. Asking again is harmless.
    ///
    /// # Errors
    ///
    /// [`MoveRefused`], which names who is in the way.
    pub async fn advance_from(&self, seen: &ScopeView) -> Result<Stage, MoveRefused> {
        let to = match seen.stage {
            Stage::Cassandra => Some((Stage::Both, &[LockerMode::Cassandra][..])),
            Stage::Both => Some((Stage::Native, &[LockerMode::Cassandra][..])),
            Stage::Native => Some((Stage::Fallback, &[LockerMode::Both][..])),
            Stage::Fallback => None,
        };
        self.step(seen, to).await
    }

    /// Moves the scope one stage back towards `cassandra`, as [`ScopeModes::advance`] does the other way.
    ///
    /// # Errors
    ///
    /// As of [`ScopeModes::advance`].
    pub async fn go_back(&self) -> Result<Stage, MoveRefused> {
        self.go_back_from(&self.view().await?).await
    }

    /// The same, as [`ScopeModes::advance_from`] does the other way.
    ///
    /// # Errors
    ///
    /// As of [`ScopeModes::advance`].
    pub async fn go_back_from(&self, seen: &ScopeView) -> Result<Stage, MoveRefused> {
        // A process that entered `fallback` between the look and the step back to `native` is in it still.
        const NATIVELY: &[LockerMode] = &[LockerMode::Native, LockerMode::Fallback];
        let to = match seen.stage {
            Stage::Fallback => Some((Stage::Native, &[LockerMode::Fallback][..])),
            Stage::Native => Some((Stage::Both, NATIVELY)),
            Stage::Both => Some((Stage::Cassandra, NATIVELY)),
            Stage::Cassandra => None,
        };
        self.step(seen, to).await
    }

    /// Ties the scope to a recipe and to a cluster, where it is tied to none, and says what it is tied to then. For who moves a scope
    /// in which no process is.
    ///
    /// # Errors
    ///
    /// [`Error::Unreachable`] without an answer in 30 s, [`Error::Refused`] if the table cannot be used.
    pub async fn tie(&self, recipe: &str, cluster: &str) -> Result<(String, String)> {
        let mut patience = Patience::new(&self.rows.cassandra);
        let mut tied = Vec::new();
        for (name, value) in [("recipe", recipe), ("cluster", cluster)] {
            loop {
                match self.rows.tie(name, value).await {
                    Ok(to) => break tied.push(to),
                    Err(fault) => patience.after(fault).await?,
                }
            }
        }
        let cluster = tied.pop().unwrap_or_default();
        Ok((tied.pop().unwrap_or_default(), cluster))
    }

    /// From where it was seen to the next stage, if no process was in a mode that it leaves behind.
    async fn step(
        &self,
        seen: &ScopeView,
        to: Option<(Stage, &[LockerMode])>,
    ) -> Result<Stage, MoveRefused> {
        let scope = self.rows.scope.clone();
        let Some((to, left_behind)) = to else {
            return Err(MoveRefused::AtTheEnd { scope, stage: seen.stage });
        };
        let mut processes = seen.processes.clone();
        processes.retain(|one| {
            let overlooked = one.mode == LockerMode::Fallback && seen.stage < Stage::Fallback;
            left_behind.contains(&one.mode) && !(overlooked && mutant!(FallbackNotInTheWay))
        });
        if mutant!(StageMovesPastRows) {
            processes.clear();
        }
        if !processes.is_empty() {
            return Err(MoveRefused::InTheWay { scope, stage: seen.stage, processes });
        }
        let mut patience = Patience::new(&self.rows.cassandra);
        loop {
            match self.rows.change_stage(seen, to).await {
                Ok(true) => return Ok(to),
                Ok(false) => break,
                Err(fault) => patience.after(fault).await?,
            }
        }
        // Somebody else moved it, or an attempt of ours that was not answered did. Where it is, it is by the rules.
        let now = self.view().await?;
        if (now.stage, now.turn) == (to, seen.turn + 1) {
            return Ok(to);
        }
        let message = format!(
            "scope {scope:?} was moved to {} by somebody else; look, and ask again",
            now.stage
        );
        Err(MoveRefused::Store(invalid(message)))
    }
}

/// How often, and for how long, something without an answer is asked again.
struct Patience {
    cassandra: Cassandra,
    began: Moment,
    pauses: Backoff,
}

impl Patience {
    fn new(cassandra: &Cassandra) -> Self {
        let began = cassandra.seams().clock.now();
        Self { cassandra: cassandra.clone(), began, pauses: Backoff::new(PAUSE_MAX) }
    }

    /// Returns when it is time to ask again.
    async fn after(&mut self, fault: Fault) -> Result<()> {
        let seams = self.cassandra.seams();
        let waited = seams.clock.now().saturating_since(self.began);
        match fault {
            Fault::Refused(message) => Err(invalid(message)),
            Fault::Unknown(last) | Fault::NotDone(last) if waited >= ANSWER_LIMIT => {
                let endpoints = self.cassandra.tables().endpoints();
                Err(Error::Unreachable { endpoints, waited, last })
            }
            Fault::Unknown(_) | Fault::NotDone(_) => {
                seams.sleep(self.pauses.next(&*seams.rng)).await;
                Ok(())
            }
        }
    }
}

/// The partition of one scope.
#[derive(Clone)]
pub(super) struct Rows {
    pub(super) cassandra: Cassandra,
    pub(super) scope: String,
    table: ModesTable,
}

/// A scope, as one of its processes sees it.
pub(super) struct Seen {
    pub(super) stage: Stage,
    pub(super) recipe: Option<String>,
    pub(super) cluster: Option<String>,
    /// All of this as it was read, to be compared by what rests on it.
    pub(super) at: Cells,
    /// One's own row, if there is one.
    pub(super) own: Option<OwnRow>,
}

/// What is seen of one's own row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct OwnRow {
    pub(super) mode: LockerMode,
    pub(super) seq: i64,
}

impl Rows {
    pub(super) fn new(cassandra: &Cassandra, scope: &str, table: ModesTable) -> Result<Self> {
        if !scope.is_empty() {
            crate::compat::check_lock_name(scope)?;
        }
        Ok(Self { cassandra: cassandra.clone(), scope: scope.to_owned(), table })
    }

    /// The scope as it is. One whose stage nobody has moved yet has none in the table.
    pub(super) async fn view(&self) -> Result<ScopeView, Fault> {
        let rows = self.read().await?;
        let (stage, turn) = self.stage_of(rows.first())?;
        let (recipe, cluster) = ties_of(rows.first());
        let at = at(rows.first());
        let entries: Vec<_> =
            rows.iter().filter_map(|row| self.entry(row).transpose()).collect::<Result<_, _>>()?;
        let mut processes: Vec<_> = entries.into_iter().map(|(one, _)| one).collect();
        processes.sort_by(|one, other| one.process.cmp(&other.process));
        Ok(ScopeView { stage, turn, recipe, cluster, processes, at })
    }

    /// The scope, and one's own row if there is one.
    pub(super) async fn own(&self, process: &str) -> Result<Seen, Fault> {
        let rows = self.read().await?;
        let (stage, _) = self.stage_of(rows.first())?;
        let (recipe, cluster) = ties_of(rows.first());
        let at = at(rows.first());
        let ours = |row: &&Row| row.text(&column("process")) == Some(process);
        let entry = rows.iter().find(ours).map(|row| self.entry(row)).transpose()?.flatten();
        let own = entry.map(|(one, seq)| OwnRow { mode: one.mode, seq });
        Ok(Seen { stage, recipe, cluster, at, own })
    }

    /// Each row shows what the partition has.
    fn stage_of(&self, row: Option<&Row>) -> Result<(Stage, i64), Fault> {
        let Some(row) = row else { return Ok((Stage::Cassandra, 0)) };
        let Some(stage) = row.text(&column("stage")) else { return Ok((Stage::Cassandra, 0)) };
        let unknown = || self.unknown(&format!("is at a stage {stage:?}"));
        let turn = row.long(&column("turn")).ok_or_else(unknown)?;
        Ok((Stage::of_row(stage).ok_or_else(unknown)?, turn))
    }

    /// A process and its `seq`; `None` for what is left of a partition without rows.
    fn entry(&self, row: &Row) -> Result<Option<(Registered, i64)>, Fault> {
        let [process, mode] = ["process", "mode"].map(|name| row.text(&column(name)));
        let (Some(process), Some(mode)) = (process, mode) else { return Ok(None) };
        let unknown = || self.unknown(&format!("has a process {process:?} in a mode {mode:?}"));
        let seq = row.long(&column("seq")).ok_or_else(unknown)?;
        let mode = LockerMode::of_row(mode).ok_or_else(unknown)?;
        let service = thread_id(process).to_owned();
        let writer = Writer::of(process);
        Ok(Some((Registered { process: process.to_owned(), service, mode, writer }, seq)))
    }

    fn unknown(&self, what: &str) -> Fault {
        let (scope, table) = (self.scope.escape_debug(), self.table.table.as_str());
        Fault::Refused(format!(
            "table {table}: scope \"{scope}\" {what} that is not known here; use the version that wrote it"
        ))
    }

    async fn read(&self) -> Result<Vec<Row>, Fault> {
        let columns = ["process", "mode", "seq", "stage", "turn", "recipe", "cluster"];
        let columns = columns.map(column).to_vec();
        self.cassandra.tables().read_all(self.partition(Action::AllSerial { columns })).await
    }

    /// Whether the scope was as `seen` all the time until now, and is at `to` from now on.
    pub(super) async fn change_stage(&self, seen: &ScopeView, to: Stage) -> Result<bool, Fault> {
        let cell = |name: &str, value: Value| (column(name), Some(value));
        let turn = Value::from(seen.turn + 1);
        let cells = vec![cell("stage", Value::from(to.written())), cell("turn", turn)];
        // What it is tied to does not change while it has processes.
        let only_if = seen.at.iter().filter(|(name, _)| ["stage", "turn"].contains(&name.as_str()));
        let only_if = only_if.cloned().collect();
        let action = Action::UpdateIf { cells, ttl_s: None, only_if };
        match self.cassandra.tables().conditional(self.partition(action)).await.1? {
            Conditional::Applied => Ok(true),
            Conditional::NotApplied(_) => Ok(false),
        }
    }

    /// What the scope is tied to in the column `name`: to `value`, if it was tied to nothing.
    pub(super) async fn tie(&self, name: &str, value: &str) -> Result<String, Fault> {
        let (cells, only_if) =
            (vec![(column(name), Some(Value::from(value)))], vec![(column(name), None)]);
        let tying = self.partition(Action::UpdateIf { cells, ttl_s: None, only_if });
        match self.cassandra.tables().conditional(tying).await.1? {
            Conditional::Applied => Ok(value.to_owned()),
            Conditional::NotApplied(row) => {
                let there = row.as_ref().and_then(|row| row.text(&column(name)));
                let nothing = || Fault::Unknown(format!("no {name} was shown"));
                there.map(str::to_owned).ok_or_else(nothing)
            }
        }
    }

    /// Whether the scope is tied to what `own` says, which is what a process, or a tool, locks by.
    pub(super) fn check_tie(&self, name: &str, tied: &str, own: &str) -> Result<(), Error> {
        if tied == own || mutant!(TiesNotCompared) {
            return Ok(());
        }
        let (scope, table) = (self.scope.escape_debug(), self.table.table.as_str());
        let what = if name == "recipe" { "the recipe" } else { "the cluster" };
        Err(invalid(format!(
            "scope \"{scope}\" is tied to {what} \"{tied}\" in table {table}, and this is \"{own}\": they would not exclude each \
             other; mend the settings of the one that is wrong (or, once no process of the scope is left, set the column {name} to null)"
        )))
    }

    pub(super) fn row(&self, process: &str, action: Action) -> Statement {
        let mut statement = self.partition(action);
        statement.key.push((column("process"), Value::from(process)));
        statement
    }

    fn partition(&self, action: Action) -> Statement {
        // A key cannot be empty, the scope of all names is.
        let key = vec![(column("scope"), Value::Text(format!("{}*", self.scope)))];
        Statement::new(self.table.table.clone(), key, action)
    }
}

impl fmt::Debug for Rows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rows").field("scope", &self.scope).finish_non_exhaustive()
    }
}

pub(super) fn column(name: &str) -> Ident {
    Ident::new(name)
}

/// What the scope is tied to: its recipe, and its cluster.
fn ties_of(row: Option<&Row>) -> (Option<String>, Option<String>) {
    let text = |name: &str| row.and_then(|row| row.text(&column(name))).map(str::to_owned);
    (text("recipe"), text("cluster"))
}

/// What a partition has, as it was read: before the first move it has no stage.
fn at(row: Option<&Row>) -> Cells {
    let cell = |name: &str| {
        let value = row.and_then(|row| row.0.get(name)).map(|cell| cell.value.clone());
        (column(name), value)
    };
    ["stage", "turn", "recipe", "cluster"].map(cell).to_vec()
}
