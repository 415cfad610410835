//! Something that one client has for a time: a lock of a compatibility client, an item of work. Its holder records what it receives and
//! believes of it.
//!
//! Not everything of that kind has a token. What the judge reads as one is then the instant at which the client learned of the grant, on
//! the clock that all clients of a run read: if only one client at a time has a thing, clients learn of their grants one after the other. A
//! client of locks that all have fencing tokens records those.

use std::time::Duration;

use holdfast::{Error, FencingToken, GuardState};
use holdfast_runtime::Runtime;

use crate::history::{ClientId, Recorder, What};
use crate::scribe::cause;

/// The interval between two checks of a hold.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Something that itself knows how long it is certain.
pub trait Term {
    /// The lock's name, or the item's.
    fn name(&self) -> String;
    /// Its present state.
    fn state(&self) -> GuardState;
    /// Whether it is safe.
    fn is_safe(&self) -> bool;
    /// Its fencing token, if it has one.
    fn token(&self) -> Option<FencingToken> {
        None
    }
}

/// One of them, with the recorder of its fate.
#[derive(Debug)]
pub struct Held<T> {
    had: T,
    id: ClientId,
    recorder: Recorder,
    runtime: Runtime,
    token: u64,
}

impl<T: Term> Held<T> {
    /// Records that client `id` was granted it now, with the number that the judge reads as its token.
    pub(crate) fn granted_under(
        token: u64,
        had: T,
        (recorder, runtime): (&Recorder, &Runtime),
        (id, request): (ClientId, u64),
    ) -> Self {
        let (names, values) = (vec![had.name()], Vec::new());
        recorder.write(id, What::Granted { request, token, names, values });
        let held = Self { had, id, recorder: recorder.clone(), runtime: runtime.clone(), token };
        held.note();
        held
    }

    /// The thing itself.
    pub fn had(&self) -> &T {
        &self.had
    }

    /// Records its present state; returns whether it is safe.
    pub fn note(&self) -> bool {
        let (token, recorder) = (self.token, &self.recorder);
        match self.had.state() {
            GuardState::Held { safe_until } | GuardState::Jeopardy { safe_until } => {
                let until_ns = recorder.ns_of(safe_until);
                recorder.write(self.id, What::SafeGrant { token, until_ns });
            }
            GuardState::Lost(reason) => {
                recorder.write(self.id, What::Lost { token, cause: cause(reason) });
            }
            GuardState::Released => {}
        }
        let at_ns = recorder.now_ns();
        let safe = self.had.is_safe();
        let names = vec![self.had.name()];
        recorder.write_at(at_ns, self.id, What::IsSafe { token, safe, names });
        safe
    }

    /// Keeps it for so long, checking now and then.
    pub async fn keep(&self, length: Duration) {
        let runtime = &self.runtime;
        let until = runtime.clock.now() + length;
        while runtime.clock.now() < until && self.note() {
            let left = until.saturating_since(runtime.clock.now());
            runtime.sleep(left.min(LOOK_EVERY)).await;
        }
    }

    /// Releases it by `give`, and waits for the answer.
    ///
    /// # Errors
    ///
    /// As `give`.
    pub async fn give_back<F: Future<Output = Result<(), Error>>>(
        self,
        give: impl FnOnce(T) -> F,
    ) -> Result<(), Error> {
        self.note();
        let Self { had, id, recorder, token, .. } = self;
        recorder.write(id, What::Release { token, names: Vec::new() });
        let answer = give(had).await;
        if let Err(Error::Lost { reason }) = &answer {
            // Nothing is known of the release itself.
            recorder.write(id, What::Lost { token, cause: cause(*reason) });
        }
        recorder.write(
            id,
            match &answer {
                Ok(()) => What::Released { token, names: Vec::new() },
                Err(_) => What::ReleaseUnknown { token },
            },
        );
        answer
    }

    /// Drops it, and waits for nothing.
    pub fn abandon(self) {
        self.note();
        let Self { had, id, recorder, token, .. } = self;
        recorder.write(id, What::Release { token, names: Vec::new() });
        drop(had);
        recorder.write(id, What::ReleaseUnknown { token });
    }
}
