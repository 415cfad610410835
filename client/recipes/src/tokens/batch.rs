//! Many tokens, each once, without waiting for one while another is free.

use std::collections::BTreeSet;
use std::marker::PhantomData;

use super::Tokens;
use crate::locker::{RemoteGuard, Wait};
use crate::{GuardState, GuardStates, LostReason, Result};
use tokio_util::sync::CancellationToken;

/// Tokens to be locked, each once; [`Tokens::batch`] makes one.
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
#[derive(Debug)]
pub struct Batch {
    tokens: Tokens,
    left: BTreeSet<String>,
}

impl Tokens {
    /// These tokens, as a batch. It sends no statement yet; a token named twice is locked once.
    pub fn batch<T: Into<String>>(&self, tokens: impl IntoIterator<Item = T>) -> Batch {
        let left = tokens.into_iter().map(Into::into).collect();
        Batch { tokens: self.clone(), left }
    }
}

impl Batch {
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
        let (guard, tokens) = self.tokens.take(&named(&wanted), wanted, wait).await?;
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

/// The name of several tokens in messages that name one lock.
fn named(tokens: &[String]) -> String {
    match tokens {
        [] => String::new(),
        [one] => one.clone(),
        [first, others @ ..] => format!("any of {first} and {} more", others.len()),
    }
}

/// Those tokens of a batch that were free at once, valid while [`Bunch::is_safe`] returns true. One
/// session holds them all: they are safe together, and lost together.
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
