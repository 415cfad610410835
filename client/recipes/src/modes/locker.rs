//! A locker that moves from one store to the other.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use holdfast_mutants::mutant;
use holdfast_runtime::{Instant, select};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::compound_guard::CompoundGuard;
use super::failover_acquire::{FailoverAcquire, NativeStore, refuses_note};
use super::mode_row::ModeRow;
use super::scope::Rows;
use super::state::{InUse, Shared, State};
use super::{LockerMode, ModesTable, ScopeModes};
use crate::batch::Batch;
use crate::cassandra::{Cassandra, LockerOptions};
use crate::fallback::{Fallback, FallbackOptions};
use crate::lease::{Lease, LeaseTable, SequenceRows};
use crate::lock_task::passing;
use crate::locker::{NativeTerms, OnCassandra, Publishes, RemoteGuard, RemoteLocker, Wait};
use crate::locker_base::{LockerBase, Tries};
use crate::measures;
use crate::owner::Writer;
use holdfast::Client;

use crate::{Error, Result};

/// The longest pause between two tries to learn which cluster the scope is tied to.
const TIE_PAUSE_MAX: Duration = Duration::from_secs(2);

/// Locks in Cassandra, in both stores, or in the native one, and changes between them while locks are held; the
/// [module](crate::modes) explains why that is safe.
///
/// ```no_run
/// # async fn example(session: std::sync::Arc<scylla::client::session::Session>) -> holdfast::Result<()> {
/// use holdfast::Client;
/// use holdfast_recipes::{
///     Cassandra, Lease, LeaseTable, Locker, LockerMode, LockerOptions, RemoteLocker, SerialScope,
/// };
///
/// let cassandra = Cassandra::new(session, "locks", &SerialScope::Cluster)?;
/// let lease = Lease::new(&cassandra, &LockerOptions::default(), LeaseTable::default())?;
/// let client = Client::connect(["10.0.0.7:7420", "10.0.0.8:7420"]).await?;
///
/// // As before, but seen by whoever moves the scope: names that begin with `orders/`.
/// let locker = Locker::builder(&cassandra, "orders/", lease)
///     .native(client)
///     .start(LockerMode::Cassandra)
///     .await?;
/// let guard = locker.lock("orders/42").await?;
///
/// // Safe beside old clients, and beside processes that are further on. The guard goes on as it was taken; this
/// // returns when it is gone.
/// drop(guard);
/// locker.set_mode(LockerMode::Both).await?;
///
/// // Refused until the scope was moved: `holdfast-migrate cutover`, or `ScopeModes::advance`.
/// locker.set_mode(LockerMode::Native).await?;
/// let guard = locker.lock("orders/42").await?;
/// println!("held under token {:?}", guard.token());
/// guard.release().await
/// # }
/// ```
///
/// Cheap to clone. Its row in Cassandra is renewed as long as a clone, an attempt or a guard exists, and deleted after
/// that; [`Cassandra::settled`] waits for the deletion.
#[derive(Clone)]
pub struct Locker {
    pub(super) inner: Arc<Inner>,
    pub(super) life: Arc<DropGuard>,
}

pub(super) struct Inner {
    first: Arc<dyn RemoteLocker>,
    pub(super) elections: Option<Lease>,
    pub(super) sequences: SequenceRows,
    pub(super) native: Option<Arc<dyn NativeStore>>,
    /// The note of the native halves of locks in both stores.
    note: String,
    fallback: Option<Fallback>,
    pub(super) base: LockerBase,
    rows: Rows,
    modes: ScopeModes,
    pub(super) shared: Shared,
}

/// What a call asks of the stores.
#[derive(Clone, Copy)]
pub(super) enum Wish<'a> {
    /// The lock.
    Lock,
    /// The lead of the election of that name, with this value.
    Lead(&'a str),
}

/// A hold in one store, and where its holder tells others a value.
struct Part {
    guard: RemoteGuard,
    published: Option<Arc<dyn Publishes>>,
}

impl From<RemoteGuard> for Part {
    fn from(guard: RemoteGuard) -> Self {
        Self { guard, published: None }
    }
}

