//! Suites in this process that take seconds.

mod checker;
mod log_fields;
mod simulated_world;
mod tidy;
mod virtual_time;
