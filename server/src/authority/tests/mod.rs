//! The rules of a leader, one by one, and two clusters on one keyspace, on virtual time.

mod clusters;
mod keeper;
mod patience;
mod world;
