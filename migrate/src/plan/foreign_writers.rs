//! Checks whether a foreign client, which is not of our library, still writes.
//!
//! The check helps an operator who forgot to stop one; safety does not rest on it. Two things
//! prevent two clients of different stores from holding one lock: the modes that our clients
//! register, and, for clients that know no modes, the operator's statement that they are stopped
//! (DESIGN §10).

use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

use holdfast_recipes::is_ours;

use super::Rules;
use crate::layout::{Cell, ColumnCell, Heartbeat, LockRows, Raw, Said, TokenRow};

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
    let recent = |cell: &Cell| is_recent(cell.left_s, cell.written_us, rules.grace, now_us);
    let of_cells = |cells: &[ColumnCell], places: bool| {
        let written = |cell: &&ColumnCell| cell.cell.as_ref().is_none_or(recent);
        let owners = cells.iter().filter(written).map(|cell| shown(&cell.column, places));
        owners.into_iter().find(|owner| sought(owner))
    };
    match &rows.said {
        Said::Lease(row) => {
            let owner = row.owner.as_ref().filter(|cell| recent(cell));
            owner.map(|cell| cell.value.to_string()).filter(|owner| sought(owner))
        }
        Said::Queue { main, queue } => of_cells(main, false).or_else(|| of_cells(queue, true)),
        Said::Shadow { main, shadow } => of_cells(main, false).or_else(|| of_cells(shadow, false)),
        Said::Bakery { numbers, choosing } => {
            of_cells(numbers, false).or_else(|| of_cells(choosing, false))
        }
        Said::Tokens(sessions) => {
            let written = |row: &&TokenRow| match row.heartbeat {
                Heartbeat::There { written_us } => is_recent(None, written_us, rules.grace, now_us),
                Heartbeat::Missing => row.session.as_ref().is_some_and(recent),
            };
            let owners = sessions.iter().filter(written).filter_map(|row| row.session.as_ref());
            owners.map(|cell| cell.value.to_string()).find(|owner| sought(owner))
        }
    }
}

/// A column's owner; of a place in line without its time.
fn shown(column: &Raw, is_place: bool) -> String {
    let text = column.to_string();
    let thread = text.split_at_checked(20).map(|(_, thread)| thread.to_owned());
    thread.filter(|_| is_place).unwrap_or(text)
}

/// A hash of each cell that no registered process wrote. It differs by owner and by write of the
/// cell; a heartbeat counts as a write of its session's token.
pub fn cell_marks(rows: &LockRows, rules: &Rules) -> Vec<(String, u64)> {
    let mark = |place: u8, owner: &str, written: Option<i64>, beaten: Option<i64>| {
        let mut hasher = DefaultHasher::new();
        (&rows.lock.to_string(), place, owner, written, beaten).hash(&mut hasher);
        hasher.finish()
    };
    let of_cells = |place: u8, cells: &[ColumnCell]| -> Vec<(String, u64)> {
        let each = cells.iter().map(|cell| {
            let written = cell.cell.as_ref().and_then(|cell| cell.written_us);
            // The hash covers a place's time too.
            let hash = mark(place, &cell.column.to_string(), written, None);
            (shown(&cell.column, place == 1 && matches!(rows.said, Said::Queue { .. })), hash)
        });
        each.collect()
    };
    let all = match &rows.said {
        Said::Lease(row) => {
            let owner = row.owner.iter();
            let one = |cell: &Cell| {
                let owner = cell.value.to_string();
                let hash = mark(0, &owner, cell.written_us, None);
                (owner, hash)
            };
            owner.map(one).collect()
        }
        Said::Queue { main: first, queue: second }
        | Said::Shadow { main: first, shadow: second }
        | Said::Bakery { numbers: first, choosing: second } => {
            [of_cells(0, first), of_cells(1, second)].concat()
        }
        Said::Tokens(sessions) => {
            let beaten = |row: &TokenRow| match row.heartbeat {
                Heartbeat::There { written_us } => written_us,
                Heartbeat::Missing => None,
            };
            let one = |row: &TokenRow| {
                let cell = row.session.as_ref()?;
                let owner = cell.value.to_string();
                let hash = mark(0, &owner, cell.written_us, beaten(row));
                Some((owner, hash))
            };
            sessions.iter().filter_map(one).collect::<Vec<_>>()
        }
    };
    all.into_iter().filter(|(owner, _)| !rules.holds_natively(owner)).collect()
}

fn is_recent(left_s: Option<i32>, written_us: Option<i64>, grace: Duration, now_us: i64) -> bool {
    let two_graces = i64::try_from(grace.as_micros()).unwrap_or(i64::MAX).saturating_mul(2);
    let age = written_us.map(|written| now_us.saturating_sub(written));
    // A cell without a write time counts as written now.
    left_s.is_some() || age.is_none_or(|age| age < two_graces)
}
