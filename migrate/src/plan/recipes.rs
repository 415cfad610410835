//! The rows of each recipe: which owner holds the lock, and which wait. The [module above](super)
//! has the table of them.

use std::collections::BTreeSet;
use std::time::Duration;

use holdfast_recipes::term_of;

use super::{Draft, Planned, Reason, left_of, owner_of, value_of, within_a_year};
use crate::layout::{Cell, ColumnCell, Heartbeat, LeaseRow, Raw, TIME_DIGITS, TokenRow};

/// A row of leases: its owner is the holder, with its value.
pub(super) fn lease(row: LeaseRow, draft: &mut Draft) {
    let LeaseRow { owner, value } = row;
    let Some(cell) = owner else {
        draft.find(Reason::NoOwner, None);
        return;
    };
    let row = draft.read(&cell.value, Some(&cell));
    match row.and_then(|row| Ok((row, value_of(value)?))) {
        Ok((row, value)) => draft.hold(row, value),
        Err(reason) => draft.find(reason, Some(&cell.value)),
    }
}

/// A main row and a queue, as the thesis has them in §5.
///
/// The two rows are read one after the other, and their cells end independently. The main row alone
/// decides, as it does for the recipe's clients. A holder keeps its place in the queue while it
/// holds (thesis, §5.3); that place is no wait. If the main row is empty, the first in the queue
/// counts as the holder, and if that place cannot be imported, none behind it is: see the
/// [module above](super).
pub(super) fn queue(main: &[ColumnCell], mut places: Vec<ColumnCell>, draft: &mut Draft) {
    // The order of the recipe's clients: Cassandra compares columns by their bytes.
    places.sort_by_cached_key(|cell| cell.column.clone().into_bytes());
    let mut in_line = BTreeSet::new();
    match main_row_holder(main, draft) {
        Ok(Some(row)) => {
            in_line.insert(row.owner.clone());
            draft.hold(row, None);
        }
        Ok(None) => {}
        Err(LeftOut) => {
            draft.leave_out(places.iter().map(|cell| &cell.column));
            return;
        }
    }
    let held_by = in_line.first().cloned();
    let mut first_left_out = None;
    for cell in places {
        match waiter(&cell, draft) {
            Ok(row) if held_by.as_ref() == Some(&row.owner) => {}
            Ok(row) if !in_line.insert(row.owner.clone()) => {
                draft.find(Reason::SecondPlace, Some(&cell.column));
            }
            Ok(row) => match &first_left_out {
                Some(first) => {
                    let first = String::clone(first);
                    draft.find(Reason::FirstLeftOut { first }, Some(&cell.column));
                }
                // The main row is empty, and only this owner may write itself there.
                None if draft.plan.rows.is_empty() => draft.hold(row, None),
                None => draft.wait(row),
            },
            Err(reason) => {
                // The client of this place may take the lock before all others. An ended cell holds
                // back none of them.
                if draft.plan.rows.is_empty() && reason != Reason::Over {
                    first_left_out.get_or_insert_with(|| cell.column.to_string());
                }
                draft.find(reason, Some(&cell.column));
            }
        }
    }
}

/// The holder cannot be imported, and so none of its waiters.
struct LeftOut;

/// The holder by a main row: "if there is only one record" (listing 6, step 4). There are two cells
/// while a client that lost is about to delete its own, and until its TTL ends if that client died;
/// the row does not show which one holds.
fn main_row_holder(main: &[ColumnCell], draft: &mut Draft) -> Result<Option<Planned>, LeftOut> {
    let one = match main {
        [] => return Ok(None),
        [one] => one,
        several => {
            draft.find(Reason::SeveralHolders { holders: several.len() }, None);
            return Err(LeftOut);
        }
    };
    match draft.read(&one.column, one.cell.as_ref()) {
        Ok(row) => Ok(Some(row)),
        Err(reason) => {
            // An ended cell holds back none of the others.
            let over = reason == Reason::Over;
            draft.find(reason, Some(&one.column));
            if over { Ok(None) } else { Err(LeftOut) }
        }
    }
}

fn waiter(cell: &ColumnCell, draft: &Draft) -> Result<Planned, Reason> {
    let Ok(column) = cell.column.text() else { return Err(Reason::PlaceUnreadable) };
    let place = column.split_at_checked(TIME_DIGITS);
    let digits = |time: &str| time.bytes().all(|byte| byte.is_ascii_digit());
    let Some((_, thread)) = place.filter(|(time, thread)| digits(time) && !thread.is_empty())
    else {
        return Err(Reason::PlaceUnreadable);
    };
    draft.read(&Raw::Text(thread.to_owned()), cell.cell.as_ref())
}

