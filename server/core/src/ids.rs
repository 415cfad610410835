//! Parsed names and numbers: a value of one of these types was checked once, at the edge.

use std::borrow::Borrow;
use std::fmt;
use std::io::{self, Read};
use std::sync::Arc;

use borsh::{BorshDeserialize, BorshSerialize};

/// Longest lock name, bytes of UTF-8.
pub const NAME_BYTES_MAX: usize = 512;
/// Longest session label, bytes of UTF-8.
pub const LABEL_BYTES_MAX: usize = 256;
/// Longest prefix of a scope, bytes of UTF-8.
///
/// Source: it is a key in Cassandra, and the answer to every keepalive contains it.
pub const SCOPE_BYTES_MAX: usize = 128;

macro_rules! number {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(
            Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, BorshSerialize, BorshDeserialize,
        )]
        pub struct $name(u64);

        impl $name {
            /// Wraps the number.
            pub const fn new(number: u64) -> Self {
                Self(number)
            }

            /// The number itself.
            pub const fn get(self) -> u64 {
                self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

number! {
    /// A session. The core assigns ids in rising order, and never again during the life of the
    /// cluster.
    SessionId
}
number! {
    /// A request within its session. Chosen by the client, used in rising order.
    RequestId
}
number! {
    /// A request's place in time: one counter for all queues; smaller is earlier.
    Ticket
}
number! {
    /// One term led by one process from start to end (DESIGN §7): the Raft term.
    Tenure
}
number! {
    /// Index of a log entry.
    LogIndex
}

/// A fencing token: `epoch:15 ‖ counter:48`, top bit 0, so that it fits a signed 64-bit column.
///
/// Tokens strictly increase for every name, and over all grants of one scope; names without one
/// are one scope (I3). No two grants of the cluster have the same counter.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, BorshSerialize, BorshDeserialize,
)]
pub struct FencingToken(u64);

impl FencingToken {
    const COUNTER_BITS: u32 = 48;
    /// Largest counter.
    pub const COUNTER_MAX: u64 = (1 << Self::COUNTER_BITS) - 1;
    /// Largest epoch.
    pub const EPOCH_MAX: u16 = (1 << 15) - 1;

    /// Builds a token; `None` if the epoch or the counter does not fit.
    pub const fn new(epoch: u16, counter: u64) -> Option<Self> {
        if epoch > Self::EPOCH_MAX || counter > Self::COUNTER_MAX {
            return None;
        }
        Some(Self(((epoch as u64) << Self::COUNTER_BITS) | counter))
    }

    /// Wraps a token from the wire, whether it was ever given out or not.
    pub const fn from_raw(raw: u64) -> Self {
        Self(raw)
    }

    /// The upper part: raised when a cluster is restored or an authority changes (DESIGN §7, §10).
    pub const fn epoch(self) -> u64 {
        self.0 >> Self::COUNTER_BITS
    }

    /// The lower part: counts the grants of the cluster, across all epochs.
    pub const fn counter(self) -> u64 {
        self.0 & Self::COUNTER_MAX
    }

    /// The number that resources compare.
    pub const fn get(self) -> u64 {
        self.0
    }
}

impl fmt::Display for FencingToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

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

impl BorshSerialize for LockName {
    fn serialize<W: io::Write>(&self, writer: &mut W) -> io::Result<()> {
        self.as_str().serialize(writer)
    }
}

