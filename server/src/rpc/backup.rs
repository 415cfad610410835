//! A backup as a stream of chunks (DESIGN §15).

use std::io::{self, Write};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt as _;
use futures_util::stream::{self, BoxStream};
use holdfast_core::{Backup, Label};
use holdfast_proto::v1;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;

use super::acts::Act;
use super::status;
use crate::raft::free_with_pauses;
use crate::session::{Hub, StreamError};

/// Bytes of a chunk.
const CHUNK_BYTES: usize = 64 << 10;
/// Chunks on their way to a client that is slower than this node.
const CHUNKS_IN_FLIGHT: usize = 8;
/// A client that takes nothing for so long is given up: its backup keeps what the table has replaced since.
const TAKEN_WITHIN: Duration = Duration::from_mins(1);

/// The backups that clients take from this node: one at a time.
#[derive(Debug)]
pub(super) struct Backups {
    hub: Arc<Hub>,
    cluster_name: Label,
    one: Arc<Semaphore>,
}

impl Backups {
    pub(super) fn new(hub: Arc<Hub>, cluster_name: &str) -> Self {
        // Names in the settings are shorter than labels may be.
        let cluster_name = Label::parse(cluster_name).unwrap_or_default();
        Self { hub, cluster_name, one: Arc::new(Semaphore::new(1)) }
    }

    /// Freezes the table, and returns what sends it and what receives it.
    ///
    /// # Errors
    ///
    /// `UNAVAILABLE`: this node does not lead, or no quorum answers. `RESOURCE_EXHAUSTED`: another backup is
    /// being taken from this node.
    pub(super) async fn begin(
        &self,
    ) -> Result<
        (impl Future<Output = Result<(), StreamError>> + use<>, mpsc::Receiver<v1::BackupResponse>),
        Status,
    > {
        let Ok(only) = self.one.clone().try_acquire_owned() else {
            return Err(Status::resource_exhausted(
                "another backup is being taken from this node; try again when that is done",
            ));
        };
        let backup = self.hub.backup(self.cluster_name.clone()).await;
        let backup = backup.map_err(|error| status::of_propose_error(&error))?;
        let (outgoing, sent) = mpsc::channel(CHUNKS_IN_FLIGHT);
        Ok((send(self.hub.clone(), backup, outgoing, only), sent))
    }

    /// Sends in a task of its own, and logs how that ended.
    pub(super) fn stream(
        &self,
        act: Act,
        sending: impl Future<Output = Result<(), StreamError>> + Send + 'static,
        sent: mpsc::Receiver<v1::BackupResponse>,
    ) -> BoxStream<'static, Result<v1::BackupResponse, Status>> {
        let (tell, end) = oneshot::channel();
        let hub = self.hub.clone();
        let sending = async move {
            let ended = sending.await;
            count(&hub, ended.is_ok());
            let ended = ended.map_err(|error| status::of_stream_error(&error));
            // The receiver is gone if the client is.
            let _ = tell.send(act.end(ended.map(|()| (None, ()))));
        };
        self.hub.runtime().spawn("backup", sending).detach();
        let last_word = stream::once(end).filter_map(|ended| {
            std::future::ready(match ended {
                Ok(Ok(())) => None,
                Ok(Err(status)) => Some(Err(status)),
                // The task was dropped with the runtime.
                Err(_) => Some(Err(Status::cancelled("this node stops"))),
            })
        });
        ReceiverStream::new(sent).map(Ok).chain(last_word).boxed()
    }
}

fn count(hub: &Hub, is_whole: bool) {
    let metrics = hub.metrics();
    if is_whole {
        metrics.backups.inc();
        let now = i64::try_from(hub.runtime().clock.wall_ms() / 1_000).unwrap_or(i64::MAX);
        metrics.backup_sent.set(now);
    } else {
        metrics.backups_broken_off.inc();
    }
}

/// Writes the backup on a thread that may block, and sends what is written for as long as the client takes
/// it. A backup that is not sent to its end ends with an error.
async fn send(
    hub: Arc<Hub>,
    backup: Backup,
    outgoing: mpsc::Sender<v1::BackupResponse>,
    only: OwnedSemaphorePermit,
) -> Result<(), StreamError> {
    let (tell, mut written) = mpsc::channel(CHUNKS_IN_FLIGHT);
    let writing = tokio::task::spawn_blocking(move || {
        let mut chunks = Chunks { tell, chunk: Vec::new() };
        let whole = backup.write_to(&mut chunks).and_then(|()| chunks.flush());
        drop(chunks);
        free_with_pauses(backup.dismantle());
        drop(only);
        whole
    });
    while let Some(chunk) = written.recv().await {
        let taken = outgoing.send(v1::BackupResponse { chunk });
        match hub.runtime().timeout(TAKEN_WITHIN, taken).await {
            Ok(Ok(())) => {}
            Ok(Err(_)) => return Err(StreamError::unavailable("the client is gone", None)),
            Err(_) => {
                let (seconds, message) =
                    (TAKEN_WITHIN.as_secs(), "nothing of the backup was taken");
                return Err(StreamError::limit("seconds", seconds, message));
            }
        }
    }
    drop(outgoing);
    match writing.await {
        Ok(Ok(())) => Ok(()),
        Ok(Err(_)) | Err(_) => Err(StreamError::unavailable("the backup was not written", None)),
    }
}

/// Cuts what is written into chunks.
struct Chunks {
    tell: mpsc::Sender<Bytes>,
    chunk: Vec<u8>,
}

impl Write for Chunks {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let room = CHUNK_BYTES - self.chunk.len();
        let taken = bytes.get(..room.min(bytes.len())).unwrap_or_default();
        self.chunk.extend_from_slice(taken);
        if self.chunk.len() == CHUNK_BYTES {
            self.flush()?;
        }
        Ok(taken.len())
    }

    /// Ends the chunk. Blocks until the client has taken what came before.
    fn flush(&mut self) -> io::Result<()> {
        if self.chunk.is_empty() {
            return Ok(());
        }
        let chunk = std::mem::take(&mut self.chunk).into();
        self.tell.blocking_send(chunk).map_err(|_| io::ErrorKind::BrokenPipe.into())
    }
}
