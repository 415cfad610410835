//! A keyspace of Cassandra, as locks need it, and no lock: operations of CQL as data
//! ([`statement`]), something that executes them and is honest about what became of each
//! ([`database`]), the row that says which of two stores serves a scope ([`authority`]) and how long
//! answers about it are waited for ([`answer_limit`]), the driver (feature `driver`), and a model of the tables on virtual time (feature `model`).
//!
//! The recipes that teams run are in the client; the server needs the authority row alone.

pub mod answer_limit;
pub mod authority;
pub mod database;
#[cfg(feature = "driver")]
pub mod driver;
#[cfg(feature = "model")]
pub mod model;
pub mod statement;
