//! The log of administrative acts: who wants what, from where, and what came of it (DESIGN §14).
//!
//! # Invariants
//!
//! - Only an act that the rules allow its caller writes lines here. What they refuse is counted, and logged
//!   within a bound, by [`Denials`](crate::denials::Denials): a caller without rights fills no disk.
//! - A line has a bound, however large the request is.

use std::fmt::{self, Write as _};

use holdfast_core::LogIndex;
use tonic::Status;

use super::access::By;

/// Most bytes that a line has of an act; the rest is left out. With caller, address and reason it stays
/// below the longest line (`telemetry::LINE_BYTES_MAX`).
const ACT_BYTES_MAX: usize = 4_096;

/// An administrative act that is under way.
#[derive(Debug)]
pub(super) struct Act {
    by: By,
    what: String,
    is_over: bool,
}

impl Act {
    /// Logs that an act is asked for. Call it only where the rules allow the caller that act.
    pub(super) fn asked(by: By, what: &dyn fmt::Debug) -> Self {
        let what = brief(what);
        tracing::info!(%by, act = %what, "an administrative act is asked for");
        Self { by, what, is_over: false }
    }

    /// Logs what came of it: with the place in the log of the command that did it, if one did; or why it
    /// failed, which says whether it may still take effect.
    ///
    /// # Errors
    ///
    /// That of `result`.
    pub(super) fn end<T>(
        mut self,
        result: Result<(Option<LogIndex>, T), Status>,
    ) -> Result<T, Status> {
        self.is_over = true;
        let Self { by, what, .. } = &self;
        match result {
            Ok((index, value)) => {
                let index = index.map(LogIndex::get);
                tracing::info!(%by, act = %what, index, "an administrative act is done");
                Ok(value)
            }
            Err(status) => {
                let why = status.message();
                tracing::info!(%by, act = %what, why, "an administrative act failed");
                Err(status)
            }
        }
    }
}

/// The call was dropped with its connection, or by its caller's time limit.
impl Drop for Act {
    fn drop(&mut self) {
        if !self.is_over {
            let Self { by, what, .. } = &*self;
            let note = "the caller of an administrative act is gone; it may still take effect";
            tracing::info!(%by, act = %what, "{note}");
        }
    }
}

/// The `Debug` form of a value, without what is beyond [`ACT_BYTES_MAX`].
fn brief(value: &dyn fmt::Debug) -> String {
    let mut brief = Brief(String::new());
    // An error says that the text is full.
    if write!(brief, "{value:?}").is_err() {
        brief.0.push('…');
    }
    brief.0
}

struct Brief(String);

impl fmt::Write for Brief {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let end = text.floor_char_boundary(ACT_BYTES_MAX.saturating_sub(self.0.len()));
        self.0.push_str(text.get(..end).unwrap_or_default());
        if end == text.len() { Ok(()) } else { Err(fmt::Error) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_of_a_large_act_no_more_than_its_beginning() {
        assert_eq!(brief(&Some("x")), r#"Some("x")"#);
        let large = brief(&vec!["jobs/ä"; 100_000]);
        assert!(large.starts_with(r#"["jobs/ä", "#) && large.ends_with('…'), "{large}");
        assert!(large.len() <= ACT_BYTES_MAX + '…'.len_utf8(), "{} bytes", large.len());
    }
}
