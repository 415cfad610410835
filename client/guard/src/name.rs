//! The refusal of a name, before anything is sent.

use holdfast_types::{LockName, TextError};

use crate::{Error, Result};

/// How much of a name that is too long an error shows, in characters.
const SHOWN_MAX: usize = 32;

/// Checks that a lock may have this name, in either store: 1 to 512 bytes, without control characters and without
/// characters that reorder the text around them.
///
/// # Errors
///
/// [`Error::Refused`], which shows the name and the rule that it breaks.
pub fn check_lock_name(name: &str) -> Result<()> {
    let shown = |name: &str| name.escape_debug().to_string();
    LockName::parse(name).map(drop).map_err(|why| match why {
        TextError::Empty => Error::invalid(why.to_string()),
        TextError::TooLong { .. } => {
            let start: String = name.chars().take(SHOWN_MAX).collect();
            unusable(&format!("{}…", shown(&start)), &why)
        }
        _ => unusable(&shown(name), &why),
    })
}

fn unusable(shown: &str, why: &TextError) -> Error {
    Error::invalid(format!("the lock name \"{shown}\" is not usable: {why}"))
}
