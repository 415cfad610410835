//! Faults that last, or are beyond what a lease covers: a component is slow by a factor, hangs and continues, is paused for longer than the
//! longest lease, or takes only so much.
//!
//! They were added later than the others, and are drawn from a stream of their own ([`Plan::draw`](super::Plan::draw)).

use std::time::Duration;

use super::fault::{Fault, Who};
use super::stage::{Stage, lock};
use crate::sim::{Crash, Host};

/// A slow node runs for a part of each such period.
const TURN: Duration = Duration::from_millis(200);

impl Stage<'_> {
    /// Injects a fault of the second stream; `None` if there was no target.
    pub(super) async fn lasting(&self, fault: Fault, lasts: Duration) -> Option<()> {
        match fault {
            Fault::CrawlingDisk(who, factor) => self.crawling_disk(who, factor, lasts).await,
            Fault::HungDisk(who) => self.hung_disk(who, lasts).await,
            Fault::SlowNode(who, factor) => self.slow_node(who, factor, lasts).await,
            Fault::SlowSnapshots(bytes) => self.slow_snapshots(bytes, lasts).await,
            Fault::NoDescriptors(who) => self.no_descriptors(who, lasts).await,
            Fault::DecodeLimit(number, bytes) => self.decode_limit(number, bytes, lasts).await,
            Fault::NeverReads(number) => self.never_reads(number, lasts).await,
            Fault::LongPause(who) => self.pause(who, lasts).await,
            Fault::LongPauseClient(number) => self.long_pause_client(number, lasts).await,
            _ => None,
        }
    }

    /// Each sync takes longer by `factor`.
    async fn crawling_disk(&self, who: Who, factor: u32, lasts: Duration) -> Option<()> {
        let id = self.pick(who)?;
        let pace = self.plan.disk;
        let slow = |us: u64| Duration::from_micros(us) * factor;
        self.world.disk(id).set_pace(slow(pace.sync_min_us), slow(pace.sync_max_us));
        self.runtime.sleep(lasts).await;
        self.usual_pace(id);
        Some(())
    }

    /// The disk finishes no write until the fault is over; then it finishes all. A node takes itself for dead meanwhile if `disk_stall_ms`
    /// demands it.
    async fn hung_disk(&self, who: Who, lasts: Duration) -> Option<()> {
        let id = self.pick(who)?;
        let disk = self.world.disk(id);
        disk.hang(true);
        self.runtime.sleep(lasts).await;
        self.look_for_ends();
        self.goes_on_after_a_hang(id);
        disk.hang(false);
        self.returns(id).await;
        Some(())
    }

    /// A node that gets the processor for one part in `factor` of each turn.
    async fn slow_node(&self, who: Who, factor: u32, lasts: Duration) -> Option<()> {
        let id = self.pick(who)?;
        let runs = TURN / factor.max(1);
        let until = self.runtime.clock.now() + lasts;
        while self.runtime.clock.now() < until {
            self.world.pause(id);
            self.runtime.sleep(TURN.saturating_sub(runs)).await;
            self.world.resume(id);
            self.runtime.sleep(runs).await;
        }
        Some(())
    }

    /// A follower is down until it needs a snapshot, and receives it at `bytes` a second.
    async fn slow_snapshots(&self, bytes: u64, lasts: Duration) -> Option<()> {
        let id = self.pick(Who::Follower)?;
        let network = self.world.network();
        let before = network.slowed_chunks();
        network.set_snapshot_rate(Some(bytes));
        self.world.crash(id, Crash::Process);
        self.runtime.sleep(lasts / 3).await;
        self.returns(id).await;
        self.runtime.sleep(lasts * 2 / 3).await;
        network.set_snapshot_rate(None);
        (network.slowed_chunks() > before).then_some(())
    }

    /// A node can open no file any more, and accepts no connection. It ends if it needs a file, as if it had waited long for one, and for
    /// no other reason.
    async fn no_descriptors(&self, who: Who, lasts: Duration) -> Option<()> {
        let id = self.pick(who)?;
        let (disk, host) = (self.world.disk(id), Host::Node(id));
        lock(&self.closed).insert(id);
        disk.refuse_files(true);
        self.world.network().refuse_connections(host, true);
        self.runtime.sleep(lasts).await;
        disk.refuse_files(false);
        self.world.network().refuse_connections(host, false);
        self.look_for_ends();
        lock(&self.closed).remove(&id);
        self.returns(id).await;
        Some(())
    }

    /// A client's decoder fails on longer messages of its session's stream.
    async fn decode_limit(&self, number: u64, bytes: u64, lasts: Duration) -> Option<()> {
        self.living(number)?;
        let (network, host) = (self.world.network(), Host::Client(number));
        let before = network.too_long();
        network.set_decode_limit(host, Some(bytes));
        // A new stream sends the whole state at once.
        network.break_connections(host);
        self.begins_to_fail(number);
        self.runtime.sleep(lasts).await;
        self.fails_no_longer(number);
        network.set_decode_limit(host, None);
        (network.too_long() > before).then_some(())
    }

    /// A client reads nothing from its connections, which live on.
    async fn never_reads(&self, number: u64, lasts: Duration) -> Option<()> {
        self.living(number)?;
        let (network, host) = (self.world.network(), Host::Client(number));
        network.set_unread(host, true);
        self.runtime.sleep(lasts).await;
        network.set_unread(host, false);
        Some(())
    }

    async fn long_pause_client(&self, number: u64, lasts: Duration) -> Option<()> {
        self.living(number)?;
        self.world.pause_client(number);
        self.runtime.sleep(lasts).await;
        if self.living(number).is_some() {
            self.world.resume_client(number);
        }
        Some(())
    }
}
