//! A member.

use hiqlite::{LogSync, Node, NodeConfig};

use crate::{Given, Outcome};

pub const SECRET: &str = "0123456789abcdef";

/// No cache besides the locks.
#[derive(Debug)]
pub enum NoCache {}

impl hiqlite::CacheVariants for NoCache {
    fn hiqlite_cache_index(&self) -> usize {
        unreachable!()
    }

    fn hiqlite_cache_variants() -> &'static [(usize, &'static str)] {
        &[]
    }
}

/// Member i, from 0 on, listens at its address on 8101+i for clients and on 8201+i for its peers. Its log
/// is synced before an entry counts, which is not the default.
pub async fn run(given: &Given) -> Outcome<()> {
    let (member, addresses) = (given.number("id")?, given.list("addresses")?);
    let own = addresses.get(member as usize).ok_or("no address for this member")?;
    let nodes = (0..).zip(&addresses).map(|(i, address)| Node {
        id: i + 1,
        addr_raft: format!("{address}:{}", 8201 + i),
        addr_api: format!("{address}:{}", 8101 + i),
    });
    let config = NodeConfig {
        node_id: member + 1,
        nodes: nodes.collect(),
        listen_addr_api: own.clone().into(),
        listen_addr_raft: own.clone().into(),
        data_dir: given.text("dir")?.to_owned().into(),
        wal_sync: LogSync::try_from("immediate").map_err(|error| format!("{error:?}"))?,
        secret_raft: SECRET.into(),
        secret_api: SECRET.into(),
        ..NodeConfig::default()
    };
    let client = hiqlite::start_node_with_cache::<NoCache>(config).await?;
    client.wait_until_healthy_cache().await;
    println!("READY");
    std::future::pending().await
}
