//! Packets held back on their way from a host to others, while their connections live.
//!
//! A relay ([`crate::packet_relay`]) keeps the packets that carry data and sends them on late.
//! Acknowledgements without data pass at once: so the other direction of each connection goes on, and
//! neither end takes the connection for dead. Packets that TCP sends again meanwhile are kept and
//! delivered too, as a network may do.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::net::SocketAddrV4;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use holdfast_runtime::Instant;

use crate::draw::Draw;
use crate::net::Host;
use crate::packet_relay::{PacketRelay, Timing, Way, destination};

/// As in `/proc/net/tcp`.
const ESTABLISHED: &str = "01";

/// How late packets are.
#[derive(Clone, Copy, Debug)]
pub enum Lateness {
    /// All of them arrive at the end, in order.
    UntilTheEnd,
    /// Each is delayed by a time of its own, at most this long: the order changes.
    EachUpTo(Duration),
}

/// The packets that were held.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// Packets with data, including those that TCP sent again.
    pub packets: u64,
    /// Their connections that the receiver took for live at the beginning.
    pub connections: usize,
    /// Those of them that it still took for live just before the last packets were delivered.
    pub lived: usize,
}

/// Packets that are held back until they are delivered.
#[derive(Debug)]
#[must_use = "what is held has to be delivered"]
pub struct Holding {
    relay: PacketRelay,
    receivers: Vec<Arc<Host>>,
    seen: Arc<Mutex<Seen>>,
}

/// What was held so far.
#[derive(Debug, Default)]
struct Seen {
    packets: u64,
    /// Of the connections that lived when it began, those of which a packet was held.
    connections: BTreeSet<Connection>,
}

/// Source and destination.
type Connection = (SocketAddrV4, SocketAddrV4);

impl Holding {
    /// Holds back the traffic from `host` to `others` from now on.
    ///
    /// # Errors
    ///
    /// The step that failed.
    pub fn begin(
        host: &Arc<Host>,
        others: &[Arc<Host>],
        lateness: Lateness,
        draw: Draw,
    ) -> io::Result<Self> {
        let receivers = others.to_vec();
        let seen = Arc::new(Mutex::new(Seen::default()));
        let late = Late { lateness, draw, before: live(&receivers)?, seen: seen.clone() };
        let way = Way { from: host.clone(), to: receivers.clone() };
        Ok(Self { relay: PacketRelay::begin(&[way], late)?, receivers, seen })
    }

    /// Delivers the held packets, and lets traffic take its usual path again.
    ///
    /// # Errors
    ///
    /// The step that failed: packets may be lost then.
    pub fn deliver(self) -> io::Result<Held> {
        let still_live = live(&self.receivers)?;
        self.relay.deliver();
        self.relay.end()?;
        let seen = locked(&self.seen);
        Ok(Held {
            packets: seen.packets,
            connections: seen.connections.len(),
            lived: seen.connections.intersection(&still_live).count(),
        })
    }
}

/// Packets with data are late.
struct Late {
    lateness: Lateness,
    draw: Draw,
    /// The connections that lived when it began.
    before: BTreeSet<Connection>,
    seen: Arc<Mutex<Seen>>,
}

impl Timing for Late {
    fn due(&mut self, packet: &[u8], now: Instant) -> Option<Instant> {
        let segment = Segment::of(packet).filter(|segment| segment.says_something)?;
        let mut seen = locked(&self.seen);
        seen.packets += 1;
        if self.before.contains(&segment.connection) {
            seen.connections.insert(segment.connection);
        }
        Some(match self.lateness {
            Lateness::UntilTheEnd => Instant::from_origin(Duration::MAX),
            Lateness::EachUpTo(most) => {
                let most = u64::try_from(most.as_millis()).unwrap_or(u64::MAX);
                now + Duration::from_millis(self.draw.below(most))
            }
        })
    }
}

