//! The guard of a hold.

use std::fmt;
use std::future::Future;
use std::sync::Arc;

use bytes::Bytes;
use holdfast_runtime::Clock;
use tokio_util::sync::CancellationToken;

use crate::client::Handle;
use crate::contention::Contentions;
use crate::hold::Hold;
use crate::session::Key;
use crate::value::Change;
use crate::{FencingToken, GuardState, GuardStates, LostReason, Mode, Result, Value};
use holdfast_guard::{Safety, run_while};

/// A hold of one lock, or of several that were granted together under one token.
///
/// Dropping a guard releases its locks without waiting; [`Guard::release`] waits for the store's
/// answer. A guard outlives broken connections, changes of leader and every clone of its client.
///
/// Safe ([`Guard::is_safe`]) means: no other client holds the lock or is granted it (other than
/// shared, if this guard shares it) before this guard's safe deadline, which moves on as keepalives
/// are answered. A guard that stopped being safe never becomes safe again. No lock can hold back
/// what a process does after its check (a write on its way, a pause of the whole machine): give the
/// resource the [`Guard::token`] and let it refuse older ones.
#[must_use = "dropping a guard gives its lock back at once"]
pub struct Guard {
    pub(crate) hold: Arc<Hold>,
    pub(crate) key: Key,
    pub(crate) handle: Arc<Handle>,
}

impl Guard {
    /// The lock's name; of several, the first that was granted, in the order of the request. It
    /// stays the same when [`Guard::release_names`] releases that lock.
    pub fn name(&self) -> &str {
        self.hold.first().map(|lock| &*lock.name).unwrap_or_default()
    }

