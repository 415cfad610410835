//! Harness and suites over the whole product.
//!
//! Clients of a run record what they asked, received and believed ([`history`]); one judge checks
//! these records ([`check`]), whichever kind of run made them: real processes ([`cluster`],
//! [`fault`], [`wire`], [`traffic`]) or a simulated run ([`simulation`]). `docs/invariants.md` says which
//! test guards which invariant (DESIGN §12).
//!
//! An error of the harness fails its test: the harness panics where a product would return an
//! error.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::missing_panics_doc,
    reason = "a harness that cannot go on fails its test"
)]

pub mod admin;
pub mod balancer;
pub mod cassandra;
pub mod certs;
pub mod chaos;
pub mod check;
pub mod cluster;
pub mod draw;
pub mod fallback;
pub mod fault;
#[cfg(test)]
mod fixtures;
pub mod history;
pub mod host_stall;
pub mod legacy;
pub mod many_holds;
pub mod marks;
pub mod moving;
#[cfg(test)]
mod names;
pub mod namespace;
pub mod net;
pub mod packet_relay;
pub mod pauses;
pub mod peers;
pub mod program;
pub mod python;
pub mod recipe;
pub mod remote;
pub mod resource;
pub mod run;
pub mod scale;
pub mod scribe;
pub mod shim;
pub mod sim;
pub mod simulation;
pub mod term;
pub mod thesis;
pub mod tokens;
pub mod traffic;
pub mod usage;
pub mod wire;
pub mod witness;
pub mod worker;
