//! Names of identities, roles and tokens, and prefixes of lock names.

use std::borrow::Borrow;
use std::fmt;
use std::io;

use borsh::{BorshDeserialize, BorshSerialize};

use crate::ids::{Label, LockName, TextError};

/// Longest name of a role or a token, bytes of UTF-8.
pub const ACCESS_NAME_BYTES_MAX: usize = 64;
/// Longest identity with its kind, bytes of UTF-8.
pub const IDENTITY_BYTES_MAX: usize = 256;

/// How an identity is proved; the part before the colon. Two kinds are never equal (DESIGN §14).
const KINDS: [&str; 5] = ["token", "uri", "dns", "cn", "uid"];
/// The identity of a caller that proved nothing, as people write it.
const ANONYMOUS: &str = "anonymous";

/// Why a text names no identity, role or token.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AccessNameError {
    /// No characters.
    #[error("it is empty")]
    Empty,
    /// More bytes than allowed, or a character that is not.
    #[error(transparent)]
    Text(#[from] TextError),
    /// An identity without a kind.
    #[error("it begins with none of token:, uri:, dns:, cn:, uid:, and is not {ANONYMOUS}")]
    NoKind,
}

/// What a caller has proved to be: `token:NAME`, `uri:NAME`, `dns:NAME`, `cn:NAME` or `uid:NUMBER`; or
/// anonymous, which is the default.
#[derive(Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Identity(Label);

impl Identity {
    /// Checks and wraps an identity; `anonymous` is the anonymous one.
    ///
    /// # Errors
    ///
    /// [`AccessNameError`].
    pub fn parse(text: &str) -> Result<Self, AccessNameError> {
        if text == ANONYMOUS {
            return Ok(Self::default());
        }
        let (kind, name) = text.split_once(':').ok_or(AccessNameError::NoKind)?;
        if !KINDS.contains(&kind) {
            return Err(AccessNameError::NoKind);
        }
        if name.is_empty() {
            return Err(AccessNameError::Empty);
        }
        Ok(Self(Label::parse(text)?))
    }

    /// The identity of a caller that shows the token of that name.
    pub fn of_token(token: &AccessName) -> Self {
        // A name has 64 bytes at most, so the label takes it with its kind.
        Self(Label::parse(&format!("token:{token}")).unwrap_or_default())
    }

    /// The token whose owner this is, if it is one's.
    pub fn token(&self) -> Option<AccessName> {
        AccessName::parse(self.0.as_str().strip_prefix("token:")?).ok()
    }

    /// Whether its owner has proved nothing.
    pub fn is_anonymous(&self) -> bool {
        self.0.as_str().is_empty()
    }

    /// As [`Identity::parse`] takes it.
    pub fn as_str(&self) -> &str {
        if self.is_anonymous() { ANONYMOUS } else { self.0.as_str() }
    }

    /// What it counts towards the size of a table.
    pub(crate) fn bytes(&self) -> u64 {
        self.0.as_str().len() as u64
    }
}

/// The name of a role or a token: 1 to 64 bytes of UTF-8, without control or bidirectional-override
/// characters.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct AccessName(Label);

impl AccessName {
    /// Checks and wraps a name.
    ///
    /// # Errors
    ///
    /// [`AccessNameError`].
    pub fn parse(text: &str) -> Result<Self, AccessNameError> {
        if text.is_empty() {
            return Err(AccessNameError::Empty);
        }
        let len = text.len();
        if len > ACCESS_NAME_BYTES_MAX {
            return Err(TextError::TooLong { len, max: ACCESS_NAME_BYTES_MAX }.into());
        }
        Ok(Self(Label::parse(text)?))
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        self.0.as_str()
    }
}

/// The names that a right covers: those that begin with this text; all of them if it is empty.
#[derive(Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct NamePrefix(Option<LockName>);

impl NamePrefix {
    /// Checks and wraps a prefix: empty, or what can be the name of a lock.
    ///
    /// # Errors
    ///
    /// [`TextError`] names the rule that the text breaks, and the place.
    pub fn parse(text: &str) -> Result<Self, TextError> {
        if text.is_empty() {
            return Ok(Self(None));
        }
        LockName::parse(text).map(|name| Self(Some(name)))
    }

