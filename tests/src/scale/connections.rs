//! Very many clients that connect at the same moment, as after a network is whole again.

use std::time::Duration;

use futures_util::future::join_all;
use tonic::transport::{Channel, Endpoint};

use super::{Stage, millis};
use crate::admin;
use crate::cluster::Setup;

/// How long one may take to be connected.
const CONNECTED_WITHIN: Duration = Duration::from_mins(1);

/// So many connections to the leader, looked at for `look` at a time.
pub async fn measure(look: Duration, count: usize) {
    let stage = Stage::start(&Setup::nodes(3), look).await;
    let term = term(&stage).await;
    let endpoint = Endpoint::from_shared(format!("http://{}", stage.leader_address()));
    let endpoint = endpoint.expect("an address").connect_timeout(CONNECTED_WITHIN);
    stage.quiet.take();
    let began = stage.now();
    let connected = join_all((0..count).map(|_| endpoint.connect())).await;
    let took = stage.since(began);
    let waits = stage.quiet.take();
    let open: Vec<Channel> = connected.into_iter().filter_map(Result::ok).collect();
    let elections = self::term(&stage).await - term;
    println!(
        "{} of {count} connections that are begun at once are there after {:.1} s; {elections} elections; a quiet client \
         waits {:.1} ms at most",
        open.len(),
        took.as_secs_f64(),
        millis(waits.percentile(100)),
    );
    stage.look("they are idle").await;
    drop(open);
    stage.end();
}

async fn term(stage: &Stage) -> u64 {
    admin::metric(&stage.cluster.nodes()[stage.leader].admin_listen, "raft_term").await
}
