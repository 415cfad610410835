//! A relay of packets between the hosts of a run ([`crate::net`]): it decides when each packet goes on.
//!
//! Routes of a host lead its traffic to the others into a TUN device. One thread reads the packets of all
//! these devices, asks a [`Timing`] when each of them goes on, and sends it then from a raw socket on the
//! host's usual device. The relay changes no packet, and drops one only where a queue of the system is
//! full, as networks do.

mod device;
mod held;

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, TryRecvError};
use std::thread::JoinHandle;

use holdfast_runtime::{Clock, Instant, Runtime};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::thread::gettid;

use crate::net::{Host, Rule};
use crate::usage;
use device::{DEVICE, PACKET_BYTES, Port};
pub use device::{TUN, destination};
use held::Held;

/// How many packets of one device are read before those that are due are sent.
const READ_AT_ONCE: usize = 64;

/// Decides when a packet goes on.
pub trait Timing: Send + 'static {
    /// When `packet`, which arrived `now`, goes on; `None`: at once.
    fn due(&mut self, packet: &[u8], now: Instant) -> Option<Instant>;
}

/// A host, and the others to which its packets go through the relay.
#[derive(Clone, Debug)]
pub struct Way {
    /// The sender.
    pub from: Arc<Host>,
    /// The receivers.
    pub to: Vec<Arc<Host>>,
}

/// A relay at work. When it is dropped its thread ends, and what it held is sent.
#[derive(Debug)]
pub struct PacketRelay {
    routes: Vec<Rule>,
    orders: Orders,
    thread: JoinHandle<io::Result<()>>,
    thread_id: i32,
    passed: Arc<AtomicU64>,
}

/// Where the thread's orders come from. Its end is the order to end.
#[derive(Debug)]
struct Orders {
    sender: Option<mpsc::Sender<Order>>,
    wake: Arc<OwnedFd>,
}

/// An order to the thread.
#[derive(Debug)]
enum Order {
    /// Send all that is held, and hold no more.
    Deliver(mpsc::SyncSender<()>),
}

impl Orders {
    fn give(&self, order: Order) -> bool {
        let is_given = self.sender.as_ref().is_some_and(|sender| sender.send(order).is_ok());
        self.wake_thread();
        is_given
    }

    fn wake_thread(&self) {
        // It fails only if the thread was woken 2^64 times in vain.
        let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
    }
}

impl Drop for Orders {
    fn drop(&mut self) {
        self.sender = None;
        self.wake_thread();
    }
}

impl PacketRelay {
    /// Leads the packets of `ways` through a relay from now on.
    ///
    /// # Errors
    ///
    /// The step that failed.
    pub fn begin(ways: &[Way], timing: impl Timing) -> io::Result<Self> {
        let ports: io::Result<Vec<_>> = ways.iter().map(|way| Port::open(&way.from)).collect();
        let wake = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let passed = Arc::new(AtomicU64::new(0));
        let mut work = Work {
            ports: ports?,
            timing: Some(timing),
            held: Held::default(),
            clock: Runtime::system().clock,
            wake: wake.clone(),
            passed: passed.clone(),
        };
        let (sender, orders) = mpsc::channel();
        let (ready, begun) = mpsc::sync_channel(1);
        let thread = std::thread::spawn(move || {
            let _ = ready.send(gettid().as_raw_nonzero().get());
            work.until_the_end(&orders)
        });
        let thread_id = begun.recv().map_err(io::Error::other)?;
        let orders = Orders { sender: Some(sender), wake };
        let mut relay = Self { routes: Vec::new(), orders, thread, thread_id, passed };
        for way in ways {
            way.from.raise(DEVICE).map_err(io::Error::other)?;
            for other in &way.to {
                let route = way.from.lead_through(other, DEVICE).map_err(io::Error::other)?;
                relay.routes.push(route);
            }
        }
        Ok(relay)
    }

    /// Sends all that is held, and holds nothing from now on.
    pub fn deliver(&self) {
        let (done, wait) = mpsc::sync_channel(1);
        if self.orders.give(Order::Deliver(done)) {
            // If the thread ended, its end shows why.
            let _ = wait.recv();
        }
    }

