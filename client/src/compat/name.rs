//! The rules for lock names: the same on Cassandra as in the store of this crate, so that every lock can move.

use crate::items::{NAME_BYTES_MAX, invalid};
use crate::{Error, Result};

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
        return Err(invalid("a lock name cannot be empty".into()));
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
    invalid(format!("the lock name \"{}\" is not usable: {why}", shown.escape_debug()))
}

/// Control characters, and those of Unicode UAX #9.
fn is_forbidden(character: char) -> bool {
    character.is_control()
        || matches!(character, '\u{200E}' | '\u{200F}' | '\u{061C}' | '\u{202A}'..='\u{202E}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::RefusalReason;
    use crate::compat::scene::{cassandra, world};
    use crate::compat::{
        Bakery, BakeryTables, Lease, LeaseTable, LockerOptions, OptimisticTable, OptimisticTokens,
        Queue, QueueTables, RemoteLocker, Shadow, ShadowTables, TokenTables, Tokens,
    };

    #[test]
    fn a_name_that_is_no_name_is_refused_by_every_locker_before_anything_is_sent() {
        let (machine, model) = world(1);
        let on = cassandra(&model, &machine.process("a"));
        let options = LockerOptions::default();
        let lease = Lease::new(&on, &options, LeaseTable::default()).unwrap();
        let tokens = Tokens::new(&on, &options, TokenTables::default()).unwrap();
        let queue = Queue::new(&on, &options, QueueTables::default()).unwrap();
        let bakery = Bakery::new(&on, &options, BakeryTables::default()).unwrap();
        let shadow = Shadow::new(&on, &options, ShadowTables::default()).unwrap();
        let optimistic = OptimisticTokens::new(&on, &options, OptimisticTable::default()).unwrap();
        let refused = |error: Error, says: &str| {
            let invalid = matches!(error, Error::Refused { reason: RefusalReason::Invalid, .. });
            assert!(invalid && error.to_string().contains(says), "{error}");
        };
        let too_long = "é".repeat(256) + "x";
        let cases =
            [("", "cannot be empty"), (&too_long, "513 bytes"), ("a\nb", "U+000A at byte 1")];
        machine.run(async {
            for (name, says) in cases {
                let all: [&dyn RemoteLocker; 6] =
                    [&lease, &tokens, &queue, &bakery, &shadow, &optimistic];
                for locker in all {
                    refused(locker.get_lock(name).await.unwrap_err(), says);
                    refused(locker.try_get_lock(name).await.unwrap_err(), says);
                }
                refused(lease.leader(name).await.unwrap_err(), says);
                refused(lease.observe(name).next().await.unwrap_err(), says);
                refused(tokens.batch(["good", name]).next().await.unwrap_err(), says);
            }
            assert_eq!(model.arrived(), 0);
        });
    }
}
