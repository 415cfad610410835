//! What every program tells of its process, under the names that all of them use.

use std::fmt;
use std::fs;

use holdfast_runtime::Runtime;
use nix::sys::resource::{Resource, UsageWho, getrlimit, getrusage};
use nix::sys::time::TimeValLike as _;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

/// This process. What the system does not tell is left out of a scrape.
#[derive(Debug)]
pub(crate) struct Process {
    /// Unix seconds.
    started: f64,
}

type Look = fn(&Status) -> Option<f64>;

/// Name, meaning, source.
const GAUGES: &[(&str, &str, Look)] = &[
    ("process_resident_memory_bytes", "Memory of this process that is in RAM", |status| {
        status.bytes("VmRSS:")
    }),
    ("process_virtual_memory_bytes", "Address space of this process", |status| {
        status.bytes("VmSize:")
    }),
    ("process_threads", "Threads of this process", |status| status.number("Threads:")),
    ("process_open_fds", "Descriptors that this process has open", |_| open_descriptors()),
    ("process_max_fds", "Descriptors that this process may open", |_| {
        let (soft, _) = getrlimit(Resource::RLIMIT_NOFILE).ok()?;
        Some(as_measure(soft))
    }),
];

impl Process {
    /// That began just now.
    pub(crate) fn started_now() -> Self {
        Self { started: as_measure(Runtime::system().clock.wall_ms() / 1_000) }
    }
}

/// Counts below 2⁵³, as these are, stay exact.
#[expect(clippy::cast_precision_loss, reason = "see above")]
fn as_measure(count: u64) -> f64 {
    count as f64
}

/// The text of `/proc/self/status`.
struct Status(String);

impl Status {
    fn read() -> Self {
        Self(fs::read_to_string("/proc/self/status").unwrap_or_default())
    }

    fn number(&self, key: &str) -> Option<f64> {
        let line = self.0.lines().find_map(|line| line.strip_prefix(key))?;
        Some(as_measure(line.split_whitespace().next()?.parse().ok()?))
    }

    /// The system tells it in units of 1,024 bytes.
    fn bytes(&self, key: &str) -> Option<f64> {
        Some(self.number(key)? * 1_024.0)
    }
}

fn open_descriptors() -> Option<f64> {
    let open = fs::read_dir("/proc/self/fd").ok()?.count();
    // Reading that folder takes one.
    Some(as_measure(open.saturating_sub(1) as u64))
}

/// Of all its threads, the ended ones too.
fn cpu_seconds() -> Option<f64> {
    let usage = getrusage(UsageWho::RUSAGE_SELF).ok()?;
    let micros = usage.user_time().num_microseconds() + usage.system_time().num_microseconds();
    Some(as_measure(u64::try_from(micros).ok()?) / 1e6)
}

impl Collector for Process {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), fmt::Error> {
        let status = Status::read();
        for (name, meaning, look) in GAUGES {
            if let Some(value) = look(&status) {
                let metric = encoder.encode_descriptor(name, meaning, None, MetricType::Gauge)?;
                ConstGauge::new(value).encode(metric)?;
            }
        }
        let meaning = "When this process began, since 1970";
        let name = "process_start_time_seconds";
        let metric = encoder.encode_descriptor(name, meaning, None, MetricType::Gauge)?;
        ConstGauge::new(self.started).encode(metric)?;
        if let Some(seconds) = cpu_seconds() {
            let meaning = "Processor time of this process";
            let name = "process_cpu_seconds";
            let metric = encoder.encode_descriptor(name, meaning, None, MetricType::Counter)?;
            ConstCounter::new(seconds).encode(metric)?;
        }
        Ok(())
    }
}