    /// The prefix.
    pub fn as_str(&self) -> &str {
        self.0.as_ref().map_or("", LockName::as_str)
    }

    /// Whether every name that begins with `text` begins with this prefix too.
    pub fn covers(&self, text: &str) -> bool {
        text.starts_with(self.as_str())
    }
}

/// In the order of texts: the empty one comes first.
impl Borrow<str> for NamePrefix {
    fn borrow(&self) -> &str {
        self.as_str()
    }
}

macro_rules! as_text {
    ($($name:ident: $read:expr;)*) => {
        $(
            impl fmt::Display for $name {
                fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                    f.write_str(self.as_str())
                }
            }

            impl fmt::Debug for $name {
                fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                    fmt::Debug::fmt(self.as_str(), f)
                }
            }

            impl BorshSerialize for $name {
                fn serialize<W: io::Write>(&self, writer: &mut W) -> io::Result<()> {
                    self.as_str().serialize(writer)
                }
            }

            impl BorshDeserialize for $name {
                fn deserialize_reader<R: io::Read>(reader: &mut R) -> io::Result<Self> {
                    let bytes = holdfast_types::read_bytes(reader, crate::ids::NAME_BYTES_MAX)?;
                    let text = String::from_utf8(bytes).map_err(invalid)?;
                    $read(&text).map_err(invalid)
                }
            }
        )*
    };
}

as_text! {
    Identity: Identity::parse;
    AccessName: AccessName::parse;
    NamePrefix: NamePrefix::parse;
}

fn invalid(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_identity_says_how_it_is_proved() {
        for text in ["token:ci", "uri:spiffe://a/b", "dns:db.example.com", "cn:a:b", "uid:0"] {
            let identity = Identity::parse(text).unwrap();
            assert_eq!((identity.as_str(), identity.is_anonymous()), (text, false));
        }
        let anonymous = Identity::parse("anonymous").unwrap();
        assert!(anonymous.is_anonymous() && anonymous == Identity::default());
        for (text, error) in [
            ("", AccessNameError::NoKind),
            ("ops", AccessNameError::NoKind),
            ("user:ops", AccessNameError::NoKind),
            ("cn:", AccessNameError::Empty),
            ("cn:a\nb", TextError::Forbidden { code: 10, at: 4 }.into()),
        ] {
            assert_eq!(Identity::parse(text), Err(error), "{text:?}");
        }
        let long = format!("cn:{}", "x".repeat(IDENTITY_BYTES_MAX - 2));
        let too_long = TextError::TooLong { len: IDENTITY_BYTES_MAX + 1, max: IDENTITY_BYTES_MAX };
        assert_eq!(Identity::parse(&long), Err(too_long.into()));
    }

    #[test]
    fn a_token_and_its_owner_have_one_name() {
        let longest = AccessName::parse(&"x".repeat(ACCESS_NAME_BYTES_MAX)).unwrap();
        let owner = Identity::of_token(&longest);
        assert_eq!(owner.token(), Some(longest));
        assert_eq!(Identity::parse("cn:x").unwrap().token(), None);
        assert!(AccessName::parse(&"x".repeat(ACCESS_NAME_BYTES_MAX + 1)).is_err());
    }

    #[test]
    fn names_are_checked_again_when_they_are_read() {
        let stored = |text: &str| borsh::to_vec(text).unwrap();
        assert!(Identity::try_from_slice(&stored("cn:ops")).is_ok());
        assert!(Identity::try_from_slice(&stored("ops")).is_err());
        assert!(AccessName::try_from_slice(&stored("")).is_err());
        assert!(NamePrefix::try_from_slice(&stored("")).is_ok());
        assert!(NamePrefix::try_from_slice(&stored("a\n")).is_err());
        let no_text = borsh::to_vec(&[b'a', 0xff][..]).unwrap();
        assert!(Identity::try_from_slice(&borsh::to_vec(&b"cn:\xff"[..]).unwrap()).is_err());
        assert!(AccessName::try_from_slice(&no_text).is_err());
        assert!(NamePrefix::try_from_slice(&no_text).is_err());
        let anonymous = borsh::to_vec(&Identity::default()).unwrap();
        assert_eq!(Identity::try_from_slice(&anonymous).unwrap(), Identity::default());
    }
}
