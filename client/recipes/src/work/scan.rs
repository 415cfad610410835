//! Finds the next item, without a scan from 0 through everything.
//!
//! The article scans all row keys in their order, which needs an ordered partitioner. Here the numbers of a slot's items
//! are one partition, in the order of ids, and the slots of a queue are listed (`slot.rs`). So a look reads a page from where the
//! first remaining item was, and passes over neither done items nor their tombstones. It finds items that were enqueued
//! out of order (another clock, a slow write) because it begins a minute before now at the latest, and every now and then
//! at the very first slot: a whole look, which also removes the listings of slots that are over.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::{ControlFlow, RangeInclusive};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use holdfast_mutants::mutant;
use holdfast_runtime::Instant;

use super::id::{ItemId, from_time, hour_of};
use super::rows::{NumberRow, PAGE, Rows};
use super::slot::{KNOWN, Listing, Part, Slot};
use crate::database::Fault;

/// How far behind the present looks begin, even if everything before seems done.
const LAG_US: i64 = 60_000_000;
/// How often a look begins at the very first slot.
const WHOLE_EVERY: Duration = Duration::from_secs(30);
/// The largest number of free items from which one is drawn.
const SPREAD_MAX: usize = 64;
/// How many more a look collects than are drawn from, for the next tries.
const SPARE: usize = 4;
/// For how long a process leaves aside an item that it gave back after the first attempt; twice as long after each further one.
const ASIDE: Duration = Duration::from_secs(1);
/// The longest such time.
const ASIDE_MAX: Duration = Duration::from_mins(10);
/// How many rows an item has, probably: itself, and a worker.
const ROWS_EACH: usize = 4;
/// How many partitions may fail a look before it is over. It passes over fewer: one that cannot be read hides no item of another.
const FAILED_MAX: u32 = 3;

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
    /// When to look at all slots again.
    whole_at: Option<Instant>,
    /// Hours were listed at the last whole look: some process has an older version, or had.
    has_hours: bool,
    /// Since when the listings of slots are known. A whole look brings all those that it passes.
    known: Known,
    /// From how many free items one is drawn: 1 while no other worker competes.
    spread: usize,
    /// What this process gave back undone, and until when it takes others instead.
    aside: BTreeMap<ItemId, Instant>,
}

type Known = BTreeMap<(Slot, Listing), Instant>;

impl Scanner {
    pub(super) fn new(rows: Rows) -> Self {
        let state = State {
            floor_us: 0,
            whole_at: None,
            has_hours: false,
            known: Known::new(),
            spread: 1,
            aside: BTreeMap::new(),
        };
        Self { rows, state: Mutex::new(state) }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[cfg(test)]
    pub(super) fn floor_us(&self) -> i64 {
        self.lock().floor_us
    }

    /// This process leaves an item to others for a while, because an attempt of that number ended without success; 0: it was never had.
    pub(super) fn set_aside(&self, id: &ItemId, attempt: u32) {
        if let Some(doublings) = attempt.checked_sub(1)
            && !mutant!(FailedItemIsNextAgain)
        {
            let factor = 1_u32.checked_shl(doublings).unwrap_or(u32::MAX);
            let until = self.rows.base.now() + ASIDE.saturating_mul(factor).min(ASIDE_MAX);
            self.lock().aside.insert(id.clone(), until);
        }
    }

    /// The first free items that are not set aside, in order: some more than one is drawn from.
    pub(super) async fn free(&self) -> Result<Vec<ItemId>, Fault> {
        let now = self.rows.base.now();
        let now_us = self.rows.now_us();
        let (from_us, wanted, is_whole, aside) = {
            let mut state = self.lock();
            state.aside.retain(|_, until| now < *until);
            let is_whole = state.whole_at.is_none_or(|whole_at| now >= whole_at);
            let from_us = if is_whole { 0 } else { state.floor_us };
            (from_us, state.spread + SPARE, is_whole, state.aside.clone())
        };
        let mut lowest_us = now_us;
        let mut free = Vec::new();
        let looked = self
            .look(from_us, wanted, |seen| {
                lowest_us = lowest_us.min(seen.id.written_us());
                if seen.taken_by.is_none() && !aside.contains_key(&seen.id) {
                    free.push(seen.id);
                }
                free.len() < wanted
            })
            .await;
        if let Err(fault) = looked
            && free.is_empty()
        {
            return Err(fault);
        }
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

    /// Shows the items from a time on, in order, until `on` returns false, probably after so many. An error: there may be items that were
    /// not shown.
    pub(super) async fn look(
        &self,
        from_us: i64,
        wanted: usize,
        on: impl FnMut(Seen) -> bool + Send,
    ) -> Result<(), Fault> {
        // No id is from before 1970.
        let is_whole = from_us == 0;
        let first = i32::try_from(wanted.saturating_mul(ROWS_EACH)).unwrap_or(PAGE).min(PAGE);
        let mut look = Look { rows: &self.rows, from_us, first, on, fault: None, failed: 0 };
        if is_whole || self.lock().has_hours {
            let hours = self.rows.hours(hour_of(from_us)).await?;
            if is_whole {
                self.lock().has_hours = !hours.is_empty();
            }
            if look.hours(hours).await?.is_break() {
                return Ok(());
            }
        }
        let mut known = if is_whole { self.lock().known.clone() } else { Known::new() };
        let shown = look.slots(&mut known).await?;
        if is_whole {
            self.lock().known = known;
        }
        match look.fault {
            Some(fault) if shown.is_continue() => Err(fault),
            _ => Ok(()),
        }
    }
}

/// One look.
struct Look<'a, F> {
    rows: &'a Rows,
    from_us: i64,
    /// How many rows of a partition it reads first: a node pays for each.
    first: i32,
    /// Returns false once it has seen enough.
    on: F,
    /// Of the first partition that could not be read.
    fault: Option<Fault>,
    failed: u32,
}

/// What a look has shown of a partition.
enum Shown {
    /// As much as was wanted: the look is over.
    Enough,
    /// All, and no row is there at that time or later.
    Empty,
    All,
    /// Nothing, as of one with too many tombstones.
    Unreadable,
}

impl<F: FnMut(Seen) -> bool + Send> Look<'_, F> {
    /// Whether an empty partition is empty from its beginning.
    fn is_whole(&self) -> bool {
        self.from_us == 0
    }

