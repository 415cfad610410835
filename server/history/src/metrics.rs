//! What a history counts.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Registry, Unit};

/// The counters of a node's history. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct HistoryMetrics {
    /// Bytes of its files.
    pub(crate) bytes: Gauge,
    /// Records that were written.
    pub(crate) records: Counter,
    /// Entries of the log that were left out.
    pub(crate) left_out: Counter,
    /// 1 while nothing can be written.
    pub(crate) failing: Gauge,
}

impl HistoryMetrics {
    /// Adds them to a registry.
    pub fn register(&self, registry: &mut Registry) {
        let Self { bytes, records, left_out, failing } = self.clone();
        let help = "Size of the files of the history of this node";
        registry.register_with_unit("history", help, Unit::Bytes, bytes);
        registry.register("history_records", "Records written to the history", records);
        let help = "Entries of the log that the history lacks because it could not be written";
        registry.register("history_left_out", help, left_out);
        let help = "1 while the history cannot be written";
        registry.register("history_failing", help, failing);
    }
}