impl BorshDeserialize for LockName {
    fn deserialize_reader<R: io::Read>(reader: &mut R) -> io::Result<Self> {
        let bytes = read_bytes(reader, NAME_BYTES_MAX)?;
        Self::parse_bytes(&bytes).map_err(invalid)
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

impl BorshSerialize for ScopePrefix {
    fn serialize<W: io::Write>(&self, writer: &mut W) -> io::Result<()> {
        self.as_str().serialize(writer)
    }
}

impl BorshDeserialize for ScopePrefix {
    fn deserialize_reader<R: io::Read>(reader: &mut R) -> io::Result<Self> {
        let bytes = read_bytes(reader, SCOPE_BYTES_MAX)?;
        let text = str::from_utf8(&bytes)
            .map_err(|error| invalid(TextError::NotUtf8 { at: error.valid_up_to() }))?;
        Self::parse(text).map_err(invalid)
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

impl BorshSerialize for Label {
    fn serialize<W: io::Write>(&self, writer: &mut W) -> io::Result<()> {
        self.as_str().serialize(writer)
    }
}

impl BorshDeserialize for Label {
    fn deserialize_reader<R: io::Read>(reader: &mut R) -> io::Result<Self> {
        let bytes = read_bytes(reader, LABEL_BYTES_MAX)?;
        let text = str::from_utf8(&bytes)
            .map_err(|error| invalid(TextError::NotUtf8 { at: error.valid_up_to() }))?;
        Self::parse(text).map_err(invalid)
    }
}

/// Reads a borsh string, or bytes, of at most `max` bytes; refuses a longer one before it allocates
/// anything for it.
pub(crate) fn read_bytes<R: io::Read>(reader: &mut R, max: usize) -> io::Result<Vec<u8>> {
    let claimed = u32::deserialize_reader(reader)?;
    let len = usize::try_from(claimed).unwrap_or(usize::MAX);
    if len > max {
        return Err(invalid(TextError::TooLong { len, max }));
    }
    let mut bytes = vec![0; len];
    reader.read_exact(&mut bytes)?;
    Ok(bytes)
}

/// Reads borsh bytes of any length, with memory for the bytes that arrive and not for the length
/// they claim: borsh itself first allocates up to a mebibyte.
pub(crate) fn read_grown_bytes<R: io::Read>(reader: &mut R) -> io::Result<Vec<u8>> {
    let claimed = u64::from(u32::deserialize_reader(reader)?);
    let mut bytes = Vec::new();
    reader.by_ref().take(claimed).read_to_end(&mut bytes)?;
    if (bytes.len() as u64) < claimed {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(bytes)
}

fn invalid(error: TextError) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
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
    fn a_stored_prefix_is_checked_again_when_it_is_read() {
        let stored =
            |bytes: &[u8]| borsh::to_vec(bytes).and_then(|all| ScopePrefix::try_from_slice(&all));
        assert_eq!(stored(b"pay/").ok(), ScopePrefix::parse("pay/").ok());
        for bad in [&b""[..], b"a\n", b"\xff", &[b'x'; 129]] {
            assert!(stored(bad).is_err(), "{bad:?}");
        }
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

    /// A stored name is checked like one from the wire, and its length before anything is
    /// allocated.
    #[test]
    fn a_stored_name_is_checked_again_when_it_is_read() {
        let stored =
            |bytes: &[u8]| borsh::to_vec(bytes).and_then(|all| LockName::try_from_slice(&all));
        assert_eq!(stored(b"jobs").ok(), LockName::parse("jobs").ok());
        for bad in [&b""[..], b"a\n", b"\xff", &[b'x'; 513]] {
            assert!(stored(bad).is_err(), "{bad:?}");
        }
        assert!(LockName::try_from_slice(&[0xff; 4]).is_err());
        assert!(Label::try_from_slice(&[0xff; 4]).is_err());
    }

    #[test]
    fn a_token_shows_its_epoch_and_counter_and_fits_a_signed_column() {
        let token = FencingToken::new(FencingToken::EPOCH_MAX, FencingToken::COUNTER_MAX);
        let token = token.expect("both parts fit");
        assert_eq!((token.epoch(), token.counter()), (32_767, (1 << 48) - 1));
        assert_eq!(i64::try_from(token.get()), Ok(i64::MAX));
        assert_eq!(FencingToken::new(1 << 15, 0), None);
        assert_eq!(FencingToken::new(0, 1 << 48), None);
    }
}
