//! Tests of replication that need its private parts.

mod admitting;
mod cluster;
mod divergence;
mod first_start;
mod fuzz;
mod late_answers;
mod log_suite;
mod membership;
mod one_node;
mod over_grpc;
mod peers;
mod repeatable;
mod restored;
mod slow_followers;
mod three_nodes;
