//! Whole lives of a cluster, drawn from seeds: what `just simulate` lives.
//!
//! A life is drawn as a [`Plan`], lived on a simulated machine, healed at its end, and judged by the
//! one judge of all runs ([`crate::check`]) and by probes on the state of every node.

mod counts;
mod fault;
mod plan;
mod shrink;

pub use counts::Counts;
pub use fault::{Damage, Fault, Kind, Shape, Who};
pub use plan::{Air, ClientPlan, Clocks, DiskPace, Knobs, Plan, Strike};
pub use shrink::shrink;
