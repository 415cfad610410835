//! The native client as a [`RemoteLocker`].

use std::time::Duration;

use futures_util::future::BoxFuture;
use holdfast_runtime::Clock;

use super::locker::{Held, RemoteGuard, RemoteLocker, Wait};
use holdfast::{Client, Guard};
use holdfast_guard::Safety;

use crate::{FencingToken, Result};

/// The owner is the session's label. A waiting call has a place in the lock's queue; a release is
/// [`Guard::release`].
impl RemoteLocker for Client {
    fn acquire<'a>(&'a self, lock_id: &'a str, wait: Wait) -> BoxFuture<'a, Result<RemoteGuard>> {
        Box::pin(async move {
            let guard = match wait {
                Wait::Forever => self.lock(lock_id).await,
                Wait::AtMost(limit) => self.lock(lock_id).wait(limit).await,
                Wait::No => self.try_lock(lock_id).await,
                Wait::NoAnsweredWithin(limit) => {
                    self.try_lock(lock_id).answered_within(limit).await
                }
            };
            let held = NativeHold { guard: guard?, ttl: self.ttl() };
            Ok(RemoteGuard::new(lock_id, &self.label(), Box::new(held)))
        })
    }
}

struct NativeHold {
    guard: Guard,
    ttl: Duration,
}

impl Held for NativeHold {
    fn safety(&self) -> &Safety {
        self.guard.safety()
    }

    fn clock(&self) -> &dyn Clock {
        self.guard.clock()
    }

    fn token(&self) -> Option<FencingToken> {
        Some(self.guard.token())
    }

    fn ttl(&self) -> Duration {
        self.ttl
    }

    fn release(self: Box<Self>) -> BoxFuture<'static, Result<()>> {
        Box::pin(self.guard.release())
    }
}
