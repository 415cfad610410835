//! Many tokens, each in its turn, without waiting for one while another could be had.

use std::collections::BTreeSet;
use std::marker::PhantomData;

use super::Tokens;
use crate::compat::locker::{Patience, RemoteGuard};
use crate::{GuardState, LostReason, Result};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// Tokens that are to be had, each once; [`Tokens::batch`] makes one.
///
/// "We wanted the service to try to lock a bunch of keys, and then process the keys that were
/// successfully locked. After all these were processed, the service would try and lock the remaining
/// keys."
///
/// ```no_run
/// # #[cfg(feature = "cassandra")]
/// # async fn example(tokens: holdfast::compat::Tokens) -> holdfast::Result<()> {
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
    /// These tokens, as a batch. Nothing is asked yet; one that is named twice is had once.
    pub fn batch<T: Into<String>>(&self, tokens: impl IntoIterator<Item = T>) -> Batch {
        let left = tokens.into_iter().map(Into::into).collect();
        Batch { tokens: self.clone(), left }
    }
}

impl Batch {
    /// Locks those of the remaining tokens that are free; `None` when none remains. If none of them
    /// is free, sleeps for a random time of at most two seconds and tries again, until one is.
    ///
    /// Whoever waits here holds nothing of this batch: a bunch has to be gone before. So two batches
    /// never wait for each other.
    ///
    /// Cancel safe: what was locked is given back, and remains.
    ///
    /// # Errors
    ///
    /// [`Error::Refused`](crate::Error::Refused) if the tables will not do what was asked; all that
    /// remained remains.
    pub async fn next(&mut self) -> Result<Option<Bunch<'_>>> {
        self.next_with(Patience::Endless).await
    }

    /// The same, with as much patience as is said: with [`Patience::None`] it locks what is free now.
    ///
    /// # Errors
    ///
    /// As of [`RemoteLocker::acquire`](crate::compat::RemoteLocker::acquire), whose
    /// [`Error::NotGranted`](crate::Error::NotGranted) here says that none of them could be had. After
    /// each, all that remained remains, and nothing is held.
    pub async fn next_with(&mut self, patience: Patience) -> Result<Option<Bunch<'_>>> {
        if self.left.is_empty() {
            return Ok(None);
        }
        let wanted: Vec<String> = self.left.iter().cloned().collect();
        let (guard, tokens) = self.tokens.take(&named(&wanted), wanted, patience).await?;
        for token in &tokens {
            self.left.remove(token);
        }
        Ok(Some(Bunch { guard, tokens, of: PhantomData }))
    }

    /// What had no turn yet.
    pub fn left(&self) -> impl ExactSizeIterator<Item = &str> {
        self.left.iter().map(String::as_str)
    }

    /// Tokens are to have a turn again: those whose bunch was lost before they were worked on.
    pub fn put_back<T: Into<String>>(&mut self, tokens: impl IntoIterator<Item = T>) {
        self.left.extend(tokens.into_iter().map(Into::into));
    }
}

/// What is to be said of several tokens where one lock is named.
fn named(tokens: &[String]) -> String {
    match tokens {
        [] => String::new(),
        [one] => one.clone(),
        [first, others @ ..] => format!("any of {first} and {} more", others.len()),
    }
}

/// Those tokens of a batch that could be had at once, for as long as [`Bunch::is_safe`] says so. One
/// session holds them all: they are safe together, and lost together.
///
/// Dropping it gives them back without waiting; [`Bunch::release`] waits until that is certain.
#[derive(Debug)]
#[must_use = "dropping a bunch gives its tokens back at once"]
pub struct Bunch<'a> {
    guard: RemoteGuard,
    tokens: Vec<String>,
    /// The batch is not asked for more while this is held.
    of: PhantomData<&'a mut Batch>,
}

impl Bunch<'_> {
    /// What was had; at least one.
    pub fn tokens(&self) -> &[String] {
        &self.tokens
    }

    /// As of [`RemoteGuard::is_safe`].
    pub fn is_safe(&self) -> bool {
        self.guard.is_safe()
    }

    /// As of [`RemoteGuard::state`].
    pub fn state(&self) -> watch::Receiver<GuardState> {
        self.guard.state()
    }

    /// As of [`RemoteGuard::lost`].
    pub async fn lost(&self) -> LostReason {
        self.guard.lost().await
    }

    /// As of [`RemoteGuard::cancellation_token`].
    pub fn cancellation_token(&self) -> CancellationToken {
        self.guard.cancellation_token()
    }

    /// Gives all of them back and waits until the tables have said so.
    ///
    /// # Errors
    ///
    /// As of [`RemoteGuard::release`]; [`Error::Lost`](crate::Error::Lost) if one of them was taken.
    pub async fn release(self) -> Result<()> {
        self.guard.release().await
    }
}
