//! `Watch`: a call with one request and a stream of events.

use std::sync::Arc;

use futures_util::StreamExt;
use futures_util::stream::BoxStream;
use holdfast_proto::v1::{WatchRequest, WatchResponse};
use tokio::sync::{mpsc, oneshot};
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;

use super::{reads, status};
use crate::session::Hub;

/// Messages between a watcher and the transport. One: what waits belongs in the news, where it is
/// counted and shared by all watchers.
const MESSAGES_IN_FLIGHT: usize = 1;

/// Begins a watch, which ends when the client is gone or the hub ends it.
///
/// # Errors
///
/// A status: the watch was not begun.
pub(super) async fn watch(
    hub: &Arc<Hub>,
    request: &WatchRequest,
) -> Result<BoxStream<'static, Result<WatchResponse, Status>>, Status> {
    reads::check_prefix(&request.prefix)?;
    let watcher = hub.watch(&request.prefix).await;
    let watcher = watcher.map_err(|error| status::of_stream_error(&error))?;
    let (outgoing, messages) = mpsc::channel(MESSAGES_IN_FLIGHT);
    let (tell, end) = oneshot::channel();
    let server = hub.clone();
    let serve = async move {
        // The receiver is gone if the client is.
        let _ = tell.send(server.serve_watch(watcher, outgoing).await);
    };
    hub.runtime().spawn("watch", serve).detach();
    let messages = ReceiverStream::new(messages).map(Ok);
    Ok(messages.chain(status::last_word(end)).boxed())
}
