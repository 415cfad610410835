//! Faults between a client and a node: a relay that can be cut, silent, or slow.

use std::sync::Arc;
use std::time::Duration;

use holdfast_runtime::{Instant, Runtime, Task};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};

use crate::cluster::free_port;
use crate::draw::Draw;

/// What a relay does with the bytes it receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Line {
    /// Passes everything on.
    Open,
    /// Connections stay, and nothing passes: as when a cable is pulled.
    Silent,
    /// Every connection is broken, and each new one at once.
    Cut,
}

/// How long a relay delays a chunk: drawn between the two; chunks never overtake each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Delay {
    /// At least.
    pub least: Duration,
    /// At most.
    pub most: Duration,
}

impl Delay {
    fn draw(self, draw: &mut Draw) -> Duration {
        let micros = |length: Duration| u64::try_from(length.as_micros()).unwrap_or(u64::MAX);
        Duration::from_micros(draw.between(micros(self.least), micros(self.most)))
    }
}

/// A relay in front of a node's port.
#[derive(Debug)]
pub struct Relay {
    address: String,
    line: watch::Sender<Line>,
    delay: watch::Sender<Delay>,
    _accepting: Task,
}

/// What each connection through a relay observes.
#[derive(Clone)]
struct Watched {
    line: watch::Receiver<Line>,
    delay: watch::Receiver<Delay>,
}

impl Relay {
    /// Listens on a port of its own on loopback for connections to `target`.
    pub async fn before(target: &str) -> Self {
        Self::at(format!("127.0.0.1:{}", free_port()), target).await
    }

    /// Listens at `address` for connections to `target`.
    pub async fn at(address: String, target: &str) -> Self {
        let listener = TcpListener::bind(&address).await.unwrap();
        let (line, watched_line) = watch::channel(Line::Open);
        let (delay, watched_delay) = watch::channel(Delay::default());
        let watched = Watched { line: watched_line, delay: watched_delay };
        let task = Runtime::system().spawn("relay", accept(listener, target.into(), watched));
        Self { address, line, delay, _accepting: task }
    }

    /// The address to which clients connect instead of the node.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Breaks or mends the line.
    pub fn set(&self, line: Line) {
        self.line.send_replace(line);
    }

    /// Delays whatever comes from now on, in both directions.
    pub fn set_delay(&self, delay: Delay) {
        self.delay.send_replace(delay);
    }

    /// Breaks every connection once; new ones pass.
    pub async fn cut_once(&self) {
        self.set(Line::Cut);
        // Long enough for every copier to notice.
        Runtime::system().sleep(Duration::from_millis(20)).await;
        self.set(Line::Open);
    }
}

async fn accept(listener: TcpListener, target: Arc<str>, watched: Watched) {
    let runtime = Runtime::system();
    while let Ok((near, _)) = listener.accept().await {
        if *watched.line.borrow() == Line::Cut {
            continue;
        }
        let (target, watched) = (target.clone(), watched.clone());
        let carry = async move {
            if let Ok(far) = TcpStream::connect(&*target).await {
                carry(near, far, watched).await;
            }
        };
        runtime.spawn("relayed", carry).detach();
    }
}

/// Copies both ways until one end is done, the line is cut, or the relay is gone.
async fn carry(near: TcpStream, far: TcpStream, watched: Watched) {
    let _ = (near.set_nodelay(true), far.set_nodelay(true));
    let (near_in, near_out) = near.into_split();
    let (far_in, far_out) = far.into_split();
    let mut cut = watched.line.clone();
    holdfast_runtime::select! {
        _ = cut.wait_for(|line| *line == Line::Cut) => {}
        () = copy(near_in, far_out, watched.clone()) => {}
        () = copy(far_in, near_out, watched) => {}
    }
}

/// A chunk, and when it may go on.
type Chunk = (Instant, Vec<u8>);

async fn copy(from: OwnedReadHalf, to: OwnedWriteHalf, watched: Watched) {
    let (sender, receiver) = mpsc::channel(64);
    holdfast_runtime::select! {
        () = pass_on(receiver, to, watched.line) => {}
        // The chunks received so far are still passed on.
        () = async { take_in(from, sender, watched.delay).await; std::future::pending().await } => {}
    }
}

async fn take_in(
    mut from: OwnedReadHalf,
    sender: mpsc::Sender<Chunk>,
    delay: watch::Receiver<Delay>,
) {
    let runtime = Runtime::system();
    let mut draw = Draw::new(u64::from(std::process::id()));
    let mut buffer = vec![0; 64 << 10];
    while let Ok(length @ 1..) = from.read(&mut buffer).await {
        let held_up = delay.borrow().draw(&mut draw);
        let chunk = (runtime.clock.now() + held_up, buffer[..length].to_vec());
        if sender.send(chunk).await.is_err() {
            return;
        }
    }
}

async fn pass_on(
    mut chunks: mpsc::Receiver<Chunk>,
    mut to: OwnedWriteHalf,
    mut line: watch::Receiver<Line>,
) {
    let runtime = Runtime::system();
    while let Some((due, bytes)) = chunks.recv().await {
        if runtime.clock.now() < due {
            runtime.clock.sleep_until(due).await;
        }
        if line.wait_for(|line| *line == Line::Open).await.is_err()
            || to.write_all(&bytes).await.is_err()
        {
            return;
        }
    }
}