impl From<(RemoteGuard, Arc<dyn Publishes>)> for Part {
    fn from((guard, published): (RemoteGuard, Arc<dyn Publishes>)) -> Self {
        Self { guard, published: Some(published) }
    }
}

/// Builds a [`Locker`]; [`Locker::builder`] makes one.
#[must_use = "nothing is locked until it is started"]
pub struct LockerBuilder {
    cassandra: Cassandra,
    scope: String,
    first: Arc<dyn RemoteLocker>,
    native: Option<Arc<dyn NativeStore>>,
    fallback: FallbackOptions,
    table: ModesTable,
    leases: LeaseTable,
    row: LockerOptions,
}

impl LockerBuilder {
    /// Sets the native store. Without it [`LockerMode::Cassandra`] is the only mode.
    pub fn native(mut self, client: Client) -> Self {
        self.native = Some(Arc::new(client));
        self
    }

    /// Uses any locker as the native store.
    #[cfg(test)]
    pub(crate) fn native_like(mut self, locker: Arc<dyn NativeStore>) -> Self {
        self.native = Some(locker);
        self
    }

    /// How the scope falls back, for [`LockerMode::Fallback`]. Default: that of [`FallbackOptions`].
    pub fn fallback(mut self, options: FallbackOptions) -> Self {
        self.fallback = options;
        self
    }

    /// The table that contains the modes.
    pub fn table(mut self, table: ModesTable) -> Self {
        self.table = table;
        self
    }

    /// The tables that contain the sequences. Default: that of [`LeaseTable`].
    pub fn sequences(mut self, tables: LeaseTable) -> Self {
        self.leases = tables;
        self
    }

    /// The name of this process in the table, the TTL and the largest skew of its row, and how long a call that does
    /// not wait for a lock may take.
    ///
    /// A process that died blocks a move for the TTL plus the skew. An outage of Cassandra may last two thirds of what
    /// is certain of the TTL before guards are lost, native ones too. Bounds as of [`LockerOptions::ttl`]. Default: 15
    /// minutes, and a skew of 60 s.
    pub fn row(mut self, options: LockerOptions) -> Self {
        self.row = options;
        self
    }

    /// Enters the scope in `mode`, and returns when that is certain. Call it inside the runtime whose tasks then renew
    /// the row.
    ///
    /// Dropping the future leaves the scope again.
    ///
    /// # Errors
    ///
    /// [`Error::Refused`] if the scope's stage does not admit the mode, or the table does not exist; the message
    /// explains what to do. [`Error::Unreachable`] without an answer in time; [`Error::InvalidConfig`] if TTL and skew make
    /// no sense, or there is no native store for the mode. After an error no lock can be taken through this builder.
    pub async fn start(self, mode: LockerMode) -> Result<Locker> {
        self.row.timing()?;
        // A scope of all names has no fallback, whatever mode is requested later.
        let fallback = (!self.scope.is_empty())
            .then(|| Fallback::new(&self.cassandra, &self.scope, &self.fallback))
            .transpose()?;
        check_stores(self.native.is_some(), fallback.is_some(), mode)?;
        let rows = Rows::new(&self.cassandra, &self.scope, self.table.clone())?;
        let modes = ScopeModes::new(&self.cassandra, &self.scope, self.table)?;
        let writer = Writer::draw(&*self.cassandra.runtime().rng);
        let OnCassandra { locker: first, recipe, elections } =
            self.first.on_cassandra(&writer).ok_or_else(no_recipe)?;
        let sequences = SequenceRows::new(&self.cassandra, &self.leases);
        let base = LockerBase::new(&self.cassandra, &self.row)?.written_by(&writer);
        let process = base.owner().as_str().to_owned();
        let shared = Shared::new(&self.scope, mode);
        let over = CancellationToken::new();
        let life = Arc::new(over.clone().drop_guard());
        let mode_row =
            ModeRow::new(rows.clone(), (process, recipe), base.clone(), shared.clone(), over);
        base.runtime().spawn("holdfast-mode-row", mode_row.keep()).detach();
        let (native, note) = (self.native, writer.note());
        let inner = Inner {
            first,
            elections,
            sequences,
            native,
            note,
            fallback,
            base,
            rows,
            modes,
            shared,
        };
        let inner = Arc::new(inner);
        inner.seated(Some(inner.base.now() + inner.base.answer_limit)).await?;
        Ok(Locker { inner, life })
    }
}

