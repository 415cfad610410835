//! Numbers, times and lengths of time, for people.

use chrono::{DateTime, SecondsFormat};

/// Whole seconds, or minutes and seconds, and so on.
pub(crate) fn length(ms: u64) -> String {
    let seconds = ms / 1_000;
    match (seconds / 86_400, seconds / 3_600 % 24, seconds / 60 % 60, seconds % 60) {
        (0, 0, 0, seconds) => format!("{seconds} s"),
        (0, 0, minutes, seconds) => format!("{minutes} min {seconds:02} s"),
        (0, hours, minutes, _) => format!("{hours} h {minutes:02} min"),
        (days, hours, ..) => format!("{days} d {hours:02} h"),
    }
}

/// A moment: for machines, and in UTC for people. The script shows the time where the browser is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Moment {
    pub(crate) machine: String,
    pub(crate) people: String,
}

pub(crate) fn moment(wall_ms: u64) -> Moment {
    let at = i64::try_from(wall_ms).ok().and_then(DateTime::from_timestamp_millis);
    let at = at.unwrap_or_default();
    Moment {
        machine: at.to_rfc3339_opts(SecondsFormat::Secs, true),
        people: at.format("%Y-%m-%d %H:%M:%S").to_string(),
    }
}

/// A number of things a second: nothing where there are none.
pub(crate) fn rate(number: f64) -> String {
    match number {
        n if n < 0.05 => String::new(),
        n if n < 10.0 => format!("{n:.1}"),
        n => count(whole(n)),
    }
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a rate for people")]
fn whole(number: f64) -> u64 {
    number.round() as u64
}

/// A whole number in groups of three digits.
pub(crate) fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut grouped = String::with_capacity(digits.len() * 2);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            grouped.push('\u{202f}');
        }
        grouped.push(digit);
    }
    grouped
}

/// A session: its label and its identity, or its number if it has neither.
pub(crate) fn who(label: &str, identity: &str, imported: bool, session: u64) -> String {
    let mut who = match (label, identity) {
        ("", "") => format!("session {session}"),
        ("", identity) => identity.to_owned(),
        (label, "") => label.to_owned(),
        (label, identity) => format!("{label} ({identity})"),
    };
    if imported {
        who.push_str(", imported");
    }
    who
}

/// A value as text where it is text, otherwise in hexadecimal digits.
pub(crate) fn value(bytes: &[u8]) -> String {
    match std::str::from_utf8(bytes) {
        Ok(text) => text.to_owned(),
        Err(_) => hex::encode(bytes),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_numbers_and_moments_are_as_people_read_them() {
        assert_eq!(length(999), "0 s");
        assert_eq!(length(61_000), "1 min 01 s");
        assert_eq!(length(2 * 3_600_000 + 60_000), "2 h 01 min");
        assert_eq!(length(3 * 86_400_000), "3 d 00 h");
        assert_eq!(count(1_234_567), "1\u{202f}234\u{202f}567");
        assert_eq!(count(12), "12");
        assert_eq!([rate(0.0), rate(0.26), rate(1_234.4)], ["", "0.3", "1\u{202f}234"]);
        assert_eq!(moment(1_795_836_000_123).machine, "2026-11-28T03:20:00Z");
    }
}
