//! One scope in the table of modes: who is in which mode, and how its stage is moved.

use std::fmt;
use std::time::Duration;

use holdfast_seams::Moment;

use super::{LockerMode, ModesTable, Stage};
use crate::backoff::Backoff;
use crate::compat::cassandra::Cassandra;
use crate::compat::database::{Conditional, Fault, Row};
use crate::compat::owner::thread_id;
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
    /// Its processes, in the order of their ids: those that live, and those that died less than a TTL ago.
    pub processes: Vec<Registered>,
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
            Stage::Cassandra => Some((Stage::Both, LockerMode::Cassandra)),
            Stage::Both => Some((Stage::Native, LockerMode::Cassandra)),
            Stage::Native => Some((Stage::Fallback, LockerMode::Both)),
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
        let to = match seen.stage {
            Stage::Fallback => Some((Stage::Native, LockerMode::Fallback)),
            Stage::Native => Some((Stage::Both, LockerMode::Native)),
            Stage::Both => Some((Stage::Cassandra, LockerMode::Native)),
            Stage::Cassandra => None,
        };
        self.step(seen, to).await
    }

    /// From where it was seen to the next stage, if no process was in the mode that it leaves behind.
    async fn step(
        &self,
        seen: &ScopeView,
        to: Option<(Stage, LockerMode)>,
    ) -> Result<Stage, MoveRefused> {
        let scope = self.rows.scope.clone();
        let Some((to, left_behind)) = to else {
            return Err(MoveRefused::AtTheEnd { scope, stage: seen.stage });
        };
        let mut processes = seen.processes.clone();
        processes.retain(|one| one.mode == left_behind);
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
        let entries: Vec<_> =
            rows.iter().filter_map(|row| self.entry(row).transpose()).collect::<Result<_, _>>()?;
        let mut processes: Vec<_> = entries.into_iter().map(|(one, _)| one).collect();
        processes.sort_by(|one, other| one.process.cmp(&other.process));
        Ok(ScopeView { stage, turn, processes })
    }

    /// The scope's stage and turn, and one's own row if there is one.
    pub(super) async fn own(&self, process: &str) -> Result<(Stage, i64, Option<OwnRow>), Fault> {
        let rows = self.read().await?;
        let (stage, turn) = self.stage_of(rows.first())?;
        let ours = |row: &&Row| row.text(&column("process")) == Some(process);
        let Some(row) = rows.iter().find(ours) else { return Ok((stage, turn, None)) };
        let entry = self.entry(row)?;
        Ok((stage, turn, entry.map(|(one, seq)| OwnRow { mode: one.mode, seq })))
    }

    /// Each row shows what the partition has.
    fn stage_of(&self, row: Option<&Row>) -> Result<(Stage, i64), Fault> {
        let Some(row) = row else { return Ok((Stage::Cassandra, 0)) };
        let Some(stage) = row.text(&column("stage")) else { return Ok((Stage::Cassandra, 0)) };
        let unknown = || self.unknown(&format!("is at a stage {stage:?}"));
        let turn = row.long(&column("turn")).ok_or_else(unknown)?;
        Ok((Stage::parse(stage).ok_or_else(unknown)?, turn))
    }

    /// A process and its `seq`; `None` for what is left of a partition without rows.
    fn entry(&self, row: &Row) -> Result<Option<(Registered, i64)>, Fault> {
        let [process, mode] = ["process", "mode"].map(|name| row.text(&column(name)));
        let (Some(process), Some(mode)) = (process, mode) else { return Ok(None) };
        let unknown = || self.unknown(&format!("has a process {process:?} in a mode {mode:?}"));
        let seq = row.long(&column("seq")).ok_or_else(unknown)?;
        let mode = LockerMode::parse(mode).ok_or_else(unknown)?;
        let service = thread_id(process).to_owned();
        Ok(Some((Registered { process: process.to_owned(), service, mode }, seq)))
    }

    fn unknown(&self, what: &str) -> Fault {
        let (scope, table) = (self.scope.escape_debug(), self.table.table.as_str());
        Fault::Refused(format!(
            "table {table}: scope \"{scope}\" {what} that is not known here; use the version that wrote it"
        ))
    }

    async fn read(&self) -> Result<Vec<Row>, Fault> {
        let columns = ["process", "mode", "seq", "stage", "turn"].map(column).to_vec();
        self.cassandra.tables().read_all(self.partition(Action::AllSerial { columns })).await
    }

    /// Whether the scope was as `seen` all the time until now, and is at `to` from now on.
    pub(super) async fn change_stage(&self, seen: &ScopeView, to: Stage) -> Result<bool, Fault> {
        let only_if = at(seen.stage, seen.turn);
        let action = Action::UpdateIf { cells: at(to, seen.turn + 1), ttl_s: None, only_if };
        match self.cassandra.tables().conditional(self.partition(action)).await.1? {
            Conditional::Applied => Ok(true),
            Conditional::NotApplied(_) => Ok(false),
        }
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

/// The cells of a stage. Before the first move there are none.
pub(super) fn at(stage: Stage, turn: i64) -> Cells {
    let stage = Value::from(stage.as_str());
    let cells = [("stage", stage), ("turn", Value::from(turn))];
    cells.into_iter().map(|(name, value)| (column(name), (turn > 0).then_some(value))).collect()
}
