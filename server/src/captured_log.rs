//! What a test logs, for that test to look at.

use std::io;
use std::sync::{Arc, Mutex};

use tracing::dispatcher::{DefaultGuard, Dispatch, set_default};
use tracing_subscriber::fmt::MakeWriter;

/// What this thread logs from here on.
pub(crate) struct Log {
    lines: Lines,
    _own: DefaultGuard,
    /// While there is but one subscriber, a line that the thread of another test comes to first is off for
    /// every thread, since that thread has no subscriber.
    _another: Dispatch,
}

#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl io::Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Lines {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}

fn subscriber(lines: Lines) -> Dispatch {
    Dispatch::new(tracing_subscriber::fmt().with_writer(lines).with_ansi(false).finish())
}

impl Log {
    pub(crate) fn start() -> Self {
        let lines = Lines::default();
        let another = subscriber(Lines::default());
        let own = set_default(&subscriber(lines.clone()));
        Self { lines, _own: own, _another: another }
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8(self.lines.0.lock().unwrap().clone()).unwrap()
    }

    /// The lines that have `what` in them.
    pub(crate) fn lines(&self, what: &str) -> Vec<String> {
        self.text().lines().filter(|line| line.contains(what)).map(str::to_owned).collect()
    }
}
