//! What a node's admin port shows.

use std::io;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// A metric without labels of the node with this admin port, by its name without `holdfast_`; 0 while the
/// node cannot be reached.
pub async fn metric(address: &str, name: &str) -> u64 {
    let page = metrics(address).await.unwrap_or_default();
    let value = page.lines().find_map(|line| {
        let (found, value) = line.strip_prefix("holdfast_")?.split_once(' ')?;
        (found == name).then(|| value.parse().unwrap_or(0))
    });
    value.unwrap_or(0)
}

async fn metrics(address: &str) -> io::Result<String> {
    let mut stream = TcpStream::connect(address).await?;
    stream.write_all(b"GET /metrics HTTP/1.1\r\nhost: node\r\nconnection: close\r\n\r\n").await?;
    let mut page = String::new();
    stream.read_to_string(&mut page).await?;
    Ok(page)
}
