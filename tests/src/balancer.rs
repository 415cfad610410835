//! A plain load balancer: it knows nothing of what it carries, and spreads connections over servers in turn.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use holdfast_runtime::{Runtime, Task};
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};

/// A balancer at work; dropping it ends it with its connections.
#[derive(Debug)]
pub struct Balancer {
    address: String,
    _accepting: Task,
}

impl Balancer {
    /// Spreads connections to a port of this machine over these servers. A server that takes none is passed over.
    ///
    /// # Errors
    ///
    /// The system gives no port.
    pub async fn start(servers: Vec<String>) -> std::io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?.to_string();
        let accepting = Runtime::system().spawn("balancer", accept(listener, servers.into()));
        Ok(Self { address, _accepting: accepting })
    }

    /// Where clients connect.
    pub fn address(&self) -> &str {
        &self.address
    }
}

async fn accept(listener: TcpListener, servers: Arc<[String]>) {
    let next = Arc::new(AtomicUsize::new(0));
    let mut carried = Vec::new();
    while let Ok((client, _)) = listener.accept().await {
        let carry = carry(client, servers.clone(), next.fetch_add(1, Ordering::Relaxed));
        carried.push(Runtime::system().spawn("carried", carry));
    }
}

/// Carries the bytes of a connection until one of its ends is gone.
async fn carry(mut client: TcpStream, servers: Arc<[String]>, first: usize) {
    for server in servers.iter().cycle().skip(first % servers.len()).take(servers.len()) {
        let Ok(mut server) = TcpStream::connect(server.as_str()).await else { continue };
        // A broken connection ends like one that is closed: the client sees it, and comes back.
        let _ = server.set_nodelay(true).and(client.set_nodelay(true));
        let _ = copy_bidirectional(&mut client, &mut server).await;
        return;
    }
}
