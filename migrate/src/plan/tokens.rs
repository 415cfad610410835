//! The sessions of a token.
//!
//! A token has no TTL: it stands while its session has heartbeats, and one grace longer by the
//! housekeeper's clock. The recipe needs no agreement between clocks, and neither does the plan: it
//! counts a whole grace from the read of the heartbeat. That is never less than a housekeeper
//! leaves the session, and for a session that died long ago it is what a housekeeper that starts
//! now leaves it.

use std::time::Duration;

use holdfast_recipes::term_of;

use super::{Claim, Draft, Reason, left_of, owner_of, within_a_year};
use crate::layout::{Cell, Heartbeat, TokenRow};

pub(super) fn plan(sessions: &[TokenRow], grace: Duration, draft: &mut Draft) {
    let [TokenRow { session, heartbeat }] = sessions else {
        // Without LWT a session holds if it finds itself alone, and the others are about to delete
        // their rows. The rows do not show which one that was.
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
    // A session of our library states its term in its id.
    let grace = term_of(&owner).map_or(grace, |term| term.max(grace));
    let grace_ms = u64::try_from(grace.as_millis()).unwrap_or(u64::MAX);
    // The recipe uses no TTL; where a table has one, the token does not outlive it.
    let left_ms = match cell.left_s {
        Some(left_s) => left_of(Some(left_s))?.min(grace_ms),
        None => grace_ms,
    };
    let left_ms = within_a_year(left_ms)?;
    Ok(Claim { owner, left_ms, written_us: cell.written_us })
}
