//! One scope in the table of modes: the mode of each process, and the moves of its stage.

use std::fmt;
use std::time::Duration;

use holdfast_mutants::mutant;

use super::{LockerMode, ModesTable, Stage};
use crate::cassandra::Cassandra;
use crate::database::{Conditional, Fault, Row};
use crate::locker_base::Tries;
use crate::owner::{Writer, service_of};
use crate::statement::{Action, Cells, Ident, Statement, Value};
use crate::{Error, Result};

/// The longest pause between two attempts to get an answer.
const PAUSE_MAX: Duration = Duration::from_secs(1);
const ANSWER_LIMIT: Duration = Duration::from_secs(30);

/// A scope and its stage, for operators; the [module](crate::modes) explains what a move promises.
#[derive(Clone, Debug)]
pub struct ScopeModes {
    rows: Rows,
}

/// A scope at one instant, by a SERIAL read.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ScopeView {
    /// Its stage.
    pub stage: Stage,
    /// How often the stage was changed.
    pub turn: i64,
    /// The recipe, with its tables, by which its processes lock in Cassandra; `None`: not recorded yet.
    pub recipe: Option<String>,
    /// The cluster of the native store in which they lock, its id in hexadecimal digits; `None` likewise.
    pub cluster: Option<String>,
    /// Its processes, in the order of their ids: the running ones, and those that died less than a TTL ago.
    pub processes: Vec<Registered>,
    /// Stage, turn, recipe and cluster as they were read.
    pub(super) at: Cells,
}

/// A process of a scope.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Registered {
    /// Its id, which no other process ever has.
    pub process: String,
    /// Its service name.
    pub service: String,
    /// The mode of its row: it holds no lock in another mode, except perhaps in
    /// [`LockerMode::Both`].
    pub mode: LockerMode,
    /// The writer of its rows in the recipe's tables; `None`: it is of version 0.1, and its rows cannot be identified.
    pub writer: Option<Writer>,
}

/// A step of a scope, as a view shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Step {
    /// The stage that it leads to; `None`: there is none beyond.
    pub to: Option<Stage>,
    /// The processes that it would leave behind. While there is one, the step is not made.
    pub in_the_way: Vec<Registered>,
}

impl ScopeView {
    /// The step towards `fallback`.
    pub fn step_forward(&self) -> Step {
        match self.stage {
            Stage::Cassandra => self.step(Stage::Both, &[LockerMode::Cassandra]),
            Stage::Both => self.step(Stage::Native, &[LockerMode::Cassandra]),
            Stage::Native => self.step(Stage::Fallback, &[LockerMode::Both]),
            Stage::Fallback => Step { to: None, in_the_way: Vec::new() },
        }
    }

    /// The step back towards `cassandra`.
    pub fn step_back(&self) -> Step {
        // A process that entered `fallback` between the look and the step back to `native` is still in it.
        const NATIVELY: &[LockerMode] = &[LockerMode::Native, LockerMode::Fallback];
        match self.stage {
            Stage::Fallback => self.step(Stage::Native, &[LockerMode::Fallback]),
            Stage::Native => self.step(Stage::Both, NATIVELY),
            Stage::Both => self.step(Stage::Cassandra, NATIVELY),
            Stage::Cassandra => Step { to: None, in_the_way: Vec::new() },
        }
    }

    fn step(&self, to: Stage, left_behind: &[LockerMode]) -> Step {
        let is_left_behind = |one: &&Registered| {
            let overlooked = one.mode == LockerMode::Fallback && self.stage < Stage::Fallback;
            left_behind.contains(&one.mode) && !(overlooked && mutant!(FallbackNotInTheWay))
        };
        let mut in_the_way: Vec<Registered> =
            self.processes.iter().filter(is_left_behind).cloned().collect();
        if mutant!(StageMovesPastRows) {
            in_the_way.clear();
        }
        Step { to: Some(to), in_the_way }
    }
}

