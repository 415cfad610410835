//! Tests of replication that need what is private to it.

mod cluster;
mod divergence;
mod first_start;
mod fuzz;
mod log_suite;
mod one_node;
mod over_grpc;
mod peers;
mod three_nodes;
