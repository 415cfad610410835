//! The calls of clients without a port, for simulated runs.

use std::collections::BTreeSet;
use std::sync::Arc;

use futures_util::stream::BoxStream;
use holdfast_proto::v1::lock_service_server::LockService;
use holdfast_proto::v1::{ServerFrames, WatchResponse};
use tonic::Status;

use super::NodeInfo;
use super::access::Door;
use super::lock_service::LockApi;
use crate::session::Hub;

/// All calls of the service, with the type that its streams consist of.
pub type LockCalls = Arc<
    dyn LockService<
            SessionStream = BoxStream<'static, Result<ServerFrames, Status>>,
            WatchStream = BoxStream<'static, Result<WatchResponse, Status>>,
        >,
>;

/// The service alone, without a port: for simulations, which call it as a port would. Its session
/// streams need a port's messages; [`Hub::serve`] takes their place.
pub fn lock_calls(hub: Arc<Hub>, info: Arc<dyn NodeInfo>) -> LockCalls {
    let door = Door::new(hub.clone(), &BTreeSet::new());
    Arc::new(LockApi::new(hub, info, door))
}
