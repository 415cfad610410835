//! How many replicas a keyspace has, and where.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use scylla::cluster::ClusterState;
use scylla::cluster::metadata::Strategy;

/// How many replicas a keyspace has: three in a datacenter, to tolerate the loss of one node there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Replication {
    /// So many in each datacenter that is there when the keyspace is made.
    Each(u32),
    /// So many in each of these datacenters, and none in others.
    In(BTreeMap<String, u32>),
}

impl From<u32> for Replication {
    fn from(replicas: u32) -> Self {
        Self::Each(replicas)
    }
}

/// What is no replication.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is neither a number of replicas (3) nor one for each datacenter (dc1=3,dc2=3)")]
pub struct NoReplication {
    text: String,
}

/// `3`, or `dc1=3,dc2=3`.
impl FromStr for Replication {
    type Err = NoReplication;

    fn from_str(text: &str) -> Result<Self, NoReplication> {
        let other = || NoReplication { text: text.to_owned() };
        if let Ok(replicas) = text.parse() {
            return Ok(Self::Each(replicas));
        }
        let mut replicas = BTreeMap::new();
        for part in text.split(',') {
            let (datacenter, number) = part.split_once('=').ok_or_else(other)?;
            let (name, number) = (datacenter.trim(), number.trim().parse().map_err(|_| other())?);
            if name.is_empty() || replicas.insert(name.to_owned(), number).is_some() {
                return Err(other());
            }
        }
        Ok(Self::In(replicas))
    }
}

/// For people: `3 in each datacenter`, `3 in dc1, 2 in dc2`.
impl fmt::Display for Replication {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Each(replicas) => write!(f, "{replicas} in each datacenter"),
            Self::In(replicas) => f.write_str(&listed(replicas)),
        }
    }
}

fn listed<N: fmt::Display>(replicas: &BTreeMap<String, N>) -> String {
    let each = replicas.iter().map(|(name, replicas)| format!("{replicas} in {name}"));
    each.collect::<Vec<_>>().join(", ")
}

impl Replication {
    /// As a map of CQL.
    pub(crate) fn cql(&self) -> String {
        let options = match self {
            Self::Each(replicas) => format!("'replication_factor': {replicas}"),
            Self::In(replicas) => {
                let quoted = |name: &str| name.replace('\'', "''");
                let option =
                    |(name, replicas): (&String, &u32)| format!("'{}': {replicas}", quoted(name));
                replicas.iter().map(option).collect::<Vec<_>>().join(", ")
            }
        };
        format!("{{'class': 'NetworkTopologyStrategy', {options}}}")
    }

    /// Why a cluster cannot keep locks under it; `None` if it can.
    pub(crate) fn unfit(&self, state: &ClusterState) -> Option<String> {
        let nodes = state.get_nodes_info();
        let too_few = |replicas: u32, nodes: usize, place: &str| {
            let fits = replicas > 0 && usize::try_from(replicas).is_ok_and(|many| many <= nodes);
            (!fits).then(|| {
                format!("cannot have {replicas} replicas on {nodes} nodes{place}: no QUORUM could be had")
            })
        };
        match self {
            Self::Each(replicas) => too_few(*replicas, nodes.len(), ""),
            Self::In(all) => all.iter().find_map(|(name, replicas)| {
                let there = nodes.iter().filter(|node| node.datacenter.as_ref() == Some(name));
                too_few(*replicas, there.count(), &format!(" of the datacenter {name}"))
            }),
        }
    }

    /// What a keyspace has instead; `None` if it is that, or if what it has is not known.
    pub(crate) fn differs(&self, strategy: &Strategy) -> Option<String> {
        let many = |replicas: &u32| usize::try_from(*replicas).unwrap_or(usize::MAX);
        match (self, strategy) {
            (Self::Each(replicas), Strategy::SimpleStrategy { replication_factor }) => {
                (many(replicas) != *replication_factor).then(|| replication_factor.to_string())
            }
            (_, Strategy::SimpleStrategy { replication_factor }) => {
                Some(format!("{replication_factor}, in whichever datacenter"))
            }
            (_, Strategy::NetworkTopologyStrategy { datacenter_repfactors: has }) => {
                let same = match self {
                    Self::Each(replicas) => has.values().all(|other| *other == many(replicas)),
                    Self::In(all) => {
                        let wanted = all.iter().map(|(name, replicas)| (name, many(replicas)));
                        wanted.collect::<BTreeMap<_, _>>()
                            == has.iter().map(|(name, other)| (name, *other)).collect()
                    }
                };
                let has = has.iter().map(|(name, replicas)| (name.clone(), *replicas)).collect();
                (!same).then(|| listed::<usize>(&has))
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_replication_is_a_number_or_one_for_each_datacenter() {
        assert_eq!("3".parse(), Ok(Replication::Each(3)));
        let both = BTreeMap::from([("dc1".to_owned(), 3), ("dc 2".to_owned(), 2)]);
        let parsed: Replication = "dc1=3, dc 2=2".parse().unwrap();
        assert_eq!(parsed, Replication::In(both));
        assert_eq!(parsed.to_string(), "2 in dc 2, 3 in dc1");
        for text in ["", "three", "-1", "dc1", "dc1=", "=3", "dc1=3,", "dc1=3,dc1=2", "dc1=x"] {
            let error = text.parse::<Replication>().unwrap_err();
            assert!(error.to_string().contains("dc1=3,dc2=3"), "{error}");
        }
    }

    #[test]
    fn it_is_written_as_a_map_of_cql() {
        let quoted = Replication::In(BTreeMap::from([("it's".to_owned(), 1)]));
        assert_eq!(quoted.cql(), "{'class': 'NetworkTopologyStrategy', 'it''s': 1}");
    }

    #[test]
    fn another_replication_of_a_keyspace_is_named() {
        let simple = Strategy::SimpleStrategy { replication_factor: 3 };
        let has = [("dc1".to_owned(), 3), ("dc2".to_owned(), 2)];
        let topology =
            Strategy::NetworkTopologyStrategy { datacenter_repfactors: has.into_iter().collect() };
        let differs = |text: &str, strategy| text.parse::<Replication>().unwrap().differs(strategy);
        assert_eq!(differs("3", &simple), None);
        assert_eq!(differs("2", &simple).as_deref(), Some("3"));
        assert_eq!(differs("dc1=3", &simple).as_deref(), Some("3, in whichever datacenter"));
        assert_eq!(differs("dc1=3,dc2=2", &topology), None);
        for other in ["3", "dc1=3", "dc1=3,dc2=3", "dc1=3,dc2=2,dc3=1"] {
            assert_eq!(differs(other, &topology).as_deref(), Some("3 in dc1, 2 in dc2"), "{other}");
        }
    }
}
