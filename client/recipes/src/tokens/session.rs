//! The row of one session in `token_times`: the session exists as long as the row, and the row's
//! timestamp is the last heartbeat.
//!
//! # Invariants
//!
//! - No two beats of a session have the same timestamp, and each is applied only on top of the one
//!   before it. So a timestamp that has not changed for a while means that no beat came in that
//!   time.
//! - A session is over once its row is found gone. It never comes back under its id.

use std::sync::Arc;
use std::time::Duration;

use holdfast_runtime::Instant;

use super::TokenTables;
use crate::database::{Conditional, Fault, Row, Tables};
use crate::locker_base::{LockerBase, Stamps};
use crate::owner::{MARK, OwnerId};
use crate::statement::{Action, Cells, Statement, Value};

/// "generate `service_session_id`": an owner's id, and the session's term: how long it may stand
/// without a beat. One for each attempt: a late statement of one that is over cannot be taken for
/// another's.
fn session_id(owner: &OwnerId, ttl_s: i32) -> String {
    format!("{}:{ttl_s}", owner.as_str())
}

/// The term of a session, if its id has one: those of Holdfast do.
pub fn term_of(session: &str) -> Option<Duration> {
    let (_, attempt) = session.strip_prefix(MARK)?.rsplit_once('/')?;
    let (_, seconds) = attempt.split_once(':')?;
    seconds.parse::<u32>().ok().map(|seconds| Duration::from_secs(seconds.into()))
}

pub(super) struct SessionRow {
    tables: Arc<Tables>,
    columns: Arc<TokenTables>,
    stamps: Arc<Stamps>,
    pub(super) id: String,
    /// Its timestamp; `None`: the row is not known to exist.
    known: Option<i64>,
    /// Timestamps that were sent after that one and may be, or become, the row's.
    open: Vec<i64>,
    /// The instant before the send of the last beat that was answered as applied. One of unknown
    /// outcome never counts.
    pub(super) beaten: Option<Instant>,
    /// The tokens that the row lists, if known.
    listed: Option<Vec<String>>,
    pub(super) over: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Beat {
    /// It is applied, and was sent at this instant.
    Applied(Instant),
    Over,
}

impl SessionRow {
    pub(super) fn new(base: &LockerBase, columns: &Arc<TokenTables>, stamps: &Arc<Stamps>) -> Self {
        Self {
            tables: base.cassandra.tables().clone(),
            columns: columns.clone(),
            stamps: stamps.clone(),
            id: session_id(&base.owner(), base.timing.ttl_s()),
            known: None,
            open: Vec::new(),
            beaten: None,
            listed: None,
            over: false,
        }
    }

    /// "Heartbeat tick will be a write to a helper table … a list of tokens it holds in one session,
    /// together with its session ID." The first makes the row, each later one replaces the one before.
    ///
    /// The article does not say how it is written. Here it is an LWT: a plain write would bring a
    /// session back whose tokens the housekeeper is removing, and a late one would put an older
    /// timestamp over a newer one.
    pub(super) async fn beat(&mut self, tokens: &[String]) -> Result<Beat, Fault> {
        if !self.open.is_empty() {
            self.settle().await?;
        }
        while !self.over {
            let stamp = self.stamps.next();
            let (started, answer) = self.tables.conditional(self.beat_at(stamp, tokens)).await;
            match answer {
                Ok(Conditional::Applied) => {
                    // All open beats were to replace an older timestamp than this.
                    self.open.clear();
                    self.listed = self.known.map(|_| tokens.to_vec());
                    self.known = Some(stamp);
                    self.beaten = Some(started);
                    return Ok(Beat::Applied(started));
                }
                Ok(Conditional::NotApplied(row)) => self.learn(row.as_ref()),
                Err(fault) => {
                    if let Fault::Unknown(_) = fault {
                        self.open.push(stamp);
                    }
                    return Err(fault);
                }
            }
        }
        Ok(Beat::Over)
    }

    /// Reads the row to learn what became of beats without an answer. The timestamp it finds serves
    /// only to be replaced.
    async fn settle(&mut self) -> Result<(), Fault> {
        let columns = vec![self.columns.beat.clone()];
        let row = self.tables.read(self.statement(Action::SelectSerial { columns })).await?;
        self.learn(row.as_ref());
        Ok(())
    }

    /// Takes over the row's timestamp if this session sent it. Anything else ends the session, also one
    /// whose row was never seen: if the row is still made later, no client uses it.
    fn learn(&mut self, row: Option<&Row>) {
        let shown = row.and_then(|row| row.time_ms(&self.columns.beat));
        let Some(shown) = shown else {
            self.over = true;
            return;
        };
        if self.open.contains(&shown) {
            self.open.retain(|stamp| *stamp != shown);
            self.known = Some(shown);
            self.listed = None;
        } else if self.known != Some(shown) {
            self.over = true;
        }
    }

    fn beat_at(&self, stamp: i64, tokens: &[String]) -> Statement {
        let beat = |stamp| (self.columns.beat.clone(), Some(Value::Time(stamp)));
        let mut cells: Cells = vec![beat(stamp)];
        let Some(known) = self.known else {
            // The session's row exists before its first token, and it lists no token before it holds
            // it: a housekeeper that goes by the list would remove another session's token.
            return self.statement(Action::InsertIfAbsent { cells, ttl_s: None });
        };
        if self.listed.as_deref() != Some(tokens) {
            let list = (!tokens.is_empty()).then(|| Value::Texts(tokens.to_vec()));
            cells.push((self.columns.held.clone(), list));
        }
        self.statement(Action::UpdateIf { cells, ttl_s: None, only_if: vec![beat(known)] })
    }

    /// Deletes the row, after the tokens.
    pub(super) async fn end(&mut self) -> Result<(), Fault> {
        if self.known.is_none() && self.open.is_empty() {
            return Ok(());
        }
        self.over = true;
        let delete = self.statement(Action::DeleteIf { only_if: Vec::new() });
        self.tables.conditional(delete).await.1.map(|_| ())
    }

    fn statement(&self, action: Action) -> Statement {
        let key = vec![(self.columns.beating.clone(), Value::from(self.id.as_str()))];
        Statement::new(self.columns.times.clone(), key, action)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::owner::{Always, Signature};

    #[test]
    fn a_session_says_how_long_it_lives_and_a_stranger_does_not() {
        let owner = OwnerId::draw(&Signature::draw("billing/eu:9", &Always), &Always);
        let id = session_id(&owner, 180);

        assert_eq!(
            id.as_str(),
            format!("hf1:billing/eu:9@{}/{}:180", "a5".repeat(8), "a5".repeat(16))
        );
        assert_eq!(term_of(id.as_str()), Some(Duration::from_mins(3)));
        assert_eq!(crate::owner::service_of(id.as_str()), "billing/eu:9");
        assert_eq!(term_of("worker-7:180"), None);
        assert_eq!(term_of("hf1:worker/abc"), None);
        assert_eq!(term_of("hf1:worker/abc:-1"), None);
    }
}
