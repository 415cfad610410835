//! `--on-contended`: tells a command that others wait for its locks, by a signal that its caller chose.

use std::str::FromStr as _;
use std::sync::mpsc::SyncSender;
use std::time::Duration;

use holdfast::{Contention, Contentions, Instant};
use nix::sys::signal::Signal;

use super::Event;
use crate::show::{self, escaped};

/// A command is left alone for so long after its start: most signals end a process that has not yet said what is to be
/// done about them.
///
/// Source: an estimate; an interpreter with many modules takes half of it on a busy machine.
const LEFT_ALONE: Duration = Duration::from_secs(1);

/// What the command is to be told.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Notice {
    pub(super) signal: Signal,
    /// For people: who waits.
    pub(super) text: String,
}

/// The notice for a command that runs since a moment, until it is given.
pub(super) struct Notices {
    not_before: Instant,
    next: Option<Notice>,
}

impl Notices {
    pub(super) fn since(started: Instant) -> Self {
        Self { not_before: started + LEFT_ALONE, next: None }
    }

    /// One that was not given yet is replaced.
    pub(super) fn add(&mut self, notice: Notice) {
        self.next = Some(notice);
    }

    /// Takes the notice if it is time for it.
    pub(super) fn due(&mut self, now: Instant) -> Option<Notice> {
        self.next.take_if(|_| now >= self.not_before)
    }

    /// When there is one to give.
    pub(super) fn next_look(&self) -> Option<Instant> {
        self.next.as_ref().map(|_| self.not_before)
    }
}

/// Passes on what a guard hears, for as long as it is held; ends only if nobody listens any more.
pub(super) async fn pass_on(
    mut heard: Contentions,
    signal: Option<Signal>,
    events: &SyncSender<Event>,
) {
    if let Some(signal) = signal {
        while let Some(contention) = heard.next().await {
            let notice = Notice { signal, text: text(&contention) };
            if events.send(Event::Contended(notice)).is_err() {
                return;
            }
        }
    }
    std::future::pending::<()>().await;
}

fn text(contention: &Contention) -> String {
    let Contention { name, waiting, head_start, .. } = contention;
    let who = if *waiting == 1 { "1 waits".to_owned() } else { format!("{waiting} wait") };
    let ahead = if head_start.is_zero() {
        String::new()
    } else {
        format!(", with a head start of up to {}", show::length(*head_start))
    };
    format!("{who} for {}{ahead}", escaped(name))
}

/// A signal for a command: `USR1`, `SIGUSR1` or `10`.
pub(crate) fn signal(text: &str) -> Result<Signal, String> {
    let name = text.to_ascii_uppercase();
    let name = format!("SIG{}", name.strip_prefix("SIG").unwrap_or(&name));
    let number = || text.parse().ok().and_then(|number: i32| Signal::try_from(number).ok());
    let signal = Signal::from_str(&name).ok().or_else(number);
    let signal = signal.ok_or("write the name of a signal, for example USR1")?;
    match signal {
        Signal::SIGSTOP | Signal::SIGTSTP | Signal::SIGTTIN | Signal::SIGTTOU => {
            Err(format!("{signal} would stop the command while it holds the lock"))
        }
        other => Ok(other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_has_a_name_or_a_number_and_does_not_stop_the_command() {
        for text in ["USR1", "usr1", "SIGUSR1", "10"] {
            assert_eq!(signal(text), Ok(Signal::SIGUSR1), "{text}");
        }
        for text in ["", "USR3", "0", "-1", "65", "SIGSIGUSR1", "STOP", "tstp", "1e1"] {
            assert!(signal(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_command_that_has_just_begun_is_told_once_and_later() {
        let at = |ms| Instant::from_origin(Duration::from_millis(ms));
        let notice = |text: &str| Notice { signal: Signal::SIGUSR1, text: text.to_owned() };
        let mut notices = Notices::since(at(5_000));
        assert_eq!(notices.next_look(), None);

        notices.add(notice("1 waits"));
        notices.add(notice("2 wait"));
        assert_eq!(notices.due(at(5_999)), None);
        assert_eq!(notices.next_look(), Some(at(6_000)));

        assert_eq!(notices.due(at(6_000)), Some(notice("2 wait")));
        assert_eq!((notices.due(at(7_000)), notices.next_look()), (None, None));
        notices.add(notice("3 wait"));
        assert_eq!(notices.due(at(7_000)), Some(notice("3 wait")));
    }
}
