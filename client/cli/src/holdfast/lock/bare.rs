//! A hold without a command: until a signal asks to end, or the lock is lost.

use std::sync::mpsc::Receiver;

use holdfast_runtime::Watchdog;
use nix::sys::signal::Signal;
use serde_json::json;

use super::deadline::{Demand, HoldWatch};
use super::jeopardy::Jeopardy;
use super::warnings::Warnings;
use super::{Ended, Event, Held, lost, next, stop_ourselves};
use crate::failure::Failure;
use crate::{show, signals};

/// Says that the locks are held, and holds them. What is asked for has an exit code of 0.
pub(super) fn keep(
    watched: &HoldWatch,
    held: &Held,
    warnings: &Warnings,
    inbox: &Receiver<Event>,
    watchdog: &Watchdog,
) -> Result<Ended, Failure> {
    let mut jeopardy = Jeopardy::default();
    let mut is_said = false;
    loop {
        let Demand::WaitUntil(over_at) = watched.demand() else {
            return Ok(Ended::LockLost(lost(&held.what, "", watched)));
        };
        if !is_said {
            is_said = true;
            tell(held, warnings.are_json());
        }
        if let Some(line) = jeopardy.line(&held.what, watched, false) {
            warnings.say(&line);
        }
        let warn_at = jeopardy.next_look(watched);
        watchdog.set(Some(warn_at.map_or(over_at, |at| at.min(over_at))));
        match next(inbox)? {
            Event::Signal(signal) if signals::asks_to_end(signal) => return Ok(Ended::ByItself(0)),
            Event::Signal(Signal::SIGTSTP) => stop_ourselves(),
            _ => {}
        }
    }
}

/// On standard output, so that a program can wait for it.
fn tell(held: &Held, json: bool) {
    let token = held.told.variable("HOLDFAST_TOKEN");
    if json {
        let locks = held.told.variable("HOLDFAST_LOCKS").unwrap_or_default();
        let locks: Vec<&str> = locks.lines().collect();
        show::line(json!({ "held": locks, "token": token }));
        return;
    }
    let under = token.map_or_else(String::new, |token| format!(" under token {token}"));
    show::line(format_args!("holding {}{under}; Ctrl-C gives it back", held.what));
}
