//! The rules for lock names: the same on Cassandra as in the native store, so that every lock can move.

use crate::{Error, Result};

/// Longest lock name, bytes.
pub const NAME_BYTES_MAX: usize = 512;
/// How much of a name that is too long an error shows, in characters.
const SHOWN_MAX: usize = 32;

/// Checks that a lock may have this name, in either store: 1 to 512 bytes, without control characters and without
/// characters that reorder the text around them. Every locker on Cassandra checks it before it sends anything. The
/// server applies the same rules.
///
/// # Errors
///
/// [`Error::Refused`], which shows the name and the rule that it breaks.
pub fn check_lock_name(name: &str) -> Result<()> {
    if name.is_empty() {
        return Err(Error::invalid("a lock name cannot be empty".into()));
    }
    if name.len() > NAME_BYTES_MAX {
        let start: String = name.chars().take(SHOWN_MAX).collect();
        let why = format!("{} bytes is longer than the {NAME_BYTES_MAX} allowed", name.len());
        return Err(unusable(&format!("{start}…"), &why));
    }
    match name.char_indices().find(|&(_, character)| is_forbidden(character)) {
        None => Ok(()),
        Some((at, character)) => {
            let code = u32::from(character);
            let why = format!(
                "character U+{code:04X} at byte {at} is not allowed (control or bidirectional override)"
            );
            Err(unusable(name, &why))
        }
    }
}

fn unusable(shown: &str, why: &str) -> Error {
    Error::invalid(format!("the lock name \"{}\" is not usable: {why}", shown.escape_debug()))
}

/// Control characters, and those of Unicode UAX #9.
fn is_forbidden(character: char) -> bool {
    character.is_control()
        || matches!(character, '\u{200E}' | '\u{200F}' | '\u{061C}' | '\u{202A}'..='\u{202E}' | '\u{2066}'..='\u{2069}')
}
