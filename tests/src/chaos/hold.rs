//! Packets held back on their way from a host to others, while their connections live.
//!
//! Routes of the host lead its traffic to the others into a TUN device. A thread in the host's
//! network reads the packets, keeps those that carry data, and sends them on late, from a raw
//! socket on the host's usual device. Acknowledgements without data pass at once: so the other
//! direction of each connection goes on, and neither end takes the connection for dead. Packets
//! that TCP sends again meanwhile are kept and delivered too, as a network may do.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, OpenOptions};
use std::io::{self, Read as _};
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::JoinHandle;
use std::time::Duration;

use holdfast_runtime::{Clock, Instant, Runtime};
use nix::errno::Errno;
use nix::libc;
use socket2::{Domain, Protocol, Socket, Type};

use crate::draw::Draw;
use crate::net::{Host, Rule};

/// The source of such a device.
pub const TUN: &str = "/dev/net/tun";
/// The device that leads to the thread.
const DEVICE: &str = "hold0";
/// The device to all other hosts.
const USUAL_DEVICE: &str = "eth0";
/// More than a packet of either device contains.
const PACKET_BYTES: usize = 2_048;
/// The interval between two reads of the device.
const LOOK_AGAIN: Duration = Duration::from_millis(2);
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
    routes: Vec<Rule>,
    orders: mpsc::Sender<Order>,
    thread: JoinHandle<io::Result<Held>>,
}

/// A command to the thread.
#[derive(Debug)]
enum Order {
    /// Deliver the held packets, and hold no more.
    Deliver(mpsc::SyncSender<()>),
}

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
        let (orders, given) = mpsc::channel();
        let (ready, wait) = mpsc::sync_channel(1);
        let (there, receivers) = (host.clone(), others.to_vec());
        let thread = std::thread::spawn(move || {
            there.namespace.enter()?;
            let mut held = Packets::new(receivers, lateness, draw)?;
            let _ = ready.send(());
            held.work(&given)
        });
        if wait.recv().is_err() {
            // The thread ended before it was ready.
            return Err(joined(thread).err().unwrap_or_else(|| io::Error::other("it ended")));
        }
        host.raise(DEVICE).map_err(io::Error::other)?;
        let routes = others.iter().map(|other| host.lead_through(other, DEVICE));
        let routes = routes.collect::<Result<_, _>>().map_err(io::Error::other)?;
        Ok(Self { routes, orders, thread })
    }

    /// Delivers the held packets, and lets traffic take its usual path again.
    ///
    /// # Errors
    ///
    /// The step that failed: packets may be lost then.
    pub fn deliver(self) -> io::Result<Held> {
        let (done, wait) = mpsc::sync_channel(1);
        if self.orders.send(Order::Deliver(done)).is_ok() {
            // If the thread ended, joining it shows why.
            let _ = wait.recv();
        }
        for route in self.routes {
            route.lift().map_err(io::Error::other)?;
        }
        drop(self.orders);
        joined(self.thread)
    }
}

fn joined(thread: JoinHandle<io::Result<Held>>) -> io::Result<Held> {
    thread.join().map_err(|_| io::Error::other("the thread that holds packets panicked"))?
}

/// The state of the thread.
struct Packets {
    device: File,
    out: Socket,
    receivers: Vec<Arc<Host>>,
    lateness: Option<Lateness>,
    draw: Draw,
    clock: Arc<dyn Clock>,
    /// The packets by due time, then in the order of their arrival.
    held: BTreeMap<(Instant, u64), Vec<u8>>,
    count: u64,
    /// The connections that lived when it began.
    before: BTreeSet<Connection>,
    /// Those of them of which a packet was held.
    connections: BTreeSet<Connection>,
}

/// Source and destination.
type Connection = (SocketAddrV4, SocketAddrV4);

impl Packets {
    fn new(receivers: Vec<Arc<Host>>, lateness: Lateness, draw: Draw) -> io::Result<Self> {
        let out = Socket::new(Domain::IPV4, Type::RAW, Some(Protocol::from(libc::IPPROTO_RAW)))?;
        out.bind_device(Some(USUAL_DEVICE.as_bytes()))?;
        Ok(Self {
            device: tun(DEVICE)?,
            out,
            before: live(&receivers)?,
            receivers,
            lateness: Some(lateness),
            draw,
            clock: Runtime::system().clock,
            held: BTreeMap::new(),
            count: 0,
            connections: BTreeSet::new(),
        })
    }

