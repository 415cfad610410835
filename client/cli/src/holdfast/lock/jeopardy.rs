//! What is said when the store is silent, before the lock is lost.

use std::time::Duration;

use holdfast::Instant;

use super::deadline::{Demand, HoldWatch, KILL_BEFORE};

/// Whether it was said that the hold is in jeopardy, and not yet that it is safe again.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Jeopardy {
    said: bool,
}

impl Jeopardy {
    /// The line to print now about the hold of `what`, under which a command runs, or none does.
    pub(super) fn line(
        &mut self,
        what: &str,
        hold: &HoldWatch,
        has_command: bool,
    ) -> Option<String> {
        let now = hold.clock.now();
        let from = hold.in_jeopardy_from()?;
        if now < from && self.said {
            self.said = false;
            return Some(format!("the store answers again: holding {what} as before"));
        }
        if now < from || self.said {
            return None;
        }
        self.said = true;
        let lost_in = (from + hold.warns_before - KILL_BEFORE).saturating_since(now);
        let ask_in = match hold.demand() {
            Demand::WaitUntil(at) => at.saturating_since(now),
            Demand::AskToEnd(_) | Demand::Kill => Duration::ZERO,
        };
        Some(in_jeopardy(what, has_command.then_some(ask_in), lost_in))
    }

    /// When to look again, if nothing else happens.
    pub(super) fn next_look(self, hold: &HoldWatch) -> Option<Instant> {
        hold.in_jeopardy_from().filter(|_| !self.said)
    }
}

fn in_jeopardy(what: &str, ask_in: Option<Duration>, lost_in: Duration) -> String {
    let asked = ask_in.map_or_else(String::new, |ask_in| {
        format!("the command is asked to end in {}, and ", seconds(ask_in))
    });
    let is_lost = if what.starts_with("the locks ") { "are lost" } else { "is lost" };
    format!(
        "the store has not answered for a while: unless it does, {asked}{what} {is_lost} in {}",
        seconds(lost_in)
    )
}

fn seconds(length: Duration) -> String {
    format!("{:.1} s", length.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use holdfast::{GuardState, GuardStates};
    use holdfast_runtime::Runtime;

    use super::*;

    /// A hold that is certain for so many milliseconds more.
    fn hold(certain_ms: u64) -> HoldWatch {
        let (grace, warns_before) = (Duration::from_millis(2_500), Duration::from_secs(4));
        let clock = Runtime::system().clock;
        let safe_until = clock.now() + Duration::from_millis(certain_ms);
        let states = GuardStates::fixed(GuardState::Held { safe_until });
        HoldWatch { clock, states, grace, warns_before }
    }

    #[test]
    fn jeopardy_and_its_end_are_said_once_each() {
        let mut jeopardy = Jeopardy::default();
        assert_eq!(jeopardy.line("the lock a", &hold(8_900), true), None);
        let said = jeopardy.line("the lock a", &hold(3_990), true).unwrap();
        let words = ["the command is asked to end in 1.", " s, and the lock a is lost in 3."];
        assert!(words.iter().all(|words| said.contains(words)), "{said}");
        assert_eq!(jeopardy.line("the lock a", &hold(3_000), true), None, "once");
        let said = jeopardy.line("the lock a", &hold(8_900), true).unwrap();
        assert!(said.contains("answers again"), "{said}");
        assert_eq!(jeopardy.line("the lock a", &hold(8_900), true), None);
        let said = jeopardy.line("the locks a, b", &hold(3_990), false).unwrap();
        assert!(said.contains("unless it does, the locks a, b are lost in 3."), "{said}");
    }
}
