//! Warnings on standard error, printed by a thread of their own.
//!
//! The main thread kills the command before another client could hold its lock, and gives the lock back once the command has ended
//! (I6). Standard error may be a full pipe, a stopped terminal or a full disk: it must neither hold that thread up nor end it.

use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use holdfast_cli::error_line;

use crate::failure::Failure;
use crate::show::Tone;

/// Most lines that wait to be printed; further ones are dropped.
const LINES_MAX: usize = 64;

/// How long this process waits at its end until its lines are printed.
const GOODBYE_LIMIT: Duration = Duration::from_secs(1);

pub(super) struct Warnings {
    json: bool,
    lines: SyncSender<String>,
    /// Disconnected once every line is printed.
    printed: Receiver<()>,
}

impl Warnings {
    pub(super) fn start(json: bool) -> Result<Self, Failure> {
        let (lines, waiting) = sync_channel::<String>(LINES_MAX);
        let (over, printed) = sync_channel(1);
        std::thread::Builder::new()
            .name("holdfast-warnings".into())
            .spawn(move || {
                waiting.into_iter().for_each(error_line);
                drop(over);
            })
            .map_err(|error| Failure::own("starting a thread", error))?;
        Ok(Self { json, lines, printed })
    }

    /// Whether they are for programs.
    pub(super) fn are_json(&self) -> bool {
        self.json
    }

    /// Prints a warning. Does not wait, and does not fail.
    pub(super) fn say(&self, what: &str) {
        let line = if self.json {
            serde_json::json!({ "warning": what }).to_string()
        } else {
            format!("{}: {what}", Tone::Caution.of("holdfast"))
        };
        // Dropped if standard error takes nothing.
        let _ = self.lines.try_send(line);
    }

    /// Waits until every line is printed, a second at most.
    pub(super) fn finish(self) {
        drop(self.lines);
        let _ = self.printed.recv_timeout(GOODBYE_LIMIT);
    }
}
