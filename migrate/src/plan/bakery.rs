//! The numbers of a lock, and the processes that are choosing one. The [module above](super) says
//! who holds.

use super::{Claim, Draft, Reason};
use crate::layout::{ColumnCell, Raw};

pub(super) fn plan(numbers: Vec<ColumnCell>, choosing: &[ColumnCell], draft: &mut Draft) {
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
    in_line.sort_by_cached_key(|(number, cell)| (*number, process(&cell.column)));
    (in_line.into_iter().map(|(_, cell)| cell).collect(), unreadable)
}

/// Ids that are numbers are compared as numbers, even if they are written as text.
fn process(id: &Raw) -> (Option<i64>, Raw) {
    (id.number(), id.clone())
}

fn give_places(in_line: &[ColumnCell], draft: &mut Draft) {
    let mut held = false;
    for (at, cell) in in_line.iter().enumerate() {
        match Claim::of(&cell.column, cell.cell.as_ref()) {
            Ok(claim) if held => draft.wait(claim),
            Ok(claim) => {
                held = true;
                draft.hold(claim, None);
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
