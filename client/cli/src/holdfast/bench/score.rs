//! The figures of a closed loop's clients.

use std::time::Duration;

use hdrhistogram::Histogram;
use serde_json::json;

use super::row::{Row, float};

/// The longest time that the histogram distinguishes: an hour.
const LONGEST_NS: u64 = 3_600_000_000_000;

/// Latencies, to three digits.
#[derive(Clone, Debug)]
pub(super) struct Latencies(Histogram<u64>);

impl Default for Latencies {
    fn default() -> Self {
        // Bounds and digits are constants that the library accepts.
        #[expect(clippy::expect_used, reason = "a constant that fails, fails in every test")]
        let histogram = Histogram::new_with_bounds(1, LONGEST_NS, 3).expect("the bounds are valid");
        Self(histogram)
    }
}

impl Latencies {
    pub(super) fn record(&mut self, length: Duration) {
        self.0.saturating_record(u64::try_from(length.as_nanos()).unwrap_or(u64::MAX));
    }

    /// `<name>_p50_us` and so on; nothing if nothing was recorded.
    pub(super) fn tell(&self, name: &str, row: &mut Row) {
        if self.0.is_empty() {
            return;
        }
        for (which, quantile) in [("p50", 0.5), ("p99", 0.99), ("p999", 0.999), ("max", 1.0)] {
            let nanos = self.0.value_at_quantile(quantile);
            row.insert(format!("{name}_{which}_us"), json!(float(nanos) / 1e3));
        }
    }
}

/// One operation whose grant lies in the measured window and whose release was acknowledged.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pair {
    pub(super) client: usize,
    pub(super) acquire: Duration,
    pub(super) release: Duration,
    /// From just before the previous release; for clients that share a lock.
    pub(super) handover: Option<Duration>,
}

/// All counts of the window.
#[derive(Debug, Default)]
pub(super) struct Score {
    acquire: Latencies,
    release: Latencies,
    handover: Latencies,
    by_client: Vec<u64>,
    errors: u64,
    first_error: Option<String>,
    waited: Duration,
    longest_wait: Duration,
    longest_run: u64,
}

impl Score {
    pub(super) fn of_clients(number: usize) -> Self {
        Self { by_client: vec![0; number], ..Self::default() }
    }

    pub(super) fn count(&mut self, pair: Pair) {
        self.acquire.record(pair.acquire);
        self.release.record(pair.release);
        if let Some(handover) = pair.handover {
            self.handover.record(handover);
        }
        if let Some(own) = self.by_client.get_mut(pair.client) {
            *own += 1;
        }
        self.waited += pair.acquire;
        self.longest_wait = self.longest_wait.max(pair.acquire);
    }

    /// Records a client that still waits at the end of the window, and how long it has waited.
    pub(super) fn still_waits(&mut self, waited: Duration) {
        self.longest_wait = self.longest_wait.max(waited);
    }

    /// Records this many grants of one lock to one client in a row.
    pub(super) fn ran(&mut self, run: u64) {
        self.longest_run = self.longest_run.max(run);
    }

    pub(super) fn failed(&mut self, error: &holdfast::Error) {
        self.errors += 1;
        self.first_error.get_or_insert_with(|| error.to_string());
    }

    pub(super) fn operations(&self) -> u64 {
        self.by_client.iter().sum()
    }

    pub(super) fn tell(&self, window: Duration, row: &mut Row) {
        row.insert("ops".into(), json!(self.operations()));
        row.insert("ops_per_s".into(), json!(float(self.operations()) / window.as_secs_f64()));
        row.insert("errors".into(), json!(self.errors));
        if let Some(error) = &self.first_error {
            row.insert("first_error".into(), json!(error));
        }
        self.acquire.tell("acq", row);
        self.release.tell("rel", row);
        self.handover.tell("ho", row);
    }

    /// How the clients of one lock shared it.
    pub(super) fn tell_fairness(&self, row: &mut Row) {
        let starved = self.by_client.iter().filter(|grants| **grants == 0).count();
        row.insert("starved".into(), json!(starved));
        if self.operations() == 0 {
            return;
        }
        let mean = self.waited.as_secs_f64() / float(self.operations());
        let longest = self.longest_wait.as_secs_f64();
        row.insert("jain".into(), json!(jain(&self.by_client)));
        row.insert("longest_run".into(), json!(self.longest_run));
        row.insert("wait_mean_ms".into(), json!(mean * 1e3));
        row.insert("wait_max_ms".into(), json!(longest * 1e3));
        row.insert("wait_max_over_mean".into(), json!(longest / mean));
    }
}

/// Jain's index: (Σx)² / (n·Σx²). 1 is perfect, 1/n means that one client got all.
pub(crate) fn jain(shares: &[u64]) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "counts of grants are far below 2^52")]
    let shares: Vec<f64> = shares.iter().map(|share| *share as f64).collect();
    let sum: f64 = shares.iter().sum();
    let squares: f64 = shares.iter().map(|share| share * share).sum();
    let number = f64::from(u32::try_from(shares.len()).unwrap_or(u32::MAX));
    if squares == 0.0 { 0.0 } else { sum * sum / (number * squares) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn pair(client: usize, acquire: Duration) -> Pair {
        Pair { client, acquire, release: MS, handover: None }
    }

    fn number(row: &Row, key: &str) -> f64 {
        row.get(key).and_then(serde_json::Value::as_f64).unwrap_or(f64::NAN)
    }

    #[test]
    fn rates_are_of_the_window_and_percentiles_in_microseconds() {
        let mut score = Score::of_clients(1);
        for wait in 1..=100 {
            score.count(pair(0, wait * MS));
        }
        let mut row = Row::new();
        score.tell(Duration::from_secs(4), &mut row);

        assert!((number(&row, "ops_per_s") - 25.0).abs() < 1e-9, "{row:?}");
        assert!((number(&row, "acq_p50_us") / 50_000.0 - 1.0).abs() < 2e-3, "{row:?}");
        assert!((number(&row, "acq_max_us") / 100_000.0 - 1.0).abs() < 2e-3, "{row:?}");
        assert!(!row.contains_key("ho_p50_us"), "nothing was handed over: {row:?}");
    }

    #[test]
    fn a_wait_that_the_end_cut_off_counts_as_the_longest_but_not_into_the_mean() {
        let mut score = Score::of_clients(2);
        score.count(pair(0, 10 * MS));
        score.still_waits(70 * MS);
        let mut row = Row::new();
        score.tell_fairness(&mut row);

        assert!((number(&row, "wait_mean_ms") - 10.0).abs() < 1e-9, "{row:?}");
        assert!((number(&row, "wait_max_over_mean") - 7.0).abs() < 1e-9, "{row:?}");
        assert_eq!(row.get("starved"), Some(&json!(1)));
    }

    #[test]
    fn one_with_everything_is_as_unfair_as_it_gets() {
        assert!((jain(&[10, 0, 0, 0]) - 0.25).abs() < 1e-9);
        assert!((jain(&[5, 5]) - 1.0).abs() < 1e-9);
        assert!(jain(&[]).abs() < 1e-9);
    }
}