    /// The names of all locks it holds, in the order of the request. Names that
    /// [`Guard::release_names`] has released are left out.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.hold.held().map(|lock| &*lock.name)
    }

    /// Whether this guard holds the lock `name`, and certainly holds it now.
    pub fn holds(&self, name: &str) -> bool {
        self.is_safe() && self.hold.lock(name).is_some()
    }

    /// One of its locks: its mode and its value. A name that is not a lock of this guard is no
    /// error here; the calls on it say so.
    ///
    /// ```no_run
    /// # async fn example(client: holdfast::Client) -> holdfast::Result<()> {
    /// let guard = client.lock_all(["accounts/7", "accounts/9"]).await?;
    /// guard.lock("accounts/9").set_value("12.50").await?;
    /// # Ok(()) }
    /// ```
    pub fn lock<'a>(&'a self, name: &'a str) -> GuardedLock<'a> {
        GuardedLock { guard: self, name }
    }

    /// The grant's fencing token.
    pub fn token(&self) -> FencingToken {
        self.hold.token
    }

    /// Whether the lock, or all of several, is certainly held now. This is a clock read against an
    /// atomic, or two of them in a scope with fallback: cheap enough for a check before every
    /// write. The clock counts time in which the machine was suspended. Once false, it stays false.
    pub fn is_safe(&self) -> bool {
        self.safety().is_safe(self.clock())
    }

    /// For the lockers of `holdfast-recipes`.
    #[doc(hidden)]
    pub fn safety(&self) -> &Safety {
        &self.hold.safety
    }

    /// For the lockers of `holdfast-recipes`.
    #[doc(hidden)]
    pub fn clock(&self) -> &dyn Clock {
        &*self.handle.session.runtime.clock
    }

    /// The hold's state. A thread of its own updates it, so also while the executor stalls;
    /// [`Guard::is_safe`] turns false earlier by the time that thread takes.
    pub fn state(&self) -> GuardState {
        self.safety().state()
    }

    /// Waits for the next change of the state, and returns the state then; a later safe deadline is
    /// a change. Returns at once if the hold is over. Cancel safe.
    pub async fn changed(&self) -> GuardState {
        self.states().changed().await
    }

    /// The hold's state over time, for a task beside this one: it misses no change, and outlives the
    /// guard.
    pub fn states(&self) -> GuardStates {
        self.safety().states()
    }

    /// How much longer the lock is certainly held if no further answer of the store arrives; zero
    /// if it is not safe now.
    pub fn safe_for(&self) -> std::time::Duration {
        let until = if self.is_safe() { self.state().safe_until() } else { None };
        until.map(|until| until.saturating_since(self.clock().now())).unwrap_or_default()
    }

    /// Waits until the lock is lost. Cancel safe.
    pub async fn lost(&self) -> LostReason {
        self.hold.safety.lost().await
    }

    /// What an operator gave as the reason, if the lock was lost because an operator took it away
    /// ([`LostReason::Forced`], [`LostReason::SessionRevoked`]). It may contain any characters: escape it
    /// before it goes to a terminal.
    pub fn why_taken(&self) -> Option<String> {
        self.states().why_taken()
    }

    /// A token that is cancelled when the lock is not safe any more, for work that takes a
    /// cancellation token. Cancelling it does nothing to the lock.
    pub fn cancellation_token(&self) -> CancellationToken {
        self.hold.safety.cancelled().child_token()
    }

    /// Runs `work` while the lock is safe, and drops it at its current await point when the lock is
    /// not.
    ///
    /// Dropping the returned future drops `work`; the lock stays held.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`](crate::Error::Lost) if the lock stopped being safe before `work` was done.
    /// The caller has to find out how far `work` came.
    pub async fn run<F: Future>(&self, work: F) -> Result<F::Output> {
        run_while(|| self.is_safe(), self.lost(), work).await
    }

    /// Tells when others wait for one of the locks: how many, and the largest head start among them. For
    /// holders that finish early, or lend a lock out.
    ///
    /// It yields at once what the store has told since the grant, the last of each lock; then, for each lock,
    /// when somebody begins to wait, and when somebody comes with a larger head start than all who wait. Of
    /// more than 64 holders of a lock each is told once, until nobody waits. It ends when the hold is over.
    /// That nobody waits any more is not told: [`Reader::inspect`](crate::Reader::inspect) shows who does.
    ///
    /// ```no_run
    /// # async fn example(guard: holdfast::Guard) {
    /// let mut contended = guard.contended();
    /// while let Some(others) = contended.next().await {
    ///     println!("{} wait for {}", others.waiting, others.name);
    /// }
    /// # }
    /// ```
    pub fn contended(&self) -> Contentions {
        self.hold.contended()
    }

    /// The value that the last holder left with the lock [`Guard::name`], as it came with the
    /// grant, or as this guard has set it since.
    ///
    /// ```no_run
    /// # async fn example(client: holdfast::Client) -> holdfast::Result<()> {
    /// let guard = client.lock("import").await?;
    /// let done: u64 = match guard.value() {
    ///     Some(value) if !value.is_suspect => {
    ///         String::from_utf8_lossy(&value.bytes).parse().unwrap_or(0)
    ///     }
    ///     // Nobody left a value, or its holder died: look at the work itself.
    ///     _ => 0,
    /// };
    /// // … import what comes after `done` …
    /// guard.set_value((done + 1).to_string()).await?;
    /// guard.release().await?;
    /// # Ok(()) }
    /// ```
    pub fn value(&self) -> Option<Value> {
        self.lock(self.name()).value()
    }

    /// Replaces the value of the lock [`Guard::name`]: at most 4 KiB; an empty value is a value
    /// too. Returns when the change is committed. The value outlives the hold and goes to the next
    /// holder with the grant; if this hold ends without a release, the store marks it as suspect.
    ///
    /// The client sends the change again after outages and changes of leader; the store makes it
    /// once.
    ///
    /// Dropping the future leaves open whether the store makes the change.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`](crate::Error::Lost): the hold was over before the change was sent; the value
    /// is unchanged. [`Error::OutcomeUnknown`](crate::Error::OutcomeUnknown): the hold ended while
    /// the change was on its way, or no answer came within the session's TTL; the value at the next
    /// grant shows the outcome. [`Error::Refused`](crate::Error::Refused): the value is too large,
    /// a limit of the store is reached, or the lock is shared; the value is unchanged.
    pub async fn set_value(&self, bytes: impl Into<Bytes>) -> Result<()> {
        self.lock(self.name()).set_value(bytes).await
    }

    /// Removes the value of the lock [`Guard::name`]. A lock without a value is no error.
    ///
    /// # Errors
    ///
    /// As of [`Guard::set_value`].
    pub async fn clear_value(&self) -> Result<()> {
        self.lock(self.name()).clear_value().await
    }

    /// Clears the suspect mark of the value of the lock [`Guard::name`] and leaves its bytes as
    /// they are: this holder has checked the value.
    ///
    /// # Errors
    ///
    /// As of [`Guard::set_value`]; [`Error::Refused`](crate::Error::Refused) too if there is none.
    pub async fn confirm_value(&self) -> Result<()> {
        self.lock(self.name()).confirm_value().await
    }

    async fn change_value(&self, name: &str, change: Change) -> Result<()> {
        self.handle.session.change_value(self.key, &self.hold, name, change).await
    }

    /// Releases some of several locks and waits for the store's answer; the others stay held. An
    /// empty list releases nothing; all names are the same as [`Guard::release`]. From the first
    /// poll on, this guard does not hold the named locks.
    ///
    /// ```no_run
    /// # async fn example(client: holdfast::Client) -> holdfast::Result<()> {
    /// let guard = client.lock_all(["a", "b", "c"]).await?;
    /// // … done with two of them …
    /// guard.release_names(["a", "b"]).await?;
    /// assert!(guard.names().eq(["c"]));
    /// # Ok(()) }
    /// ```
    ///
    /// If the future is dropped, the client releases the locks in the background.
    ///
    /// # Errors
    ///
    /// [`Error::Refused`](crate::Error::Refused) if one of the names is not a lock of this guard;
    /// then nothing is released. Otherwise as of [`Guard::release`].
    pub async fn release_names(&self, names: impl IntoIterator<Item: AsRef<str>>) -> Result<()> {
        let names: Vec<Arc<str>> = names.into_iter().map(|name| name.as_ref().into()).collect();
        if names.is_empty() {
            return Ok(());
        }
        self.handle.session.release_names(self.key, &self.hold, &names).await
    }

    /// Releases all its locks and waits for the store's answer. The guard is unsafe from the first
    /// poll on.
    ///
    /// If the future is dropped, the client releases the locks in the background.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`](crate::Error::Lost): the hold was over before; another client may have held
    /// the lock since. [`Error::OutcomeUnknown`](crate::Error::OutcomeUnknown): no answer came
    /// within the session's TTL; the client goes on releasing in the background.
    pub async fn release(self) -> Result<()> {
        self.handle.session.release(self.key, &self.hold).await
    }
}

