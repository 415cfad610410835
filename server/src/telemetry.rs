//! Log lines, on standard error.

use std::io::IsTerminal;

use tracing_subscriber::util::SubscriberInitExt;

use crate::config::{LogFormat, NodeConfig, log_filter};

/// What libraries say below a warning is of use only to those who ask for it by name.
const QUIET: [&str; 6] = ["openraft", "sled", "h2", "hyper", "tonic", "tower"];

/// Sends log lines to standard error from here on, as the settings say. A second call changes
/// nothing.
pub fn init(node: &NodeConfig) {
    let Ok(filter) = log_filter(&directives(&node.log_level)) else {
        // The settings were checked with the same function.
        return;
    };
    let lines = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal());
    // Fails only if log lines go somewhere already, as in a test.
    let _ = match node.log_format {
        LogFormat::Text => lines.finish().try_init(),
        LogFormat::Json => lines.json().flatten_event(true).finish().try_init(),
    };
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
