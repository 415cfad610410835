//! A row of leases: its owner is the holder, with its value.

use super::{Claim, Draft, Reason, value_of};
use crate::layout::LeaseRow;

pub(super) fn plan(row: LeaseRow, draft: &mut Draft) {
    let LeaseRow { owner, value } = row;
    let Some(cell) = owner else {
        draft.find(Reason::NobodyHolds, None);
        return;
    };
    let claim = Claim::of(&cell.value, Some(&cell));
    match claim.and_then(|claim| Ok((claim, value_of(value)?))) {
        Ok((claim, value)) => draft.hold(claim, value),
        Err(reason) => draft.find(reason, Some(&cell.value)),
    }
}
