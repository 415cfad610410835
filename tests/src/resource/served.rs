//! Resources for clients of other processes.
//!
//! A line `NAME TOKEN CLIENT` is a write; the answer is `taken`, or `refused` and the largest token
//! seen.

use std::time::Duration;

use holdfast_runtime::{Runtime, Task};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};

use super::Resources;
use crate::history::{ClientId, Recorder};

/// Longest wait for the resource: it is not part of the system under test.
const PATIENCE: Duration = Duration::from_secs(5);

/// Resources at work until this is dropped.
#[derive(Debug)]
pub struct Served {
    address: String,
    _accepting: Task,
}

/// The answer of a resource to a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Written {
    /// Taken.
    Taken,
    /// Refused: it has seen this token.
    Refused(u64),
    /// No answer.
    Unknown,
}

impl Served {
    /// Opens them on a free port of this address.
    pub async fn open(address: &str, recorder: Recorder) -> Self {
        let listener = TcpListener::bind((address, 0)).await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let resources = Resources::new(recorder);
        let task = Runtime::system().spawn("resource", accept(listener, resources));
        Self { address, _accepting: task }
    }

    /// The address of the resources.
    pub fn address(&self) -> &str {
        &self.address
    }
}

async fn accept(listener: TcpListener, resources: Resources) {
    while let Ok((stream, _)) = listener.accept().await {
        Runtime::system().spawn("resource-writer", answer(stream, resources.clone())).detach();
    }
}

async fn answer(stream: TcpStream, resources: Resources) {
    let (reading, mut writing) = stream.into_split();
    let mut lines = BufReader::new(reading).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        let Some((name, token, client)) = parse(&line) else { return };
        let answer = match resources.write(client, name, token) {
            Err(newest) => format!("refused {newest}\n"),
            Ok(()) => "taken\n".to_owned(),
        };
        if writing.write_all(answer.as_bytes()).await.is_err() {
            return;
        }
    }
}

fn parse(line: &str) -> Option<(&str, u64, ClientId)> {
    let mut words = line.split(' ');
    let (name, token, client) = (words.next()?, words.next()?, words.next()?);
    Some((name, token.parse().ok()?, ClientId(client.parse().ok()?)))
}

/// Writes to the resource at `address`. Cancel safe, except that the write may have been taken.
pub async fn write_to(address: &str, name: &str, token: u64, client: ClientId) -> Written {
    let ClientId(client) = client;
    let exchange = async {
        let mut stream = TcpStream::connect(address).await.ok()?;
        stream.write_all(format!("{name} {token} {client}\n").as_bytes()).await.ok()?;
        BufReader::new(stream).lines().next_line().await.ok()?
    };
    let answer = Runtime::system().timeout(PATIENCE, exchange).await.ok().flatten();
    match answer.as_deref().map(|answer| answer.split_once(' ')) {
        Some(Some((_, newest))) => newest.parse().map_or(Written::Unknown, Written::Refused),
        Some(None) => Written::Taken,
        None => Written::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_client_of_another_process_is_told_what_was_decided() {
        let recorder = Recorder::in_memory(Runtime::system().clock);
        let served = Served::open("127.0.0.1", recorder).await;
        let write = async |name, token| write_to(served.address(), name, token, ClientId(3)).await;

        assert_eq!(write("a", 5).await, Written::Taken);
        assert_eq!(write("a", 4).await, Written::Refused(5));
        assert_eq!(write("b", 4).await, Written::Taken);
    }
}