impl fmt::Debug for LockerBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockerBuilder").field("scope", &self.scope).finish_non_exhaustive()
    }
}

impl Locker {
    /// Builds a locker for names that begin with `scope`, which may be empty, by `recipe` on Cassandra. All processes
    /// that lock a name have to use the same scope for it.
    pub fn builder(
        cassandra: &Cassandra,
        scope: &str,
        recipe: impl RemoteLocker + 'static,
    ) -> LockerBuilder {
        LockerBuilder {
            cassandra: cassandra.clone(),
            scope: scope.to_owned(),
            first: Arc::new(recipe),
            native: None,
            fallback: FallbackOptions::default(),
            table: ModesTable::default(),
            leases: LeaseTable::default(),
            row: LockerOptions::default().ttl(Duration::from_mins(15)),
        }
    }

    /// These locks, as a batch: those that are free are worked on first. It sends no statement yet; a lock named twice is locked once.
    pub fn batch<T: Into<String>>(&self, names: impl IntoIterator<Item = T>) -> Batch {
        Batch::of(Arc::new(self.clone()), &self.inner.base.cassandra, names)
    }

    /// The mode in which locks are requested now; `None` while the process has no row, and so takes no lock.
    pub fn mode(&self) -> Option<LockerMode> {
        self.inner.shared.get(State::acting)
    }

    /// Its scope, with its stage and processes.
    pub fn scope(&self) -> &ScopeModes {
        &self.inner.modes
    }

    /// Changes the mode, and returns when the process is in the new one and nothing is left of the old.
    ///
    /// Guards stay as they were taken. Until all guards and attempts of the old mode have ended, new locks are requested
    /// in both stores, which is compatible with all modes; waiting calls start again at the end of the queue. The way
    /// from `cassandra` to `native` (and back) leads through `both`. There the process waits for the last guard of the
    /// old mode, which alone excludes clients that lock only in that store.
    ///
    /// Dropping the future does not revert the change; requesting another mode does.
    ///
    /// # Errors
    ///
    /// [`Error::Refused`] if the scope's stage does not admit the mode: the process stays in the mode that it has
    /// reached, `both` if it was under way. The same if another mode was requested meanwhile. [`Error::InvalidConfig`] without
    /// a native store.
    pub async fn set_mode(&self, mode: LockerMode) -> Result<()> {
        check_stores(self.inner.native.is_some(), self.inner.fallback.is_some(), mode)?;
        let asked = self.inner.shared.change(|state| {
            state.asked += 1;
            state.wanted = mode;
            state.refused = None;
            let there = state.row.as_ref().is_some_and(|row| row.mode == mode);
            if there && state.changing.is_none() {
                state.answered = (state.asked, None);
            }
            state.asked
        });
        let mut seen = self.inner.shared.seen();
        let answered =
            seen.wait_for(|state| state.answered.0 >= asked || state.asked > asked).await;
        // The sender is in `self`.
        let answered = answered.map(|state| state.answered.clone());
        match answered {
            Ok((number, error)) if number == asked => error.map_or(Ok(()), Err),
            _ => Err(Error::invalid(format!("another mode than {mode} was asked for meanwhile"))),
        }
    }
}

impl Inner {
    /// Registers a use of the current mode, once there is a row.
    async fn enter(&self, life: &Arc<DropGuard>, deadline: Option<Instant>) -> Result<InUse> {
        loop {
            self.seated(deadline).await?;
            if let Some(used) = self.shared.enter(life)
                && used.standing.is_safe(&*self.base.runtime().clock)
            {
                return Ok(used);
            }
        }
    }

