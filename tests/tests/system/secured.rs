//! Connections with TLS that a test makes itself, with whichever certificate.
#![allow(clippy::unwrap_used, reason = "helpers of a test fail it by a panic")]

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use holdfast_runtime::Runtime;
use holdfast_tls::{ClientSide, CredentialFiles, Credentials, Dialler, Expected, OwnFiles};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tonic::transport::{Channel, Endpoint, Error};

/// Longer than a node takes to answer.
const LIMIT: Duration = Duration::from_secs(20);
/// Where all nodes of these tests are.
const HOST: &str = "127.0.0.1";

/// A client that speaks `protocol` (ALPN), trusts the CA in that file, and proves itself by the certificate `own`, whose key
/// lies beside it.
pub(super) fn side(ca: &Path, own: Option<&Path>, protocol: &str) -> ClientSide {
    let own = own.map(|cert| OwnFiles { cert: cert.to_owned(), key: cert.with_extension("key") });
    let files = CredentialFiles { own, ca: Some(ca.to_owned()) };
    let now = Runtime::system().clock.wall();
    ClientSide::new(Arc::new(Credentials::load(files, now).unwrap()), protocol).unwrap()
}

/// A channel for gRPC, over connections of that dialler.
pub(super) async fn channel(address: &str, dialler: Dialler) -> Result<Channel, Error> {
    let endpoint = Endpoint::from_shared(format!("http://{address}"))?;
    endpoint.connect_timeout(LIMIT).timeout(LIMIT).connect_with_connector(dialler).await
}

/// The whole answer to a GET, with this header `authorization`.
pub(super) async fn get(
    address: &str,
    side: &ClientSide,
    path: &str,
    authorization: Option<&str>,
) -> String {
    let header = authorization.map(|token| format!("Authorization: {token}\r\n"));
    let request = format!(
        "GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n{}\r\n",
        header.unwrap_or_default()
    );
    let exchange = async {
        let stream = TcpStream::connect(address).await.unwrap();
        let server = Expected::Server(HOST.to_owned());
        let mut stream = side.connect(stream, &server).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        stream.flush().await.unwrap();
        let mut answer = Vec::new();
        // A server that ends the connection without TLS' last word has sent its answer before.
        let _ = stream.read_to_end(&mut answer).await;
        answer
    };
    let answer = Runtime::system().timeout(LIMIT, exchange).await.unwrap();
    String::from_utf8(answer).unwrap()
}
