//! Simulated runs, deliberate bugs in them, and real HTTP/2 over simulated TCP.

mod http2;
mod mutants;
mod simulated_runs;