/// Why a scope was not moved. Except for [`MoveRefused::Store`], the stage is certainly unchanged.
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
        /// The processes in the way.
        processes: Vec<Registered>,
    },
    /// There is no next stage.
    #[error("scope {scope:?} is at {stage}, and there is no stage beyond")]
    AtTheEnd {
        /// The scope.
        scope: String,
        /// Its stage.
        stage: Stage,
    },
    /// Cassandra refused, or did not answer. The move may or may not be applied; [`ScopeModes::view`] shows which.
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
    /// The scope of names that begin with `scope`. This sends nothing.
    ///
    /// # Errors
    ///
    /// [`Error::Refused`] if `scope` is no valid lock name.
    pub fn new(cassandra: &Cassandra, scope: &str, table: ModesTable) -> Result<Self> {
        Ok(Self { rows: Rows::new(cassandra, scope, table)? })
    }

    fn tries(&self) -> Tries<'_> {
        Tries::new(&self.rows.cassandra, ANSWER_LIMIT, PAUSE_MAX)
    }

    /// Its stage, and the mode of each process.
    ///
    /// # Errors
    ///
    /// [`Error::Unreachable`] without an answer in 30 s, [`Error::Refused`] if the table cannot be used.
    pub async fn view(&self) -> Result<ScopeView> {
        self.tries().until_answered(|| self.rows.view()).await
    }

    /// Moves the scope one stage towards `fallback`, and returns its new stage. Repeating the call after a lost answer
    /// may move it twice: check with [`ScopeModes::view`] first.
    ///
    /// Cancel safe, in that the stage is moved or is not.
    ///
    /// # Errors
    ///
    /// [`MoveRefused`], which names the processes in the way.
    pub async fn advance(&self) -> Result<Stage, MoveRefused> {
        self.advance_from(&self.view().await?).await
    }

    /// Like [`ScopeModes::advance`], from where the scope was `seen`: if the scope was moved since, the call does not
    /// move it. So the scope was at that stage during every check that the caller made since `seen`. Repeating the call
    /// is harmless.
    ///
    /// # Errors
    ///
    /// [`MoveRefused`], which names the processes in the way.
    pub async fn advance_from(&self, seen: &ScopeView) -> Result<Stage, MoveRefused> {
        self.make(seen.step_forward(), seen).await
    }

    /// Moves the scope one stage back towards `cassandra`, the reverse of [`ScopeModes::advance`].
    ///
    /// # Errors
    ///
    /// As of [`ScopeModes::advance`].
    pub async fn go_back(&self) -> Result<Stage, MoveRefused> {
        self.go_back_from(&self.view().await?).await
    }

    /// Like [`ScopeModes::go_back`], from where the scope was `seen`, as
    /// [`ScopeModes::advance_from`].
    ///
    /// # Errors
    ///
    /// As of [`ScopeModes::advance`].
    pub async fn go_back_from(&self, seen: &ScopeView) -> Result<Stage, MoveRefused> {
        self.make(seen.step_back(), seen).await
    }

    /// Ties the scope to a recipe and a cluster where it is tied to none, and returns what it is tied to then. For tools that move a
    /// scope without processes.
    ///
    /// # Errors
    ///
    /// [`Error::Unreachable`] without an answer in 30 s, [`Error::Refused`] if the table cannot be used.
    pub async fn tie(&self, recipe: &str, cluster: &str) -> Result<(String, String)> {
        let recipe = self.tries().until_answered(|| self.rows.tie("recipe", recipe)).await?;
        Ok((recipe, self.tie_cluster(cluster).await?))
    }

    /// Ties the scope to a native cluster, unless it is tied to one. Returns the one that it is tied to. Repeating it is harmless.
    ///
    /// # Errors
    ///
    /// As [`ScopeModes::tie`].
    pub async fn tie_cluster(&self, cluster: &str) -> Result<String> {
        self.tries().until_answered(|| self.rows.tie("cluster", cluster)).await
    }

    /// Moves the scope from where it was seen to the next stage, if no process was in a mode that
    /// the step leaves behind.
    async fn make(&self, step: Step, seen: &ScopeView) -> Result<Stage, MoveRefused> {
        let scope = self.rows.scope.clone();
        let Some(to) = step.to else {
            return Err(MoveRefused::AtTheEnd { scope, stage: seen.stage });
        };
        let processes = step.in_the_way;
        if !processes.is_empty() {
            return Err(MoveRefused::InTheWay { scope, stage: seen.stage, processes });
        }
        if self.tries().until_answered(|| self.rows.change_stage(seen, to)).await? {
            return Ok(to);
        }
        // Another operator, or an unanswered attempt of this call, moved it, by the same rules.
        let now = self.view().await?;
        if (now.stage, now.turn) == (to, seen.turn + 1) {
            return Ok(to);
        }
        let message = format!(
            "scope {scope:?} was moved to {} by somebody else; look, and ask again",
            now.stage
        );
        Err(MoveRefused::Store(Error::invalid(message)))
    }
}

