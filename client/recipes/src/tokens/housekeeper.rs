//! The housekeeper: ends sessions that have stopped beating, and frees their tokens.
//!
//! "Tokens that did not heartbeat in time get deleted (grace period is of course added)." For that the
//! housekeeper reads only the monotonic clock of its own process: a session is dead when its timestamp
//! is still the same a grace after the housekeeper saw it. It does not interpret the timestamp, so no
//! two clocks have to agree.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use holdfast_runtime::Instant;

use super::TokenTables;
use super::parts::Parts;
use super::session::term_of;
use crate::cassandra::Cassandra;
use crate::database::{Conditional, Fault, Row};
use crate::statement::{Action, Statement, Value};
use crate::{Error, Result};

/// Below it one slow answer would end a session that beats.
const GRACE_MIN: Duration = Duration::from_secs(3);

/// Clears up after sessions that died. Any number of housekeepers may run at once, and each may
/// stop at any point: every step checks that what it saw still holds.
///
/// It begins to watch when it is made: whatever died before is gone one grace later.
pub struct Housekeeper {
    cassandra: Cassandra,
    tables: Arc<TokenTables>,
    grace: Duration,
    /// All sessions that the last look found.
    sessions: BTreeMap<String, Watched>,
    /// All tokens without a session that the last look found.
    strays: BTreeMap<Held, Instant>,
    /// Sessions that this housekeeper ended and some of whose tokens may remain.
    ended: BTreeSet<String>,
    /// The parts of the ring in which the two tables are read.
    parts_of_times: Parts,
    parts_of_tokens: Parts,
}

/// A session's timestamp, and since when this housekeeper has seen it.
#[derive(Clone, Copy)]
struct Watched {
    stamp: Option<i64>,
    since: Instant,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Held {
    token: String,
    session: String,
    stamp: Option<i64>,
}

impl Held {
    fn removed(&self) -> Removed {
        Removed::Token { token: self.token.clone(), session: self.session.clone() }
    }
}

enum Removal {
    Done,
    /// The row has changed by now, or is gone.
    Changed,
    /// The outcome is unknown: the housekeeper looks again.
    Open,
}

/// A row that was removed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Removed {
    /// A session that did not beat for the grace.
    Session {
        /// Its id.
        session: String,
    },
    /// A token of such a session.
    Token {
        /// The token.
        token: String,
        /// The session that had it.
        session: String,
    },
}

/// The result of one sweep.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Sweep {
    /// What was removed, in order. If answers are lost, two housekeepers may both report the same
    /// removal.
    pub removed: Vec<Removed>,
    /// How many removals had no answer: the next sweep tries them again.
    pub unanswered: usize,
}

impl Housekeeper {
    /// A housekeeper that lets sessions stand without a heartbeat for `grace`, or for as long as
    /// their id asks for if that is longer. It sends no statement yet.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidConfig`] for a grace below 3 s.
    pub fn new(cassandra: &Cassandra, tables: TokenTables, grace: Duration) -> Result<Self> {
        if grace < GRACE_MIN {
            let message = format!("a grace is {GRACE_MIN:?} at least, not {grace:?}");
            return Err(Error::InvalidConfig { message });
        }
        Ok(Self {
            cassandra: cassandra.clone(),
            tables: Arc::new(tables),
            grace,
            sessions: BTreeMap::new(),
            strays: BTreeMap::new(),
            ended: BTreeSet::new(),
            parts_of_times: Parts::default(),
            parts_of_tokens: Parts::default(),
        })
    }

    /// Reads both tables once, and removes what has been dead for the grace by now. Call it
    /// repeatedly, a few times in each grace.
    ///
    /// Dropping the future may leave tokens of an ended session. They are strays to the next sweep
    /// of any housekeeper, and go one grace later.
    ///
    /// # Errors
    ///
    /// [`Error::Unreachable`] if the tables could not be read: nothing was removed, and the watch
    /// goes on. [`Error::Refused`] if Cassandra refuses to read them.
    pub async fn sweep(&mut self) -> Result<Sweep> {
        let began = self.now();
        let read = self.look().await;
        let held = read.map_err(|fault| self.cassandra.failed(fault, began))?;
        let mut sweep = Sweep::default();
        for session in self.due_sessions() {
            self.end(session, &mut sweep).await;
        }
        for held in held.iter().filter(|held| self.is_free(held)) {
            self.free(held, &mut sweep).await;
        }
        self.ended.retain(|session| held.iter().any(|held| held.session == *session));
        Ok(sweep)
    }

    fn now(&self) -> Instant {
        self.cassandra.runtime().clock.now()
    }

    /// Reads both tables, and begins or continues to watch their rows. Returns the tokens that are
    /// strays, or belong to a session that is due or was ended.
    async fn look(&mut self) -> Result<Vec<Held>, Fault> {
        let sessions = self.look_at_sessions().await?;
        let held = self.look_at_tokens(&sessions).await?;
        let now = self.now();
        let stray = |held: &&Held| !sessions.contains_key(&held.session);
        let since = |held: &Held| (held.clone(), self.strays.get(held).copied().unwrap_or(now));
        self.strays = held.iter().filter(stray).map(since).collect();
        self.sessions = sessions;
        Ok(held)
    }

    async fn look_at_sessions(&self) -> Result<BTreeMap<String, Watched>, Fault> {
        let TokenTables { times, beating, beat, .. } = &*self.tables;
        let watch = |row: Row| {
            let (session, stamp) = (row.text(beating)?.to_owned(), row.time_ms(beat));
            let watched = self.sessions.get(&session).filter(|there| there.stamp == stamp);
            // After the answer: what the page shows had been written by then.
            let watched = watched.copied().unwrap_or(Watched { stamp, since: self.now() });
            Some((session, watched))
        };
        let columns = [beating, beat];
        let sessions = self.parts_of_times.read(&self.cassandra, (times, &columns), watch).await?;
        Ok(sessions.into_iter().collect())
    }

