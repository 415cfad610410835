//! Many tokens, each once, without waiting for one while another is free.

use std::collections::BTreeSet;
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use tokio_util::sync::CancellationToken;

use crate::cassandra::Cassandra;
use crate::locker::{RemoteGuard, RemoteLocker, Wait};
use crate::modes::compound_guard::CompoundGuard;
use crate::tokens::Tokens;
use crate::{Error, GuardState, GuardStates, LostReason, Result};
use holdfast_guard::Backoff;

/// The longest pause while none of the tokens is free.
const PAUSE_MAX: Duration = Duration::from_secs(2);
/// How many tokens are tried at once.
const AT_ONCE: usize = 8;

/// Tokens to be locked, each once; [`Tokens::batch`], [`Locker::batch`](crate::Locker::batch) and [`Batch::of`] make one.
///
/// "We wanted the service to try to lock a bunch of keys, and then process the keys that were
/// successfully locked. After all these were processed, the service would try and lock the remaining
/// keys."
///
/// ```no_run
/// # async fn example(tokens: holdfast_recipes::Tokens) -> holdfast::Result<()> {
/// let mut batch = tokens.batch(["samples/1", "samples/2", "samples/3"]);
/// while let Some(bunch) = batch.next().await? {
///     let mut undone = Vec::new();
///     for token in bunch.tokens() {
///         if !bunch.is_safe() {
///             undone.push(token.clone());
///         } // … else work on it …
///     }
///     bunch.release().await.ok();
///     batch.put_back(undone);
/// }
/// # Ok(())
/// # }
/// ```
pub struct Batch {
    source: Source,
    left: BTreeSet<String>,
}

/// What locks the tokens.
enum Source {
    /// One session for all.
    Tokens(Tokens),
    /// Each by itself.
    Locker { locker: Arc<dyn RemoteLocker>, cassandra: Cassandra },
}

impl Tokens {
    /// These tokens, as a batch. It sends no statement yet; a token named twice is locked once. One session holds those that the batch has locked at one time.
    pub fn batch<T: Into<String>>(&self, tokens: impl IntoIterator<Item = T>) -> Batch {
        Batch::from(Source::Tokens(self.clone()), tokens)
    }
}

impl Batch {
    /// These locks of any locker, as a batch: each is tried by itself, some at a time. It sends no statement yet; a lock named twice is locked once.
    pub fn of<T: Into<String>>(
        locker: Arc<dyn RemoteLocker>,
        cassandra: &Cassandra,
        names: impl IntoIterator<Item = T>,
    ) -> Self {
        Self::from(Source::Locker { locker, cassandra: cassandra.clone() }, names)
    }

    fn from<T: Into<String>>(source: Source, names: impl IntoIterator<Item = T>) -> Self {
        Self { source, left: names.into_iter().map(Into::into).collect() }
    }

    /// Locks those of the remaining tokens that are free; `None` when none remains. If none of them
    /// is free, sleeps for a random time of at most two seconds and tries again, until one is.
    ///
    /// A caller that waits here holds nothing of this batch: its last bunch has to be gone before.
    /// So two batches never wait for each other.
    ///
    /// Cancel safe: tokens that were locked are released, and remain in the batch.
    ///
    /// # Errors
    ///
    /// [`Error::Refused`](crate::Error::Refused) if Cassandra refuses a statement; all remaining
    /// tokens stay in the batch.
    pub async fn next(&mut self) -> Result<Option<Bunch<'_>>> {
        self.next_with(Wait::Forever).await
    }

    /// The same, with a given wait: with [`Wait::No`] it locks what is free now.
    ///
    /// # Errors
    ///
    /// As [`RemoteLocker::acquire`](crate::RemoteLocker::acquire), whose
    /// [`Error::NotGranted`](crate::Error::NotGranted) here means that no token was free. After each
    /// error all remaining tokens stay in the batch, and none is held.
    pub async fn next_with(&mut self, wait: Wait) -> Result<Option<Bunch<'_>>> {
        if self.left.is_empty() {
            return Ok(None);
        }
        let wanted: Vec<String> = self.left.iter().cloned().collect();
        let called = named(&wanted);
        let (guard, tokens) = match &self.source {
            Source::Tokens(tokens) => tokens.take(&called, wanted, wait).await?,
            Source::Locker { locker, cassandra } => {
                let parts = parts(&**locker, cassandra, &wanted, wait);
                let (joint, tokens) = parts.await?;
                (RemoteGuard::new(&called, &joint.1, Box::new(joint.0)), tokens)
            }
        };
        for token in &tokens {
            self.left.remove(token);
        }
        Ok(Some(Bunch { guard, tokens, of: PhantomData }))
    }

    /// The tokens that had no turn yet.
    pub fn left(&self) -> impl ExactSizeIterator<Item = &str> {
        self.left.iter().map(String::as_str)
    }

    /// Gives tokens another turn: those whose bunch was lost before the caller worked on them.
    pub fn put_back<T: Into<String>>(&mut self, tokens: impl IntoIterator<Item = T>) {
        self.left.extend(tokens.into_iter().map(Into::into));
    }
}

