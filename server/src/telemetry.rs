//! Log lines on their way to standard error, on a thread of their own.
//!
//! Standard error may be a pipe that no process reads. A thread that writes to it then blocks for as
//! long as that lasts, and the threads of a node that log are those that serve, keep leases and write to
//! the disk. So they only put a line into a queue; a line that does not fit is lost and counted.
//!
//! # Bounds
//!
//! `LINES_MAX` lines of at most `LINE_BYTES_MAX` wait: 16 MiB. One more is lost; the number of lost
//! lines is written as soon as lines are read again, and is a metric ([`lines_lost`]).
//!
//! # Lines for machines
//!
//! With `log_format = "json"` every line is one JSON object, whatever wrote it: also what ends the process, a
//! line that was too long, and the number of lost lines. Their fields are listed in `docs/log.md`; a test
//! (`tests/tests/fast/log_fields.rs`) compares that list with all lines of the source.

use std::fmt::Display;
use std::io::{self, IsTerminal, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::Duration;

use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime as _, SystemTime};
use tracing_subscriber::fmt::{self, MakeWriter};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

use crate::config::{LogFormat, NodeConfig, log_filter};

/// Libraries whose lines below a warning only help an operator who asks for them by name.
const QUIET: [&str; 5] = ["sled", "h2", "hyper", "tonic", "tower"];
/// Libraries of which only errors do: openraft warns ten times a second of a member that is down, which has lines of
/// ours (`node/announce.rs`).
const QUIETER: [&str; 1] = ["openraft"];

/// How long the end of the process waits for its last lines to be written.
const FLUSH_WITHIN: Duration = Duration::from_millis(500);

/// The destination of lines once [`init`] was called.
static LINES: OnceLock<Lines> = OnceLock::new();

/// Sends log lines to standard error from here on, as the settings require. A second call changes
/// nothing.
pub fn init(node: &NodeConfig) {
    let Ok(filter) = log_filter(&directives(&node.log_level)) else {
        // The settings were checked with the same function.
        return;
    };
    let Ok(lines) = Lines::to(std::io::stderr(), node.log_format) else {
        // Without a thread there are no lines; a node that serves is worth more.
        return;
    };
    let lines = LINES.get_or_init(|| lines).clone();
    let lines = fmt::layer().with_writer(lines).with_ansi(std::io::stderr().is_terminal());
    let passed = tracing_subscriber::registry().with(filter);
    // Fails only if log lines have a destination already, as in a test.
    let _ = match node.log_format {
        LogFormat::Text => passed.with(lines).try_init(),
        LogFormat::Json => {
            let lines =
                lines.json().flatten_event(true).with_current_span(false).with_span_list(false);
            passed.with(lines).try_init()
        }
    };
}

/// Writes a line to standard error, after those before it. Returns once it is written, or after half a
/// second: the end of the process must not wait for a pipe that no process reads.
#[expect(clippy::print_stderr, reason = "before there is a writer of lines")]
pub(crate) fn say(line: &dyn Display) {
    match LINES.get() {
        Some(lines) => {
            lines.push(own_line(lines.format, "ERROR", &line.to_string()).as_bytes());
            lines.flush(FLUSH_WITHIN);
        }
        None => eprintln!("{line}"),
    }
}

/// How many lines were lost, since the process began, because standard error was not read.
pub fn lines_lost() -> u64 {
    LINES.get().map_or(0, |lines| lines.lost.total.load(Ordering::Relaxed))
}

/// Waits for the lines before the process ends, half a second at most.
pub fn flush() {
    if let Some(lines) = LINES.get() {
        lines.flush(FLUSH_WITHIN);
    }
}

/// The directives of the settings, and `warn` or `error` for each library they do not name.
fn directives(log_level: &str) -> String {
    let quiet = QUIET.iter().map(|library| (library, "=warn,"));
    let quieter = QUIETER.iter().map(|library| (library, "=error,"));
    let unnamed = quiet.chain(quieter).filter(|(library, _)| !log_level.contains(**library));
    unnamed.flat_map(|(library, level)| [*library, level]).chain([log_level]).collect()
}

const LINES_MAX: usize = 2_048;
/// A longer line is cut off here.
const LINE_BYTES_MAX: usize = 8 << 10;
/// So much of a line for machines that is too long is kept, as text in a line that says so: six bytes of JSON
/// for each byte at most.
const CUT_BYTES: usize = LINE_BYTES_MAX / 8;