    /// Waits until there is a row that is certain.
    async fn seated(&self, deadline: Option<Instant>) -> Result<()> {
        let clock = self.base.runtime().clock.clone();
        let began = clock.now();
        let mut seen = self.shared.seen();
        let is_safe =
            |state: &State| state.row.as_ref().is_some_and(|row| row.safety.is_safe(&*clock));
        let seated = seen
            .wait_for(|state| is_safe(state) || (state.row.is_none() && state.refused.is_some()));
        select! {
            state = seated => match state.map(|state| state.refused.clone().filter(|_| !is_safe(&state))) {
                Ok(None) => Ok(()),
                Ok(Some(refused)) => Err(refused),
                Err(_) => Err(Error::Closed),
            },
            () = passing(deadline, &*clock) => {
                let last = self.shared.get(|state| format!("the process' row of modes: {}", state.trouble));
                Err(self.base.cassandra.unreachable(began, last))
            }
        }
    }

    /// A name in another scope is not this locker's.
    pub(super) fn check_scope(&self, what: &str, name: &str) -> Result<()> {
        if name.starts_with(&self.rows.scope) {
            return Ok(());
        }
        let [name, scope] = [name, &self.rows.scope].map(|text| text.escape_debug().to_string());
        Err(Error::invalid(format!(
            "the {what} \"{name}\" is not in the scope \"{scope}\" of this locker"
        )))
    }

    /// The guard, and where its holder tells others a value: in each store that has one.
    pub(super) async fn acquire(
        &self,
        life: &Arc<DropGuard>,
        lock_id: &str,
        wish: Wish<'_>,
        wait: Wait,
    ) -> Result<(RemoteGuard, Vec<Arc<dyn Publishes>>)> {
        self.check_scope("lock", lock_id)?;
        let clock = self.base.runtime().clock.clone();
        let mode = || self.shared.get(State::acting);
        let asking = measures::asking_in_scope(&self.rows.scope, clock, mode);
        let acquired = self.acquire_as_the_mode_is(life, lock_id, wish, wait).await;
        asking.end(&acquired);
        acquired
    }

    async fn acquire_as_the_mode_is(
        &self,
        life: &Arc<DropGuard>,
        lock_id: &str,
        wish: Wish<'_>,
        wait: Wait,
    ) -> Result<(RemoteGuard, Vec<Arc<dyn Publishes>>)> {
        let deadline = wait.limit(self.base.answer_limit).map(|limit| self.base.now() + limit);
        loop {
            let used = self.enter(life, deadline).await?;
            let (mode, standing) = (used.mode, used.standing.clone());
            let parts = select! {
                parts = self.acquire_in(mode, (lock_id, wish), wait, deadline) => Some(parts?),
                () = self.acts_otherwise_than(mode) => None,
                // The row may have ended and a new one of the same mode may have replaced it.
                _ = standing.lost() => None,
            };
            // Otherwise the attempt was abandoned; it starts again in the current mode.
            let Some(parts) = parts else { continue };
            let (parts, published): (Vec<_>, Vec<_>) =
                parts.into_iter().map(|part| (part.guard, part.published)).unzip();
            let joint = CompoundGuard::new(parts, Some(used), &self.base.cassandra);
            if let Some(joint) = joint {
                let service = self.base.signature.service();
                let guard = RemoteGuard::new(lock_id, service, Box::new(joint));
                return Ok((guard, published.into_iter().flatten().collect()));
            }
        }
    }

    async fn acts_otherwise_than(&self, mode: LockerMode) {
        // The sender is in `self`.
        let _ = self.shared.seen().wait_for(|state| state.acting() != Some(mode)).await;
    }

