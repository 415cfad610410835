//! Common parts of the command lines of `holdfast` and `holdfast-migrate`. Not an API: it changes
//! with them.

pub mod colour;
pub mod failure;
#[cfg(feature = "cassandra")]
pub mod place;
pub mod tls;

use std::fmt::{Display, Write as _};
use std::io::IsTerminal as _;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use clap::error::ErrorKind;
use holdfast_runtime::{core_dumps, version};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use failure::{Failure, OWN_ERROR};

/// Reads the command line of the program `name`, and runs it. The keys and tokens that it reads get into no
/// core dump.
pub fn main_of<C: Parser>(
    name: &str,
    wants_json: impl FnOnce(&C) -> bool,
    run: impl FnOnce(C) -> Result<u8, Failure>,
) -> ExitCode {
    core_dumps::forbid();
    let cli = match C::try_parse() {
        Ok(cli) => cli,
        Err(usage) => {
            if usage.kind() == ErrorKind::DisplayVersion {
                line(format_args!("{name} {}", version::of(env!("CARGO_PKG_VERSION"))));
                return ExitCode::SUCCESS;
            }
            // Help and version are requests, everything else is the caller's mistake. If even this
            // cannot be printed, there is no other output.
            let _ = usage.print();
            return ExitCode::from(if usage.use_stderr() { OWN_ERROR } else { 0 });
        }
    };
    let json = wants_json(&cli);
    match run(cli) {
        Ok(code) => ExitCode::from(code),
        Err(failure) => {
            failure.print(name, json);
            ExitCode::from(failure.code)
        }
    }
}

/// Runs `work` to its end on this thread.
///
/// # Errors
///
/// If the system provides no runtime (no descriptors, for one); then nothing has run.
pub fn block_on<F: Future>(work: F) -> Result<F::Output, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Failure::own("starting the runtime", error))?;
    Ok(runtime.block_on(work))
}

/// A progress bar on standard error, if that is a terminal; `length` is how many steps it has, if
/// that is known.
pub fn progress_bar(length: Option<usize>, template: &str) -> ProgressBar {
    let shown = std::io::stderr().is_terminal();
    let target = if shown { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
    let length = length.and_then(|length| u64::try_from(length).ok());
    let bar = ProgressBar::with_draw_target(length, target);
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    bar
}

/// Bytes in hexadecimal digits, as the id of a cluster is shown.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// A line with foreign text in it, escaped as [`escaped`] does, except for its quotes.
pub fn printable(line: &str) -> String {
    let shown = |c: char| {
        let as_it_is = matches!(c, '"' | '\'' | '\\');
        let escaped = (!as_it_is).then(|| c.escape_debug()).into_iter().flatten();
        escaped.chain(as_it_is.then_some(c))
    };
    line.chars().flat_map(shown).collect()
}

/// How long reaching a server may take; a person is waiting.
pub const CONNECT_LIMIT: Duration = Duration::from_secs(5);

/// Prints a line of a subcommand's answer. A closed standard output is no error.
pub fn line(text: impl Display) {
    use std::io::Write;
    let _ = writeln!(anstream::stdout().lock(), "{text}");
}

/// Prints a line on standard error. One that cannot be written is no error: nobody is left to be told.
pub fn error_line(text: impl Display) {
    use std::io::Write;
    let _ = anstream::stderr().write_all(format!("{text}\n").as_bytes());
}

/// Prints a line of a subcommand's answer, for programs or for people.
pub fn either(as_json: bool, json: impl Display, text: impl Display) {
    if as_json { line(json) } else { line(text) }
}

/// The endpoints in a list that is separated by commas, as `--endpoints` has it.
pub fn endpoints(list: &str) -> impl Iterator<Item = &str> {
    list.split(',').map(str::trim).filter(|one| !one.is_empty())
}

/// Foreign text, with every character escaped that a terminal might act on.
pub fn escaped(text: &str) -> String {
    text.escape_debug().to_string()
}

/// `10s`, `500ms`, `2m`, `1h`, or `0`.
///
/// # Errors
///
/// What is wrong with it, for the user who wrote it.
pub fn duration(text: &str) -> Result<Duration, String> {
    let number_ends = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(number_ends);
    let wrong = || format!("{text:?} is not a time such as 10s, 500ms, 2m or 0");
    let number: u64 = number.parse().map_err(|_| wrong())?;
    let factor_ms = match unit {
        "ms" => 1,
        "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        "" if number == 0 => 0,
        _ => return Err(wrong()),
    };
    number.checked_mul(factor_ms).map(Duration::from_millis).ok_or_else(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_with_their_unit() {
        assert_eq!(duration("10s"), Ok(Duration::from_secs(10)));
        assert_eq!(duration("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(duration("2m"), Ok(Duration::from_mins(2)));
        assert_eq!(duration("0"), Ok(Duration::ZERO));
        for wrong in ["", "10", "s", "-1s", "1.5s", "10 s", "10d", "99999999999999999999s", "1µs"]
        {
            assert!(duration(wrong).is_err(), "{wrong:?}");
        }
        assert!(duration("18446744073709551615h").is_err(), "it must not overflow");
    }

    #[test]
    fn a_label_cannot_drive_the_terminal() {
        assert_eq!(escaped("a\u{1b}[2Jb\u{202e}"), "a\\u{1b}[2Jb\\u{202e}");
        assert_eq!(printable("no \"a\u{1b}\" in 'b'"), "no \"a\\u{1b}\" in 'b'");
    }
}
