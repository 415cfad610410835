//! The limits that decide refusals: replicated, so that every node refuses alike.

use borsh::{BorshDeserialize, BorshSerialize};

use crate::Rejection;

/// The limits on the table's size (I27) and on leases.
///
/// They come through the log ([`Command::Configure`](crate::Command::Configure)): a node's own
/// configuration never decides an outcome. Limits that are lowered below what exists end nothing;
/// they refuse what comes after.
#[derive(Clone, Copy, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub struct Limits {
    /// Sessions open at once.
    ///
    /// Default: 100 000. Minimum: 1. Past it `OpenSession` is refused with
    /// [`Rejection::TooManySessions`].
    ///
    /// Source: measured, a connection takes about 32 KiB, 3.2 GiB for all of them; a session in
    /// this table takes 300 bytes. Revisit when several sessions share a connection.
    pub max_sessions: u64,
    /// Requests of one session at once: waiting, held, and kept until confirmed.
    ///
    /// Default: 1 024. Minimum: 1. Past it a new request is refused with
    /// [`Rejection::TooManyRequests`].
    ///
    /// Source: DESIGN §6.
    pub max_requests_per_session: u64,
    /// Requests waiting for one lock at once; one that waits for several counts in each queue.
    ///
    /// Default: 100 000. Minimum: 1. Past it an `Acquire` that would wait is refused with
    /// [`Rejection::TooManyWaiters`].
    ///
    /// Source: as many as there may be sessions, so that one lock can serialise all of them.
    pub max_waiters_per_lock: u64,
    /// What the values of all locks take, bytes: each counts with its own bytes, those of its
    /// lock's name, and [`VALUE_OVERHEAD_BYTES`](crate::VALUE_OVERHEAD_BYTES).
    ///
    /// Default: 268 435 456 (256 MiB). Minimum: 0, which refuses every value. Past it a `SetValue`
    /// that takes more room than what it replaces is refused with
    /// [`Rejection::TooManyValueBytes`].
    ///
    /// Source: a snapshot holds all of them, and is to be written and sent within seconds.
    pub max_value_bytes: u64,
    /// Shortest lease, milliseconds.
    ///
    /// Default: 1 000. Minimum: 1. A shorter one is refused, never clamped, with
    /// [`Rejection::TtlOutOfRange`].
    ///
    /// Source: DESIGN §5.4: with keepalives every TTL/4, shorter leases would end by ordinary
    /// scheduling delays.
    pub ttl_min_ms: u64,
    /// Longest lease, milliseconds.
    ///
    /// Default: 900 000 (15 min). Minimum: `ttl_min_ms`. Maximum: 86 400 000 (24 h), because a
    /// restored cluster grants nothing for this long (DESIGN §5.8). A longer one is refused, never
    /// clamped, with [`Rejection::TtlOutOfRange`].
    ///
    /// Source: DESIGN §5.4.
    pub ttl_max_ms: u64,
}

/// The longest lease any configuration may allow: 24 hours, milliseconds.
pub const TTL_CEILING_MS: u64 = 86_400_000;

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_sessions: 100_000,
            max_requests_per_session: 1_024,
            max_waiters_per_lock: 100_000,
            max_value_bytes: 256 * 1024 * 1024,
            ttl_min_ms: 1_000,
            ttl_max_ms: 900_000,
        }
    }
}

impl Limits {
    /// Whether the limits can be worked under.
    ///
    /// # Errors
    ///
    /// [`Rejection::UnusableLimits`] names the limit that is out of its bounds, and why.
    pub fn check(&self) -> Result<(), Rejection> {
        let counts = [
            ("max_sessions", self.max_sessions),
            ("max_requests_per_session", self.max_requests_per_session),
            ("max_waiters_per_lock", self.max_waiters_per_lock),
            ("ttl_min_ms", self.ttl_min_ms),
        ];
        if let Some((name, _)) = counts.into_iter().find(|&(_, value)| value == 0) {
            return Err(unusable(format!("{name} is 0; it must be at least 1")));
        }
        if self.ttl_max_ms < self.ttl_min_ms {
            let (max, min) = (self.ttl_max_ms, self.ttl_min_ms);
            return Err(unusable(format!("ttl_max_ms ({max}) is below ttl_min_ms ({min})")));
        }
        if self.ttl_max_ms > TTL_CEILING_MS {
            let max = self.ttl_max_ms;
            return Err(unusable(format!("ttl_max_ms ({max}) is above {TTL_CEILING_MS} (24 h)")));
        }
        Ok(())
    }
}

fn unusable(reason: String) -> Rejection {
    Rejection::UnusableLimits { reason }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_usable() {
        assert_eq!(Limits::default().check(), Ok(()));
    }

    #[test]
    fn each_limit_outside_its_bounds_is_named() {
        let good = Limits::default();
        let cases = [
            (Limits { max_sessions: 0, ..good }, "max_sessions is 0"),
            (Limits { max_requests_per_session: 0, ..good }, "max_requests_per_session is 0"),
            (Limits { max_waiters_per_lock: 0, ..good }, "max_waiters_per_lock is 0"),
            (Limits { ttl_min_ms: 0, ..good }, "ttl_min_ms is 0"),
            (Limits { ttl_max_ms: 999, ..good }, "below ttl_min_ms"),
            (Limits { ttl_max_ms: TTL_CEILING_MS + 1, ..good }, "above 86400000"),
        ];
        for (limits, part) in cases {
            let Err(Rejection::UnusableLimits { reason }) = limits.check() else {
                panic!("{limits:?} was accepted");
            };
            assert!(reason.contains(part), "{reason:?} does not say {part:?}");
        }
    }
}
