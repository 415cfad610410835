//! A port while it is served.

use std::convert::Infallible;
use std::time::Duration;

use holdfast_runtime::{Runtime, Task};
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;
use tonic::transport::server::Router;

use super::NodeError;
use crate::incoming::{self, Admission};
use crate::listen::Claim;

/// How long connections may take to end by themselves.
const CLOSES_WITHIN: Duration = Duration::from_millis(500);

/// A gRPC server on its port. Dropping it ends it with all its connections.
#[derive(Debug)]
pub(super) struct Port {
    whom: &'static str,
    stop: CancellationToken,
    ended: oneshot::Receiver<String>,
    _task: Task,
}

impl Port {
    /// Begins to listen, and serves `router` on `port`. Call it inside the runtime.
    ///
    /// # Errors
    ///
    /// [`NodeError::Listen`]; nothing is served.
    pub(super) fn open(
        port: incoming::Port,
        claim: Claim,
        router: Router,
        admission: &Admission,
    ) -> Result<Self, NodeError> {
        let whom = port.name();
        let incoming = admission.incoming(port, claim.listen()?).into_stream();
        let stop = CancellationToken::new();
        let asked = stop.clone().cancelled_owned();
        let (tell, ended) = oneshot::channel();
        let task = admission.runtime.spawn(whom, async move {
            let served = router.serve_with_incoming_shutdown(incoming, asked).await;
            let why = served.err().map_or_else(|| "it ended".to_owned(), |error| error.to_string());
            // The receiver is gone if the port was dropped meanwhile.
            let _ = tell.send(why);
        });
        Ok(Self { whom, stop, ended, _task: task })
    }

    /// Waits until the port ends without a request to stop. Cancel safe.
    pub(super) async fn lost(&mut self) -> Result<Infallible, NodeError> {
        let why = (&mut self.ended).await.unwrap_or_else(|_| "its task is gone".to_owned());
        Err(NodeError::PortLost { whom: self.whom, why })
    }

    /// Accepts no new connection and waits until all have ended, but not for long: a paused client
    /// answers nothing, and would delay the stop of the node (I32).
    pub(super) async fn close(mut self, runtime: &Runtime) {
        self.stop.cancel();
        // Ended or not, its connections are dropped with it.
        let _ = runtime.timeout(CLOSES_WITHIN, &mut self.ended).await;
    }
}
