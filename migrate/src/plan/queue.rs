//! A main row and a queue, as the thesis has them in §5.
//!
//! The two rows are read one after the other, and their cells end independently. The main row alone
//! decides, as it does for the recipe's clients. A holder keeps its place in the queue while it
//! holds (§5.3); that place is no wait. If the main row is empty, the first in the queue counts as
//! the holder: see the [module above](super).

use std::collections::BTreeSet;

use super::{Claim, Draft, Reason};
use crate::layout::{ColumnCell, Raw};

/// Digits of microseconds before the thread (listing 5).
const TIME_DIGITS: usize = 20;

pub(super) fn plan(main: &[ColumnCell], mut queue: Vec<ColumnCell>, draft: &mut Draft) {
    queue.sort_by_key(|cell| cell.column.to_string());
    let mut in_line = BTreeSet::new();
    match holder(main, draft) {
        Ok(Some(claim)) => {
            in_line.insert(claim.owner.clone());
            draft.hold(claim, None);
        }
        Ok(None) => {}
        Err(LeftOut) => {
            draft.leave_out(queue.iter().map(|cell| &cell.column));
            return;
        }
    }
    let held_by = in_line.first().cloned();
    for cell in queue {
        match waiter(&cell) {
            Ok(claim) if held_by.as_ref() == Some(&claim.owner) => {}
            Ok(claim) if !in_line.insert(claim.owner.clone()) => {
                draft.find(Reason::SecondPlace, Some(&cell.column));
            }
            // The main row is empty, and only this owner may write itself there.
            Ok(claim) if draft.plan.rows.is_empty() => draft.hold(claim, None),
            Ok(claim) => draft.wait(claim),
            Err(reason) => draft.find(reason, Some(&cell.column)),
        }
    }
}

/// The holder cannot be imported, and so none of its waiters.
pub(super) struct LeftOut;

/// The holder by a main row: "if there is only one record" (listing 6, step 4). There are two cells
/// while a client that lost is about to delete its own, and until its TTL ends if that client died;
/// the row does not show which one holds.
pub(super) fn holder(main: &[ColumnCell], draft: &mut Draft) -> Result<Option<Claim>, LeftOut> {
    let one = match main {
        [] => return Ok(None),
        [one] => one,
        several => {
            draft.find(Reason::SeveralHolders { holders: several.len() }, None);
            return Err(LeftOut);
        }
    };
    match Claim::of(&one.column, one.cell.as_ref()) {
        Ok(claim) => Ok(Some(claim)),
        Err(reason) => {
            // An ended cell holds back none of the others.
            let over = reason == Reason::Over;
            draft.find(reason, Some(&one.column));
            if over { Ok(None) } else { Err(LeftOut) }
        }
    }
}

fn waiter(cell: &ColumnCell) -> Result<Claim, Reason> {
    let Ok(column) = cell.column.text() else { return Err(Reason::PlaceUnreadable) };
    let place = column.split_at_checked(TIME_DIGITS);
    let digits = |time: &str| time.bytes().all(|byte| byte.is_ascii_digit());
    let Some((_, thread)) = place.filter(|(time, thread)| digits(time) && !thread.is_empty())
    else {
        return Err(Reason::PlaceUnreadable);
    };
    Claim::of(&Raw::Text(thread.to_owned()), cell.cell.as_ref())
}