#[derive(Clone)]
pub(super) struct Rows {
    pub(super) cassandra: Cassandra,
    pub(super) scope: String,
    table: ModesTable,
}

/// What a process reads of its own row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct OwnRow {
    pub(super) mode: LockerMode,
    pub(super) seq: i64,
}

impl Rows {
    pub(super) fn new(cassandra: &Cassandra, scope: &str, table: ModesTable) -> Result<Self> {
        if !scope.is_empty() {
            crate::check_lock_name(scope)?;
        }
        Ok(Self { cassandra: cassandra.clone(), scope: scope.to_owned(), table })
    }

    /// The scope as it is. Its partition has no stage until it is moved for the first time.
    pub(super) async fn view(&self) -> Result<ScopeView, Fault> {
        let rows = self.read().await?;
        let mut view = self.without_processes(&rows)?;
        for row in &rows {
            view.processes.extend(self.entry(row)?.map(|(one, _)| one));
        }
        view.processes.sort_by(|one, other| one.process.cmp(&other.process));
        Ok(view)
    }

    /// The scope without its processes, and the own row of one of them: it reads no other.
    pub(super) async fn own(&self, process: &str) -> Result<(ScopeView, Option<OwnRow>), Fault> {
        let rows = self.read().await?;
        let view = self.without_processes(&rows)?;
        let ours = |row: &&Row| row.text(&column("process")) == Some(process);
        let entry = rows.iter().find(ours).map(|row| self.entry(row)).transpose()?.flatten();
        Ok((view, entry.map(|(one, seq)| OwnRow { mode: one.mode, seq })))
    }

    /// Reads the static columns, which each row contains.
    fn without_processes(&self, rows: &[Row]) -> Result<ScopeView, Fault> {
        let first = rows.first();
        let (stage, turn) = self.stage_of(first)?;
        let text = |name: &str| first.and_then(|row| row.text(&column(name))).map(str::to_owned);
        let (recipe, cluster) = (text("recipe"), text("cluster"));
        Ok(ScopeView { stage, turn, recipe, cluster, processes: Vec::new(), at: at(first) })
    }

    fn stage_of(&self, row: Option<&Row>) -> Result<(Stage, i64), Fault> {
        let Some(row) = row else { return Ok((Stage::Cassandra, 0)) };
        let Some(stage) = row.text(&column("stage")) else { return Ok((Stage::Cassandra, 0)) };
        let unknown = || self.unknown(&format!("is at a stage {stage:?}"));
        let turn = row.long(&column("turn")).ok_or_else(unknown)?;
        Ok((Stage::of_row(stage).ok_or_else(unknown)?, turn))
    }

