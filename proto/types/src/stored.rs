//! How the server's core stores names: as text with its length before it, checked again when it is
//! read, and with no memory for a length that only claims to follow.

use std::io;

use borsh::{BorshDeserialize, BorshSerialize};

use crate::name::{LABEL_BYTES_MAX, NAME_BYTES_MAX, SCOPE_BYTES_MAX};
use crate::{Label, LockName, ScopePrefix, TextError};

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
///
/// # Errors
///
/// The reader's; and `InvalidData` if the length that the bytes claim is above `max`.
pub fn read_bytes<R: io::Read>(reader: &mut R, max: usize) -> io::Result<Vec<u8>> {
    let claimed = u32::deserialize_reader(reader)?;
    let len = usize::try_from(claimed).unwrap_or(usize::MAX);
    if len > max {
        return Err(invalid(TextError::TooLong { len, max }));
    }
    let mut bytes = vec![0; len];
    reader.read_exact(&mut bytes)?;
    Ok(bytes)
}

fn invalid(error: TextError) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stored_prefix_is_checked_again_when_it_is_read() {
        let stored =
            |bytes: &[u8]| borsh::to_vec(bytes).and_then(|all| ScopePrefix::try_from_slice(&all));
        assert_eq!(stored(b"pay/").ok(), ScopePrefix::parse("pay/").ok());
        for bad in [&b""[..], b"a\n", b"\xff", &[b'x'; 129]] {
            assert!(stored(bad).is_err(), "{bad:?}");
        }
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
}
