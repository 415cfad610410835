//! What a name is: of a lock, of a scope, of a session. One rule for both stores and every client.

use std::borrow::Borrow;
use std::fmt;
use std::sync::Arc;

/// Longest lock name, bytes of UTF-8.
pub const NAME_BYTES_MAX: usize = 512;
/// Longest session label, bytes of UTF-8.
pub const LABEL_BYTES_MAX: usize = 256;
/// Longest prefix of a scope, bytes of UTF-8.
///
/// Source: it is a key in Cassandra, and the answer to every keepalive contains it.
pub const SCOPE_BYTES_MAX: usize = 128;

/// Why a name or a label was not accepted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TextError {
    /// The lock name is empty.
    #[error("a lock name cannot be empty")]
    Empty,
    /// The prefix of a scope is empty: it would cover every name.
    #[error("the prefix of a scope cannot be empty")]
    EmptyPrefix,
    /// Longer than allowed.
    #[error("{len} bytes is longer than the {max} allowed")]
    TooLong {
        /// Bytes of UTF-8 found.
        len: usize,
        /// Bytes of UTF-8 allowed.
        max: usize,
    },
    /// Not UTF-8.
    #[error("not UTF-8 from byte {at} on")]
    NotUtf8 {
        /// Offset of the first byte that is not UTF-8.
        at: usize,
    },
    /// A control or bidirectional-override character: it garbles logs and terminals.
    #[error(
        "character U+{code:04X} at byte {at} is not allowed (control or bidirectional override)"
    )]
    Forbidden {
        /// The character's code point.
        code: u32,
        /// Its offset.
        at: usize,
    },
}

/// The name of a lock: 1 to 512 bytes of UTF-8 without control or bidirectional-override
/// characters. Cheap to clone.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LockName(Arc<str>);

impl LockName {
    /// Checks and wraps a name.
    ///
    /// # Errors
    ///
    /// [`TextError`] names the rule that the text breaks, and the place.
    pub fn parse(text: &str) -> Result<Self, TextError> {
        if text.is_empty() {
            return Err(TextError::Empty);
        }
        check_text(text, NAME_BYTES_MAX)?;
        Ok(Self(text.into()))
    }

    /// As [`LockName::parse`], for bytes off the wire.
    ///
    /// # Errors
    ///
    /// [`TextError`] names the rule that the bytes break, and the place.
    pub fn parse_bytes(bytes: &[u8]) -> Result<Self, TextError> {
        let text = str::from_utf8(bytes)
            .map_err(|error| TextError::NotUtf8 { at: error.valid_up_to() })?;
        Self::parse(text)
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for LockName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

impl fmt::Display for LockName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Allows a search by text in a map of names, without a `LockName` for it.
impl Borrow<str> for LockName {
    fn borrow(&self) -> &str {
        &self.0
    }
}

/// The prefix of the names that make up a scope (DESIGN §10): 1 to 128 bytes of UTF-8, with the
/// same characters as a name. Cheap to clone.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ScopePrefix(Arc<str>);

impl ScopePrefix {
    /// Checks and wraps a prefix.
    ///
    /// # Errors
    ///
    /// [`TextError`] names the rule that the text breaks, and the place.
    pub fn parse(text: &str) -> Result<Self, TextError> {
        if text.is_empty() {
            return Err(TextError::EmptyPrefix);
        }
        check_text(text, SCOPE_BYTES_MAX)?;
        Ok(Self(text.into()))
    }

    /// The prefix.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether that name lies in the scope.
    pub fn contains(&self, name: &LockName) -> bool {
        name.as_str().starts_with(self.as_str())
    }

    /// Whether some name could lie in both.
    pub fn overlaps(&self, other: &Self) -> bool {
        self.0.starts_with(&*other.0) || other.0.starts_with(&*self.0)
    }
}

impl fmt::Debug for ScopePrefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

impl fmt::Display for ScopePrefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Allows a search by the text of a name in a map of prefixes.
impl Borrow<str> for ScopePrefix {
    fn borrow(&self) -> &str {
        &self.0
    }
}

/// A session's name for itself, for people: at most 256 bytes, may be empty. Proves nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Label(Arc<str>);

impl Label {
    /// Checks and wraps a label.
    ///
    /// # Errors
    ///
    /// [`TextError`] names the rule that the text breaks, and the place.
    pub fn parse(text: &str) -> Result<Self, TextError> {
        check_text(text, LABEL_BYTES_MAX)?;
        Ok(Self(text.into()))
    }

    /// The label.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

fn check_text(text: &str, max: usize) -> Result<(), TextError> {
    if text.len() > max {
        return Err(TextError::TooLong { len: text.len(), max });
    }
    match text.char_indices().find(|&(_, character)| is_forbidden(character)) {
        Some((at, character)) => Err(TextError::Forbidden { code: character.into(), at }),
        None => Ok(()),
    }
}

/// Control characters, and those that reorder the text around them (Unicode UAX #9).
fn is_forbidden(character: char) -> bool {
    character.is_control()
        || matches!(character, '\u{200E}' | '\u{200F}' | '\u{061C}' | '\u{202A}'..='\u{202E}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_has_1_to_512_bytes() {
        assert_eq!(LockName::parse(""), Err(TextError::Empty));
        assert!(LockName::parse(&"é".repeat(256)).is_ok());
        let long = "é".repeat(256) + "x";
        assert_eq!(LockName::parse(&long), Err(TextError::TooLong { len: 513, max: 512 }));
    }

    #[test]
    fn a_label_has_at_most_256_bytes_and_may_be_empty() {
        assert!(Label::parse("").is_ok());
        assert!(Label::parse(&"x".repeat(256)).is_ok());
        let long = Label::parse(&"x".repeat(257));
        assert_eq!(long, Err(TextError::TooLong { len: 257, max: 256 }));
    }

    #[test]
    fn the_prefix_of_a_scope_has_1_to_128_bytes() {
        assert_eq!(ScopePrefix::parse(""), Err(TextError::EmptyPrefix));
        assert!(ScopePrefix::parse(&"x".repeat(128)).is_ok());
        let long = ScopePrefix::parse(&"x".repeat(129));
        assert_eq!(long, Err(TextError::TooLong { len: 129, max: 128 }));
        let garbled = ScopePrefix::parse("a\n");
        assert_eq!(garbled, Err(TextError::Forbidden { code: 10, at: 1 }));
    }

    #[test]
    fn characters_that_garble_a_terminal_are_refused_with_their_place() {
        for character in
            ['\0', '\n', '\u{1b}', '\u{7f}', '\u{85}', '\u{200f}', '\u{202e}', '\u{2066}']
        {
            let refused = Err(TextError::Forbidden { code: character.into(), at: 3 });
            assert_eq!(LockName::parse(&format!("ab/{character}")), refused);
        }
        assert!(LockName::parse("orders/42 größe 锁 🔒").is_ok());
    }

    #[test]
    fn bytes_that_are_not_utf_8_are_refused_with_their_place() {
        assert_eq!(LockName::parse_bytes(b"ab\xff"), Err(TextError::NotUtf8 { at: 2 }));
    }
}