    /// A process and its `seq`; `None` for a partition that has only static columns.
    fn entry(&self, row: &Row) -> Result<Option<(Registered, i64)>, Fault> {
        let [process, mode] = ["process", "mode"].map(|name| row.text(&column(name)));
        let (Some(process), Some(mode)) = (process, mode) else { return Ok(None) };
        let unknown = || self.unknown(&format!("has a process {process:?} in a mode {mode:?}"));
        let seq = row.long(&column("seq")).ok_or_else(unknown)?;
        let mode = LockerMode::of_row(mode).ok_or_else(unknown)?;
        let service = service_of(process).to_owned();
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

    /// Moves the scope to `to`; returns whether it was as `seen` all the time until now.
    pub(super) async fn change_stage(&self, seen: &ScopeView, to: Stage) -> Result<bool, Fault> {
        let cell = |name: &str, value: Value| (column(name), Some(value));
        let turn = Value::from(seen.turn + 1);
        let cells = vec![cell("stage", Value::from(to.written())), cell("turn", turn)];
        // Recipe and cluster do not change while the scope has processes.
        let only_if = seen.at.iter().filter(|(name, _)| ["stage", "turn"].contains(&name.as_str()));
        let only_if = only_if.cloned().collect();
        let action = Action::UpdateIf { cells, ttl_s: None, only_if };
        match self.cassandra.tables().conditional(self.partition(action)).await.1? {
            Conditional::Applied => Ok(true),
            Conditional::NotApplied(_) => Ok(false),
        }
    }

    /// Ties the scope to `value` in the column `name`, if that is null; returns what the scope is
    /// tied to then.
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

    /// Checks that the scope is tied to `own`, by which a process, or a tool, locks.
    pub(super) fn check_tie(&self, name: &str, tied: &str, own: &str) -> Result<(), Error> {
        if tied == own || mutant!(TiesNotCompared) {
            return Ok(());
        }
        let (scope, table) = (self.scope.escape_debug(), self.table.table.as_str());
        let what = if name == "recipe" { "the recipe" } else { "the cluster" };
        Err(Error::invalid(format!(
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
        // A partition key cannot be empty, but the scope of all names is.
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

/// The static columns of a partition, as they were read: before the first move there is no stage.
fn at(row: Option<&Row>) -> Cells {
    let cell = |name: &str| {
        let value = row.and_then(|row| row.0.get(name)).map(|cell| cell.value.clone());
        (column(name), value)
    };
    ["stage", "turn", "recipe", "cluster"].map(cell).to_vec()
}

#[cfg(test)]
mod tests {
    use holdfast_mutants::{Mutant, while_armed};

    use super::*;

    const MODES: [LockerMode; 4] =
        [LockerMode::Cassandra, LockerMode::Both, LockerMode::Native, LockerMode::Fallback];

    /// A scope at this stage with one process.
    fn view(stage: Stage, mode: LockerMode) -> ScopeView {
        let (process, service) = ("hf1:a@01/02".to_owned(), "a".to_owned());
        let processes = vec![Registered { process, service, mode, writer: None }];
        ScopeView { stage, turn: 1, recipe: None, cluster: None, processes, at: Cells::new() }
    }

    /// The modes that keep a scope from a step.
    fn in_the_way(stage: Stage, step: fn(&ScopeView) -> Step) -> Vec<LockerMode> {
        let is_in_the_way = |mode: &LockerMode| !step(&view(stage, *mode)).in_the_way.is_empty();
        MODES.into_iter().filter(is_in_the_way).collect()
    }

    /// The first table of `docs/migration.md`. `cassandra` and `native` are never admitted together (I24).
    #[test]
    fn each_stage_admits_the_modes_of_the_guide() {
        use LockerMode::{Both, Cassandra, Fallback, Native};
        let admitted = |stage: Stage| -> Vec<LockerMode> {
            MODES.into_iter().filter(|mode| stage.admits(*mode)).collect()
        };
        let stages = Stage::IN_ORDER.map(|stage| (stage, admitted(stage)));
        let expected = [
            (Stage::Cassandra, vec![Cassandra, Both]),
            (Stage::Both, vec![Both]),
            (Stage::Native, vec![Both, Native]),
            (Stage::Fallback, vec![Native, Fallback]),
        ];
        assert_eq!(stages, expected);
        let guide = include_str!("../../../../docs/migration.md");
        for (stage, modes) in expected {
            let names: Vec<String> = modes.iter().map(|mode| format!("`{mode}`")).collect();
            let row = |line: &str| {
                let mut cells = line.split('|').skip(1);
                let is_stage = cells
                    .next()
                    .is_some_and(|cell| cell.contains(&format!("`{}`", stage.as_str())));
                is_stage && cells.next().is_some_and(|cell| cell.trim() == names.join(", "))
            };
            assert!(guide.lines().any(row), "{} {names:?}", stage.as_str());
        }
    }

    /// Rule 4 of the modes, I24.
    #[test]
    fn a_step_waits_for_the_processes_that_it_would_leave_behind() {
        use LockerMode::{Both, Cassandra, Fallback, Native};
        let forward = |stage| in_the_way(stage, ScopeView::step_forward);
        assert_eq!(forward(Stage::Cassandra), [Cassandra]);
        assert_eq!(forward(Stage::Both), [Cassandra]);
        assert_eq!(forward(Stage::Native), [Both]);
        assert_eq!(view(Stage::Fallback, Fallback).step_forward().to, None);
        let back = |stage| in_the_way(stage, ScopeView::step_back);
        assert_eq!(back(Stage::Fallback), [Fallback]);
        assert_eq!(back(Stage::Native), [Native, Fallback]);
        assert_eq!(back(Stage::Both), [Native, Fallback]);
        assert_eq!(view(Stage::Cassandra, Cassandra).step_back().to, None);
    }

    /// A process that entered `fallback` between the look and the step back is still in it.
    #[test]
    fn without_the_rule_a_process_in_fallback_is_left_behind() {
        let left = |stage| {
            while_armed(Mutant::FallbackNotInTheWay, || in_the_way(stage, ScopeView::step_back))
        };
        assert_eq!(left(Stage::Fallback), [LockerMode::Fallback], "there it is looked for");
        assert_eq!(left(Stage::Native), [LockerMode::Native]);
        assert_eq!(left(Stage::Both), [LockerMode::Native]);
    }
}
