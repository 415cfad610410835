//! Requests for locks.

use std::fmt;
use std::future::IntoFuture;
use std::time::Duration;

use crate::items::{AcquireRequest, Need};
use crate::session::PendingAcquire;
use crate::{Client, Guard, LockItem, Mode, Owner, QueuePlace, Result};

/// A request for locks that is not sent yet: `.await` sends it and waits for the guard,
/// [`Acquire::enqueue`] sends it and returns its place in the queue.
///
/// Cancel safe: dropping it, before or while it is awaited, cancels the request; the client
/// releases a grant that crosses the cancel.
///
/// # Errors
///
/// Awaiting it returns [`Error::NotGranted`](crate::Error::NotGranted) (another client holds the
/// lock, and the call waits no longer), [`Error::Unreachable`](crate::Error::Unreachable) (no
/// server within the limit), [`Error::Refused`](crate::Error::Refused) (the request is wrong, or at
/// a limit), [`Error::AlreadyHeld`](crate::Error::AlreadyHeld) (its [`Owner`] holds one of the locks), [`Error::SessionLost`](crate::Error::SessionLost) or
/// [`Error::Closed`](crate::Error::Closed). After each, the caller holds none of the locks.
#[must_use = "nothing is asked until it is awaited or enqueued"]
pub struct Acquire {
    client: Client,
    request: AcquireRequest,
    limit: Option<Duration>,
}

impl Acquire {
    pub(crate) fn new(client: Client, items: Vec<LockItem>, need: Need, wait: bool) -> Self {
        let limit = (!wait).then(|| client.reader().servers.limit);
        Self { client, request: AcquireRequest::new(items, need, wait), limit }
    }

    /// Requests the lock, or all of several, in shared mode. The store grants shared requests that
    /// are next to each other in the queue together; shared requests never overtake an exclusive
    /// one.
    ///
    /// ```no_run
    /// # async fn example(client: holdfast::Client) -> holdfast::Result<()> {
    /// let reading = client.lock("rates").shared().await?;
    /// # Ok(()) }
    /// ```
    pub fn shared(mut self) -> Self {
        for item in &mut self.request.items {
            item.mode = Mode::Shared;
        }
        self
    }

    /// Gives up after `limit`, which covers everything: reaching a server, retries, the queue.
    /// Nothing stays in the queue then. The limit is checked while the acquire, or its
    /// [`QueuePlace`], is polled.
    pub fn wait(mut self, limit: Duration) -> Self {
        self.limit = Some(limit);
        self
    }

    /// Says where in a trace the caller is, as the header `traceparent` of W3C Trace Context has it
    /// (`00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01`). If it is sampled, a server that exports traces
    /// (`otlp_endpoint`) adds spans of the wait and of the hold. Anything else has no effect.
    pub fn traceparent(mut self, traceparent: &str) -> Self {
        traceparent.clone_into(&mut self.request.traceparent);
        self
    }

    /// Hands the lock out only while the store names `scope`, a prefix of names, as a scope with fallback, and has
    /// authority over it. For a caller that knows that Cassandra may serve these names: a store that was restored
    /// from a backup may not (DESIGN §15). Until then the request waits, also a [`TryAcquire`], within its limit.
    pub fn in_scope(mut self, scope: &str) -> Self {
        self.request.scope = Some(scope.to_owned());
        self
    }

    /// Counts as having come so much earlier: 0 to 10 minutes, in whole milliseconds. An urgent request goes before those that
    /// came less than this before it, and nobody waits longer than the largest head start because of requests that came later.
    /// Refused for names in a scope with fallback ([`RefusalReason::HeadStart`](crate::RefusalReason::HeadStart)): Cassandra keeps
    /// no such order.
    pub fn head_start(mut self, head_start: Duration) -> Self {
        self.request.terms.head_start_ms =
            u64::try_from(head_start.as_millis()).unwrap_or(u64::MAX);
        self
    }

    /// What people see beside the lock, in lists and where they wait for it: at most 256 bytes, without control or
    /// bidirectional-override characters. It proves nothing.
    pub fn note(mut self, note: impl Into<String>) -> Self {
        self.request.terms.note = note.into();
        self
    }

    /// Of any of several locks, needs so many at once: from 1 to their number, [`Client::any_of`](crate::Client::any_of) without it 1. It is granted
    /// all that are free to it at that moment, under one token. While it waits, it keeps later requests out of those that are free
    /// to it already, so that it does not starve; it holds none of them.
    ///
    /// # Errors
    ///
    /// Awaiting it: [`RefusalReason::Invalid`](crate::RefusalReason::Invalid) for 0, for more than there are names, and for a
    /// request that needs all of its locks.
    pub fn at_least(mut self, count: u32) -> Self {
        self.request.floor = Some(count);
        self
    }

    /// Has the store end the hold when it has lasted so long: 1 ms to 24 hours, counted by the leader from the grant, and anew in full
    /// by a new leader. The guard is lost then ([`LostReason::HeldTooLong`](crate::LostReason::HeldTooLong)), and the next
    /// in line is granted the lock once this client has let go of it, or when its lease would have run out: never while the guard
    /// may still be safe. For a holder that may hang while its session lives on.
    ///
    /// Refused for names in a scope with fallback ([`RefusalReason::HoldBounds`](crate::RefusalReason::HoldBounds)).
    pub fn max_hold(mut self, longest: Duration) -> Self {
        self.request.terms.max_hold_ms = bound_ms(longest);
        self
    }

