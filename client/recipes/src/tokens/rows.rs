//! The rows of `tokens` that one session wants, and the steps of one attempt.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures_util::StreamExt as _;
use futures_util::stream;
use holdfast_mutants::mutant;

use super::TokenTables;
use super::session::{Beat, SessionRow};
use crate::database::{Conditional, Fault, Row, Tables};
use crate::lock_task::{Attempt, Left, Reached, Renewal};
use crate::locker_base::{LockerBase, Stamps};
use crate::statement::{Action, Cells, Statement, Value};

/// How many statements of one attempt are under way at once.
const AT_ONCE: usize = 16;
/// After how many tokens an attempt checks whether a heartbeat is due.
const BEAT_AFTER: usize = 64;

/// The tokens that an attempt has. The attempt fills it until it has the lock; then the caller
/// reads it.
#[derive(Clone, Default)]
pub(super) struct Had(Arc<Mutex<Vec<String>>>);

impl Had {
    fn lock(&self) -> MutexGuard<'_, Vec<String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn all(&self) -> Vec<String> {
        self.lock().clone()
    }
}

/// One session, and the tokens that it wants. One token for a lock, many for a batch.
pub(super) struct TokenRows {
    base: LockerBase,
    columns: Arc<TokenTables>,
    stamps: Arc<Stamps>,
    session: SessionRow,
    wanted: Vec<String>,
    had: Had,
    /// Of the other tokens: those that a statement under way or without an answer may give to this
    /// session.
    open: BTreeSet<String>,
    /// Those whose delete was sent and not answered.
    delete_open: BTreeSet<String>,
    has_had: bool,
    /// The session has lost one of its tokens to another session or to a delete.
    robbed: bool,
}

enum Seen {
    Free,
    Ours,
    Theirs(Option<String>),
}

impl TokenRows {
    pub(super) fn new(base: &LockerBase, columns: &Arc<TokenTables>, wanted: Vec<String>) -> Self {
        let stamps = Arc::new(Stamps::millis(base.runtime().clock.clone()));
        Self {
            base: base.clone(),
            columns: columns.clone(),
            session: SessionRow::new(base, columns, &stamps),
            stamps,
            wanted,
            had: Had::default(),
            open: BTreeSet::new(),
            delete_open: BTreeSet::new(),
            has_had: false,
            robbed: false,
        }
    }

    /// The tokens that it has; complete once the attempt has succeeded.
    pub(super) fn had(&self) -> Had {
        self.had.clone()
    }

    fn tables(&self) -> &Tables {
        self.base.cassandra.tables()
    }

    fn statement(&self, token: &str, action: Action) -> Statement {
        let key = vec![(self.columns.token.clone(), Value::from(token))];
        Statement::new(self.columns.tokens.clone(), key, action)
    }

    fn owned(&self) -> Cells {
        let session = Value::from(self.session.id.as_str());
        vec![(self.columns.session.clone(), Some(session))]
    }

    /// "read token", at SERIAL.
    async fn look(&self, token: &str) -> Result<Seen, Fault> {
        let columns = vec![self.columns.session.clone()];
        let row =
            self.tables().read(self.statement(token, Action::SelectSerial { columns })).await?;
        Ok(self.seen(row))
    }

    fn seen(&self, row: Option<Row>) -> Seen {
        let Some(row) = row else { return Seen::Free };
        match row.text(&self.columns.session) {
            Some(session) if session == self.session.id.as_str() => Seen::Ours,
            session => Seen::Theirs(session.map(str::to_owned)),
        }
    }

