//! A main row and a queue, as the thesis has them in §5.
//!
//! The two are read one after the other, and their cells end one without the other: what decides is
//! what decides for the recipe's clients, the main row alone. A holder keeps its place in the queue
//! while it holds (§5.3); that one is no wait. If the main row is empty, the first in the queue is the one who
//! will hold: see the [module above](super).

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
            // The main row is empty, and nobody but this one may write itself there.
            Ok(claim) if draft.plan.rows.is_empty() => draft.hold(claim, None),
            Ok(claim) => draft.wait(claim),
            Err(reason) => draft.find(reason, Some(&cell.column)),
        }
    }
}

/// The holder cannot be imported, and nobody behind it.
pub(super) struct LeftOut;

/// Who holds by a main row: "if there is only one record" (listing 6, step 4). Two are there while one
/// who lost is about to take its cell back, and for ever if it died; which of them holds the row does
/// not say.
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
            // What is over holds nobody back.
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
