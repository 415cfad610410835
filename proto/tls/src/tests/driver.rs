use std::sync::Arc;
use std::time::SystemTime;

use rustls::ClientConfig;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, duplex};
use tokio_rustls::TlsConnector;

use super::{Office, month};
use crate::client::host_name;
use crate::{
    Admits, Certificate, DialError, HandshakeError, NotUsable, ServerSide, Tls, Wall,
    refused_by_tls,
};

/// A driver's connection to a database at `host`, and whom the database takes it for.
async fn meet(
    server: &ServerSide,
    config: &Arc<ClientConfig>,
    host: &str,
) -> Result<Option<String>, String> {
    let (near, far) = duplex(1 << 16);
    let serve = async {
        let (mut stream, shown) = server.accept(far).await?;
        let byte = stream.read_u8().await.map_err(HandshakeError::Lost)?;
        stream.write_u8(byte).await.map_err(HandshakeError::Lost)?;
        stream.flush().await.map_err(HandshakeError::Lost)?;
        Ok::<_, HandshakeError>(shown)
    };
    let dial = async {
        let connector = TlsConnector::from(Arc::clone(config));
        let mut stream = connector.connect(host_name(host).unwrap(), near).await?;
        stream.write_u8(7).await?;
        stream.flush().await?;
        stream.read_u8().await
    };
    let (taken, dialled) = tokio::join!(serve, dial);
    let said = |error: std::io::Error| match refused_by_tls(&error) {
        Some(refused) => refused.to_string(),
        None => format!("lost: {error}"),
    };
    dialled.map_err(said)?;
    Ok(taken.unwrap().as_ref().and_then(Certificate::identity))
}

/// The office's node serves at db.example.com and 127.0.0.1.
fn database(office: &Office, admits: Admits) -> ServerSide {
    ServerSide::new(office.node(None), admits, &[]).unwrap()
}

fn client(office: &Office, name: &str) -> Tls {
    let pair = office.ca.client(name, month()).unwrap();
    let files = office.files(name, &pair).own.unwrap();
    Tls::new(office.path("ca.pem")).certificate(files.cert, files.key)
}

fn wall() -> Wall {
    Arc::new(SystemTime::now)
}

fn config(tls: Tls) -> Arc<ClientConfig> {
    tls.for_driver(wall()).unwrap()
}

#[tokio::test]
async fn a_driver_proves_itself_and_takes_the_host_that_it_dials() {
    let office = Office::new();
    let database = database(&office, Admits::Certified);
    let app = config(client(&office, "app"));
    assert_eq!(meet(&database, &app, "127.0.0.1").await.unwrap().as_deref(), Some("cn:app"));
    let another = meet(&database, &app, "127.0.0.2").await.unwrap_err();
    assert!(another.contains("127.0.0.2"), "{another}");
    let nobody = config(Tls::new(office.path("ca.pem")));
    let uncertified = meet(&database, &nobody, "127.0.0.1").await.unwrap_err();
    assert!(uncertified.contains("CertificateRequired"), "{uncertified}");
}

/// A driver dials addresses that the nodes tell it, and many clusters have one name for all of their nodes.
#[tokio::test]
async fn a_name_stands_in_place_of_every_address() {
    let office = Office::new();
    let database = database(&office, Admits::Anybody);
    let named = config(Tls::new(office.path("ca.pem")).server_name("db.example.com"));
    assert_eq!(meet(&database, &named, "10.1.2.3").await, Ok(None));
    let others = config(Tls::new(office.path("ca.pem")).server_name("other.example.com"));
    let refused = meet(&database, &others, "127.0.0.1").await.unwrap_err();
    assert!(refused.contains("other.example.com"), "{refused}");
}

#[tokio::test]
async fn a_driver_sees_files_that_were_replaced() {
    let (office, next) = (Office::new(), Office::new());
    let tls = client(&office, "app");
    let app = config(tls);
    let later = database(&next, Admits::Certified);
    assert!(meet(&later, &app, "127.0.0.1").await.is_err());

    let pair = next.ca.client("app2", month()).unwrap();
    office.write("ca.pem", &next.ca_pem);
    office.files("app", &pair);

    assert_eq!(meet(&later, &app, "127.0.0.1").await.unwrap().as_deref(), Some("cn:app2"));
    office.write("ca.pem", "no PEM");
    assert!(meet(&later, &app, "127.0.0.1").await.is_ok(), "what was good before stays");
}

#[tokio::test]
async fn files_and_names_that_cannot_be_used_make_no_driver() {
    let office = Office::new();
    let missing = Tls::new(office.path("nowhere.pem")).for_driver(wall()).unwrap_err();
    assert!(missing.to_string().contains("nowhere.pem"), "{missing}");
    let named = Tls::new(office.path("ca.pem")).server_name("no name").for_driver(wall());
    assert!(matches!(named, Err(NotUsable::Name(DialError::NoName(_)))), "{named:?}");
}