/// A line of this process itself, beside those of the subscriber.
fn own_line(format: LogFormat, level: &str, message: &str) -> String {
    match format {
        LogFormat::Text => format!("{message}\n"),
        LogFormat::Json => {
            let line = serde_json::json!({
                "timestamp": now(),
                "level": level,
                "message": message,
                "target": "holdfastd",
            });
            format!("{line}\n")
        }
    }
}

/// A line that is too long, as long as it may be.
fn cut_line(format: LogFormat, line: &[u8]) -> Vec<u8> {
    match format {
        LogFormat::Text => {
            let mut cut = line.get(..LINE_BYTES_MAX).unwrap_or(line).to_vec();
            cut.push(b'\n');
            cut
        }
        LogFormat::Json => {
            let kept = String::from_utf8_lossy(line.get(..CUT_BYTES).unwrap_or(line));
            let message = format!("a line of {} bytes, which begins: {kept}", line.len());
            own_line(format, "WARN", &message).into_bytes()
        }
    }
}

/// The time as the lines of the subscriber have it.
fn now() -> String {
    let mut text = String::new();
    // A string takes everything, and the clock gives a time.
    let _ = SystemTime.format_time(&mut Writer::new(&mut text));
    text
}

enum Message {
    Line(Vec<u8>),
    /// Answered once all lines before it are written.
    Flush(SyncSender<()>),
}

/// Takes lines without waiting. Cheap to clone.
#[derive(Clone, Debug)]
struct Lines {
    queue: SyncSender<Message>,
    lost: Arc<Lost>,
    format: LogFormat,
}

/// How many lines did not fit into the queue.
#[derive(Debug, Default)]
struct Lost {
    total: AtomicU64,
    /// Those that no line has reported yet.
    untold: AtomicU64,
}

impl Lines {
    /// Lines that a thread writes to `out`; it ends with the last clone.
    fn to(out: impl Write + Send + 'static, format: LogFormat) -> io::Result<Self> {
        let (queue, lines) = sync_channel(LINES_MAX);
        let lost = Arc::<Lost>::default();
        let writing = Arc::clone(&lost);
        let thread = thread::Builder::new().name("holdfast-lines".to_owned());
        thread.spawn(move || write_all(&lines, out, &writing, format))?;
        Ok(Self { queue, lost, format })
    }

