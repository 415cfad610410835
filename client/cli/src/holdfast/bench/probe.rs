//! The cost of a measurement, read from `/proc` at its two ends.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use holdfast_runtime::{Clock, Instant};
use nix::unistd::{SysconfVar, sysconf};

use crate::failure::Failure;

/// Reads the usage of this process, the servers and the whole machine.
pub(super) struct Probe {
    clock: Arc<dyn Clock>,
    /// `None`: they may run anywhere.
    servers: Option<Vec<u32>>,
}

/// The usage up to one instant. CPU in seconds, user and system together.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reading {
    at: Instant,
    servers_cpu: Option<f64>,
    own_cpu: f64,
    machine_cpu: f64,
    packets: u64,
}

/// The usage between two readings.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cost {
    pub(super) seconds: f64,
    pub(super) servers_cpu: Option<f64>,
    pub(super) own_cpu: f64,
    /// Cores that other processes of the machine kept busy.
    pub(super) other_cores: Option<f64>,
    /// On loopback, of all processes.
    pub(super) packets: u64,
}

impl Probe {
    pub(super) fn new(clock: Arc<dyn Clock>, servers: Option<Vec<u32>>) -> Self {
        Self { clock, servers }
    }

    pub(super) fn read(&self) -> Result<Reading, Failure> {
        Ok(Reading {
            at: self.clock.now(),
            servers_cpu: self.servers.as_deref().map(sum_of_cpu).transpose()?,
            own_cpu: cpu_of(std::process::id())?,
            machine_cpu: machine_cpu()?,
            packets: loopback_packets()?,
        })
    }

    /// Resident memory of all servers together, bytes.
    pub(super) fn servers_rss(&self) -> Result<Option<u64>, Failure> {
        let Some(servers) = &self.servers else { return Ok(None) };
        let all: Result<Vec<_>, _> = servers.iter().map(|server| rss_of(*server)).collect();
        Ok(Some(all?.iter().sum()))
    }
}

impl Reading {
    /// The usage since `earlier`.
    pub(super) fn since(&self, earlier: &Self) -> Cost {
        let seconds = self.at.saturating_since(earlier.at).as_secs_f64();
        let own_cpu = self.own_cpu - earlier.own_cpu;
        let servers_cpu =
            self.servers_cpu.zip(earlier.servers_cpu).map(|(after, before)| after - before);
        let machine_cpu = self.machine_cpu - earlier.machine_cpu;
        Cost {
            seconds,
            servers_cpu,
            own_cpu,
            // Foreign servers may be what keeps the machine busy.
            other_cores: servers_cpu.map(|servers| (machine_cpu - servers - own_cpu) / seconds),
            packets: self.packets.saturating_sub(earlier.packets),
        }
    }
}

/// The mean number of processes that wanted a core in the last minute.
pub(super) fn load() -> Result<f64, Failure> {
    let path = Path::new("/proc/loadavg");
    let text = read(path)?;
    number(path, text.split_whitespace().next())
}

fn read(path: &Path) -> Result<String, Failure> {
    fs::read_to_string(path)
        .map_err(|error| Failure::own(&format!("reading {}", path.display()), error))
}

/// Parses a word of `path` that has to be a number.
fn number<T: std::str::FromStr>(path: &Path, word: Option<&str>) -> Result<T, Failure> {
    let unexpected = || {
        let message = format!("a number was expected, not {word:?}");
        Failure::own(&format!("reading {}", path.display()), message)
    };
    word.and_then(|word| word.parse().ok()).ok_or_else(unexpected)
}

/// Converts the kernel's ticks, most often a hundredth of a second.
fn seconds(ticks: u64) -> Result<f64, Failure> {
    let failed = |why: &str| Failure::own("asking for the length of a tick", why);
    let per_second = sysconf(SysconfVar::CLK_TCK).map_err(|error| failed(error.desc()))?;
    let per_second = per_second.ok_or_else(|| failed("the system does not say"))?;
    #[expect(clippy::cast_precision_loss, reason = "ticks of a machine's life are below 2^52")]
    Ok(ticks as f64 / per_second as f64)
}

fn sum_of_cpu(processes: &[u32]) -> Result<f64, Failure> {
    processes.iter().map(|process| cpu_of(*process)).sum()
}

fn cpu_of(process: u32) -> Result<f64, Failure> {
    let path = PathBuf::from(format!("/proc/{process}/stat"));
    let text = read(&path)?;
    // The name is in brackets and may contain spaces; user and system time are the 14th and 15th of
    // all words, the 12th and 13th after it.
    let mut words = text.rsplit_once(") ").map_or("", |(_, rest)| rest).split(' ').skip(11);
    let user: u64 = number(&path, words.next())?;
    let system: u64 = number(&path, words.next())?;
    seconds(user + system)
}

/// The time of all cores except idle time and waits for a disk.
fn machine_cpu() -> Result<f64, Failure> {
    let path = Path::new("/proc/stat");
    let text = read(path)?;
    let words: Vec<_> = text.lines().next().unwrap_or("").split_whitespace().collect();
    // cpu, user, nice, system, idle, iowait, irq, softirq
    let busy = [1, 2, 3, 6, 7].map(|at| number::<u64>(path, words.get(at).copied()));
    seconds(busy.into_iter().sum::<Result<u64, _>>()?)
}

fn rss_of(process: u32) -> Result<u64, Failure> {
    let path = PathBuf::from(format!("/proc/{process}/status"));
    let text = read(&path)?;
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib: u64 = number(&path, line.and_then(|line| line.split_whitespace().next()))?;
    Ok(kib * 1_024)
}

/// Packets over loopback in this network namespace since it came up.
fn loopback_packets() -> Result<u64, Failure> {
    let path = Path::new("/proc/net/dev");
    let text = read(path)?;
    let line = text.lines().find_map(|line| line.trim_start().strip_prefix("lo:"));
    number(path, line.and_then(|line| line.split_whitespace().nth(1)))
}

#[cfg(test)]
mod tests {
    use holdfast_runtime::Runtime;

    use super::*;

    #[test]
    fn work_of_this_process_costs_cpu_and_belongs_to_nobody_else() {
        let clock = Runtime::system().clock;
        let probe = Probe::new(clock.clone(), Some(vec![std::process::id()]));
        let before = probe.read().expect("it reads");
        // Until the kernel has counted some, however slow or busy the machine is.
        let cost = loop {
            let cost = probe.read().expect("it reads").since(&before);
            if cost.own_cpu >= 0.2 {
                break cost;
            }
        };

        // The two are read one after the other, and counted in hundredths.
        assert!(cost.servers_cpu.is_some_and(|servers| servers >= 0.1), "{cost:?}");
        assert!(cost.seconds > 0.0 && cost.own_cpu < cost.seconds * 64.0, "{cost:?}");
    }

    #[test]
    fn a_server_of_ours_has_memory_and_others_are_not_guessed_at() {
        let clock = Runtime::system().clock;
        let own = Probe::new(clock.clone(), Some(vec![std::process::id()]));

        assert!(own.servers_rss().expect("it reads") > Some(1 << 20));
        let foreign = Probe::new(clock, None);
        assert_eq!(foreign.servers_rss(), Ok(None));
        let (before, after) =
            (foreign.read().expect("it reads"), foreign.read().expect("it reads"));
        assert_eq!(after.since(&before).other_cores, None);
    }

    #[test]
    fn a_process_that_is_gone_is_named() {
        let failure = Probe::new(Runtime::system().clock, Some(vec![u32::MAX])).read().err();

        assert!(failure.is_some_and(|failure| failure.message.contains("/proc/4294967295/stat")));
    }
}
