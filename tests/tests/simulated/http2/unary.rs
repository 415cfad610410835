//! A session by unary calls, like that of a client that does not use the library.

use holdfast_proto::v1::lock_service_client::LockServiceClient;
use holdfast_proto::v1::set_value::Change;
use holdfast_proto::v1::{
    Acquire, AcquireRequest, CheckTokenRequest, CloseSessionRequest, InspectRequest, Item,
    KeepAliveRequest, Mode, OpenSessionRequest, Release, ReleaseRequest, SessionKey, SetValue,
    SetValueRequest,
};
use holdfast_tests::sim::member;
use tonic::transport::{Channel, Endpoint};

use super::wire;

/// A session at one node.
pub(super) struct Session {
    client: LockServiceClient<Channel>,
    key: Option<SessionKey>,
    last_request: u64,
}

impl Session {
    /// Opens a session.
    pub(super) async fn open(node: u64) -> Self {
        let address = member(node).advertise;
        let endpoint = Endpoint::from_shared(format!("http://{address}")).unwrap();
        let mut client = LockServiceClient::new(wire::at_once(endpoint).await.unwrap());
        let request = OpenSessionRequest { label: "by hand".into(), ..Default::default() };
        let key = client.open_session(request).await.unwrap().into_inner().session;
        Self { client, key, last_request: 0 }
    }

    fn next_request(&mut self) -> u64 {
        self.last_request += 1;
        self.last_request
    }

    /// The token of a lock's holder.
    pub(super) async fn holder_of(&mut self, name: &str) -> Option<u64> {
        let answer = self.client.inspect(InspectRequest { name: name.into() }).await.unwrap();
        Some(answer.into_inner().lock?.holders.first()?.token)
    }

    /// Waits for a lock, and returns the token.
    pub(super) async fn acquire(&mut self, name: &str) -> u64 {
        let item =
            Item { name: name.to_owned().into(), mode: Mode::Exclusive.into(), ..Item::default() };
        let request_id = self.next_request();
        let acquire = Acquire { request_id, items: vec![item], wait: true, ..Acquire::default() };
        let session = self.key.clone();
        let request =
            AcquireRequest { session, acquire: Some(acquire), ..AcquireRequest::default() };
        let answer = self.client.acquire(request).await.unwrap();
        answer.into_inner().granted.unwrap().token
    }

    pub(super) async fn keep_alive(&mut self) {
        let request = KeepAliveRequest { session: self.key.clone() };
        assert!(self.client.keep_alive(request).await.unwrap().into_inner().ttl_ms > 0);
    }

    pub(super) async fn holds(&mut self, name: &str, token: u64) -> bool {
        let request = CheckTokenRequest { name: name.into(), token };
        self.client.check_token(request).await.unwrap().into_inner().current
    }

    pub(super) async fn set_value(&mut self, name: &str, token: u64, value: &'static str) {
        let change = SetValue {
            request_id: self.next_request(),
            token,
            name: name.to_owned().into(),
            change: Some(Change::Value(value.into())),
        };
        let session = self.key.clone();
        let request =
            SetValueRequest { session, set_value: Some(change), ..SetValueRequest::default() };
        self.client.set_value(request).await.unwrap();
    }

    pub(super) async fn release(&mut self, token: u64) {
        let release = Some(Release { token, ..Release::default() });
        let request =
            ReleaseRequest { session: self.key.clone(), release, ..ReleaseRequest::default() };
        self.client.release(request).await.unwrap();
    }

    pub(super) async fn close(&mut self) {
        let request = CloseSessionRequest { session: self.key.clone() };
        self.client.close_session(request).await.unwrap();
    }
}
