//! The connection of calls that come one after the other: it is kept for the next one.

use std::sync::{Arc, Mutex};

use holdfast_runtime::TransportError;
use tonic::transport::Channel;

use super::pool::{Connection, Pool, lock};

/// Calls under way on one connection: half of what a server allows.
const CALLS_MAX: usize = 512;

/// Keeps the connection of the last call.
pub(super) struct Kept {
    pool: Pool,
    last: Mutex<Option<Arc<Connection>>>,
}

impl Default for Kept {
    fn default() -> Self {
        Self { pool: Pool::new(CALLS_MAX), last: Mutex::default() }
    }
}

/// A call under way. If it is dropped without an answer, no other call is begun on its connection.
pub(super) struct InCall {
    connection: Arc<Connection>,
    is_answered: bool,
}

impl Kept {
    /// A connection to `endpoint` for a call: the one of the last call, or a new one.
    ///
    /// # Errors
    ///
    /// Those of `dial`.
    pub(super) async fn connection(
        &self,
        endpoint: &str,
        dial: impl Future<Output = Result<Channel, TransportError>>,
    ) -> Result<InCall, TransportError> {
        let connection = self.pool.connection(endpoint, dial).await?;
        *lock(&self.last) = Some(connection.clone());
        Ok(InCall { connection, is_answered: false })
    }
}

impl InCall {
    pub(super) fn channel(&self) -> Channel {
        self.connection.channel()
    }

    /// The server answered.
    pub(super) fn answered(mut self) {
        self.is_answered = true;
    }
}

impl Drop for InCall {
    fn drop(&mut self) {
        if !self.is_answered {
            self.connection.broke();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::super::pool::tests::dialled;
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn calls_share_a_connection_until_one_has_no_answer() {
        let (kept, dials) = (Kept::default(), AtomicUsize::new(0));
        let call = |endpoint: &'static str| {
            let dial = async {
                dials.fetch_add(1, Ordering::Relaxed);
                dialled().await
            };
            kept.connection(endpoint, dial)
        };
        call("a:1").await.unwrap().answered();
        let (one, other) = tokio::join!(call("a:1"), call("a:1"));
        assert_eq!(dials.load(Ordering::Relaxed), 1);

        drop(one.unwrap());
        call("a:1").await.unwrap().answered();
        assert_eq!(dials.load(Ordering::Relaxed), 2, "nobody waited for the answer any more");
        other.unwrap().answered();
        call("a:1").await.unwrap().answered();
        assert_eq!(dials.load(Ordering::Relaxed), 2);
        call("b:2").await.unwrap().answered();
        call("a:1").await.unwrap().answered();
        assert_eq!(dials.load(Ordering::Relaxed), 4, "only the last one is kept");
    }
}