    /// Lets the packets take their usual way again, and sends what is held.
    ///
    /// # Errors
    ///
    /// The step that failed: packets may be lost then.
    pub fn end(self) -> io::Result<()> {
        for route in self.routes {
            route.lift().map_err(io::Error::other)?;
        }
        drop(self.orders);
        self.thread.join().map_err(|_| io::Error::other("the relay of packets panicked"))?
    }

    /// How many packets it has read so far.
    pub fn passed(&self) -> u64 {
        self.passed.load(Ordering::Relaxed)
    }

    /// The CPU time of its thread so far, seconds. That includes what the system does to deliver a packet
    /// within the call that sends it.
    ///
    /// # Errors
    ///
    /// The system's, once the thread has ended.
    pub fn cpu(&self) -> io::Result<f64> {
        usage::cpu_of_thread(self.thread_id)
    }
}

/// What the thread works with.
struct Work<T> {
    ports: Vec<Port>,
    /// `None`: every packet goes on at once.
    timing: Option<T>,
    held: Held,
    clock: Arc<dyn Clock>,
    wake: Arc<OwnedFd>,
    passed: Arc<AtomicU64>,
}

impl<T: Timing> Work<T> {
    /// Works until the sender of orders is gone; by then no route leads here any more.
    fn until_the_end(&mut self, orders: &mpsc::Receiver<Order>) -> io::Result<()> {
        // The system's usual 50 µs of grace are a fifth of the shortest delay that is measured.
        nix::sys::prctl::set_timerslack(1)?;
        loop {
            self.wait()?;
            self.take_in(READ_AT_ONCE)?;
            match orders.try_recv() {
                Ok(Order::Deliver(done)) => {
                    self.deliver_all()?;
                    let _ = done.send(());
                }
                Err(TryRecvError::Empty) => self.send_due()?,
                Err(TryRecvError::Disconnected) => return self.deliver_all(),
            }
        }
    }

    /// Waits for a packet, for the time at which the next one is due, or for an order.
    fn wait(&mut self) -> io::Result<()> {
        let first = self.held.first_due();
        let length = first.map(|due| due.saturating_since(self.clock.now()));
        // A time that the system cannot express is as good as none.
        let length = length.and_then(|length| Timespec::try_from(length).ok());
        let devices = self.ports.iter().map(|port| port.device.as_fd());
        let all = devices.chain([self.wake.as_fd()]);
        let mut fds: Vec<_> = all.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
        match poll(&mut fds, length.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let has_news: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
        for (port, has_news) in self.ports.iter_mut().zip(&has_news) {
            port.has_news = *has_news;
        }
        if has_news.last() == Some(&true) {
            // It fails only if there is nothing to read.
            let _ = rustix::io::read(&self.wake, &mut [0_u8; 8]);
        }
        Ok(())
    }

    /// Reads packets of all devices, at most so many of each.
    fn take_in(&mut self, most: usize) -> io::Result<()> {
        let mut bytes = [0; PACKET_BYTES];
        for index in 0..self.ports.len() {
            if !self.ports[index].has_news {
                continue;
            }
            for _ in 0..most {
                let Some(length) = self.ports[index].read(&mut bytes)? else { break };
                self.pass(index, &bytes[..length])?;
            }
        }
        Ok(())
    }

    fn pass(&mut self, port: usize, packet: &[u8]) -> io::Result<()> {
        self.passed.fetch_add(1, Ordering::Relaxed);
        let now = self.clock.now();
        match self.timing.as_mut().and_then(|timing| timing.due(packet, now)) {
            Some(due) => {
                self.held.hold(due, port, packet);
                Ok(())
            }
            None => self.ports[port].send(packet),
        }
    }

    fn send_due(&mut self) -> io::Result<()> {
        while let Some((port, packet)) = self.held.take_due(self.clock.now()) {
            self.ports[port].send(&packet)?;
        }
        Ok(())
    }

    /// Sends all that is held or lies in a device; what comes later passes at once.
    fn deliver_all(&mut self) -> io::Result<()> {
        for port in &mut self.ports {
            port.has_news = true;
        }
        self.take_in(usize::MAX)?;
        self.timing = None;
        while let Some((port, packet)) = self.held.take_first() {
            self.ports[port].send(&packet)?;
        }
        Ok(())
    }
}