    /// "write `service_session_id` on token IF token not exists #LWT". Returns also whether the insert may be applied, or be
    /// applied later, without the row having been seen.
    async fn insert(&self, token: &str) -> (Result<Seen, Fault>, bool) {
        let mut cells = self.owned();
        cells.push((self.columns.timestamp.clone(), Some(Value::Time(self.stamps.next()))));
        let insert = self.statement(token, Action::InsertIfAbsent { cells, ttl_s: None });
        let certain = match self.tables().conditional(insert).await.1 {
            Ok(Conditional::Applied) => Ok(Seen::Ours),
            Ok(Conditional::NotApplied(row)) => Ok(match self.seen(row) {
                // The row exists but shows no cell.
                Seen::Free => Seen::Theirs(None),
                seen => seen,
            }),
            // "read token; if token.service_session_id == service_session_id": the article always
            // reads, and here that is needed. The token counts as had, because it stands as long as the
            // session does.
            Err(Fault::Unknown(_)) => {
                let seen = self.look(token).await;
                let is_open = match &seen {
                    Ok(Seen::Ours | Seen::Theirs(_)) => false,
                    Err(Fault::NotDone(_)) if mutant!(UnreadInsertForgotten) => false,
                    _ => true,
                };
                return (seen, is_open);
            }
            Err(fault) => Err(fault),
        };
        (certain, false)
    }

    /// One round over these tokens. Returns the owner of one of the others, or why it is unknown.
    async fn take(&mut self, tokens: &[String]) -> Result<Option<Reached>, Fault> {
        let mut denied = None;
        let mut free = Vec::new();
        // Waiters read: an insert that is bound to fail makes inserts of other clients fail.
        let looks = tokens.iter().map(|token| self.look(token)).collect();
        for (token, seen) in tokens.iter().zip(a_few_at_once(looks).await) {
            match seen {
                Ok(Seen::Free) => free.push(token.clone()),
                // A coordinator whose answer was not awaited has inserted it.
                Ok(Seen::Ours) => self.note_had(token),
                other => note_denied(&mut denied, other),
            }
        }
        if !free.is_empty() && self.is_beat_due() {
            self.beat().await?;
        }
        let may_have_been_ours = self.open.clone();
        self.open.extend(free.iter().cloned());
        let inserts = free.iter().map(|token| self.insert(token)).collect();
        for (token, (seen, is_open)) in free.iter().zip(a_few_at_once(inserts).await) {
            if !is_open && !may_have_been_ours.contains(token) {
                self.open.remove(token);
            }
            match seen {
                Ok(Seen::Ours) => self.note_had(token),
                other => note_denied(&mut denied, other),
            }
        }
        denied.transpose()
    }

    fn note_had(&mut self, token: &str) {
        self.open.remove(token);
        self.has_had = true;
        self.had.lock().push(token.to_owned());
    }

    fn is_beat_due(&self) -> bool {
        let is_due = |beaten| self.base.now() >= self.base.timing.renew_at(beaten);
        self.session.beaten.is_none_or(is_due)
    }

    async fn beat(&mut self) -> Result<(), Fault> {
        match self.session.beat(&self.had.all()).await? {
            Beat::Applied(_) => Ok(()),
            Beat::Over => Err(Fault::NotDone("the session was ended by a housekeeper".into())),
        }
    }

    /// Starts over with a new session: a housekeeper ended the old one before the attempt
    /// succeeded. All tokens of the old session are released first.
    async fn begin_anew(&mut self) -> Result<(), Fault> {
        self.give_back().await?;
        self.had.lock().clear();
        self.session = SessionRow::new(&self.base, &self.columns, &self.stamps);
        (self.has_had, self.robbed) = (false, false);
        Ok(())
    }

    /// Releases the tokens first: as long as the session's row exists, no housekeeper takes them for
    /// stray.
    async fn give_back(&mut self) -> Result<(), Fault> {
        let had = self.had.all();
        let mut failed = Ok(());
        let all: BTreeSet<String> = had.iter().chain(&self.open).cloned().collect();
        let deletes = all.iter().map(|token| self.delete(token)).collect();
        for (token, deleted) in all.iter().zip(a_few_at_once(deletes).await) {
            let was_open = self.delete_open.contains(token);
            match deleted {
                Ok(Conditional::Applied) => {}
                // An earlier delete of unknown outcome removed it.
                Ok(Conditional::NotApplied(_)) if was_open => {}
                Ok(Conditional::NotApplied(_)) => self.robbed |= had.contains(token),
                Err(fault) => {
                    if let Fault::Unknown(_) = fault {
                        self.delete_open.insert(token.clone());
                    }
                    failed = Err(fault);
                    continue;
                }
            }
            self.open.remove(token);
            self.had.lock().retain(|had| had != token);
        }
        failed?;
        self.session.end().await
    }

