//! Values of cells, as the database returns them, and how they are read.

use std::borrow::Cow;
use std::fmt;

/// A value of a type that a recipe uses.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Raw {
    /// `text`, `ascii`, and ids of type `uuid`, `timeuuid` in their usual form.
    Text(String),
    /// `blob`: what a column family made through Thrift without a comparator shows.
    Bytes(Vec<u8>),
    /// Any of the integer types.
    Number(i64),
    /// `boolean`.
    Flag(bool),
    /// `timestamp`: milliseconds since 1970.
    Time(i64),
}

/// Why a value is no text.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoText {
    /// Bytes that are not UTF-8.
    #[error("not UTF-8 from byte {at} on")]
    NotUtf8 {
        /// Offset of the first byte that is not.
        at: usize,
    },
    /// A flag, or a time.
    #[error("of a type that is no text")]
    OtherType,
}

impl Raw {
    /// The text, or the number in decimal digits.
    ///
    /// # Errors
    ///
    /// [`NoText`] says why there is none.
    pub fn text(&self) -> Result<Cow<'_, str>, NoText> {
        match self {
            Self::Text(text) => Ok(Cow::Borrowed(text)),
            Self::Bytes(bytes) => std::str::from_utf8(bytes)
                .map(Cow::Borrowed)
                .map_err(|error| NoText::NotUtf8 { at: error.valid_up_to() }),
            Self::Number(number) => Ok(Cow::Owned(number.to_string())),
            Self::Flag(_) | Self::Time(_) => Err(NoText::OtherType),
        }
    }

    /// The bytes of a text or of a blob; `None` for what is neither.
    pub fn into_bytes(self) -> Option<Vec<u8>> {
        match self {
            Self::Text(text) => Some(text.into_bytes()),
            Self::Bytes(bytes) => Some(bytes),
            Self::Number(_) | Self::Flag(_) | Self::Time(_) => None,
        }
    }

    /// The number, from a number or from text.
    pub fn number(&self) -> Option<i64> {
        match self {
            Self::Number(number) => Some(*number),
            Self::Text(_) | Self::Bytes(_) => self.text().ok()?.parse().ok(),
            Self::Flag(_) | Self::Time(_) => None,
        }
    }

    /// Whether a flag is up: `true`, or any number but 0, or the text of one of them.
    pub fn is_set(&self) -> bool {
        match self {
            Self::Flag(flag) => *flag,
            _ if self.text().is_ok_and(|text| text == "true") => true,
            _ => self.number().is_some_and(|number| number != 0),
        }
    }
}

/// For reports: bytes that are no text are escaped as in Rust.
impl fmt::Display for Raw {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self, self.text()) {
            (_, Ok(text)) => f.write_str(&text),
            (Self::Bytes(bytes), Err(_)) => write!(f, "{}", bytes.escape_ascii()),
            (Self::Flag(flag), Err(_)) => flag.fmt(f),
            (Self::Time(time), Err(_)) => time.fmt(f),
            (Self::Text(_) | Self::Number(_), Err(_)) => Ok(()),
        }
    }
}

/// A value with its TTL and write time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cell {
    /// What is in it.
    pub value: Raw,
    /// `TTL(…)`: whole seconds until the cell vanishes, by the coordinator's clock. The true
    /// remainder is more than this less one second, and at most this. `None`: the cell has no TTL,
    /// or it was not read.
    pub left_s: Option<i32>,
    /// `WRITETIME(…)`: microseconds since 1970, by the clock of the client or of the coordinator
    /// for a plain write, of the coordinator for an LWT.
    pub written_us: Option<i64>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_read_from_numbers_and_from_text() {
        assert_eq!(Raw::Number(7).number(), Some(7));
        assert_eq!(Raw::Text("12".into()).number(), Some(12));
        assert_eq!(Raw::Bytes(b"12".to_vec()).number(), Some(12));
        for other in [Raw::Text("x".into()), Raw::Flag(true), Raw::Time(3)] {
            assert_eq!(other.number(), None, "{other:?}");
        }
    }

    #[test]
    fn a_flag_is_up_in_each_way_the_seeds_write_it() {
        for up in [Raw::Flag(true), Raw::Number(1), Raw::Text("1".into()), Raw::Text("true".into())]
        {
            assert!(up.is_set(), "{up:?}");
        }
        for down in
            [Raw::Flag(false), Raw::Number(0), Raw::Text("false".into()), Raw::Text(String::new())]
        {
            assert!(!down.is_set(), "{down:?}");
        }
    }

    #[test]
    fn bytes_that_are_no_text_say_from_where_and_can_be_shown() {
        let raw = Raw::Bytes(b"ab\xff".to_vec());
        assert_eq!(raw.text(), Err(NoText::NotUtf8 { at: 2 }));
        assert_eq!(raw.to_string(), "ab\\xff");
    }
}
