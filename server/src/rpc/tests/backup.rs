//! Backups over a real connection.

use holdfast_core::{Backup, BackupError, ValueChange};
use holdfast_proto::v1::BackupRequest;
use holdfast_proto::v1::BackupResponse;
use holdfast_proto::v1::cluster_service_client::ClusterServiceClient;

use super::*;

impl Node {
    async fn operator(&self) -> ClusterServiceClient<Channel> {
        ClusterServiceClient::new(self.channel().await)
    }

    /// Gives a held lock a value that fills several chunks together with others.
    fn fill(&self, locks: u64) {
        for request in 0..locks {
            let session = 1 + request / 400;
            if request % 400 == 0 {
                self.open_session("tester");
            }
            let name = format!("lock/{request:06}");
            self.acquire(session, 2 * request, &name);
            let mut token = None;
            self.hub.consensus().read(&mut |table, _| {
                let lock = table.lock(&LockName::parse(&name).unwrap());
                token =
                    lock.and_then(|lock| lock.holders().next()).map(|holder| holder.grant.token);
            });
            let write = Command::SetValue {
                session: SessionId::new(session),
                done_below: RequestId::new(0),
                request: RequestId::new(2 * request + 1),
                token: token.unwrap(),
                lock: LockName::parse(&name).unwrap(),
                change: ValueChange::Set(vec![7; 4_096]),
            };
            self.fake.commit(write, Tenure::new(1)).outcome.unwrap();
        }
    }
}

async fn whole(mut stream: Streaming<BackupResponse>) -> Result<Vec<u8>, Status> {
    let mut bytes = Vec::new();
    while let Some(response) = stream.message().await? {
        assert!(response.chunk.len() <= 64 << 10);
        bytes.extend(response.chunk);
    }
    Ok(bytes)
}

#[tokio::test]
async fn a_backup_arrives_whole_and_is_of_the_table_as_it_was_at_the_call() {
    let rpc = RpcSettings { cluster_name: "prod".to_owned(), ..RpcSettings::default() };
    let node = node_of(SessionSettings::default(), &rpc).await;
    node.fill(300);
    let mut hash = [0; 32];
    node.hub.consensus().read(&mut |table, _| hash = table.state_hash());

    let stream = node.operator().await.backup(BackupRequest {}).await.unwrap().into_inner();
    // What comes while it is sent is not in it.
    node.acquire(1, 1_000, "later");
    let bytes = whole(stream).await.unwrap();

    let (header, table) = Backup::read_from(&mut bytes.as_slice()).unwrap();
    assert_eq!((header.state_hash, header.values, header.sessions), (hash, 300, 1));
    assert_eq!(header.origin.cluster_name.as_str(), "prod");
    assert!(header.origin.written_by.as_str().starts_with("holdfastd "));
    assert!(table.lock(&LockName::parse("later").unwrap()).is_none());
    assert!(bytes.len() > 1_000_000, "{} bytes are several chunks", bytes.len());
}

#[tokio::test]
async fn a_node_that_does_not_lead_or_has_no_quorum_takes_no_backup() {
    let node = node().await;
    node.fake.set_quorum(false);
    let mut operator = node.operator().await;
    let refused = operator.backup(BackupRequest {}).await.unwrap_err();
    assert_eq!(refused.code(), Code::Unavailable);
    node.fake.set_quorum(true);
    node.fake.follow(Some("node-2:7420"));
    let refused = operator.backup(BackupRequest {}).await.unwrap_err();
    assert_eq!(refused.code(), Code::Unavailable);
    assert_eq!(refused.metadata().get("holdfast-leader").unwrap(), "node-2:7420");
}

/// A frozen table costs what the running one replaces meanwhile: so there is one at a time, and none for a
/// client that is gone.
#[tokio::test]
async fn one_backup_is_taken_at_a_time_and_ends_with_its_client() {
    let node = node().await;
    node.fill(600);
    let first = node.operator().await.backup(BackupRequest {}).await.unwrap().into_inner();
    let mut operator = node.operator().await;
    let refused = operator.backup(BackupRequest {}).await.unwrap_err();
    assert_eq!(refused.code(), Code::ResourceExhausted);
    assert!(refused.message().starts_with("another backup is being taken"), "{refused}");
    drop(first);
    let again = async {
        loop {
            match operator.backup(BackupRequest {}).await {
                Ok(stream) => return whole(stream.into_inner()).await,
                Err(_) => node.hub.runtime().sleep(Duration::from_millis(10)).await,
            }
        }
    };
    let bytes = node.hub.runtime().timeout(Duration::from_secs(10), again).await;
    let bytes = bytes.expect("the first one ended").unwrap();
    assert!(Backup::read_from(&mut bytes.as_slice()).is_ok());
}

/// Whatever broke it: a client that has a part knows that it is a part.
#[tokio::test]
async fn a_part_of_a_backup_is_cut_off() {
    let node = node().await;
    node.fill(100);
    let mut stream = node.operator().await.backup(BackupRequest {}).await.unwrap().into_inner();
    let first = stream.message().await.unwrap().unwrap().chunk;
    let read = Backup::read_from(&mut &*first);
    assert!(matches!(read, Err(BackupError::CutOff)), "{read:?}");
}
