//! Finds the next item, without a scan from 0 through everything.
//!
//! The article scans all row keys in their order, which needs an ordered partitioner. Here the numbers of an hour's items
//! are one partition, in the order of ids, and the hours of a queue are listed. So a look reads a page from where the
//! first remaining item was, and passes over neither done items nor their tombstones. It finds items that were enqueued
//! out of order (another clock, a slow write) because it begins a minute before now at the latest, and every now and then
//! at the very first hour.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use holdfast_runtime::Instant;

use super::id::{ItemId, from_time, hour_of};
use super::rows::{NumberRow, PAGE, Rows};
use crate::database::Fault;

/// How far behind the present looks begin, even if everything before seems done.
const LAG_US: i64 = 60_000_000;
/// How often a look begins at the very first hour.
const WHOLE_EVERY: Duration = Duration::from_secs(30);
/// The largest number of free items from which one is drawn.
const SPREAD_MAX: usize = 64;
/// How many more a look collects than are drawn from, for the next tries.
const SPARE: usize = 4;

/// An item that a look passed, with the owner of its lowest number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Seen {
    pub(super) id: ItemId,
    pub(super) taken_by: Option<String>,
}

/// Where a process looks for items. The clones of its queue share it.
pub(super) struct Scanner {
    rows: Rows,
    state: Mutex<State>,
}

struct State {
    /// No item remains before it, as far as is known.
    floor_us: i64,
    /// When to look at all hours again.
    whole_at: Option<Instant>,
    /// From how many free items one is drawn: 1 while no other worker competes.
    spread: usize,
}

impl Scanner {
    pub(super) fn new(rows: Rows) -> Self {
        Self { rows, state: Mutex::new(State { floor_us: 0, whole_at: None, spread: 1 }) }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[cfg(test)]
    pub(super) fn floor_us(&self) -> i64 {
        self.lock().floor_us
    }

    /// The first free items, in order: some more than one is drawn from.
    pub(super) async fn free(&self) -> Result<Vec<ItemId>, Fault> {
        let now = self.rows.base.now();
        let now_us = self.rows.now_us();
        let (from_us, wanted, is_whole) = {
            let state = self.lock();
            let is_whole = state.whole_at.is_none_or(|whole_at| now >= whole_at);
            (if is_whole { 0 } else { state.floor_us }, state.spread + SPARE, is_whole)
        };
        let mut lowest_us = now_us;
        let mut free = Vec::new();
        self.look(from_us, |seen| {
            lowest_us = lowest_us.min(seen.id.written_us());
            if seen.taken_by.is_none() {
                free.push(seen.id);
            }
            free.len() < wanted
        })
        .await?;
        let mut state = self.lock();
        state.floor_us = lowest_us.min(now_us.saturating_sub(LAG_US));
        if is_whole {
            state.whole_at = Some(now + WHOLE_EVERY);
        }
        Ok(free)
    }

    /// Draws one of the first of `free`: the first, as long as no other worker competes for it.
    pub(super) fn draw(&self, free: &mut Vec<ItemId>, random: u64) -> Option<ItemId> {
        let among = u64::try_from(free.len().min(self.lock().spread)).unwrap_or(1);
        let at = usize::try_from(random % among.max(1)).unwrap_or(0);
        (at < free.len()).then(|| free.remove(at))
    }

    /// Adapts the spread to whether the drawn item was won: if so, to fewer items, for the sake of order; else to more,
    /// so that many workers do not compete for one item.
    pub(super) fn learn(&self, was_had: bool) {
        let mut state = self.lock();
        state.spread =
            if was_had { state.spread.div_ceil(2) } else { (state.spread * 2).min(SPREAD_MAX) };
    }

    /// Shows the items from a time on, in order, until `on` returns false.
    pub(super) async fn look(
        &self,
        from_us: i64,
        mut on: impl FnMut(Seen) -> bool + Send,
    ) -> Result<(), Fault> {
        // No id is from before 1970.
        for hour in self.rows.hours(hour_of(from_us)).await? {
            let mut from = Some(from_time(from_us));
            let mut is_empty = from_us == 0;
            while let Some(begin) = from {
                let (rows, read) = self.rows.page(hour, &begin).await?;
                is_empty &= read == 0;
                let page = Grouped::of(&rows, hour, read >= PAGE);
                for seen in page.items {
                    if !on(seen) {
                        return Ok(());
                    }
                }
                from = page.next;
            }
            if is_empty {
                self.rows.unlist_hour(hour).await?;
            }
        }
        Ok(())
    }
}

/// A page, by items.
struct Grouped {
    items: Vec<Seen>,
    /// Where the next page begins; `None`: this was the last.
    next: Option<String>,
}

impl Grouped {
    /// Passes over rows that are no item, or lie in another hour than their id says.
    fn of(rows: &[NumberRow], hour: i64, is_cut: bool) -> Self {
        let mut groups: Vec<&[NumberRow]> = rows.chunk_by(|a, b| a.item == b.item).collect();
        let mut next = None;
        if is_cut && let Some(last) = groups.pop() {
            // The page may end within this item: the next page begins with it. An item that fills a page is passed over.
            let after = if groups.is_empty() { "\0" } else { "" };
            next = last.first().map(|row| format!("{}{after}", row.item));
        }
        let items = groups.into_iter().filter_map(|group| seen(group, hour)).collect();
        Self { items, next }
    }
}

/// A marker makes an item one of the queue. A number without one was written to an item that was done meanwhile.
fn seen(group: &[NumberRow], hour: i64) -> Option<Seen> {
    let id = ItemId::parse(&group.first()?.item).filter(|id| id.hour() == hour)?;
    if !group.iter().any(NumberRow::is_marker) {
        return None;
    }
    let others = group.iter().filter(|row| !row.is_marker());
    let first = others.min_by_key(|row| (row.number, &row.worker));
    Some(Seen { id, taken_by: first.map(|row| row.worker.clone()) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::owner::Always;

    fn row(item: &str, worker: &str, number: i64) -> NumberRow {
        NumberRow { item: item.into(), worker: worker.into(), number: Some(number) }
    }

    #[test]
    fn a_page_that_parts_an_item_is_followed_by_one_that_begins_with_it() {
        let [a, b] = [1, 2].map(|at| ItemId::draw(at, &Always));
        let rows = [row(a.as_str(), "0", 0), row(a.as_str(), "w", 1), row(b.as_str(), "0", 0)];
        let taken = Seen { id: a, taken_by: Some("w".into()) };
        let cut = Grouped::of(&rows, 0, true);
        assert_eq!((cut.items, cut.next), (vec![taken.clone()], Some(b.to_string())));
        let whole = Grouped::of(&rows, 0, false);
        assert_eq!((whole.items, whole.next), (vec![taken, Seen { id: b, taken_by: None }], None));
        let full = Grouped::of(&rows[..2], 0, true);
        assert_eq!((full.items.len(), full.next.unwrap().ends_with('\0')), (0, true));
    }

    #[test]
    fn what_is_no_item_of_the_hour_is_passed_over() {
        let id = ItemId::draw(1, &Always);
        let rows = [row("", "0", 0), row(id.as_str(), "w", 3), row("job", "0", 0)];
        assert_eq!(Grouped::of(&rows, 0, false).items, []);
        assert_eq!(Grouped::of(&[row(id.as_str(), "0", 0)], 1, false).items, []);
    }
}
