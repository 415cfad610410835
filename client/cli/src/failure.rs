//! Errors that end the command line: one line, and an exit code.

use std::time::Duration;

use holdfast::Error;

use crate::colour::Tone;
use crate::error_line;

/// The lock was lost, and the command stopped.
pub const LOST: u8 = 121;
/// The store refused.
pub const REFUSED: u8 = 122;
/// No server could be reached.
pub const NOT_REACHED: u8 = 123;
/// Not granted in time.
pub const NOT_GRANTED: u8 = 124;
/// An error of holdfast itself, or a wrong command line.
pub const OWN_ERROR: u8 = 125;
/// The command cannot be run.
pub const CANNOT_RUN: u8 = 126;
/// The command was not found.
pub const NOT_FOUND: u8 = 127;

/// What happened, to which thing, what to do; and the exit code for it.
#[derive(Debug, PartialEq, Eq)]
pub struct Failure {
    /// The exit code of the process.
    pub code: u8,
    /// One line for people.
    pub message: String,
}

impl Failure {
    /// A failure with this code and message.
    pub fn new(code: u8, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }

    /// Nobody answered: `who` at these addresses; `advice` says what to do.
    pub fn unanswered(
        who: &str,
        endpoints: &[String],
        waited: Duration,
        last: &str,
        advice: &str,
    ) -> Self {
        let (at, waited, last) = (endpoints.join(", "), waited.as_secs_f64(), last.escape_debug());
        Self::new(NOT_REACHED, format!("{who} at {at} within {waited:.1} s ({last}){advice}"))
    }

    /// An error on this machine during `what`.
    pub fn own(what: &str, error: impl std::fmt::Display) -> Self {
        Self::new(OWN_ERROR, format!("{what}: {error}"))
    }

    /// One line on standard error, in the name of `program`.
    pub fn print(&self, program: &str, json: bool) {
        if json {
            error_line(serde_json::json!({ "error": self.message, "exit_code": self.code }));
        } else {
            error_line(format_args!("{}: {}", Tone::Wrong.of(program), self.message));
        }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let code = match &error {
            Error::Unreachable { endpoints, waited, last, answered: true } => {
                let advice = "; a majority of the members has to run and to reach each other: see holdfast status";
                let who = "the cluster has lost its quorum, or is electing a leader: nobody led";
                return Self::unanswered(who, endpoints, *waited, last, advice);
            }
            Error::Unreachable { endpoints, waited, last, answered: false } => {
                let advice = "; is holdfastd running? --endpoints, or HOLDFAST_ENDPOINTS, names \
                              the servers";
                return Self::unanswered("no server answered", endpoints, *waited, last, advice);
            }
            Error::NotGranted { .. } => NOT_GRANTED,
            Error::Refused { .. } => REFUSED,
            Error::OutcomeUnknown { .. } => NOT_REACHED,
            Error::SessionLost { .. } | Error::Lost { .. } => LOST,
            _ => OWN_ERROR,
        };
        Self::new(code, error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_that_is_not_reached_is_named_with_what_to_do() {
        let failure = Failure::from(Error::Unreachable {
            endpoints: vec!["a:1".into(), "b:2".into()],
            waited: Duration::from_secs(5),
            last: "connection refused".into(),
            answered: false,
        });

        assert_eq!(failure.code, NOT_REACHED);
        assert!(failure.message.contains("a:1, b:2"), "{}", failure.message);
        assert!(failure.message.contains("is holdfastd running?"), "{}", failure.message);
    }
}
