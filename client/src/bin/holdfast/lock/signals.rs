//! Signals as events, so that what they do is decided in one place.

use std::sync::mpsc::SyncSender;

use nix::sys::signal::{SigSet, Signal};

use super::Event;
use crate::failure::Failure;

/// What is listened for: what a terminal, a shell or a service manager sends to end, stop or tell
/// a job, and word of the child.
const HEARD: [Signal; 10] = [
    Signal::SIGINT,
    Signal::SIGTERM,
    Signal::SIGHUP,
    Signal::SIGQUIT,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
    Signal::SIGWINCH,
    Signal::SIGTSTP,
    Signal::SIGCONT,
    Signal::SIGCHLD,
];

/// Takes the signals out of their default ways and sends them as events. To be called before any
/// other thread is started: threads inherit what is blocked.
pub(crate) fn listen(events: SyncSender<Event>) -> Result<(), Failure> {
    let mut heard = SigSet::empty();
    for signal in HEARD {
        heard.add(signal);
    }
    let mut blocked = heard;
    // Taking the terminal back from the child's group must not stop us.
    blocked.add(Signal::SIGTTOU);
    blocked.thread_block().map_err(|error| Failure::own("blocking signals", error))?;
    std::thread::Builder::new()
        .name("holdfast-signals".into())
        .spawn(move || {
            while let Ok(signal) = heard.wait() {
                if events.send(Event::Signal(signal)).is_err() {
                    return;
                }
            }
        })
        .map_err(|error| Failure::own("starting a thread", error))?;
    Ok(())
}

/// Whether the signal asks a job to end.
pub(crate) fn asks_to_end(signal: Signal) -> bool {
    matches!(signal, Signal::SIGINT | Signal::SIGTERM | Signal::SIGHUP | Signal::SIGQUIT)
}
