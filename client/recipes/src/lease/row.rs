//! The lease's statements, and the steps of one attempt.

use std::sync::{Arc, Mutex, PoisonError};

use holdfast_runtime::Instant;
use tokio::sync::watch;

use super::LeaseTable;
use crate::database::{Conditional, Fault, Row, Tables};
use crate::lock_task::{Attempt, Left, Reached, Renewal};
use crate::locker_base::LockerBase;
use crate::owner::OwnerId;
use crate::statement::{Action, Cells, Ident, Statement, Value};

pub(crate) struct LeaseRow {
    base: LockerBase,
    columns: Arc<LeaseTable>,
    /// The columns of the partition key before the name; empty if the name alone is the key.
    within: Vec<(Ident, Value)>,
    name: String,
    owner: OwnerId,
    value: Arc<WantedValue>,
    /// Another client had the row, or an outcome is open: read before the next insert.
    look_first: bool,
    /// Something that this attempt sent may have made the row its own.
    may_be_ours: bool,
    /// This attempt sent a delete and got no answer.
    delete_is_open: bool,
}

/// The value that a holder wants in its row, and the latest version that is written.
#[derive(Debug, Default)]
pub(crate) struct WantedValue {
    /// The version counts the changes; 0: the holder has never set a value.
    wanted: Mutex<(u64, Option<String>)>,
    written: watch::Sender<u64>,
}

impl WantedValue {
    pub(super) fn new(value: Option<String>) -> Self {
        let version = u64::from(value.is_some());
        Self { wanted: Mutex::new((version, value)), written: watch::Sender::new(0) }
    }

    /// Returns the number of the change.
    pub(super) fn set(&self, value: Option<String>) -> u64 {
        let mut wanted = self.wanted.lock().unwrap_or_else(PoisonError::into_inner);
        *wanted = (wanted.0 + 1, value);
        wanted.0
    }

    fn get(&self) -> (u64, Option<String>) {
        self.wanted.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn note_written(&self, version: u64) {
        self.written.send_if_modified(|written| {
            let newer = version > *written;
            *written = version.max(*written);
            newer
        });
    }

    /// Waits until change `version`, or a later one, is in the row.
    pub(super) async fn written(&self, version: u64) {
        // `self` owns the sender, so it cannot close.
        let _ = self.written.subscribe().wait_for(|written| *written >= version).await;
    }
}

enum Seen {
    Free,
    Ours,
    Theirs { owner: Option<String>, ttl_s: Option<i32> },
}

impl LeaseRow {
    /// Sends no statement yet.
    pub(crate) fn new(
        base: &LockerBase,
        columns: &Arc<LeaseTable>,
        name: &str,
        value: Arc<WantedValue>,
    ) -> Self {
        Self {
            base: base.clone(),
            columns: columns.clone(),
            within: Vec::new(),
            name: name.to_owned(),
            owner: base.owner(),
            value,
            look_first: false,
            may_be_ours: false,
            delete_is_open: false,
        }
    }

    /// For a table whose partitions hold many names; all datacenters take part in its decisions.
    pub(crate) fn within(mut self, partition: Vec<(Ident, Value)>) -> Self {
        self.within = partition;
        self
    }

    fn tables(&self) -> &Tables {
        self.base.cassandra.tables()
    }

    fn statement(&self, action: Action) -> Statement {
        let name = (self.columns.name.clone(), Value::from(self.name.as_str()));
        let partition = self.within.len();
        let key = self.within.iter().cloned().chain([name]).collect();
        let statement = Statement::new(self.columns.table.clone(), key, action);
        if partition == 0 {
            return statement;
        }
        statement.partitioned_by(partition).decided_everywhere()
    }

    fn owned(&self) -> Cells {
        vec![(self.columns.owner.clone(), Some(Value::from(self.owner.as_str())))]
    }

    /// The owner and, once the holder has set one, the value.
    fn cells(&self) -> (u64, Cells) {
        let (version, value) = self.value.get();
        let mut cells = self.owned();
        if version > 0 {
            cells.push((self.columns.value.clone(), value.map(Value::Text)));
        }
        (version, cells)
    }

    /// `INSERT INTO leases (name, owner) VALUES (…) IF NOT EXISTS`, the article's first statement.
    /// It carries the TTL: how long the row lasts must not depend on how the table was created.
    async fn insert(&mut self) -> Result<Reached, Fault> {
        let (version, cells) = self.cells();
        let insert =
            self.statement(Action::InsertIfAbsent { cells, ttl_s: Some(self.base.timing.ttl_s()) });
        let may_have_been_ours = self.may_be_ours;
        self.may_be_ours = true;
        let (started, answer) = self.tables().conditional(insert).await;
        match answer {
            Ok(Conditional::Applied) => {
                self.value.note_written(version);
                Ok(Reached::Hold { started })
            }
            Ok(Conditional::NotApplied(row)) => match self.seen(row) {
                Seen::Ours => self.confirm().await,
                // The row exists but shows no cell: it is being written or removed.
                Seen::Free => Ok(held_by(None, None)),
                Seen::Theirs { owner, ttl_s } => {
                    self.may_be_ours = may_have_been_ours;
                    Ok(held_by(owner, ttl_s))
                }
            },
            // "About half of all attempts" of 16 clients on one key end so; nothing follows from
            // it.
            Err(Fault::Unknown(_)) => self.settle().await,
            Err(fault) => {
                self.may_be_ours = may_have_been_ours;
                Err(fault)
            }
        }
    }

