//! Elections: the holder of a lock leads, and proclaims what it wants others to know as the lock's value.
//!
//! There is no command for them: a campaign is a request for the lock, a proclamation sets its value, resigning
//! releases it, and observers watch it (DESIGN §16). So everything that holds for locks holds for leaders.

mod leaders;

use std::fmt;
use std::future::{Future, IntoFuture};
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt as _;
use holdfast_runtime::BoxFuture;
use tokio_util::sync::CancellationToken;

use crate::acquire::Acquire;
use crate::{
    Client, FencingToken, Guard, GuardState, LockInfo, LostReason, Mode, Reader, Result, Value,
};
use holdfast_guard::Holder;
pub use leaders::{LeaderEvent, Leaders};

/// An election, of which at most one candidate is the leader: [`Client::election`]. Cheap to clone.
///
/// ```no_run
/// # async fn example(client: holdfast::Client) -> holdfast::Result<()> {
/// let election = client.election("scheduler");
/// let leadership = election.campaign("10.0.0.1:8080").await?;
/// // The work is dropped where it stands when somebody else could be elected.
/// leadership.run(async { /* … */ }).await?;
/// leadership.resign().await?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Election {
    client: Client,
    name: String,
}

/// The leader of an election, as the store reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Leader {
    /// What it proclaims. It may contain anything: escape it before it goes to a terminal.
    pub value: Bytes,
    /// Its hold of the lock. The token is larger than those of all leaders before it.
    pub holder: Holder,
}

impl Leader {
    /// The leader of an election whose lock has this holder and this value. A holder leads once it has proclaimed
    /// something: until then the value is that of a leader before it.
    fn of(holder: Option<&Holder>, value: Option<&Value>) -> Option<Self> {
        let (holder, value) = (holder?, value?);
        let is_its_own = value.token == holder.token && holder.mode == Mode::Exclusive;
        is_its_own.then(|| Self { value: value.bytes.clone(), holder: holder.clone() })
    }

    pub(crate) fn of_lock(lock: &LockInfo) -> Option<Self> {
        Self::of(lock.holders.first(), lock.value.as_ref())
    }
}

impl Election {
    pub(crate) fn new(client: Client, name: String) -> Self {
        Self { client, name }
    }

    /// Its name, which is that of its lock.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Stands for election: awaiting it waits in line, takes the lead, and proclaims `value` (at most 4 KiB), such
    /// as the address at which others reach the leader.
    pub fn campaign(&self, value: impl Into<Bytes>) -> Campaign {
        Campaign { acquire: self.client.lock(self.name.clone()), value: value.into() }
    }

    /// The present leader, as of a linearizable read; `None` while no candidate has been elected and has proclaimed something.
    ///
    /// # Errors
    ///
    /// As of [`Reader::inspect`].
    pub async fn leader(&self) -> Result<Option<Leader>> {
        self.client.reader().leader(&self.name).await
    }

    /// Every leader from now on, beginning with the present one. See [`Leaders`].
    pub fn observe(&self) -> Leaders {
        self.client.reader().leaders(&self.name)
    }
}

impl Reader {
    /// As [`Election::leader`], without a session.
    ///
    /// # Errors
    ///
    /// As of [`Reader::inspect`].
    pub async fn leader(&self, election: &str) -> Result<Option<Leader>> {
        Ok(self.inspect(election).await?.as_ref().and_then(Leader::of_lock))
    }

    /// As [`Election::observe`], without a session.
    pub fn leaders(&self, election: &str) -> Leaders {
        Leaders::new(self.watch(election), election.to_owned())
    }
}

/// A candidacy that is not begun yet: `.await` waits in line and returns the leadership.
///
/// Cancel safe: dropping it ends the candidacy; a lead that crosses it is given back.
///
/// # Errors
///
/// Those of an [`Acquire`]: the caller does not lead. Those of [`Guard::set_value`], if the lead was lost before the
/// value was proclaimed, or the value was refused: it is given back.
#[must_use = "nobody stands for election until it is awaited"]
pub struct Campaign {
    acquire: Acquire,
    value: Bytes,
}

impl Campaign {
    /// Gives up after `limit`, as [`Acquire::wait`].
    pub fn wait(self, limit: Duration) -> Self {
        Self { acquire: self.acquire.wait(limit), ..self }
    }

    /// As [`Acquire::traceparent`].
    pub fn traceparent(self, traceparent: &str) -> Self {
        Self { acquire: self.acquire.traceparent(traceparent), ..self }
    }
}

impl IntoFuture for Campaign {
    type Output = Result<Leadership>;
    type IntoFuture = BoxFuture<'static, Result<Leadership>>;

    fn into_future(self) -> Self::IntoFuture {
        let Self { acquire, value } = self;
        async move {
            let guard = acquire.await?;
            let before = guard.value();
            guard.set_value(value).await?;
            Ok(Leadership { guard, before })
        }
        .boxed()
    }
}

impl fmt::Debug for Campaign {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Campaign").field("acquire", &self.acquire).finish_non_exhaustive()
    }
}

/// The lead of an election, for as long as its [`Guard`] is safe. Dropping it resigns without waiting.
///
/// Safe means what it means for a guard: no other leader is elected before this one's safe deadline. Give
/// [`Leadership::token`] to what the leader writes to, so that a write of a leader that was replaced is refused.
#[must_use = "dropping it resigns at once"]
#[derive(Debug)]
pub struct Leadership {
    guard: Guard,
    before: Option<Value>,
}

impl Leadership {
    /// Tells others something new: at most 4 KiB. Returns when it is committed.
    ///
    /// # Errors
    ///
    /// As of [`Guard::set_value`].
    pub async fn proclaim(&self, value: impl Into<Bytes>) -> Result<()> {
        self.guard.set_value(value).await
    }

    /// Lets the next candidate lead, and waits for the store's answer. The proclaimed value stays, for the next
    /// leader to see.
    ///
    /// # Errors
    ///
    /// As of [`Guard::release`].
    pub async fn resign(self) -> Result<()> {
        self.guard.release().await
    }

    /// What the leader before this one has proclaimed last, if there was one; suspect if it died.
    pub fn predecessor(&self) -> Option<&Value> {
        self.before.as_ref()
    }

    /// The fencing token: larger than those of all leaders before.
    pub fn token(&self) -> FencingToken {
        self.guard.token()
    }

    /// As [`Guard::is_safe`].
    pub fn is_safe(&self) -> bool {
        self.guard.is_safe()
    }

    /// As [`Guard::state`].
    pub fn state(&self) -> GuardState {
        self.guard.state()
    }

    /// As [`Guard::lost`].
    pub async fn lost(&self) -> LostReason {
        self.guard.lost().await
    }

    /// As [`Guard::cancellation_token`].
    pub fn cancellation_token(&self) -> CancellationToken {
        self.guard.cancellation_token()
    }

    /// Runs `work` while it leads, as [`Guard::run`].
    ///
    /// # Errors
    ///
    /// As of [`Guard::run`].
    pub async fn run<F: Future>(&self, work: F) -> Result<F::Output> {
        self.guard.run(work).await
    }

    /// The hold of the election's lock.
    pub fn guard(&self) -> &Guard {
        &self.guard
    }
}