    /// Leaves out tokens of live sessions: there are as many as locks.
    async fn look_at_tokens(
        &self,
        sessions: &BTreeMap<String, Watched>,
    ) -> Result<Vec<Held>, Fault> {
        let TokenTables { tokens, token, session, timestamp, .. } = &*self.tables;
        let lives = |session: &str| {
            let there = sessions.get(session);
            there.is_some_and(|there| !self.is_due(session, there.since))
        };
        let held = |row: Row| {
            let (token, session) = (row.text(token)?.to_owned(), row.text(session)?.to_owned());
            let stamp = row.time_ms(timestamp);
            (!lives(&session)).then_some(Held { token, session, stamp })
        };
        let columns = [token, session, timestamp];
        let mut held = self.parts_of_tokens.read(&self.cassandra, (tokens, &columns), held).await?;
        held.sort_unstable();
        Ok(held)
    }

    /// How long this session may stand without a beat: its own term if that is longer than the
    /// grace.
    fn grace_of(&self, session: &str) -> Duration {
        term_of(session).map_or(self.grace, |term| term.max(self.grace))
    }

    fn is_due(&self, session: &str, since: Instant) -> bool {
        self.now().saturating_since(since) >= self.grace_of(session)
    }

    fn due_sessions(&self) -> Vec<String> {
        let due = self.sessions.iter().filter(|(session, there)| self.is_due(session, there.since));
        due.map(|(session, _)| session.clone()).collect()
    }

    /// Whether a token's session was ended here, or the token has been a stray for the grace.
    fn is_free(&self, held: &Held) -> bool {
        let stray = self.strays.get(held);
        self.ended.contains(&held.session)
            || stray.is_some_and(|since| self.is_due(&held.session, *since))
    }

    /// Ends a session, if it has not beaten since: from here on it cannot. That makes its tokens
    /// free to remove, whatever its process may do when it wakes.
    async fn end(&mut self, session: String, sweep: &mut Sweep) {
        let Some(Watched { stamp, .. }) = self.sessions.get(&session).copied() else { return };
        let unchanged = (self.tables.beat.clone(), stamp.map(Value::Time));
        let delete = Action::DeleteIf { only_if: vec![unchanged] };
        match self.remove(self.session_row(&session, delete)).await {
            // This housekeeper clears up after the session, whichever housekeeper ended it.
            Removal::Done => {
                sweep.removed.push(Removed::Session { session: session.clone() });
            }
            Removal::Open if self.is_gone(&session).await => {
                sweep.removed.push(Removed::Session { session: session.clone() });
            }
            Removal::Open => {
                sweep.unanswered += 1;
                return;
            }
            // It has beaten, or another housekeeper ended it and clears up; the next look shows
            // which.
            Removal::Changed => {
                self.sessions.remove(&session);
                return;
            }
        }
        self.sessions.remove(&session);
        self.ended.insert(session);
    }

    /// Frees a token if session and timestamp are still those that were read.
    async fn free(&self, held: &Held, sweep: &mut Sweep) {
        // A foreign client's first heartbeat may be late, and its plain write may bring the session
        // back.
        if !self.is_gone(&held.session).await {
            return;
        }
        let TokenTables { session, timestamp, .. } = &*self.tables;
        let only_if = vec![
            (session.clone(), Some(Value::from(held.session.as_str()))),
            (timestamp.clone(), held.stamp.map(Value::Time)),
        ];
        match self.remove(self.token_row(held, Action::DeleteIf { only_if })).await {
            Removal::Done => sweep.removed.push(held.removed()),
            Removal::Open if self.has_left(held).await => sweep.removed.push(held.removed()),
            Removal::Open => sweep.unanswered += 1,
            Removal::Changed => {}
        }
    }

    /// Whether a token certainly no longer belongs to that session, by a read at SERIAL.
    async fn has_left(&self, held: &Held) -> bool {
        let TokenTables { session, timestamp, .. } = &*self.tables;
        let columns = vec![session.clone(), timestamp.clone()];
        let look = self.token_row(held, Action::SelectSerial { columns });
        let same = |row: &Row| {
            row.text(session) == Some(&held.session) && row.time_ms(timestamp) == held.stamp
        };
        let read = self.cassandra.tables().read(look).await;
        read.is_ok_and(|row| !row.as_ref().is_some_and(same))
    }

    async fn remove(&self, delete: Statement) -> Removal {
        match self.cassandra.tables().conditional(delete).await.1 {
            Ok(Conditional::Applied) => Removal::Done,
            Ok(Conditional::NotApplied(_)) => Removal::Changed,
            Err(_) => Removal::Open,
        }
    }

    /// Whether the session certainly does not exist, by a read at SERIAL.
    async fn is_gone(&self, session: &str) -> bool {
        let columns = vec![self.tables.beat.clone()];
        let look = self.session_row(session, Action::SelectSerial { columns });
        matches!(self.cassandra.tables().read(look).await, Ok(None))
    }

    fn token_row(&self, held: &Held, action: Action) -> Statement {
        let key = vec![(self.tables.token.clone(), Value::from(held.token.as_str()))];
        Statement::new(self.tables.tokens.clone(), key, action)
    }

    fn session_row(&self, session: &str, action: Action) -> Statement {
        let key = vec![(self.tables.beating.clone(), Value::from(session))];
        Statement::new(self.tables.times.clone(), key, action)
    }
}

impl fmt::Debug for Housekeeper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Housekeeper").field("grace", &self.grace).finish_non_exhaustive()
    }
}