impl fmt::Debug for Batch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batch").field("left", &self.left).finish_non_exhaustive()
    }
}

/// Acquires those of `wanted` that are free, at least one.
async fn parts(
    locker: &dyn RemoteLocker,
    cassandra: &Cassandra,
    wanted: &[String],
    wait: Wait,
) -> Result<((CompoundGuard, String), Vec<String>)> {
    let runtime = cassandra.runtime();
    let began = runtime.clock.now();
    let deadline =
        if wait.waits() { wait.limit(Duration::ZERO).map(|limit| began + limit) } else { None };
    let (mut pauses, mut was_answered) = (Backoff::new(PAUSE_MAX), false);
    loop {
        let within = match wait {
            Wait::NoAnsweredWithin(limit) => Some(limit),
            Wait::Forever | Wait::AtMost(_) | Wait::No => {
                deadline.map(|deadline| deadline.saturating_since(runtime.clock.now()))
            }
        };
        let tried = free(locker, wanted, within).await;
        let now = runtime.clock.now();
        let is_over = !wait.waits() || deadline.is_some_and(|deadline| now >= deadline);
        match tried {
            Ok(guards) => {
                was_answered = true;
                let tokens: Vec<_> = guards.iter().map(|guard| guard.name().to_owned()).collect();
                let owner = guards.first().map(|guard| guard.owner().to_owned());
                if let Some(owner) = owner
                    && let Some(joint) = CompoundGuard::new(guards, None, cassandra)
                {
                    return Ok(((joint, owner), tokens));
                }
            }
            // In the time that was left for the last look.
            Err(Error::Unreachable { .. }) if was_answered || !is_over => {}
            Err(error) => return Err(error),
        }
        if is_over {
            let after = wait.waits().then(|| now.saturating_since(began));
            let names = wanted.to_vec();
            return Err(Error::NotGranted { names, holders: Vec::new(), waited: after });
        }
        let left = deadline.map_or(PAUSE_MAX, |deadline| deadline.saturating_since(now));
        runtime.sleep(pauses.next(&*runtime.rng).min(left)).await;
    }
}

/// Tries each once, and waits so long for each answer, or as long as the locker does. An error gives back all.
async fn free(
    locker: &dyn RemoteLocker,
    wanted: &[String],
    within: Option<Duration>,
) -> Result<Vec<RemoteGuard>> {
    let mut guards = Vec::new();
    for some in wanted.chunks(AT_ONCE) {
        let each = some.iter().map(|name| match within {
            Some(limit) => locker.try_lock_within(name, limit),
            None => locker.try_lock(name),
        });
        for tried in join_all(each).await {
            guards.extend(tried?);
        }
    }
    Ok(guards)
}

/// The name of several tokens in messages that name one lock.
fn named(tokens: &[String]) -> String {
    match tokens {
        [] => String::new(),
        [one] => one.clone(),
        [first, others @ ..] => format!("any of {first} and {} more", others.len()),
    }
}

/// Those tokens of a batch that were free at once, valid while [`Bunch::is_safe`] returns true: they are safe together, and count as lost together.
///
/// Dropping it releases them without waiting; [`Bunch::release`] waits until the release is
/// certain.
#[derive(Debug)]
#[must_use = "dropping a bunch gives its tokens back at once"]
pub struct Bunch<'a> {
    guard: RemoteGuard,
    tokens: Vec<String>,
    /// The batch cannot lock more while this is held.
    of: PhantomData<&'a mut Batch>,
}

impl Bunch<'_> {
    /// The locked tokens; at least one.
    pub fn tokens(&self) -> &[String] {
        &self.tokens
    }

    /// As [`RemoteGuard::is_safe`].
    pub fn is_safe(&self) -> bool {
        self.guard.is_safe()
    }

    /// As [`RemoteGuard::state`].
    pub fn state(&self) -> GuardState {
        self.guard.state()
    }

    /// As [`RemoteGuard::states`].
    pub fn states(&self) -> GuardStates {
        self.guard.states()
    }

    /// As [`RemoteGuard::ttl`].
    pub fn ttl(&self) -> Duration {
        self.guard.ttl()
    }

    /// As [`RemoteGuard::lost`].
    pub async fn lost(&self) -> LostReason {
        self.guard.lost().await
    }

    /// As [`RemoteGuard::cancellation_token`].
    pub fn cancellation_token(&self) -> CancellationToken {
        self.guard.cancellation_token()
    }

    /// Releases all of them and waits until Cassandra has confirmed it.
    ///
    /// # Errors
    ///
    /// As [`RemoteGuard::release`]; [`Error::Lost`](crate::Error::Lost) if a housekeeper took one of
    /// them.
    pub async fn release(self) -> Result<()> {
        self.guard.release().await
    }
}
