//! `holdfast status`.

use std::time::Duration;

use futures_util::future::join_all;
use holdfast::{ClusterStatus, NodeStatus};
use holdfast_cli::{block_on, endpoints};
use serde_json::{Value, json};

use crate::args::{ENDPOINTS_DEFAULT, Global};
use crate::cluster_admin;
use crate::failure::{Failure, NOT_REACHED};
use crate::show::{self, Tone};

/// How long each server, and the leader, may take.
const LIMIT: Duration = Duration::from_secs(3);
/// A leader that a quorum answered within this time serves.
const QUORUM_WITHIN: Duration = Duration::from_secs(1);

/// What one of the servers said.
struct Answer {
    endpoint: String,
    node: holdfast::Result<NodeStatus>,
}

/// What is known of the store.
struct Store {
    answers: Vec<Answer>,
    /// As the leader has it.
    cluster: holdfast::Result<ClusterStatus>,
}

/// Asks each server by itself, and the leader for its quorum.
pub(crate) fn run(global: &Global) -> Result<u8, Failure> {
    let store = block_on(look(global))??;
    show::line(if global.json { store.json().to_string() } else { store.text() });
    Ok(if store.serves() { 0 } else { NOT_REACHED })
}

async fn look(global: &Global) -> Result<Store, Failure> {
    let named = global.endpoints.as_deref().unwrap_or(ENDPOINTS_DEFAULT);
    let mut readers = Vec::new();
    for endpoint in endpoints(named) {
        let builder = global.builder()?.endpoints([endpoint]).connect_timeout(LIMIT);
        readers.push((endpoint.to_owned(), builder.reader()?));
    }
    let answers = readers.into_iter().map(async |(endpoint, reader)| {
        let node = reader.status().await;
        Answer { endpoint, node }
    });
    let answers = join_all(answers).await;
    let cluster = match global.builder()?.admin(LIMIT)?.cluster().await {
        // It serves, but not this caller.
        Err(error @ holdfast::Error::Refused { .. }) => return Err(error.into()),
        cluster => cluster,
    };
    Ok(Store { answers, cluster })
}

impl Store {
    fn serves(&self) -> bool {
        let quorum = self.cluster.as_ref().ok().and_then(|cluster| cluster.quorum);
        quorum.is_some_and(|ago| ago < QUORUM_WITHIN)
    }

    fn text(&self) -> String {
        let first = match &self.cluster {
            Ok(cluster) if self.serves() => {
                let members = cluster.members.len();
                let silent = cluster.members.iter().filter(|member| !member.answers).count();
                let silent = match silent {
                    0 => String::new(),
                    silent => format!(", {silent} of them silent"),
                };
                let (leader, term) = (cluster.leader, cluster.term);
                format!("serving: node {leader} leads in term {term}, {members} members{silent}")
            }
            Ok(cluster) => {
                format!("not serving: node {} leads, but no quorum answers it", cluster.leader)
            }
            Err(_) if self.answers.iter().any(|answer| answer.node.is_ok()) => {
                "not serving: servers answer, but none leads; a majority of the members may be down"
                    .to_owned()
            }
            Err(_) => "not serving: no server can be reached".to_owned(),
        };
        let tone = if self.serves() { Tone::Good } else { Tone::Wrong };
        let waits = self.cluster.as_ref().ok().and_then(cluster_admin::waits);
        let waits = waits.map_or_else(String::new, |waits| format!("\n{}", Tone::Wrong.of(waits)));
        let first = format!("{}{waits}", tone.of(first));
        format!("{first}\n{}", show::table(&["SERVER", "NODE", "STATE", "VERSION"], self.rows()))
    }

    fn rows(&self) -> impl Iterator<Item = Vec<String>> {
        self.answers.iter().map(|Answer { endpoint, node }| match node {
            Ok(node) => {
                let state = state(node).to_owned();
                vec![endpoint.clone(), node.node.to_string(), state, show::escaped(&node.version)]
            }
            Err(error) => {
                vec![endpoint.clone(), "-".to_owned(), why(error), "-".to_owned()]
            }
        })
    }

    fn json(&self) -> Value {
        let cluster = self.cluster.as_ref().ok();
        let servers = self.answers.iter().map(|Answer { endpoint, node }| match node {
            Ok(node) => json!({
                "endpoint": endpoint,
                "node": node.node,
                "state": state(node),
                "version": node.version,
            }),
            Err(error) => json!({ "endpoint": endpoint, "error": why(error) }),
        });
        json!({
            "serving": self.serves(),
            "leader": cluster.map(|cluster| cluster.leader),
            "term": cluster.map(|cluster| cluster.term),
            "grants_in_ms": cluster.and_then(|cluster| cluster.grants_in).map(show::millis),
            "servers": servers.collect::<Vec<_>>(),
        })
    }
}

fn state(node: &NodeStatus) -> &'static str {
    match node.leader {
        Some(leader) if leader == node.node && node.ready => "leads",
        Some(leader) if leader == node.node => "leads without a quorum",
        Some(_) if node.ready => "follows",
        Some(_) => "follows a leader that is silent",
        None => "knows no leader",
    }
}

fn why(error: &holdfast::Error) -> String {
    match error {
        holdfast::Error::Unreachable { last, .. } => show::escaped(last),
        other => show::escaped(&other.to_string()),
    }
}
