//! Suites on real processes. One test at a time: each fills two cores.

mod bad_input;
mod bench;
mod chaos;
mod crashes;
mod cut_off;
mod demo;
mod everyday;
mod examples;
mod foreign_client;
mod formation;
mod imports;
mod leader_death;
mod leases;
mod lock_command;
mod membership;
mod pauses;
mod ports;
mod quotas;
mod readme;
mod recovery;
mod secured;
mod security_guide;
mod tls;
mod unix_socket;
mod vocabulary;
mod watching;
