//! The sessions of a token.
//!
//! A token has no TTL: it stands as long as its session beats, and one grace longer, counted by whoever
//! clears up. Nobody's clock has to agree with anybody's for that, and here neither: what is left is
//! taken for a whole grace from when the heartbeat was read. That is never less than what a housekeeper
//! leaves it, and for a session that died long ago it is what a housekeeper that is started now leaves
//! it.

use std::time::Duration;

use holdfast::compat::term_of;

use super::{Claim, Draft, Reason, left_of, owner_of, within_a_year};
use crate::layout::{Cell, Heartbeat, TokenRow};

pub(super) fn plan(sessions: &[TokenRow], grace: Duration, draft: &mut Draft) {
    let [TokenRow { session, heartbeat }] = sessions else {
        // Without LWT: the one who finds himself alone holds, and the others are about to go. Which one
        // that was, the rows do not say.
        draft.find(Reason::SeveralHolders { holders: sessions.len() }, None);
        return;
    };
    let Some(cell) = session else {
        draft.find(Reason::NobodyHolds, None);
        return;
    };
    match claim(cell, *heartbeat, grace) {
        Ok(claim) => draft.hold(claim, None),
        Err(reason) => draft.find(reason, Some(&cell.value)),
    }
}

fn claim(cell: &Cell, heartbeat: Heartbeat, grace: Duration) -> Result<Claim, Reason> {
    let owner = owner_of(&cell.value)?;
    let Heartbeat::There { .. } = heartbeat else { return Err(Reason::NoHeartbeat) };
    // A session of ours says how long it was promised.
    let grace = term_of(&owner).map_or(grace, |term| term.max(grace));
    let grace_ms = u64::try_from(grace.as_millis()).unwrap_or(u64::MAX);
    // The recipe knows no TTL; where a table has one, the token does not outlive it.
    let left_ms = match cell.left_s {
        Some(left_s) => left_of(Some(left_s))?.min(grace_ms),
        None => grace_ms,
    };
    let left_ms = within_a_year(left_ms)?;
    Ok(Claim { owner, left_ms, written_us: cell.written_us })
}
