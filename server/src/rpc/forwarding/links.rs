//! The connections on which calls are passed on.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tonic::transport::{Channel, Endpoint, Error};

use crate::members::Member;

/// Calls of one link at once; the leader allows 1,024.
const CALLS_MAX: usize = 256;
/// Bytes that may lie unread of one call's answer: what a client reads slowly waits at the leader, where it
/// is counted.
const CALL_WINDOW: u32 = 64 << 10;
/// Bytes that may lie unread on a link. Calls cannot fill it: h2 counts the smallest frame, of 8 bytes, as
/// up to 256, and ends a connection on which half of it lies unread.
const LINK_WINDOW: u32 = 1 << 30;
const _: () = assert!(CALL_WINDOW as usize * CALLS_MAX / 8 * 256 <= LINK_WINDOW as usize / 2);
/// Bytes that may lie unread on a carrier's, which reads them at once.
const CARRIER_WINDOW: u32 = 16 << 20;

const CONNECT_WITHIN: Duration = Duration::from_secs(1);
/// A dead link is noticed after one interval and one answer that does not come.
const KEEPALIVE_EVERY: Duration = Duration::from_secs(3);
const KEEPALIVE_WITHIN: Duration = Duration::from_secs(3);

/// Makes a channel to the endpoint of the member with this node id. The channel connects on first use, and
/// again after a failure.
pub type Dial = dyn Fn(u64, &Endpoint) -> Channel + Send + Sync;

/// The links to the leader, and for a while to the one before.
pub struct Links {
    open: Mutex<BTreeMap<(u64, String), Vec<Link>>>,
    dial: Box<Dial>,
}

/// A connection. Each call over it has a copy of `calls`.
struct Link {
    channel: Channel,
    calls: Arc<()>,
}

impl Link {
    fn calls(&self) -> usize {
        Arc::strong_count(&self.calls) - 1
    }
}

/// A call's place on a link.
pub(super) struct Place {
    pub(super) channel: Channel,
    /// Dropped when the call is over.
    pub(super) held: Arc<()>,
}

impl Links {
    /// Links over TCP.
    pub fn new() -> Self {
        Self::over(|_, endpoint| endpoint.connect_lazy())
    }

    /// Links over the channels that `dial` makes, as those with TLS.
    pub fn over(dial: impl Fn(u64, &Endpoint) -> Channel + Send + Sync + 'static) -> Self {
        Self { open: Mutex::default(), dial: Box::new(dial) }
    }

    /// A channel of its own to `leader`, for all that a carrier has.
    ///
    /// # Errors
    ///
    /// Its address is none.
    pub(super) fn for_carrier(&self, leader: &Member) -> Result<Channel, Error> {
        let endpoint = described(&leader.peer_advertise)?
            .initial_stream_window_size(CARRIER_WINDOW)
            .initial_connection_window_size(CARRIER_WINDOW);
        Ok((self.dial)(leader.node_id, &endpoint))
    }

    /// A place on a link to `leader`, on a new one if all are full.
    ///
    /// # Errors
    ///
    /// Its address is none.
    pub(super) fn place(&self, leader: &Member) -> Result<Place, Error> {
        let key = (leader.node_id, leader.peer_advertise.clone());
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        // Others led before; the calls over their links end by themselves.
        open.retain(|other, links| *other == key || links.iter().any(|link| link.calls() > 0));
        let links = open.entry(key).or_default();
        if let Some(link) = links.iter().find(|link| link.calls() < CALLS_MAX) {
            let place = Place { channel: link.channel.clone(), held: link.calls.clone() };
            // One without calls is kept for the next; more are closed.
            let mut idle = 0;
            links.retain(|link| {
                idle += usize::from(link.calls() == 0);
                link.calls() > 0 || idle <= 1
            });
            return Ok(place);
        }
        let channel = (self.dial)(leader.node_id, &described(&leader.peer_advertise)?);
        let link = Link { channel: channel.clone(), calls: Arc::default() };
        let held = link.calls.clone();
        links.push(link);
        Ok(Place { channel, held })
    }
}

impl Default for Links {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Links {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Links").finish_non_exhaustive()
    }
}

fn described(address: &str) -> Result<Endpoint, Error> {
    Ok(Endpoint::from_shared(format!("http://{address}"))?
        .connect_timeout(CONNECT_WITHIN)
        .tcp_nodelay(true)
        .http2_keep_alive_interval(KEEPALIVE_EVERY)
        .keep_alive_timeout(KEEPALIVE_WITHIN)
        .keep_alive_while_idle(true)
        .initial_stream_window_size(CALL_WINDOW)
        .initial_connection_window_size(LINK_WINDOW))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(node_id: u64) -> Member {
        let address = |port: u64| format!("127.0.0.1:{port}");
        Member { node_id, advertise: address(1), peer_advertise: address(2) }
    }

    fn count(links: &Links) -> usize {
        links.open.lock().unwrap().values().map(Vec::len).sum()
    }

    #[tokio::test]
    async fn a_link_has_so_many_calls_and_idle_ones_and_those_of_old_leaders_go() {
        let links = Links::new();
        let mut places: Vec<_> =
            (0..=CALLS_MAX).map(|_| links.place(&member(1)).unwrap().held).collect();
        assert_eq!(count(&links), 2);

        places.truncate(1);
        let of_another = links.place(&member(2)).unwrap().held;
        assert_eq!(count(&links), 3, "a call is still over the old leader's");
        drop((places, of_another));
        drop(links.place(&member(2)).unwrap());
        assert_eq!(count(&links), 1);
    }
}
