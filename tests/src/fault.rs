//! Faults between a client and a node: a relay that can be cut or fall silent.

use std::sync::Arc;

use holdfast_seams::{Seams, Task};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use crate::cluster::free_port;

/// What a relay does with what it is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Line {
    /// Passes everything on.
    Open,
    /// Connections stay, nothing passes: as when a cable is pulled.
    Silent,
    /// Every connection is broken, and each new one at once.
    Cut,
}

/// A relay in front of a node's client port.
#[derive(Debug)]
pub struct Relay {
    address: String,
    line: watch::Sender<Line>,
    _accepting: Task,
}

impl Relay {
    /// Listens on a port of its own for what is meant for `target`.
    pub async fn before(target: &str) -> Self {
        let address = format!("127.0.0.1:{}", free_port());
        let listener = TcpListener::bind(&address).await.unwrap();
        let (line, watched) = watch::channel(Line::Open);
        let accepting = accept(listener, target.into(), watched);
        let task = Seams::system().spawn("relay", accepting);
        Self { address, line, _accepting: task }
    }

    /// Where clients connect instead of the node.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Breaks or mends the line.
    pub fn set(&self, line: Line) {
        self.line.send_replace(line);
    }

    /// Breaks every connection once; new ones pass.
    pub async fn cut_once(&self) {
        self.set(Line::Cut);
        // Long enough that every copier has seen it.
        Seams::system().sleep(std::time::Duration::from_millis(20)).await;
        self.set(Line::Open);
    }
}

async fn accept(listener: TcpListener, target: Arc<str>, line: watch::Receiver<Line>) {
    let seams = Seams::system();
    while let Ok((near, _)) = listener.accept().await {
        if *line.borrow() == Line::Cut {
            continue;
        }
        let (target, line) = (target.clone(), line.clone());
        let carry = async move {
            if let Ok(far) = TcpStream::connect(&*target).await {
                carry(near, far, line).await;
            }
        };
        seams.spawn("relayed", carry).detach();
    }
}

/// Copies both ways until one end is done or the line is cut.
async fn carry(near: TcpStream, far: TcpStream, line: watch::Receiver<Line>) {
    let _ = (near.set_nodelay(true), far.set_nodelay(true));
    let (near_in, near_out) = near.into_split();
    let (far_in, far_out) = far.into_split();
    let mut cut = line.clone();
    holdfast_seams::select! {
        _ = cut.wait_for(|line| *line == Line::Cut) => {}
        () = copy(near_in, far_out, line.clone()) => {}
        () = copy(far_in, near_out, line) => {}
    }
}

async fn copy(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, mut line: watch::Receiver<Line>) {
    let mut buffer = vec![0; 64 << 10];
    loop {
        let Ok(length @ 1..) = from.read(&mut buffer).await else { return };
        if line.wait_for(|line| *line == Line::Open).await.is_err()
            || to.write_all(&buffer[..length]).await.is_err()
        {
            return;
        }
    }
}
