//! Suites on three real Cassandra nodes.

mod cassandra_bakery;
mod cassandra_clock;
mod cassandra_commands;
mod cassandra_datacenters;
mod cassandra_faults;
mod cassandra_legacy;
mod cassandra_modes;
mod cassandra_older;
mod cassandra_own;
mod cassandra_scenarios;
mod cassandra_secured;
mod cassandra_soak;
mod cassandra_soak_work;
mod cassandra_tokens;
mod cassandra_work;
mod migrate_cutover;
mod migrate_fallback;
mod migrate_fallback_faults;
mod migrate_guide;
mod migrate_import;
mod migrate_matrix;
mod migrate_native;
mod migrate_plan;
mod migrate_sequences;
mod migrate_thrift;