/// One lock of a [`Guard`], by its name: [`Guard::lock`].
#[derive(Clone, Copy, Debug)]
pub struct GuardedLock<'a> {
    guard: &'a Guard,
    name: &'a str,
}

impl GuardedLock<'_> {
    /// The mode; `None` if this is not a lock of the guard.
    pub fn mode(self) -> Option<Mode> {
        self.guard.hold.lock(self.name).map(|lock| lock.mode)
    }

    /// As [`Guard::value`]; `None` too if this is not a lock of the guard.
    pub fn value(self) -> Option<Value> {
        self.guard.hold.lock(self.name)?.value()
    }

    /// As [`Guard::set_value`].
    ///
    /// # Errors
    ///
    /// As of [`Guard::set_value`]; [`Error::Refused`](crate::Error::Refused) too if this is not a
    /// lock of the guard.
    pub async fn set_value(self, bytes: impl Into<Bytes>) -> Result<()> {
        self.guard.change_value(self.name, Change::set(bytes.into())?).await
    }

    /// As [`Guard::clear_value`].
    ///
    /// # Errors
    ///
    /// As of [`GuardedLock::set_value`].
    pub async fn clear_value(self) -> Result<()> {
        self.guard.change_value(self.name, Change::Clear).await
    }

    /// As [`Guard::confirm_value`].
    ///
    /// # Errors
    ///
    /// As of [`GuardedLock::set_value`]; [`Error::Refused`](crate::Error::Refused) too if there is
    /// no value.
    pub async fn confirm_value(self) -> Result<()> {
        self.guard.change_value(self.name, Change::Confirm).await
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        // After a release this finds nothing left to give back.
        self.handle.session.give_back(self.key);
    }
}

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guard")
            .field("names", &self.names().collect::<Vec<_>>())
            .field("token", &self.token().get())
            .field("state", &self.state())
            .finish_non_exhaustive()
    }
}
