//! The name that a node's certificate carries.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Begins the URI in a node's certificate.
const SCHEME: &str = "holdfast:node:";
/// Longest name of a cluster, bytes.
const LONGEST: usize = 63;

/// The name of a cluster in the certificates of its nodes: 1 to 63 of `a` to `z`, `0` to `9` and `-`.
///
/// An operator chooses it (the setting `cluster_name`), so that certificates can be made before the cluster
/// has drawn its id.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ClusterName(String);

/// `holdfast`.
impl Default for ClusterName {
    fn default() -> Self {
        Self("holdfast".to_owned())
    }
}

/// Text that is no name of a cluster.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no name of a cluster: 1 to 63 of a to z, 0 to 9 and -")]
pub struct InvalidClusterName(String);

impl ClusterName {
    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for ClusterName {
    type Err = InvalidClusterName;

    fn from_str(text: &str) -> Result<Self, InvalidClusterName> {
        let allowed = |byte: u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-');
        if (1..=LONGEST).contains(&text.len()) && text.bytes().all(allowed) {
            Ok(Self(text.to_owned()))
        } else {
            Err(InvalidClusterName(text.to_owned()))
        }
    }
}

impl TryFrom<String> for ClusterName {
    type Error = InvalidClusterName;

    fn try_from(text: String) -> Result<Self, InvalidClusterName> {
        text.parse()
    }
}

impl From<ClusterName> for String {
    fn from(name: ClusterName) -> Self {
        name.0
    }
}

impl fmt::Display for ClusterName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Of which cluster, and where it is said, which node a certificate makes its owner: the SAN URI
/// `holdfast:node:CLUSTER` or `holdfast:node:CLUSTER:ID`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeName {
    /// The cluster.
    pub cluster: ClusterName,
    /// The one node for which the owner may speak; none: any node of the cluster.
    pub id: Option<u64>,
}

impl NodeName {
    /// Reads a SAN URI; `None` if it is not the name of a node.
    ///
    /// Only the one spelling that [`Display`](fmt::Display) writes counts: an id with leading zeros or a sign is none.
    pub fn parse(uri: &str) -> Option<Self> {
        let rest = uri.strip_prefix(SCHEME)?;
        let (cluster, id) = match rest.split_once(':') {
            Some((cluster, id)) => (cluster, Some(id.parse().ok()?)),
            None => (rest, None),
        };
        let name = Self { cluster: cluster.parse().ok()?, id };
        (name.to_string() == uri).then_some(name)
    }

    /// Whether its owner may speak for node `id` of `cluster`.
    pub fn speaks_for(&self, cluster: &ClusterName, id: u64) -> bool {
        self.cluster == *cluster && self.id.is_none_or(|own| own == id)
    }
}

impl fmt::Display for NodeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{SCHEME}{}", self.cluster)?;
        self.id.map_or(Ok(()), |id| write!(f, ":{id}"))
    }
}
