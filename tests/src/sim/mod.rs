//! A simulated world: nodes, disks, clients and a network, in one thread, from one seed.
//!
//! Everything that decides is the real code: the core, openraft, the proposer, sessions, the store
//! with its guard file and snapshots, the client library. Only the layers beneath are simulated:
//! the machine with its processes and clocks (`holdfast_runtime::simulated`), the network
//! ([`Network`]), the disks ([`VirtualDisk`]), and Cassandra ([`Keyspace`]), where scopes fall back
//! on it.
//!
//! # Rules
//!
//! - Nothing of a process runs outside its own tasks, so pausing or killing it stops all of it.
//! - A message under way is a task of the world, and arrives whatever the processes do.
//! - Every random choice comes from the seed, and every iteration is in an order that is the same
//!   each time.

mod answers;
mod clients;
mod connection;
mod disk;
mod durability_probe;
mod keyspace;
mod link;
mod logs;
mod network;
mod node;
mod observer;
mod peers;
mod port;
mod rights;
mod tap;
mod trace;
mod tree;
mod votes;
mod world;

pub use answers::Answers;
pub use clients::{Calls, IDENTITIES, client_of, identity_of, label_of};
pub use disk::{Damage, DiskFaults, VirtualDisk};
pub use keyspace::{COORDINATORS, Keyspace};
pub use link::{Cuts, Hold, Host, Injected, Link, Part, apart, bridge, one_way, ring};
pub use network::Network;
pub use node::{Crash, DATA, Ended, member};
pub use observer::Expiry;
pub use rights::Right;
pub use trace::Trace;
pub use votes::Votes;
pub use world::{Settings, World};
