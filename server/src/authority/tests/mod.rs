//! The rules of a leader, one by one, and two clusters on one keyspace, on virtual time.

mod clusters;
mod drain;
mod machine;
mod patience;
mod world;
