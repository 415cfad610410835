//! Checks whether a foreign client, which is not of our library, still writes.
//!
//! The check helps an operator who forgot to stop one; safety does not rest on it. Two things
//! prevent two clients of different stores from holding one lock: the modes that our clients
//! register, and, for clients that know no modes, the operator's statement that they are stopped
//! (DESIGN §10).

use std::hash::{DefaultHasher, Hash, Hasher};

use holdfast_recipes::is_ours;

use super::Rules;
use crate::layout::{Heartbeat, LockRows, OwnedCell};

/// The first owner that is not of our library and whose row changed within its last two TTLs.
///
/// A row with a TTL was written within one TTL, or it would have ended: no clock is read. For a row
/// without a TTL, the write time (of the session's last heartbeat, for tokens) is compared with
/// `now_us`, the time of a coordinator, and two graces count. `WRITETIME` is by the clock of the
/// writer, the client or another node, so the comparison is off by as much as those clocks differ.
pub fn changed_by_foreign_writer(rows: &LockRows, rules: &Rules, now_us: i64) -> Option<String> {
    changed_lately(rows, rules, now_us, |owner| !is_ours(owner))
}

/// The same for a client of our library that is no registered process: a plain recipe, or version
/// 0.1.
pub fn changed_by_unregistered(rows: &LockRows, rules: &Rules, now_us: i64) -> Option<String> {
    changed_lately(rows, rules, now_us, |owner| is_ours(owner) && !rules.holds_natively(owner))
}

/// The first `sought` owner whose row changed within its last two TTLs.
fn changed_lately(
    rows: &LockRows,
    rules: &Rules,
    now_us: i64,
    sought: impl Fn(&str) -> bool,
) -> Option<String> {
    let is_recent = |left_s: Option<i32>, written_us: Option<i64>| {
        let two_graces =
            i64::try_from(rules.grace.as_micros()).unwrap_or(i64::MAX).saturating_mul(2);
        let age = written_us.map(|written| now_us.saturating_sub(written));
        // A cell without a write time counts as written now.
        left_s.is_some() || age.is_none_or(|age| age < two_graces)
    };
    let changed = |one: &OwnedCell<'_>| match one.heartbeat {
        Some(Heartbeat::There { written_us }) => is_recent(None, written_us),
        _ => one.cell.is_none_or(|cell| is_recent(cell.left_s, cell.written_us)),
    };
    rows.owned().into_iter().filter(changed).map(|one| one.owner).find(|owner| sought(owner))
}

/// A hash of each cell that no registered process wrote. It differs by owner and by write of the
/// cell; a heartbeat counts as a write of its session's token.
pub fn cell_marks(rows: &LockRows, rules: &Rules) -> Vec<(String, u64)> {
    let lock = rows.lock.to_string();
    let mark = |one: OwnedCell<'_>| {
        let beaten = match one.heartbeat {
            Some(Heartbeat::There { written_us }) => written_us,
            Some(Heartbeat::Missing) | None => None,
        };
        let mut hasher = DefaultHasher::new();
        // The column covers a place's time too.
        let written = one.cell.and_then(|cell| cell.written_us);
        (&lock, one.is_holders, &one.column, written, beaten).hash(&mut hasher);
        (one.owner, hasher.finish())
    };
    let owned = rows.owned().into_iter().filter(|one| !rules.holds_natively(&one.owner));
    owned.map(mark).collect()
}
