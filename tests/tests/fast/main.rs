//! Suites in this process that take seconds.

mod checker;
mod simulated_world;
mod tidy;
mod virtual_time;
