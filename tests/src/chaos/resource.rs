//! A resource outside of the store, guarded by fencing tokens: one register for each name, which
//! takes no write under a token lower than the largest it has seen (I1).
//!
//! A line `NAME TOKEN CLIENT` is a write; the answer is `taken`, or `refused` and the largest token
//! seen. What it takes it writes into the history, at the instant of its decision.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use holdfast_seams::{Seams, Task};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};

use crate::history::{ClientId, Recorder, What};

/// Longest wait for the resource: it is not part of what is tested.
const PATIENCE: Duration = Duration::from_secs(5);

/// The largest token seen for each name.
type Registers = Arc<Mutex<BTreeMap<String, u64>>>;

/// The resource, at work until it is dropped.
#[derive(Debug)]
pub struct Resource {
    address: String,
    _accepting: Task,
}

/// What the resource says to a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Written {
    /// Taken.
    Taken,
    /// Refused: it has seen this token.
    Refused(u64),
    /// No answer.
    Unknown,
}

impl Resource {
    /// Opens it on a free port of this address.
    pub async fn open(address: &str, recorder: Recorder) -> Self {
        let listener = TcpListener::bind((address, 0)).await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let registers = Registers::default();
        let task = Seams::system().spawn("resource", accept(listener, registers, recorder));
        Self { address, _accepting: task }
    }

    /// Where it is reached.
    pub fn address(&self) -> &str {
        &self.address
    }
}

async fn accept(listener: TcpListener, registers: Registers, recorder: Recorder) {
    while let Ok((stream, _)) = listener.accept().await {
        let answering = answer(stream, registers.clone(), recorder.clone());
        Seams::system().spawn("resource-writer", answering).detach();
    }
}

async fn answer(stream: TcpStream, registers: Registers, recorder: Recorder) {
    let (reading, mut writing) = stream.into_split();
    let mut lines = BufReader::new(reading).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        let Some(asked) = parse(&line) else { return };
        let answer = match decide(&registers, &recorder, asked) {
            Some(newest) => format!("refused {newest}\n"),
            None => "taken\n".to_owned(),
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

/// The larger token for which the write is refused; `None` if it is taken.
fn decide(
    registers: &Registers,
    recorder: &Recorder,
    (name, token, client): (&str, u64, ClientId),
) -> Option<u64> {
    let mut registers = registers.lock().unwrap_or_else(PoisonError::into_inner);
    let newest = registers.entry(name.to_owned()).or_default();
    if token < *newest {
        return Some(*newest);
    }
    *newest = token;
    recorder.write(client, What::Accepted { token, name: name.to_owned() });
    None
}

/// Writes to the resource at `address`. Cancel safe, but for whether the write was taken.
pub async fn write_to(address: &str, name: &str, token: u64, client: ClientId) -> Written {
    let ClientId(client) = client;
    let exchange = async {
        let mut stream = TcpStream::connect(address).await.ok()?;
        stream.write_all(format!("{name} {token} {client}\n").as_bytes()).await.ok()?;
        BufReader::new(stream).lines().next_line().await.ok()?
    };
    let answer = Seams::system().timeout(PATIENCE, exchange).await.ok().flatten();
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
    async fn a_token_below_the_largest_seen_is_refused_name_by_name() {
        let recorder = Recorder::in_memory(Seams::system().clock);
        let resource = Resource::open("127.0.0.1", recorder.clone()).await;
        let write =
            async |name, token| write_to(resource.address(), name, token, ClientId(3)).await;

        assert_eq!(write("a", 5).await, Written::Taken);
        assert_eq!(write("a", 5).await, Written::Taken);
        assert_eq!(write("a", 4).await, Written::Refused(5));
        assert_eq!(write("b", 4).await, Written::Taken);
        let accepted: Vec<What> = recorder.take().into_iter().map(|record| record.what).collect();
        let of = |name: &str, token| What::Accepted { token, name: name.into() };
        assert_eq!(accepted, [of("a", 5), of("a", 5), of("b", 4)]);
    }
}
