//! What a holder learns of those who wait for its locks.

use std::collections::BTreeMap;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::stream::BoxStream;
use futures_util::{Stream, StreamExt, stream};
use holdfast_guard::GuardStates;
use holdfast_proto::v1;
use holdfast_runtime::select;
use tokio::sync::watch;

/// Others wait for a held lock, as of when the store said so.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Contention {
    /// The lock.
    pub name: Arc<str>,
    /// How many requests wait for it, at least 1. A server before 0.4 does not say how many; it is 1 then.
    pub waiting: u64,
    /// The largest [head start](crate::Acquire::head_start) among them; zero if none has one.
    pub head_start: Duration,
}

/// What the store has told about one hold, the last of each lock, in the order in which it came.
#[derive(Debug, Default)]
pub(crate) struct Told {
    told: u64,
    by_name: BTreeMap<Arc<str>, (u64, Contention)>,
}

impl Told {
    pub(crate) fn note(&mut self, name: &Arc<str>, told: &v1::Contended) {
        self.told += 1;
        let contention = Contention {
            name: name.clone(),
            waiting: told.waiting.max(1),
            head_start: Duration::from_millis(told.head_start_ms.into()),
        };
        self.by_name.insert(name.clone(), (self.told, contention));
    }

    /// Whether a state that came after a resume is news: the frame that told it may not have come.
    pub(crate) fn is_news(&self, name: &str, told: &v1::Contended) -> bool {
        let head_start = Duration::from_millis(told.head_start_ms.into());
        self.by_name.get(name).is_none_or(|(_, last)| last.head_start < head_start)
    }

    /// The lock is no more part of the hold.
    pub(crate) fn forget(&mut self, name: &str) -> bool {
        self.by_name.remove(name).is_some()
    }

    /// The first that was told after the `seen`-th.
    fn after(&self, seen: u64) -> Option<&(u64, Contention)> {
        self.by_name.values().filter(|(nth, _)| *nth > seen).min_by_key(|(nth, _)| *nth)
    }
}

/// The stream of [`Guard::contended`](crate::Guard::contended).
#[must_use = "it yields something only when it is asked"]
pub struct Contentions(BoxStream<'static, Contention>);

impl Contentions {
    pub(crate) fn new(told: watch::Receiver<Told>, states: GuardStates) -> Self {
        let next =
            async |(mut told, mut states, seen): (watch::Receiver<Told>, GuardStates, u64)| {
                let news = select! {
                    _ = states.over() => None,
                    told = told.wait_for(|told| told.after(seen).is_some()) => {
                        told.ok().and_then(|told| told.after(seen).cloned())
                    }
                };
                news.map(|(nth, contention)| (contention, (told, states, nth)))
            };
        Self(stream::unfold((told, states, 0), next).boxed())
    }

    /// Waits for the next one; `None` when the hold is over. Cancel safe: dropping the future loses nothing.
    pub async fn next(&mut self) -> Option<Contention> {
        self.0.next().await
    }
}

impl Stream for Contentions {
    type Item = Contention;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Contention>> {
        self.0.poll_next_unpin(context)
    }
}

impl fmt::Debug for Contentions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Contentions").finish_non_exhaustive()
    }
}