    /// Puts a line behind the others, or loses it.
    fn push(&self, line: &[u8]) {
        let is_long = line.len() > LINE_BYTES_MAX;
        let bytes = if is_long { cut_line(self.format, line) } else { line.to_vec() };
        if self.queue.try_send(Message::Line(bytes)).is_err() {
            self.lost.total.fetch_add(1, Ordering::Relaxed);
            self.lost.untold.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Waits until all lines put in before are written, at most for `within`.
    fn flush(&self, within: Duration) {
        let (done, written) = sync_channel(1);
        // If the queue is full, no thread empties it.
        if self.queue.try_send(Message::Flush(done)).is_ok() {
            let _ = written.recv_timeout(within);
        }
    }
}

fn write_all(lines: &Receiver<Message>, mut out: impl Write, lost: &Lost, format: LogFormat) {
    for message in lines {
        // No output is left to report a failed write to.
        let _ = match message {
            Message::Line(line) => out.write_all(&line).and_then(|()| out.flush()),
            Message::Flush(done) => {
                let _ = done.try_send(());
                Ok(())
            }
        };
        let count = lost.untold.swap(0, Ordering::Relaxed);
        if count > 0 {
            let message =
                format!("holdfastd: {count} log lines were lost: standard error was not read");
            let _ = out.write_all(own_line(format, "WARN", &message).as_bytes());
        }
    }
}

/// One line is one write.
impl Write for Lines {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.push(line);
        Ok(line.len())
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

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::sync::mpsc::channel;

    use tracing::Level;

    use super::*;

    #[test]
    fn a_library_is_quiet_unless_it_is_named() {
        assert!(directives("debug").contains("openraft=error"));
        assert!(directives("debug").contains("tonic=warn"));
        assert!(!directives("info,openraft=debug").contains("openraft=error"));
    }

    #[test]
    fn a_level_is_of_a_part_or_of_what_has_none() {
        let written = |log_level: &str, target: &str, level: Level| {
            log_filter(&directives(log_level)).unwrap().would_enable(target, &level)
        };

        assert!(written("info, openraft=debug,", "openraft::core", Level::DEBUG));
        assert!(!written("info", "openraft::core", Level::WARN));
        assert!(written("info", "holdfast_server::rpc", Level::INFO));
        assert!(!written("info", "holdfast_server::rpc", Level::DEBUG));
        assert!(written(
            "WARN,holdfast_replication=trace",
            "holdfast_replication::raft",
            Level::TRACE
        ));
        assert!(!written("WARN,holdfast_replication=trace", "holdfast_server", Level::INFO));
        assert!(written("holdfast_replication=info", "holdfast_server", Level::ERROR));
        assert!(written("", "holdfast_server", Level::ERROR));
        assert!(!written("off", "holdfast_server", Level::ERROR));
    }

    const LONG: Duration = Duration::from_secs(20);

    /// Collects what is written, after the test lets it through.
    struct Pipe {
        open: Receiver<()>,
        is_open: bool,
        written: Arc<Mutex<Vec<u8>>>,
    }

    impl Write for Pipe {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            if !self.is_open {
                self.open.recv().unwrap();
                self.is_open = true;
            }
            self.written.lock().unwrap().extend(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn lines_that_nobody_reads_are_lost_and_counted_and_nobody_waits() {
        let (read, open) = channel();
        let written = Arc::<Mutex<Vec<u8>>>::default();
        let pipe = Pipe { open, is_open: false, written: Arc::clone(&written) };
        let lines = Lines::to(pipe, LogFormat::Text).unwrap();

        for number in 0..LINES_MAX + 1_000 {
            lines.push(format!("line {number}\n").as_bytes());
        }
        lines.flush(LONG);
        read.send(()).unwrap();
        // The queue may have no room for the flush at first.
        while written.lock().unwrap().len() < LINES_MAX * 7 {
            lines.flush(LONG);
        }
        lines.push(b"the last\n");
        lines.flush(LONG);

        let text = String::from_utf8(written.lock().unwrap().clone()).unwrap();
        assert!(text.starts_with("line 0\n"), "{text:.40}");
        assert!(text.ends_with("the last\n"));
        assert!(text.contains("log lines were lost"), "{text}");
        assert!(!text.contains("line 3047\n"));
        assert!(lines.lost.total.load(Ordering::Relaxed) >= 1_000 - 2, "and stay counted");
    }

    /// What is written of these lines.
    fn written_of(format: LogFormat, lines: &[&[u8]]) -> String {
        let written = Arc::<Mutex<Vec<u8>>>::default();
        let (read, open) = channel();
        read.send(()).unwrap();
        let pipe = Pipe { open, is_open: false, written: Arc::clone(&written) };
        let to = Lines::to(pipe, format).unwrap();
        for line in lines {
            to.push(line);
        }
        to.flush(LONG);
        String::from_utf8(written.lock().unwrap().clone()).unwrap()
    }

    #[test]
    fn a_long_line_is_cut() {
        let long = vec![b'x'; LINE_BYTES_MAX + 5];

        let text = written_of(LogFormat::Text, &[&long, b"short\n"]);

        assert_eq!(text.len(), LINE_BYTES_MAX + 1 + 6);
        assert!(text.ends_with("x\nshort\n"));
    }

    /// Whatever is in it.
    #[test]
    fn a_long_line_for_machines_stays_json() {
        for byte in [b'x', b'"', b'\n', 0, 0xff] {
            let long = vec![byte; LINE_BYTES_MAX + 5];

            let text = written_of(LogFormat::Json, &[&long]);

            assert!(text.len() <= LINE_BYTES_MAX, "{} bytes", text.len());
            let line: serde_json::Value = serde_json::from_str(&text).unwrap();
            let message = line["message"].as_str().unwrap();
            assert!(message.starts_with("a line of 8197 bytes, which begins: "), "{message:.60}");
            assert_eq!(text.lines().count(), 1);
        }
    }

    #[test]
    fn a_line_of_the_process_itself_has_the_fields_of_all_others() {
        let line = own_line(LogFormat::Json, "ERROR", "holdfastd: it ends\nhere");
        let line: serde_json::Value = serde_json::from_str(&line).unwrap();
        let fields: Vec<_> = line.as_object().unwrap().keys().collect();
        assert_eq!(fields, ["level", "message", "target", "timestamp"]);
        let timestamp = line["timestamp"].as_str().unwrap();
        assert!(timestamp.starts_with("20") && timestamp.ends_with('Z'), "{timestamp}");
        assert_eq!(own_line(LogFormat::Text, "ERROR", "plain"), "plain\n");
    }
}
