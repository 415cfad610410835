//! A keyspace of Cassandra for locks, without the locks themselves: operations of CQL as data ([`statement`]), execution with an honest
//! outcome ([`database`]), the row that determines which of two stores serves a scope and how long a process waits for
//! answers about it ([`authority`]), the driver (feature `driver`), and a model of the tables on virtual time (feature `model`).
//!
//! The client contains the recipes that teams run; the server needs only the authority row.

pub mod authority;
pub mod database;
#[cfg(feature = "driver")]
pub mod driver;
#[cfg(feature = "model")]
pub mod model;
pub mod shared;
pub mod statement;
