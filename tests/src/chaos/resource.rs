//! A resource outside of the store, guarded by fencing tokens: one register for each name, which
//! takes no write under a token lower than the largest it has seen (I1).
//!
//! A line `NAME TOKEN` is a write; the answer is `taken`, or `refused` and the largest token seen.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use holdfast_seams::{Seams, Task};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};

/// Longest wait for the resource: it is not part of what is tested.
const PATIENCE: Duration = Duration::from_secs(5);

type Registers = Arc<Mutex<BTreeMap<String, u64>>>;

/// The resource, at work until it is dropped.
#[derive(Debug)]
pub struct Resource {
    address: String,
    registers: Registers,
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
    pub async fn open(address: &str) -> Self {
        let listener = TcpListener::bind((address, 0)).await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let registers = Registers::default();
        let task = Seams::system().spawn("resource", accept(listener, registers.clone()));
        Self { address, registers, _accepting: task }
    }

    /// Where it is reached.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// How many names were written to.
    pub fn names(&self) -> usize {
        self.registers.lock().unwrap_or_else(PoisonError::into_inner).len()
    }
}

async fn accept(listener: TcpListener, registers: Registers) {
    while let Ok((stream, _)) = listener.accept().await {
        let answering = answer(stream, registers.clone());
        Seams::system().spawn("resource-writer", answering).detach();
    }
}

async fn answer(stream: TcpStream, registers: Registers) {
    let (reading, mut writing) = stream.into_split();
    let mut lines = BufReader::new(reading).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        let Some((name, token)) = line.split_once(' ') else { return };
        let Ok(token) = token.parse() else { return };
        let answer = match write(&registers, name, token) {
            Written::Refused(newest) => format!("refused {newest}\n"),
            Written::Taken | Written::Unknown => "taken\n".to_owned(),
        };
        if writing.write_all(answer.as_bytes()).await.is_err() {
            return;
        }
    }
}

fn write(registers: &Registers, name: &str, token: u64) -> Written {
    let mut registers = registers.lock().unwrap_or_else(PoisonError::into_inner);
    let newest = registers.entry(name.to_owned()).or_default();
    if token < *newest {
        return Written::Refused(*newest);
    }
    *newest = token;
    Written::Taken
}

/// Writes to the resource at `address`. Cancel safe, but for whether the write was taken.
pub async fn write_to(address: &str, name: &str, token: u64) -> Written {
    let exchange = async {
        let mut stream = TcpStream::connect(address).await.ok()?;
        stream.write_all(format!("{name} {token}\n").as_bytes()).await.ok()?;
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
        let resource = Resource::open("127.0.0.1").await;
        let address = resource.address();

        assert_eq!(write_to(address, "a", 5).await, Written::Taken);
        assert_eq!(write_to(address, "a", 5).await, Written::Taken);
        assert_eq!(write_to(address, "a", 4).await, Written::Refused(5));
        assert_eq!(write_to(address, "b", 4).await, Written::Taken);
        assert_eq!(resource.names(), 2);
    }
}
