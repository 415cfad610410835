//! Spans of requests that bring a trace along, for OpenTelemetry (feature `otel`, setting `otlp_endpoint`).
//!
//! A request brings its trace as `traceparent` of W3C Trace Context. There are spans only where that is sampled, so the
//! callers decide how many. Without the feature, or without the setting, no trace is read.
//!
//! # Bounds
//!
//! The exporter has a thread of its own and a queue of 2,048 spans; what does not fit is lost, and no request waits.

#[cfg(feature = "otel")]
mod exported;
#[cfg(not(feature = "otel"))]
mod none;

#[cfg(feature = "otel")]
pub use exported::{Span, Trace, flush, start};
#[cfg(not(feature = "otel"))]
pub use none::{Span, Trace, flush, start};
