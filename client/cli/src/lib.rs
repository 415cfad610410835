//! Common parts of the command lines of `holdfast` and `holdfast-migrate`. Not an API: it changes
//! with them.

pub mod failure;
#[cfg(feature = "cassandra")]
pub mod names;
#[cfg(feature = "cassandra")]
pub mod place;
pub mod runtime;

use std::fmt::Display;
use std::time::Duration;

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
    let _ = writeln!(std::io::stdout().lock(), "{text}");
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
