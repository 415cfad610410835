//! TLS handshakes, on a thread of their own: a handshake signs and verifies, and the thread of Raft has no
//! time for that.
//!
//! # Invariants
//!
//! - At most [`AT_ONCE`] handshakes are under way. One more ends the one that has lasted longest: whoever
//!   opens connections and says nothing cannot keep out those that do, as one that speaks is through in two
//!   round trips.
//! - A handshake has [`WITHIN`] to end.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use holdfast_runtime::{Runtime, select};
use holdfast_tls::{HandshakeError, ServerSide};
use tokio::sync::{mpsc, oneshot};

use super::Connection;
use super::wire::{Socket, Wire};

/// Handshakes under way.
const AT_ONCE: usize = 1_024;
/// How long a handshake may take.
const WITHIN: Duration = Duration::from_secs(5);
/// Connections on their way to the thread, and back. A full queue holds up the accept loop of its port.
const QUEUED: usize = 256;
/// The first byte of TLS: a record of a handshake.
const TLS_BEGINS: u8 = 22;

/// TLS of one port.
#[derive(Clone, Debug)]
pub struct Security {
    /// Certificate, key and whom they let in.
    pub side: Arc<ServerSide>,
    /// Connections without TLS are let in too: while a cluster and its clients go over to TLS.
    pub plain_too: bool,
}

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub(super) enum Failed {
    #[error(transparent)]
    Handshake(#[from] HandshakeError),
    #[error("it took longer than {} s", WITHIN.as_secs())]
    TooLong,
    #[error("{AT_ONCE} others began after it")]
    GaveWay,
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// What came of a handshake.
pub(super) type Outcome = Result<Wire, Failed>;

/// A connection that has to prove itself, and where to say what came of it.
pub(super) struct Newcomer {
    pub(super) connection: Connection<Socket>,
    pub(super) security: Security,
    pub(super) tell: mpsc::Sender<Outcome>,
}

/// The thread. It ends when nothing can reach it any more.
#[derive(Clone, Debug)]
pub struct Handshakes {
    newcomers: mpsc::Sender<Newcomer>,
}

impl Handshakes {
    /// Starts the thread.
    ///
    /// # Errors
    ///
    /// The system gives no thread or no event queue.
    pub fn start(runtime: Runtime) -> io::Result<Self> {
        let events = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (newcomers, arriving) = mpsc::channel(QUEUED);
        let thread = std::thread::Builder::new().name("holdfast-tls".to_owned());
        thread.spawn(move || events.block_on(serve(arriving, runtime)))?;
        Ok(Self { newcomers })
    }

    /// Where the outcomes of one port come.
    pub(super) fn outcomes() -> (mpsc::Sender<Outcome>, mpsc::Receiver<Outcome>) {
        mpsc::channel(QUEUED)
    }

    /// Hands a connection over. It is dropped if the thread is gone, which happens only while the process ends.
    pub(super) async fn begin(&self, newcomer: Newcomer) {
        let _ = self.newcomers.send(newcomer).await;
    }
}

async fn serve(mut arriving: mpsc::Receiver<Newcomer>, runtime: Runtime) {
    let under_way = Arc::new(Mutex::new(UnderWay::default()));
    while let Some(newcomer) = arriving.recv().await {
        let (number, give_way) = lock(&under_way).begin();
        let (under_way, runtime) = (Arc::clone(&under_way), runtime.clone());
        let handshake = async move {
            let Newcomer { connection, security, tell } = newcomer;
            let outcome = select! {
                _ = give_way => Err(Failed::GaveWay),
                outcome = runtime.timeout(WITHIN, prove(connection, &security)) => {
                    outcome.unwrap_or(Err(Failed::TooLong))
                }
            };
            lock(&under_way).ended(number);
            // The port is gone: nobody wants the connection.
            let _ = tell.send(outcome).await;
        };
        runtime_spawn(handshake);
    }
}

/// On the thread of handshakes: no runtime of a simulation comes here.
#[expect(clippy::disallowed_methods, reason = "this thread has an event queue of its own")]
fn runtime_spawn(handshake: impl Future<Output = ()> + Send + 'static) {
    tokio::spawn(handshake);
}

fn lock(under_way: &Mutex<UnderWay>) -> std::sync::MutexGuard<'_, UnderWay> {
    under_way.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The handshakes under way, in the order in which they began.
#[derive(Default)]
struct UnderWay {
    begun: u64,
    ends: BTreeMap<u64, oneshot::Sender<()>>,
}

impl UnderWay {
    /// One more; its number, and what tells it to give way.
    fn begin(&mut self) -> (u64, oneshot::Receiver<()>) {
        if self.ends.len() >= AT_ONCE {
            // Dropped, it tells the oldest one.
            let _ = self.ends.pop_first();
        }
        let (end, give_way) = oneshot::channel();
        self.begun += 1;
        self.ends.insert(self.begun, end);
        (self.begun, give_way)
    }

    fn ended(&mut self, number: u64) {
        let _ = self.ends.remove(&number);
    }
}

async fn prove(connection: Connection<Socket>, security: &Security) -> Outcome {
    let Connection { stream: mut socket, place } = connection;
    socket.come_here()?;
    if security.plain_too && socket.first_byte().await? != Some(TLS_BEGINS) {
        return Ok(Wire::plain(Connection { stream: socket, place }));
    }
    let (stream, shown) = security.side.accept(socket).await?;
    Ok(Wire::tls(stream, place, shown))
}