fn locked(seen: &Mutex<Seen>) -> MutexGuard<'_, Seen> {
    seen.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The connections that the receivers take for live now.
fn live(receivers: &[Arc<Host>]) -> io::Result<BTreeSet<Connection>> {
    let all: io::Result<Vec<_>> = receivers.iter().map(|host| established(host)).collect();
    Ok(all?.into_iter().flatten().collect())
}

/// The fields of a TCP segment that matter here.
struct Segment {
    connection: Connection,
    /// It is more than a bare acknowledgement.
    says_something: bool,
}

impl Segment {
    /// `None` if the packet is no whole TCP segment in IPv4.
    fn of(packet: &[u8]) -> Option<Self> {
        const TCP: u8 = 6;
        const SYN_FIN_RST: u8 = 0b111;
        let header = usize::from(packet.first()? & 0xf) * 4;
        let source = *packet.get(12..16)?.first_chunk::<4>()?;
        if packet.get(9) != Some(&TCP) {
            return None;
        }
        let segment = packet.get(header..)?;
        let port = |at: usize| Some(u16::from_be_bytes([*segment.get(at)?, *segment.get(at + 1)?]));
        let data = usize::from(segment.get(12)? >> 4) * 4;
        Some(Self {
            connection: (
                SocketAddrV4::new(source.into(), port(0)?),
                SocketAddrV4::new(destination(packet)?, port(2)?),
            ),
            says_something: segment.len() > data || segment.get(13)? & SYN_FIN_RST != 0,
        })
    }
}

/// The connections that a host takes for live, as its peers see them: the peer's end first.
fn established(host: &Host) -> io::Result<Vec<Connection>> {
    let table = host.namespace.within(|| fs::read_to_string("/proc/thread-self/net/tcp"))?;
    Ok(table.lines().skip(1).filter_map(connection).collect())
}

fn connection(line: &str) -> Option<Connection> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let &[_, own, other, state, ..] = words.as_slice() else { return None };
    Some((end(other)?, end(own)?)).filter(|_| state == ESTABLISHED)
}

/// An end as `/proc/net/tcp` writes it: the address as the machine has it in memory.
fn end(words: &str) -> Option<SocketAddrV4> {
    let (address, port) = words.split_once(':')?;
    let address = u32::from_str_radix(address, 16).ok()?.to_ne_bytes();
    Some(SocketAddrV4::new(address.into(), u16::from_str_radix(port, 16).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A segment from 10.77.0.1:7421 to 10.77.0.2:40000 with these flags and so much data.
    fn packet(flags: u8, data: usize) -> Vec<u8> {
        let mut packet = vec![0; 40 + data];
        packet[0] = 0x45;
        packet[9] = 6;
        packet[12..20].copy_from_slice(&[10, 77, 0, 1, 10, 77, 0, 2]);
        packet[20..22].copy_from_slice(&7421_u16.to_be_bytes());
        packet[22..24].copy_from_slice(&40_000_u16.to_be_bytes());
        packet[32] = 5 << 4;
        packet[33] = flags;
        packet
    }

    #[test]
    fn data_and_ends_are_held_and_acknowledgements_pass() {
        const ACK: u8 = 16;
        let says = |flags, data| Segment::of(&packet(flags, data)).unwrap().says_something;

        assert!(!says(ACK, 0));
        assert!(says(ACK, 1) && says(ACK | 1, 0) && says(4, 0) && says(2, 0));
        assert!(Segment::of(&packet(ACK, 0)[..30]).is_none());
    }

    #[test]
    fn a_connection_is_found_in_the_table_of_its_receiver() {
        let line = "   1: 02004D0A:9C40 01004D0A:1CFD 01 00000000:00000000 00:00000000 00000000";

        assert_eq!(connection(line), Some(Segment::of(&packet(16, 1)).unwrap().connection));
        assert_eq!(connection(&line.replace(" 01 ", " 06 ")), None);
    }
}
