//! The two ends of the relay at one host: the TUN device that packets leave through, and the socket that
//! they go on from.

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _};
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::OpenOptionsExt as _;

use nix::errno::Errno;
use nix::libc;
use socket2::{Domain, Protocol, Socket, Type};

use crate::net::Host;

/// The source of TUN devices.
pub const TUN: &str = "/dev/net/tun";
/// The device that leads to the relay.
pub(super) const DEVICE: &str = "relay0";
/// More than a packet of either device contains.
pub(super) const PACKET_BYTES: usize = 2_048;
/// The device to all other hosts.
const USUAL_DEVICE: &str = "eth0";

/// What one host has of the relay.
#[derive(Debug)]
pub(super) struct Port {
    pub(super) device: File,
    out: Socket,
    /// Whether the last wait ended because the device may have a packet.
    pub(super) has_news: bool,
}

impl Port {
    pub(super) fn open(host: &Host) -> io::Result<Self> {
        host.namespace.within(|| {
            let raw = Some(Protocol::from(libc::IPPROTO_RAW));
            let out = Socket::new(Domain::IPV4, Type::RAW, raw)?;
            out.bind_device(Some(USUAL_DEVICE.as_bytes()))?;
            Ok(Self { device: tun(DEVICE)?, out, has_news: false })
        })
    }

    /// The length of the next packet, if there is one.
    pub(super) fn read(&mut self, bytes: &mut [u8]) -> io::Result<Option<usize>> {
        match self.device.read(bytes) {
            Ok(length) => Ok(Some(length)),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(error) => Err(error),
        }
    }

    pub(super) fn send(&self, packet: &[u8]) -> io::Result<()> {
        // A packet other than IPv4 was not routed here by our routes.
        let Some(to) = destination(packet) else { return Ok(()) };
        match self.out.send_to(packet, &SocketAddrV4::new(to, 0).into()) {
            // A full queue of the device loses packets, as queues do.
            Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => Ok(()),
            sent => sent.map(drop),
        }
    }
}

/// Where a packet goes to, if it is one of IPv4.
pub fn destination(packet: &[u8]) -> Option<Ipv4Addr> {
    let is_ipv4 = packet.first()? >> 4 == 4;
    let address = *packet.get(16..20)?.first_chunk::<4>()?;
    is_ipv4.then(|| address.into())
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
