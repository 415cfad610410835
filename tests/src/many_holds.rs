//! A table of many held locks on real processes, for measurements of what depends on its size.

use crate::wire::{Ticket, Wire};

/// The lease of these sessions, which no client renews: longer than any measurement.
pub const TTL_MS: u64 = 12 * 3_600 * 1_000;
/// Requests on their way at once, well below what a stream may leave unread.
const AT_ONCE: u64 = 1_000;

/// Takes so many locks from the leader at `address`, each session its share.
pub async fn take(address: &str, holds: u64, per_session: u64) -> Vec<Ticket> {
    let mut sessions = Vec::new();
    for first in (0..holds).step_by(usize::try_from(per_session).unwrap()) {
        let (mut wire, ticket) = Wire::open(address, TTL_MS).await;
        let count = per_session.min(holds - first);
        for from in (1..=count).step_by(usize::try_from(AT_ONCE).unwrap()) {
            let requests = from..=count.min(from + AT_ONCE - 1);
            for request in requests.clone() {
                wire.acquire(request, &format!("held/{}", first + request), false).await;
            }
            for request in requests {
                wire.granted(request).await;
            }
        }
        sessions.push(ticket);
    }
    sessions
}
