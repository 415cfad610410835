//! A main row and a shadow row, as the thesis has them in §4.

use super::queue::{LeftOut, holder};
use super::{Draft, Reason};
use crate::layout::ColumnCell;

pub(super) fn plan(main: &[ColumnCell], shadow: &[ColumnCell], draft: &mut Draft) {
    let held_by = match holder(main, draft) {
        Ok(Some(claim)) => {
            let owner = claim.owner.clone();
            draft.hold(claim, None);
            Some(owner)
        }
        Ok(None) | Err(LeftOut) => None,
    };
    for cell in shadow {
        // Listing 3, steps 11 and 12: the holder deletes its own cell only after it has the lock.
        let is_holders = held_by.as_deref().is_some_and(|holder| cell.column.to_string() == holder);
        if !is_holders {
            draft.find(Reason::Trying, Some(&cell.column));
        }
    }
}