    /// Reads the row to learn what became of an insert without an answer.
    async fn settle(&mut self) -> Result<Reached, Fault> {
        match self.look().await? {
            Seen::Ours => self.confirm().await,
            Seen::Theirs { owner, ttl_s } => Ok(held_by(owner, ttl_s)),
            // The insert was not applied, or a coordinator still applies it later: then the next
            // insert finds this attempt's own id.
            Seen::Free => Err(Fault::NotDone("the insert was not applied".into())),
        }
    }

    /// Begins the hold with a renewal, for example if the row has this attempt's id, but no answer of
    /// its insert says since when the TTL runs.
    pub(crate) async fn confirm(&mut self) -> Result<Reached, Fault> {
        match self.renew().await {
            Renewal::Applied(started) => Ok(Reached::Hold { started }),
            Renewal::Gone => Ok(held_by(None, None)),
            Renewal::Unknown => Err(Fault::Unknown("a renewal was not answered".into())),
        }
    }

    /// `SELECT … FROM leases WHERE name = …` at SERIAL, the article's fourth statement. At QUORUM as long as no outcome of this attempt is
    /// open: whether the row is free the insert decides, and a look that takes part in Paxos makes the holder's renewal fail (B19).
    async fn look(&self) -> Result<Seen, Fault> {
        let columns = vec![self.columns.owner.clone()];
        let row = if self.may_be_ours {
            self.tables().read(self.statement(Action::SelectSerial { columns })).await?
        } else {
            self.tables().peek(self.statement(Action::Select { columns })).await?
        };
        Ok(self.seen(row))
    }

    fn seen(&self, row: Option<Row>) -> Seen {
        let Some(row) = row else { return Seen::Free };
        match row.text(&self.columns.owner) {
            Some(owner) if owner == self.owner.as_str() => Seen::Ours,
            owner => Seen::Theirs {
                owner: owner.map(str::to_owned),
                ttl_s: row.ttl_s(&self.columns.owner),
            },
        }
    }
}

fn held_by(owner: Option<String>, ttl_s: Option<i32>) -> Reached {
    // A coordinator's clock decided when the row ends: a hint, good only for the length of a pause.
    let left = ttl_s.and_then(|left| u64::try_from(left).ok());
    let again = left.map(|left| std::time::Duration::from_secs(left.max(1)));
    Reached::HeldBy { owner, again }
}

impl Attempt for LeaseRow {
    const RECIPE: &'static str = super::SPEC.name;

    fn takes_turns(&self) -> bool {
        true
    }

    async fn advance(&mut self) -> Result<Reached, Fault> {
        if self.look_first {
            match self.look().await? {
                Seen::Free => {}
                Seen::Ours => return self.confirm().await,
                Seen::Theirs { owner, ttl_s } => return Ok(held_by(owner, ttl_s)),
            }
        }
        let attempted = self.insert().await;
        // Waiters read: an insert that is bound to fail makes inserts of other clients fail.
        self.look_first = !matches!(attempted, Ok(Reached::Hold { .. }));
        attempted
    }

    /// `UPDATE leases SET owner = … WHERE name = … IF owner = …`, the article's second statement.
    /// It writes the value again beside the owner: a TTL belongs to a cell, and the article's own
    /// renewal lets the value vanish while the lease stands.
    async fn renew(&mut self) -> Renewal {
        let (version, cells) = self.cells();
        let update = Action::UpdateIf {
            cells,
            ttl_s: Some(self.base.timing.ttl_s()),
            only_if: self.owned(),
        };
        let (started, answer): (Instant, _) =
            self.tables().conditional_first(self.statement(update)).await;
        match answer {
            Ok(Conditional::Applied) => {
                self.value.note_written(version);
                Renewal::Applied(started)
            }
            Ok(Conditional::NotApplied(_)) => Renewal::Gone,
            Err(_) => Renewal::Unknown,
        }
    }

    /// `DELETE FROM leases WHERE name = … IF owner = …`, the article's third statement. The lock task
    /// task repeats it until it is answered: after an unknown outcome the next answer shows whether
    /// the row still has this owner.
    async fn give_back(&mut self) -> Result<Left, Fault> {
        if !self.may_be_ours {
            return Ok(Left::NotHad);
        }
        let delete = self.statement(Action::DeleteIf { only_if: self.owned() });
        match self.tables().conditional(delete).await.1 {
            Ok(Conditional::Applied) => Ok(Left::Released),
            // An earlier delete of unknown outcome removed the row.
            Ok(Conditional::NotApplied(_)) if self.delete_is_open => Ok(Left::Released),
            Ok(Conditional::NotApplied(_)) => Ok(Left::NotHad),
            Err(fault) => {
                self.delete_is_open = matches!(fault, Fault::Unknown(_)) || self.delete_is_open;
                Err(fault)
            }
        }
    }
}