    /// The guards of one lock in the order in which they have to be released.
    async fn acquire_in(
        &self,
        mode: LockerMode,
        (lock_id, wish): (&str, Wish<'_>),
        wait: Wait,
        deadline: Option<Instant>,
    ) -> Result<Vec<Part>> {
        let native = || self.native.as_deref().ok_or_else(|| no_native(mode));
        let wait_left = || self.left(wait, deadline);
        let parts = match mode {
            LockerMode::Fallback if matches!(wish, Wish::Lead(_)) => return Err(no_value()),
            LockerMode::Fallback => {
                let fallback = self.fallback.as_ref().ok_or_else(no_prefix)?;
                let either =
                    FailoverAcquire { native: native()?, fallback, runtime: self.base.runtime() };
                let guard = either.acquire(lock_id, wait_left).await?;
                self.check_row_of(fallback)?;
                vec![guard.into()]
            }
            LockerMode::Cassandra => {
                return Ok(vec![self.ask_first((lock_id, wish), wait_left()).await?]);
            }
            LockerMode::Native => {
                let asked = (lock_id, wish);
                vec![ask_native(native()?, NativeTerms::default(), asked, wait_left()).await?]
            }
            LockerMode::Both => {
                self.acquire_both(native()?, (lock_id, wish), wait, deadline).await?
            }
        };
        // Dropping the guards gives them back.
        self.check_cluster(native()?, deadline).await?;
        Ok(parts)
    }

    /// Checks that the native store is the one that the scope is tied to; ties the scope to it, if it is tied to none. This
    /// accesses Cassandra only until this process knows the tie. A store that was not reached yet has granted nothing.
    pub(super) async fn check_cluster(
        &self,
        native: &dyn NativeStore,
        deadline: Option<Instant>,
    ) -> Result<()> {
        let Some(own) = native.cluster() else { return Ok(()) };
        let tied = match self.shared.get(|state| state.cluster.clone()) {
            Some(tied) => tied,
            None => self.tie_cluster(&own, deadline).await?,
        };
        self.rows.check_tie("cluster", &tied, &own)?;
        self.shared.change(|state| state.cluster = Some(tied));
        Ok(())
    }

    /// Checks that the native store is the one that the scope was tied to when a sequence was given to it; `false`: it is not known yet
    /// which one this is. Another cluster would begin the sequence at 1. So this makes no tie.
    pub(super) async fn check_given(&self, native: &dyn NativeStore, name: &str) -> Result<bool> {
        let Some(own) = native.cluster() else { return Ok(false) };
        let known = self.shared.get(|state| state.cluster.clone());
        let tied = match known {
            Some(tied) => Some(tied),
            None => self.modes.view().await?.cluster,
        };
        let Some(tied) = tied.or_else(|| mutant!(DrawTiesTheScope).then(|| own.clone())) else {
            let [name, scope] =
                [name, &self.rows.scope].map(|text| text.escape_debug().to_string());
            return Err(Error::invalid(format!(
                "the sequence \"{name}\" is in a native store, and the scope \"{scope}\" is tied to no cluster, so that nobody knows \
                 to which one it was given: `holdfast-migrate sequences --scope '{scope}' --to native` with the cluster that has it ties the scope"
            )));
        };
        self.rows.check_tie("cluster", &tied, &own)?;
        self.shared.change(|state| state.cluster = Some(tied));
        Ok(true)
    }

    /// Checks that the cluster that the scope is tied to keeps the authority row.
    fn check_row_of(&self, fallback: &Fallback) -> Result<()> {
        match (self.shared.get(|state| state.cluster.clone()), fallback.cluster()) {
            (Some(tied), Some(row)) => self.rows.check_tie("cluster", &tied, &row),
            _ => Ok(()),
        }
    }

    /// Tries for as long as the caller waits: when many processes lock for the first time, their LWTs on the one partition make each other fail.
    async fn tie_cluster(&self, own: &str, deadline: Option<Instant>) -> Result<String> {
        let began = self.base.now();
        let left = deadline.map_or(Duration::MAX, |deadline| deadline.saturating_since(began));
        let mut tries = Tries::new(&self.base.cassandra, left, TIE_PAUSE_MAX);
        select! {
            tied = tries.until_answered(|| self.rows.tie("cluster", own)) => tied,
            () = passing(deadline, &*self.base.runtime().clock) => {
                Err(tries.given_up())
            }
        }
    }

    /// The recipe's lock, then the native one. The first is kept while the call waits for the second; if the first is
    /// lost meanwhile, the call requests both again.
    async fn acquire_both(
        &self,
        native: &dyn NativeStore,
        asked: (&str, Wish<'_>),
        wait: Wait,
        deadline: Option<Instant>,
    ) -> Result<Vec<Part>> {
        if mutant!(BothTakesNativeAlone) {
            let wait = self.left(wait, deadline);
            return Ok(vec![ask_native(native, NativeTerms::default(), asked, wait).await?]);
        }
        loop {
            let first = self.ask_first(asked, self.left(wait, deadline)).await?;
            let second = self.ask_second(native, asked, || self.left(wait, deadline));
            select! {
                _ = first.guard.lost() => {}
                // Refused or too late: dropping the first gives it back.
                second = second => return Ok(vec![second?, first]),
            }
        }
    }

    /// The native half, with a note that says whose row is the other one. Where a server knows no notes it has none, and no row covers it
    /// in a rollback.
    async fn ask_second(
        &self,
        native: &dyn NativeStore,
        asked: (&str, Wish<'_>),
        wait: impl Fn() -> Wait,
    ) -> Result<Part> {
        let noted = NativeTerms { scope: None, note: Some(&self.note) };
        match ask_native(native, noted, asked, wait()).await {
            Err(error) if refuses_note(&error) => {
                ask_native(native, NativeTerms::default(), asked, wait()).await
            }
            second => second,
        }
    }

    async fn ask_first(&self, (name, wish): (&str, Wish<'_>), wait: Wait) -> Result<Part> {
        let Wish::Lead(value) = wish else {
            return Ok(self.first.acquire(name, wait).await?.into());
        };
        let elections = self.elections.as_ref().ok_or_else(no_value)?;
        let (guard, published) = elections.lead(name, value.to_owned(), wait).await?;
        let published: Arc<dyn Publishes> = Arc::new(published);
        Ok((guard, published).into())
    }

    /// What is left of the wait: one limit covers everything.
    fn left(&self, wait: Wait, deadline: Option<Instant>) -> Wait {
        wait.until(deadline, self.base.now())
    }
}

fn check_stores(native: bool, prefix: bool, mode: LockerMode) -> Result<()> {
    match mode {
        LockerMode::Cassandra => Ok(()),
        _ if !native => Err(no_native(mode)),
        LockerMode::Fallback if !prefix => Err(no_prefix()),
        LockerMode::Both | LockerMode::Native | LockerMode::Fallback => Ok(()),
    }
}

async fn ask_native(
    native: &dyn NativeStore,
    terms: NativeTerms<'_>,
    (name, wish): (&str, Wish<'_>),
    wait: Wait,
) -> Result<Part> {
    match wish {
        Wish::Lock => Ok(native.acquire_on(terms, name, wait).await?.into()),
        Wish::Lead(value) => Ok(native.lead(terms, (name, value.to_owned()), wait).await?.into()),
    }
}

/// An election, in rows that keep no value.
fn no_value() -> Error {
    Error::invalid(
        "elections need a value beside the lock, which in Cassandra only the recipe lease keeps, and no hold of a scope in mode \
         fallback"
            .to_owned(),
    )
}

fn no_recipe() -> Error {
    let message = "a Locker stands on one of this crate's recipes on Cassandra, or on what hands one on \
                   (RemoteLocker::on_cassandra)";
    Error::InvalidConfig { message: message.to_owned() }
}

fn no_prefix() -> Error {
    let message = "mode fallback needs a scope that is a prefix of names, not all names".to_owned();
    Error::InvalidConfig { message }
}

fn no_native(mode: LockerMode) -> Error {
    let message = format!("mode {mode} needs a native client (LockerBuilder::native)");
    Error::InvalidConfig { message }
}

impl RemoteLocker for Locker {
    fn acquire<'a>(&'a self, lock_id: &'a str, wait: Wait) -> BoxFuture<'a, Result<RemoteGuard>> {
        Box::pin(async move {
            let acquired = self.inner.acquire(&self.life, lock_id, Wish::Lock, wait).await;
            acquired.map(|(guard, _)| guard)
        })
    }
}

impl fmt::Debug for Locker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Locker")
            .field("scope", &self.inner.rows.scope)
            .field("mode", &self.mode())
            .finish_non_exhaustive()
    }
}
