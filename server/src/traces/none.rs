//! A build without OpenTelemetry: there is no trace.

use std::convert::Infallible;
use std::io;

use crate::config::NodeConfig;

/// A caller's trace: none is ever read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trace(Infallible);

/// A span: none is ever made.
#[derive(Debug)]
pub struct Span(Infallible);

/// Nothing is exported; the settings refuse an endpoint.
///
/// # Errors
///
/// None.
pub fn start(_: &NodeConfig) -> io::Result<()> {
    Ok(())
}

/// There is nothing to flush.
pub fn flush() {}

impl Trace {
    /// Reads no trace.
    pub fn read(_: &str) -> Option<Self> {
        None
    }

    /// A span of a request.
    pub fn request(&self, _: &'static str) -> Span {
        match self.0 {}
    }

    /// A span of what follows from a request.
    pub fn below(&self, _: &'static str) -> Span {
        match self.0 {}
    }
}

impl Span {
    /// Sets a text.
    pub fn text(&mut self, _: &'static str, _: String) {
        match self.0 {}
    }

    /// Sets a number.
    pub fn number(&mut self, _: &'static str, _: u64) {
        match self.0 {}
    }

    /// Notes that something happened now.
    pub fn happened(&mut self, _: &'static str) {
        match self.0 {}
    }

    /// Notes why it failed.
    pub fn failed(&mut self, _: &'static str) {
        match self.0 {}
    }
}
