//! What the machine and the networks allow: no lock store answers faster than this.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd as _;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use holdfast_runtime::{Clock, Runtime};
use rustix::event::{PollFd, PollFlags, poll};
use serde::Serialize;

use super::site::Site;
use super::topology::Topology;

/// The bytes of a message, about those of a request for a lock.
const MESSAGE: usize = 64;
/// The bytes of a record of a log, and those of the file, which are written before the measurement.
const RECORD: usize = 256;
const FILE: u64 = 16 << 20;

/// How long one thing after another took.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Times {
    /// Half took no longer.
    pub p50_us: f64,
    /// 99 of 100 took no longer.
    pub p99_us: f64,
}

/// The limits of one topology, measured in one round.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Limits {
    /// Where.
    pub topology: Topology,
    /// In which round, from 1 on.
    pub round: u32,
    /// One message from the clients to a member and back, over a connection that stands.
    pub round_trip: Times,
    /// A request to a leader that appends a record, with the record synced on a majority before the answer:
    /// two round trips and a sync, and nothing else.
    pub commit: Times,
    /// One record appended and synced, while two others do the same on the same disk.
    pub sync: Times,
    /// The relay's CPU for each packet, if there is a relay.
    pub relay_us_per_packet: Option<f64>,
}

/// Measures each of the three for `length`.
///
/// # Errors
///
/// The system's.
pub fn measure(site: &Site, folder: &Path, round: u32, length: Duration) -> io::Result<Limits> {
    let before = site.relayed()?;
    let round_trip = round_trip(site, length)?;
    let commit = commit(site, folder, length)?;
    let after = site.relayed()?;
    Ok(Limits {
        topology: site.topology,
        round,
        round_trip,
        commit,
        sync: sync(folder, length)?,
        relay_us_per_packet: for_each(after.1 - before.1, after.0 - before.0),
    })
}

fn for_each(cpu: f64, packets: u64) -> Option<f64> {
    #[expect(clippy::cast_precision_loss, reason = "packets of a run are far below 2^52")]
    let packets = packets as f64;
    (packets > 0.0).then(|| cpu * 1e6 / packets)
}

fn round_trip(site: &Site, length: Duration) -> io::Result<Times> {
    let listener = site.members[0].listen()?;
    let to = listener.local_addr()?;
    let answering = answer(listener, || Ok(()));
    let times = ask(site.clients.connect(to)?, length);
    joined(answering)?;
    times
}

fn commit(site: &Site, folder: &Path, length: Duration) -> io::Result<Times> {
    let (mut followers, mut links) = (Vec::new(), Vec::new());
    for (number, follower) in site.members.iter().enumerate().skip(1) {
        let listener = follower.listen()?;
        let to = listener.local_addr()?;
        let mut log = Log::open(folder, number)?;
        followers.push(answer(listener, move || log.append()));
        links.push(site.members[0].connect(to)?);
    }
    let mut leader = Leader { log: Log::open(folder, 0)?, links: Links::over(links) };
    let listener = site.members[0].listen()?;
    let to = listener.local_addr()?;
    let leading = answer(listener, move || leader.commit());
    let times = ask(site.clients.connect(to)?, length);
    joined(leading)?;
    for follower in followers {
        joined(follower)?;
    }
    times
}

fn sync(folder: &Path, length: Duration) -> io::Result<Times> {
    let logs: io::Result<Vec<_>> = (0..3).map(|number| Log::open(folder, number)).collect();
    let writers = logs?
        .into_iter()
        .map(|mut log| std::thread::spawn(move || repeat(length, || log.append())));
    let writers: Vec<_> = writers.collect();
    let mut all = Vec::new();
    for writer in writers {
        all.extend(joined(writer)?);
    }
    times(all)
}

fn joined<T>(thread: JoinHandle<io::Result<T>>) -> io::Result<T> {
    thread.join().map_err(|_| io::Error::other("a measurement of the limits panicked"))?
}

/// Takes one connection and answers each of its messages after `step`, until the other end closes it.
fn answer(
    listener: TcpListener,
    mut step: impl FnMut() -> io::Result<()> + Send + 'static,
) -> JoinHandle<io::Result<()>> {
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept()?;
        stream.set_nodelay(true)?;
        let mut message = [0; MESSAGE];
        while stream.read_exact(&mut message).is_ok() {
            step()?;
            // A leader that ends has not waited for the slower follower.
            if stream.write_all(&message).is_err() {
                break;
            }
        }
        Ok(())
    })
}