    /// Runs until the sender of the orders is gone; by then nothing is routed into the device any
    /// more.
    fn work(&mut self, orders: &mpsc::Receiver<Order>) -> io::Result<Held> {
        let mut lived = 0;
        loop {
            let order = orders.recv_timeout(LOOK_AGAIN);
            self.take_in()?;
            match order {
                Ok(Order::Deliver(done)) => {
                    lived = self.connections.intersection(&live(&self.receivers)?).count();
                    self.lateness = None;
                    self.send_all()?;
                    let _ = done.send(());
                }
                Err(RecvTimeoutError::Timeout) => self.send_what_is_due()?,
                Err(RecvTimeoutError::Disconnected) => {
                    return Ok(Held {
                        packets: self.count,
                        connections: self.connections.len(),
                        lived,
                    });
                }
            }
        }
    }

    fn take_in(&mut self) -> io::Result<()> {
        let mut bytes = [0; PACKET_BYTES];
        loop {
            let length = match self.device.read(&mut bytes) {
                Ok(length) => length,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            };
            let packet = &bytes[..length];
            match (self.lateness, Segment::of(packet)) {
                (Some(lateness), Some(segment)) if segment.says_something => {
                    if self.before.contains(&segment.connection) {
                        self.connections.insert(segment.connection);
                    }
                    self.hold(packet, lateness);
                }
                _ => self.send(packet)?,
            }
        }
    }

    fn hold(&mut self, packet: &[u8], lateness: Lateness) {
        let due = match lateness {
            Lateness::UntilTheEnd => Instant::from_origin(Duration::MAX),
            Lateness::EachUpTo(most) => {
                let most = u64::try_from(most.as_millis()).unwrap_or(u64::MAX);
                self.clock.now() + Duration::from_millis(self.draw.below(most))
            }
        };
        self.count += 1;
        self.held.insert((due, self.count), packet.to_vec());
    }

    fn send_what_is_due(&mut self) -> io::Result<()> {
        let now = self.clock.now();
        while let Some(first) = self.held.first_entry().filter(|first| first.key().0 <= now) {
            let packet = first.remove();
            self.send(&packet)?;
        }
        Ok(())
    }

    fn send_all(&mut self) -> io::Result<()> {
        while let Some((_, packet)) = self.held.pop_first() {
            self.send(&packet)?;
        }
        Ok(())
    }

    fn send(&self, packet: &[u8]) -> io::Result<()> {
        // A packet other than IPv4 was not routed here by our routes.
        let Some(to) = destination(packet) else { return Ok(()) };
        match self.out.send_to(packet, &SocketAddrV4::new(to, 0).into()) {
            // A full queue of the device loses packets, as queues do.
            Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => Ok(()),
            sent => sent.map(drop),
        }
    }
}

/// The connections that the receivers take for live now.
fn live(receivers: &[Arc<Host>]) -> io::Result<BTreeSet<Connection>> {
    let all: io::Result<Vec<_>> = receivers.iter().map(established).collect();
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

fn destination(packet: &[u8]) -> Option<Ipv4Addr> {
    let is_ipv4 = packet.first()? >> 4 == 4;
    let address = *packet.get(16..20)?.first_chunk::<4>()?;
    is_ipv4.then(|| address.into())
}

/// The connections that a host takes for live, as its peers see them: the peer's end first.
fn established(host: &Arc<Host>) -> io::Result<Vec<Connection>> {
    let there = host.clone();
    let read = std::thread::spawn(move || {
        there.namespace.enter()?;
        std::fs::read_to_string("/proc/thread-self/net/tcp")
    });
    let table = read.join().map_err(|_| io::Error::other("the look at a host panicked"))??;
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

/// A device in the network of the calling thread: it is gone when the file is closed.
fn tun(name: &str) -> io::Result<File> {
    let file =
        OpenOptions::new().read(true).write(true).custom_flags(libc::O_NONBLOCK).open(TUN)?;
    let flags = libc::IFF_TUN | libc::IFF_NO_PI;
    let flags = libc::c_short::try_from(flags).map_err(io::Error::other)?;
    let mut request = libc::ifreq {
        ifr_name: [0; libc::IFNAMSIZ],
        ifr_ifru: libc::__c_anonymous_ifr_ifru { ifru_flags: flags },
    };
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = libc::c_char::from_ne_bytes([from]);
    }
    // SAFETY: the file is open, and the request is a whole `ifreq` whose name ends with a zero.
    #[expect(unsafe_code, reason = "no safe way to make a TUN device")]
    let made = unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF, &raw mut request) };
    Errno::result(made)?;
    Ok(file)
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