    /// "delete token". The article's delete has no condition: it removes whatever the row contains, by
    /// timestamps that are not those of the insert.
    async fn delete(&self, token: &str) -> Result<Conditional, Fault> {
        let delete = Action::DeleteIf { only_if: self.owned() };
        self.tables().conditional(self.statement(token, delete)).await.1
    }
}

/// The results of all futures, in their order.
async fn a_few_at_once<F: Future>(acts: Vec<F>) -> Vec<F::Output> {
    stream::iter(acts).buffered(AT_ONCE).collect().await
}

/// Keeps the report for an attempt that gets nothing: a refusal first, then the owner of a token,
/// then the reason why the owner is unknown.
fn note_denied(denied: &mut Option<Result<Reached, Fault>>, seen: Result<Seen, Fault>) {
    let said = match seen {
        Ok(Seen::Theirs(owner)) => Ok(Reached::HeldBy { owner, again: None }),
        // The insert was not applied, or is applied later: then a later look finds this session's
        // own id.
        Ok(Seen::Free | Seen::Ours) => Err(Fault::NotDone("the insert was not applied".into())),
        Err(fault) => Err(fault),
    };
    let weight = |said: &Result<Reached, Fault>| match said {
        Err(Fault::Refused(_)) => 2,
        Ok(_) => 1,
        Err(_) => 0,
    };
    if denied.as_ref().is_none_or(|denied| weight(&said) > weight(denied)) {
        *denied = Some(said);
    }
}

impl Attempt for TokenRows {
    const RECIPE: &'static str = super::SPEC.name;

    /// Batches want different tokens each.
    fn takes_turns(&self) -> bool {
        self.wanted.len() == 1
    }

    /// "the service would try and lock the remaining keys": one round over all tokens that it does not
    /// have. The attempt succeeds if it has one of them.
    async fn advance(&mut self) -> Result<Reached, Fault> {
        if self.session.over {
            self.begin_anew().await?;
        }
        // A waiter beats too: its session is not dead.
        if self.session.beaten.is_some() && self.is_beat_due() {
            self.beat().await?;
        }
        let had = self.had.all();
        let left: Vec<String> =
            self.wanted.iter().filter(|token| !had.contains(token)).cloned().collect();
        let mut denied = None;
        for tokens in left.chunks(BEAT_AFTER) {
            match self.take(tokens).await {
                Ok(said) => denied = denied.or(said),
                Err(refused @ Fault::Refused(_)) => return Err(refused),
                Err(fault) if self.had.lock().is_empty() => return Err(fault),
                Err(_) => break,
            }
        }
        if self.had.lock().is_empty() {
            let nothing = Fault::NotDone("nothing was asked for".into());
            return denied.ok_or(nothing);
        }
        if self.is_beat_due() {
            self.beat().await?;
        }
        let unbeaten = Fault::NotDone("the session has no heartbeat".into());
        self.session.beaten.map(|started| Reached::Hold { started }).ok_or(unbeaten)
    }

    async fn renew(&mut self) -> Renewal {
        match self.session.beat(&self.had.all()).await {
            Ok(Beat::Applied(started)) => Renewal::Applied(started),
            Ok(Beat::Over) => Renewal::Gone,
            Err(_) => Renewal::Unknown,
        }
    }

    async fn give_back(&mut self) -> Result<Left, Fault> {
        self.give_back().await?;
        Ok(if self.has_had && !self.robbed { Left::Released } else { Left::NotHad })
    }
}