    /// Has the store grant the locks to nobody else before so long after the grant: up to 24 hours, counted as for
    /// [`Acquire::max_hold`], however the hold ends, by a release, a crash or an operator, except at once (`--now`). For a job that every
    /// machine starts at the same time, and that is over before the last one asks: with [`Client::try_lock`] only one runs it.
    ///
    /// A lock that nobody holds and that is not granted for this is *closed*. It counts as a value without bytes. For
    /// exclusive locks alone; refused for names in a scope with fallback.
    pub fn hold_at_least(mut self, least: Duration) -> Self {
        self.request.terms.hold_at_least_ms = bound_ms(least);
        self
    }

    /// Asks for `owner`, which must neither hold nor wait for any of the locks: see [`Owner`].
    pub fn by(mut self, owner: &Owner) -> Self {
        self.request.terms.owner = owner.number();
        self
    }

    pub(crate) fn claimed_from(mut self, owner: String) -> Self {
        self.request.claim_owner = Some(owner);
        self
    }

    /// Waits until the lock is granted, over outages and changes of leader too. The default of
    /// [`Client::lock`].
    pub fn wait_forever(mut self) -> Self {
        self.limit = None;
        self
    }

    /// Lets the store push the place in the queue whenever it changes, at most once a second; the
    /// [`QueuePlace`] yields it. Without this, the [`QueuePlace`] yields only the place at which
    /// the request enters the queue.
    pub fn follow_place(mut self) -> Self {
        self.request.follow_place = true;
        self
    }

    /// Sends the request now and returns its place in the queue: a stream of places, and the future
    /// of the guard. Call it inside the runtime that the client was made in.
    ///
    /// ```no_run
    /// # async fn example(client: holdfast::Client) -> holdfast::Result<()> {
    /// let mut place = client.lock("jobs").follow_place().enqueue();
    /// while let Some(at) = place.next().await {
    ///     println!("{} before us", at.place);
    /// }
    /// let guard = place.await?;
    /// # Ok(()) }
    /// ```
    pub fn enqueue(self) -> QueuePlace {
        let asked = self.ask();
        QueuePlace::new(self.client, self.request, self.limit, asked)
    }

    fn ask(&self) -> Result<PendingAcquire> {
        self.request.check()?;
        self.client.session().ask(self.request.clone())
    }
}

impl IntoFuture for Acquire {
    type Output = Result<Guard>;
    type IntoFuture = QueuePlace;

    fn into_future(self) -> QueuePlace {
        self.enqueue()
    }
}

impl fmt::Debug for Acquire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Acquire")
            .field("items", &self.request.items)
            .field("need", &self.request.need)
            .field("wait", &self.request.wait)
            .field("limit", &self.limit)
            .finish_non_exhaustive()
    }
}

/// An [`Acquire`] that never waits in a queue: `.await` sends it and returns the guard, or
/// [`Error::NotGranted`](crate::Error::NotGranted) at once if another client holds a lock of it.
///
/// Cancel safe, and with the other errors of an [`Acquire`].
#[must_use = "nothing is asked until it is awaited"]
#[derive(Debug)]
pub struct TryAcquire(pub(crate) Acquire);

impl TryAcquire {
    /// As [`Acquire::shared`].
    pub fn shared(self) -> Self {
        Self(self.0.shared())
    }

    /// As [`Acquire::traceparent`].
    pub fn traceparent(self, traceparent: &str) -> Self {
        Self(self.0.traceparent(traceparent))
    }

    /// As [`Acquire::head_start`]: it is granted past those who wait, if they are those whom it goes before.
    pub fn head_start(self, head_start: Duration) -> Self {
        Self(self.0.head_start(head_start))
    }

    /// As [`Acquire::note`].
    pub fn note(self, note: impl Into<String>) -> Self {
        Self(self.0.note(note))
    }

    /// As [`Acquire::at_least`]: with fewer free it is not granted.
    pub fn at_least(self, count: u32) -> Self {
        Self(self.0.at_least(count))
    }

    /// As [`Acquire::max_hold`].
    pub fn max_hold(self, longest: Duration) -> Self {
        Self(self.0.max_hold(longest))
    }

    /// As [`Acquire::hold_at_least`].
    pub fn hold_at_least(self, least: Duration) -> Self {
        Self(self.0.hold_at_least(least))
    }

    /// As [`Acquire::by`].
    pub fn by(self, owner: &Owner) -> Self {
        Self(self.0.by(owner))
    }

    /// As [`Acquire::in_scope`].
    pub fn in_scope(self, scope: &str) -> Self {
        Self(self.0.in_scope(scope))
    }

    /// Gives up with [`Error::Unreachable`](crate::Error::Unreachable) when no answer has come after
    /// `limit`. Default: the client's connect timeout.
    pub fn answered_within(self, limit: Duration) -> Self {
        Self(self.0.wait(limit))
    }
}

impl IntoFuture for TryAcquire {
    type Output = Result<Guard>;
    type IntoFuture = QueuePlace;

    fn into_future(self) -> QueuePlace {
        self.0.enqueue()
    }
}

/// A bound of a hold in milliseconds; a part of one counts as a whole one.
fn bound_ms(bound: Duration) -> u64 {
    u64::try_from(bound.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}