    async fn hours(&mut self, hours: Vec<i64>) -> Result<ControlFlow<()>, Fault> {
        for hour in hours {
            match self.part_if_readable(Part::Hour(hour)).await? {
                Shown::Enough => return Ok(ControlFlow::Break(())),
                Shown::Empty if self.is_whole() => self.rows.unlist_hour(hour).await?,
                Shown::Empty | Shown::All | Shown::Unreadable => {}
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    /// `known` are the listings that earlier looks knew, and then those that this one knows.
    async fn slots(&mut self, known: &mut Known) -> Result<ControlFlow<()>, Fault> {
        let mut next = Some(Slot::first_of(self.from_us));
        while let Some(from) = next {
            let page = self.rows.slots(from).await?;
            // Not before the read: a listing may have been sent meanwhile.
            let now = self.rows.base.now();
            let until = page.rows.last().map(|(slot, _)| *slot).filter(|_| !page.is_last);
            note(known, from..=until.unwrap_or(Slot::LAST), &page.rows, now);
            for listings in page.rows.chunk_by(|(a, _), (b, _)| a == b) {
                let Some((slot, _)) = listings.first() else { continue };
                match self.part_if_readable(Part::Slot(*slot)).await? {
                    Shown::Enough => return Ok(ControlFlow::Break(())),
                    Shown::Empty if self.is_whole() => self.unlist(listings, known, now).await?,
                    Shown::Empty | Shown::All | Shown::Unreadable => {}
                }
            }
            next = until.and_then(Slot::after);
        }
        Ok(ControlFlow::Continue(()))
    }

    /// Removes the listings of a slot that was empty at `now` or later, if no enqueuer relies on them (`slot.rs`).
    async fn unlist(
        &self,
        listings: &[(Slot, Option<Listing>)],
        known: &Known,
        now: Instant,
    ) -> Result<(), Fault> {
        for (slot, listing) in listings {
            let Some(listing) = listing else { continue };
            let since = known.get(&(*slot, listing.clone())).copied().unwrap_or(now);
            let is_over = now.saturating_since(since) >= KNOWN
                || self.rows.is_long_over(listing)
                || mutant!(SlotUnlistedAtOnce);
            if is_over {
                self.rows.unlist_slot(*slot, listing).await?;
            }
        }
        Ok(())
    }

    async fn part_if_readable(&mut self, part: Part) -> Result<Shown, Fault> {
        match self.part(part).await {
            Err(fault) if self.failed + 1 < FAILED_MAX => {
                self.failed += 1;
                self.fault.get_or_insert(fault);
                Ok(Shown::Unreadable)
            }
            shown => shown,
        }
    }

    async fn part(&mut self, part: Part) -> Result<Shown, Fault> {
        let mut shown = Shown::Empty;
        let (mut from, mut limit) = (Some(from_time(self.from_us)), self.first);
        while let Some(begin) = from {
            let (rows, read) = self.rows.page(part, &begin, limit).await?;
            if read > 0 {
                shown = Shown::All;
            }
            let page = Grouped::of(&rows, part, (read >= limit).then_some(limit));
            limit = PAGE;
            for seen in page.items {
                if !(self.on)(seen) {
                    return Ok(Shown::Enough);
                }
            }
            from = page.next;
        }
        Ok(shown)
    }
}

/// Brings what is known of these slots up to a page of the list, which has all of them. A listing that is there still keeps its time.
fn note(
    known: &mut Known,
    slots: RangeInclusive<Slot>,
    page: &[(Slot, Option<Listing>)],
    now: Instant,
) {
    let listed = page.iter().filter_map(|(slot, listing)| Some((*slot, listing.clone()?)));
    let listed: BTreeSet<_> = listed.collect();
    known.retain(|key, _| !slots.contains(&key.0) || listed.contains(key));
    for key in listed {
        known.entry(key).or_insert(now);
    }
}

/// A page, by items.
struct Grouped {
    items: Vec<Seen>,
    /// Where the next page begins; `None`: this was the last.
    next: Option<String>,
}

impl Grouped {
    /// Passes over rows that are no item, or lie in another partition than their id says. `cut` is the limit of a page that has as many rows.
    fn of(rows: &[NumberRow], part: Part, cut: Option<i32>) -> Self {
        let mut groups: Vec<&[NumberRow]> = rows.chunk_by(|a, b| a.item == b.item).collect();
        let mut next = None;
        if let Some(limit) = cut
            && let Some(last) = groups.pop()
        {
            // The page may end within this item: the next page begins with it. An item that fills a whole page is passed over.
            let is_passed_over = groups.is_empty() && limit >= PAGE;
            let after = if is_passed_over { "\0" } else { "" };
            next = last.first().map(|row| format!("{}{after}", row.item));
        }
        let items = groups.into_iter().filter_map(|group| seen(group, part)).collect();
        Self { items, next }
    }
}

/// A marker makes an item one of the queue. A number without one was written to an item that was done meanwhile.
fn seen(group: &[NumberRow], part: Part) -> Option<Seen> {
    let id = ItemId::parse(&group.first()?.item).filter(|id| id.part() == part)?;
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
        let [a, b] = [1, 2].map(|at| ItemId::draw(at, 0, &Always));
        let part = a.part();
        let rows = [row(a.as_str(), "0", 0), row(a.as_str(), "w", 1), row(b.as_str(), "0", 0)];
        let taken = Seen { id: a, taken_by: Some("w".into()) };
        let cut = Grouped::of(&rows, part, Some(3));
        assert_eq!((cut.items, cut.next), (vec![taken.clone()], Some(b.to_string())));
        let whole = Grouped::of(&rows, part, None);
        assert_eq!((whole.items, whole.next), (vec![taken, Seen { id: b, taken_by: None }], None));
        for (limit, is_passed_over) in [(2, false), (PAGE, true)] {
            let full = Grouped::of(&rows[..2], part, Some(limit));
            assert_eq!((full.items.len(), full.next.unwrap().ends_with('\0')), (0, is_passed_over));
        }
    }

    #[test]
    fn what_is_no_item_of_the_partition_is_passed_over() {
        let id = ItemId::draw(1, 0, &Always);
        let rows = [row("", "0", 0), row(id.as_str(), "w", 3), row("job", "0", 0)];
        assert_eq!(Grouped::of(&rows, id.part(), None).items, []);
        let item = [row(id.as_str(), "0", 0)];
        for other in [Part::Hour(0), Part::Slot(Slot::of(1, 1))] {
            assert_eq!(Grouped::of(&item, other, None).items, []);
        }
        assert_eq!(Grouped::of(&item, id.part(), None).items.len(), 1);
    }

    /// A page has all listings of the slots that it covers, but nothing of those behind it.
    #[test]
    fn a_listing_is_known_since_the_first_page_that_had_it() {
        let [a, b] = [1, 2].map(|at_us| Listing::draw(at_us, &Always));
        let [first, second, third] = [0, 1, 2].map(|share| Slot::of(0, share));
        let [early, late] = [1, 2].map(|ms| Instant::from_origin(Duration::from_millis(ms)));
        let mut known = Known::new();
        let page = [(first, Some(a.clone())), (second, Some(b.clone())), (third, None)];
        note(&mut known, first..=Slot::LAST, &page, early);
        note(&mut known, first..=first, &[(first, Some(b.clone()))], late);
        let left: Vec<_> = known.into_iter().collect();
        assert_eq!(left, [((first, b.clone()), late), ((second, b), early)]);
    }
}
