//! Servers that can be cut off, one by one: from their clients, and from Cassandra.

use futures_util::future::join_all;

use super::World;
use crate::cassandra::Stage as Nodes;
use crate::cluster::{Cluster, Place};
use crate::fault::{Line, Relay};
use crate::shim;

/// A relay before each server's clients' port, and one before each Cassandra node for each server. Members reach each other
/// without any.
#[derive(Debug)]
pub struct Lines {
    of_clients: Vec<Relay>,
    of_cassandra: Vec<Vec<Relay>>,
}

impl Lines {
    /// Three servers behind such lines, all open.
    pub async fn start(nodes: &Nodes) -> (Self, Cluster) {
        let mut setup = World::setup(nodes);
        // The driver learns the addresses from the nodes, and uses those instead of the ones it was given first.
        setup.preload = vec![shim::built("shims/divert.c")];
        let mut places: Vec<Place> = (0..setup.nodes).map(|_| Place::on_loopback()).collect();
        let of_clients = join_all(places.iter().map(|place| Relay::before(&place.listen))).await;
        for (place, relay) in places.iter_mut().zip(&of_clients) {
            relay.address().clone_into(&mut place.advertise);
        }
        setup.places = places;
        let mut cluster = Cluster::prepare(&setup);
        let mut of_cassandra = Vec::new();
        for server in 0..setup.nodes {
            let relays = join_all(nodes.points().split(',').map(Relay::before)).await;
            let diverted: Vec<String> =
                (nodes.points().split(',').zip(&relays).map(divert)).collect();
            cluster.set_variables(server, vec![("DIVERT".into(), diverted.join(","))]);
            of_cassandra.push(relays);
        }
        for server in 0..setup.nodes {
            cluster.start_node(server);
        }
        cluster.leader().await;
        (Self { of_clients, of_cassandra }, cluster)
    }

    /// Breaks or mends the lines between a server and its clients.
    pub fn to_clients(&self, server: usize, line: Line) {
        self.of_clients[server].set(line);
    }

    /// Breaks or mends the lines between a server and Cassandra.
    pub fn to_cassandra(&self, server: usize, line: Line) {
        self.of_cassandra[server].iter().for_each(|relay| relay.set(line));
    }

    /// Mends everything.
    pub fn mend(&self) {
        for server in 0..self.of_clients.len() {
            self.to_clients(server, Line::Open);
            self.to_cassandra(server, Line::Open);
        }
    }
}

fn divert((node, relay): (&str, &Relay)) -> String {
    format!("{node}={}", relay.address())
}
