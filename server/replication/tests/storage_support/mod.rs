//! Shared by the storage suites: seeded draws, records that carry their own proof, waiting.

#![allow(dead_code, reason = "each suite uses its part")]

pub(crate) mod folders;

use std::io;
use std::sync::{Arc, mpsc};

use bytes::Bytes;
use holdfast_replication::storage::{Done, Fault, LogId, Record, RecordKind, StoreOptions};

/// A reproducible source of numbers (splitmix64); a suite prints the seed it began with.
pub(crate) struct Draw(pub(crate) u64);

impl Draw {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// As [`below`](Self::below), for sizes.
    pub(crate) fn size(&mut self, bound: u32) -> usize {
        usize::try_from(self.below(bound.into())).expect("sizes fit")
    }

    /// A number below `bound`, which is not 0.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
}

/// A record whose payload differs from every other one: generated from its place.
pub(crate) fn record(term: u64, index: u64, bytes: usize) -> Record {
    let mut draw = Draw(term << 40 ^ index);
    let payload: Vec<u8> =
        std::iter::repeat_with(|| draw.next().to_be_bytes()).flatten().take(bytes).collect();
    let log_id = LogId { term, node_id: 1, index };
    Record { log_id, kind: RecordKind::Batch, payload: Bytes::from(payload) }
}

/// Options of node 1; a fault fails the test.
pub(crate) fn options() -> StoreOptions {
    options_with(|fault| panic!("fault: {fault}"))
}

pub(crate) fn options_with(on_fault: impl Fn(Fault) + Send + Sync + 'static) -> StoreOptions {
    StoreOptions {
        node_id: 1,
        cluster: None,
        new_store_id: [7; 16],
        on_fault: Arc::new(on_fault),
        stalls_after: None,
    }
}

/// Runs one operation and waits for its outcome.
pub(crate) fn wait<E: std::fmt::Debug>(
    operation: impl FnOnce(Done) -> Result<(), E>,
) -> io::Result<()> {
    let (send, receive) = mpsc::channel();
    operation(Box::new(move |outcome| drop(send.send(outcome)))).expect("the operation is allowed");
    receive.recv().expect("every operation is answered")
}

/// A callback that ignores the outcome of an operation.
pub(crate) fn ignore() -> Done {
    Box::new(|_| {})
}