/// Sends a message and waits for its answer, over and over.
fn ask(mut stream: TcpStream, length: Duration) -> io::Result<Times> {
    let mut message = [0; MESSAGE];
    let took = repeat(length, || {
        stream.write_all(&message)?;
        stream.read_exact(&mut message)
    });
    times(took?)
}

/// How long each of the calls took that began within `length`, microseconds.
fn repeat(length: Duration, mut call: impl FnMut() -> io::Result<()>) -> io::Result<Vec<f64>> {
    let clock: Arc<dyn Clock> = Runtime::system().clock;
    let until = clock.now() + length;
    let mut took = Vec::new();
    let mut began = clock.now();
    while began < until {
        call()?;
        let ended = clock.now();
        took.push(ended.saturating_since(began).as_secs_f64() * 1e6);
        began = ended;
    }
    Ok(took)
}

fn times(mut took: Vec<f64>) -> io::Result<Times> {
    took.sort_by(f64::total_cmp);
    let at = |hundredths: usize| took.get(took.len() * hundredths / 100).copied();
    let [p50, p99] = [at(50), at(99)];
    let (p50_us, p99_us) = p50.zip(p99).ok_or_else(|| io::Error::other("nothing was measured"))?;
    Ok(Times { p50_us, p99_us })
}

/// A log of which only the speed counts: a file written before, and its records one after the other.
struct Log {
    file: File,
    at: u64,
}

impl Log {
    fn open(folder: &Path, number: usize) -> io::Result<Self> {
        let path = folder.join(format!("limits-{number}"));
        let mut file = File::create(&path)?;
        io::copy(&mut io::repeat(0).take(FILE), &mut file)?;
        file.sync_all()?;
        // It lives as long as it is open.
        std::fs::remove_file(&path)?;
        Ok(Self { file, at: 0 })
    }

    fn append(&mut self) -> io::Result<()> {
        self.file.write_all_at(&[7; RECORD], self.at)?;
        self.at = (self.at + RECORD as u64) % FILE;
        self.file.sync_data()
    }
}

/// The member that clients ask.
struct Leader {
    log: Log,
    links: Links,
}

impl Leader {
    /// Returns once it and one follower have synced.
    fn commit(&mut self) -> io::Result<()> {
        self.links.send()?;
        self.log.append()?;
        self.links.wait_for_one()
    }
}

/// The connections of the leader to its followers.
struct Links {
    streams: Vec<TcpStream>,
    /// The bytes of the acknowledgements so far, of each follower.
    received: Vec<usize>,
    sent: usize,
}

impl Links {
    fn over(streams: Vec<TcpStream>) -> Self {
        let received = vec![0; streams.len()];
        Self { streams, received, sent: 0 }
    }

    fn send(&mut self) -> io::Result<()> {
        self.sent += MESSAGE;
        self.streams.iter_mut().try_for_each(|stream| stream.write_all(&[0; MESSAGE]))
    }

    /// Waits until one follower has acknowledged everything.
    fn wait_for_one(&mut self) -> io::Result<()> {
        while self.received.iter().all(|received| *received < self.sent) {
            let fds = self.streams.iter().map(|stream| stream.as_fd());
            let mut fds: Vec<_> =
                fds.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
            poll(&mut fds, None)?;
            let ready: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
            for (index, _) in ready.iter().enumerate().filter(|(_, ready)| **ready) {
                let length = self.streams[index].read(&mut [0; 16 * MESSAGE])?;
                if length == 0 {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
                self.received[index] += length;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limits_of_loopback_are_figures_that_fit_together() {
        let folder = tempfile::tempdir().unwrap();
        let length = Duration::from_millis(300);
        let limits = measure(&Site::on_loopback(), folder.path(), 1, length).unwrap();

        let Limits { round_trip, commit, sync, .. } = limits;
        for Times { p50_us, p99_us } in [round_trip, commit, sync] {
            assert!(p50_us > 0.0 && p50_us <= p99_us, "{limits:?}");
        }
        assert_eq!(limits.relay_us_per_packet, None);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "no file is left");
    }

    #[test]
    fn percentiles_are_of_what_was_measured() {
        let took: Vec<f64> = (1..=100).rev().map(f64::from).collect();

        assert_eq!(times(took).unwrap(), Times { p50_us: 51.0, p99_us: 100.0 });
        assert!(times(Vec::new()).is_err());
    }
}
