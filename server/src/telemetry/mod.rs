//! Log lines, on standard error.

mod lines;

use std::fmt::Display;
use std::io::IsTerminal;
use std::sync::OnceLock;
use std::time::Duration;

use tracing_subscriber::util::SubscriberInitExt;

use self::lines::Lines;
use crate::config::{LogFormat, NodeConfig, log_filter};

/// Libraries whose lines below a warning only help an operator who asks for them by name.
const QUIET: [&str; 6] = ["openraft", "sled", "h2", "hyper", "tonic", "tower"];

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
    let Ok(lines) = Lines::to(std::io::stderr()) else {
        // Without a thread there are no lines; a node that serves is worth more.
        return;
    };
    let lines = LINES.get_or_init(|| lines).clone();
    let lines = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(lines)
        .with_ansi(std::io::stderr().is_terminal());
    // Fails only if log lines have a destination already, as in a test.
    let _ = match node.log_format {
        LogFormat::Text => lines.finish().try_init(),
        LogFormat::Json => lines.json().flatten_event(true).finish().try_init(),
    };
}

/// Writes a line to standard error, after those before it. Returns once it is written, or after half a
/// second: the end of the process must not wait for a pipe that no process reads.
#[expect(clippy::print_stderr, reason = "before there is a writer of lines")]
pub(crate) fn say(line: &dyn Display) {
    match LINES.get() {
        Some(lines) => {
            lines.push(format!("{line}\n").as_bytes());
            lines.flush(FLUSH_WITHIN);
        }
        None => eprintln!("{line}"),
    }
}

/// Waits for the lines before the process ends, half a second at most.
pub fn flush() {
    if let Some(lines) = LINES.get() {
        lines.flush(FLUSH_WITHIN);
    }
}

/// The directives of the settings, and `warn` for each library they do not name.
fn directives(log_level: &str) -> String {
    let quiet = QUIET.iter().filter(|library| !log_level.contains(*library));
    quiet.flat_map(|library| [library, "=warn,"]).chain([log_level]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_is_quiet_unless_it_is_named() {
        assert!(directives("debug").contains("openraft=warn"));
        assert!(!directives("info,openraft=debug").contains("openraft=warn"));
        log_filter(&directives("info,openraft=debug")).unwrap();
    }
}
