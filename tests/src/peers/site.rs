//! The networks that a cluster and its clients are put into.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use holdfast_runtime::Instant;

use super::topology::Topology;
use crate::namespace::Namespace;
use crate::net::Host;
use crate::packet_relay::{PacketRelay, Timing, Way};

/// How many members a cluster has.
pub const MEMBERS: usize = 3;

/// Where one member, or the clients, are.
#[derive(Clone, Debug)]
pub struct Spot {
    /// Its address.
    pub address: Ipv4Addr,
    /// Its network, if it is not the harness's.
    namespace: Option<Arc<Namespace>>,
}

/// Where the members and the clients are.
#[derive(Debug)]
pub struct Site {
    /// The topology.
    pub topology: Topology,
    /// The members.
    pub members: Vec<Spot>,
    /// The process of the clients.
    pub clients: Spot,
    /// The hosts of members and clients, if they have some.
    hosts: Vec<Arc<Host>>,
    relay: Option<PacketRelay>,
}

/// Every packet is late by the same time.
struct Constant(Duration);

impl Timing for Constant {
    fn due(&mut self, _: &[u8], now: Instant) -> Option<Instant> {
        (!self.0.is_zero()).then(|| now + self.0)
    }
}

impl Spot {
    fn on(host: &Host) -> Self {
        Self { address: host.address, namespace: Some(host.namespace.clone()) }
    }

    fn on_loopback() -> Self {
        Self { address: Ipv4Addr::LOCALHOST, namespace: None }
    }

    /// Lets `command` start its process there.
    ///
    /// # Errors
    ///
    /// The system's.
    pub fn admit(&self, command: &mut Command) -> io::Result<()> {
        self.namespace.as_ref().map_or(Ok(()), |namespace| namespace.admit(command))
    }

    /// Listens there on a free port.
    ///
    /// # Errors
    ///
    /// The system's.
    pub fn listen(&self) -> io::Result<TcpListener> {
        self.within(|| TcpListener::bind((self.address, 0)))
    }

    /// Connects from there.
    ///
    /// # Errors
    ///
    /// The system's.
    pub fn connect(&self, to: SocketAddr) -> io::Result<TcpStream> {
        let stream = self.within(|| TcpStream::connect(to))?;
        stream.set_nodelay(true)?;
        Ok(stream)
    }

    fn within<T: Send>(&self, work: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
        match &self.namespace {
            Some(namespace) => namespace.within(work),
            None => work(),
        }
    }
}

impl Site {
    /// All on loopback.
    pub fn on_loopback() -> Self {
        Self {
            topology: Topology::Loopback,
            members: (0..MEMBERS).map(|_| Spot::on_loopback()).collect(),
            clients: Spot::on_loopback(),
            hosts: Vec::new(),
            relay: None,
        }
    }

    /// Lays a network for each member and one for the clients behind the switch of the calling thread, and a
    /// relay between all of them. The hosts get numbers from `first` on.
    ///
    /// # Errors
    ///
    /// The step that failed.
    pub fn apart(delay: Duration, first: u8) -> io::Result<Self> {
        let hosts: Result<Vec<_>, _> = (first..).take(MEMBERS + 1).map(Host::new).collect();
        let hosts = hosts.map_err(io::Error::other)?;
        let others = |host: &Arc<Host>| {
            hosts.iter().filter(|other| other.address != host.address).cloned().collect()
        };
        let ways: Vec<_> =
            hosts.iter().map(|host| Way { from: host.clone(), to: others(host) }).collect();
        let relay = Some(PacketRelay::begin(&ways, Constant(delay))?);
        let mut members: Vec<_> = hosts.iter().map(|host| Spot::on(host)).collect();
        let clients = members.pop().ok_or_else(|| io::Error::other("no hosts"))?;
        Ok(Self { topology: Topology::Apart(delay), members, clients, hosts, relay })
    }

    /// The members' addresses.
    pub fn addresses(&self) -> Vec<Ipv4Addr> {
        self.members.iter().map(|member| member.address).collect()
    }

    /// The members' hosts; empty on loopback.
    pub fn member_hosts(&self) -> &[Arc<Host>] {
        &self.hosts[..self.hosts.len().min(MEMBERS)]
    }

    /// The packets that the relay has passed on, and the CPU that it took, seconds.
    ///
    /// # Errors
    ///
    /// The relay has ended.
    pub fn relayed(&self) -> io::Result<(u64, f64)> {
        self.relay.as_ref().map_or(Ok((0, 0.0)), |relay| Ok((relay.passed(), relay.cpu()?)))
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};

    use holdfast_runtime::Runtime;

    use super::*;
    use crate::net::{LAYING, leave_for_an_own_network};

    /// One message there and back, once the connection stands.
    fn there_and_back(site: &Site, member: usize, message: &[u8]) -> Duration {
        let listener = site.members[member].listen().unwrap();
        let to = listener.local_addr().unwrap();
        let length = message.len();
        let echo = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut bytes = vec![0; length];
            stream.read_exact(&mut bytes).unwrap();
            stream.write_all(&bytes).unwrap();
        });
        let mut stream = site.clients.connect(to).unwrap();
        let clock = Runtime::system().clock;
        let began = clock.now();
        stream.write_all(message).unwrap();
        let mut answer = vec![0; length];
        stream.read_exact(&mut answer).unwrap();
        let took = clock.now().saturating_since(began);
        echo.join().unwrap();
        assert_eq!(answer, message);
        took
    }

    /// Does nothing on a machine without the right to lay networks.
    #[test]
    fn what_is_sent_between_two_networks_arrives_whole_and_late_by_the_delay_each_way() {
        // A thread of its own, because it stays in the network that it moves into.
        let test = std::thread::spawn(|| {
            if let Err(why) = leave_for_an_own_network(&[LAYING]) {
                eprintln!("left out: {why}");
                return;
            }
            let delay = Duration::from_millis(5);
            let at_once = Site::apart(Duration::ZERO, 1).unwrap();
            let late = Site::apart(delay, 11).unwrap();
            let message: Vec<u8> = (0..100_000_u32).map(|byte| byte.to_le_bytes()[0]).collect();
            for member in 0..MEMBERS {
                let took = there_and_back(&late, member, &message[..64]);
                assert!(took >= 2 * delay, "{took:?} at member {member}");
                there_and_back(&late, member, &message);
                // No upper bound: that depends on what else the machine does.
                there_and_back(&at_once, member, &message);
            }
            for site in [&at_once, &late] {
                let (packets, cpu) = site.relayed().unwrap();
                assert!(packets > 100 && cpu < 60.0, "{packets} packets, {cpu} s");
            }
        });
        test.join().unwrap();
    }

    #[test]
    fn on_loopback_nothing_is_relayed() {
        let site = Site::on_loopback();
        there_and_back(&site, 2, b"as it is");

        assert_eq!(site.relayed().unwrap(), (0, 0.0));
        assert!(site.member_hosts().is_empty());
    }
}