/// A main row and a shadow row, as the thesis has them in §4.
pub(super) fn shadow(main: &[ColumnCell], trying: &[ColumnCell], draft: &mut Draft) {
    let held_by = match main_row_holder(main, draft) {
        Ok(Some(row)) => {
            let owner = row.owner.clone();
            draft.hold(row, None);
            Some(owner)
        }
        Ok(None) | Err(LeftOut) => None,
    };
    for cell in trying {
        // Listing 3, steps 11 and 12: the holder deletes its own cell only after it has the lock.
        let is_holders = held_by.as_deref().is_some_and(|holder| cell.column.to_string() == holder);
        if !is_holders {
            draft.find(Reason::Trying, Some(&cell.column));
        }
    }
}

/// The sessions of a token.
///
/// A token has no TTL: it stands while its session has heartbeats, and one grace longer by the
/// housekeeper's clock. The recipe needs no agreement between clocks, and neither does the plan: it
/// counts a whole grace from the read of the heartbeat. That is never less than a housekeeper
/// leaves the session, and for a session that died long ago it is what a housekeeper that starts
/// now leaves it.
pub(super) fn tokens(sessions: &[TokenRow], grace: Duration, draft: &mut Draft) {
    let [TokenRow { session, heartbeat }] = sessions else {
        // Without LWT a session holds if it finds itself alone, and the others are about to delete
        // their rows. The rows do not show which one that was.
        draft.find(Reason::SeveralHolders { holders: sessions.len() }, None);
        return;
    };
    let Some(cell) = session else {
        draft.find(Reason::NoOwner, None);
        return;
    };
    match token_row(cell, *heartbeat, grace, draft) {
        Ok(row) => draft.hold(row, None),
        Err(reason) => draft.find(reason, Some(&cell.value)),
    }
}

fn token_row(
    cell: &Cell,
    heartbeat: Heartbeat,
    grace: Duration,
    draft: &Draft,
) -> Result<Planned, Reason> {
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
    Ok(draft.row(owner, left_ms, cell.written_us))
}

/// The numbers of a lock, and the processes that are choosing one. The [module above](super) says
/// which process holds.
pub(super) fn bakery(numbers: Vec<ColumnCell>, choosing: &[ColumnCell], draft: &mut Draft) {
    let (in_line, unreadable) = in_order(numbers, draft);
    for cell in &unreadable {
        draft.find(Reason::NumberUnreadable, Some(&cell.column));
    }
    // An unreadable number may be the lowest.
    if unreadable.is_empty() {
        give_places(&in_line, draft);
    } else {
        draft.leave_out(in_line.iter().map(|cell| &cell.column));
    }
    let has_number = |process: &Raw| in_line.iter().any(|cell| cell.column == *process);
    for cell in choosing {
        let is_set = cell.cell.as_ref().is_some_and(|cell| cell.value.is_set());
        if is_set && !has_number(&cell.column) {
            draft.find(Reason::Choosing, Some(&cell.column));
        }
    }
}

/// Sorts by (number, process), "for we cannot guarantee any two processes don't get the same
/// number"; returns the cells without a readable number separately.
fn in_order(numbers: Vec<ColumnCell>, draft: &mut Draft) -> (Vec<ColumnCell>, Vec<ColumnCell>) {
    let (mut in_line, mut unreadable) = (Vec::new(), Vec::new());
    for cell in numbers {
        match cell.cell.as_ref().and_then(|cell| cell.value.number()) {
            Some(number) if number > 0 => in_line.push((number, cell)),
            Some(_) => draft.find(Reason::NotInLine, Some(&cell.column)),
            None => unreadable.push(cell),
        }
    }
    // Ids that are numbers are compared as numbers, even if they are written as text.
    let process = |id: &Raw| (id.number(), id.clone());
    in_line.sort_by_cached_key(|(number, cell)| (*number, process(&cell.column)));
    (in_line.into_iter().map(|(_, cell)| cell).collect(), unreadable)
}

fn give_places(in_line: &[ColumnCell], draft: &mut Draft) {
    let mut held = false;
    for (at, cell) in in_line.iter().enumerate() {
        match draft.read(&cell.column, cell.cell.as_ref()) {
            Ok(row) if held => draft.wait(row),
            Ok(row) => {
                held = true;
                draft.hold(row, None);
            }
            Err(reason) => {
                // An ended cell holds back none of the others.
                let holds_back = !held && reason != Reason::Over;
                draft.find(reason, Some(&cell.column));
                if holds_back {
                    draft.leave_out(in_line.iter().skip(at + 1).map(|cell| &cell.column));
                    return;
                }
            }
        }
    }
}
