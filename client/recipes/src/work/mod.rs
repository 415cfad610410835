//! The distributed work queue: items that any number of workers take one by one, each under a lease.
//!
//! Article: the wiki page on locking in Cassandra, "Distributed work queue", a bakery for each item. `rows.rs`,
//! `claim.rs` and `scan.rs` cite its steps. No LWT: plain writes and reads at QUORUM, with the process' own timestamps.
//!
//! # What it promises
//!
//! - **No item is lost.** An item whose [`WorkQueue::enqueue`] was answered stays in the queue until it is done or a
//!   dead letter. Its details exist before the `0=0` that makes them an item, both at QUORUM, and are removed before it; the
//!   slot (its minute) is listed last, and leaves the list when no process relies on that (`slot.rs`).
//! - **No item has two live leases.** While a [`WorkItem`] is safe, no other worker gets its item. Of two workers that
//!   choose, one sees the other's number: a worker reads the numbers after it has waited for all that were choosing
//!   before, and it gives up if it may have stalled for longer than its choosing stood. The lowest (number, owner) has
//!   the item as long as its number stands: the safe deadline counts from before the last write of it that was
//!   acknowledged, plus TTL, less `max_skew`, one second (a TTL ends on a whole second) and a hundredth.
//! - **At least once.** A worker that dies after its work and before [`WorkItem::done`] is answered leaves an item that
//!   another worker does again; [`WorkItem::attempt`] is 2 then. Exactly once is impossible: make the work repeatable, or
//!   detect repeats in what it writes by [`WorkItem::id`].
//! - **Attempts are counted**, also those of workers that died: each writes a row of its own before the item is handed
//!   out. An attempt that ends before that is not counted; one that reached no caller may be. With
//!   [`WorkQueue::max_attempts`] the next worker that finds an item with that many attempts makes it a dead
//!   letter.
//! - **Liveness.** A dead worker's item is free after TTL and skew. One of three nodes may be down. A worker that looks
//!   finds a free item, within 30 s if it was enqueued out of order, but for one that it has set aside ("Order", below). Of several workers that want one item, one gets it,
//!   or all go away and come back: none waits behind a chooser for longer than some looks.
//! - **Order.** Approximately by the time of the enqueueing process, as the article says. A worker that meets others
//!   takes one of the next items instead. An item that was given back undone comes again later than it would have: the process that
//!   gave it back (this queue and its clones) leaves it aside for 1 s, and twice as long after each further attempt, to 10 minutes. So an item that
//!   always fails keeps no worker from those behind it. Other processes may take it at once.
//!
//! It assumes what the module above assumes. If no worker lives for two minutes, or some process has a version before 0.4, the wall
//! clocks of processes have to agree within 12 hours. Otherwise differences change the order only: writes and deletes of an item's cells
//! have the item's own time as their timestamp.
//!
//! # What it costs
//!
//! To enqueue two writes, and a third once a minute. To look two or three reads, however many items were done; an idle worker looks
//! each 50 ms to 2 s, and at every listed slot each 30 s. To take an item four writes and four reads, one after the
//! other, each `(TTL − skew)/3` one write, and to be done three deletes. A worker that loses an item to another pays four
//! writes and three reads.
//!
//! Each item leaves four tombstones, two of them in the partition of its slot, and one more there for each process that
//! lost it or gave it back (for each id that it uses at a time). Each attempt has a row in the details until the item is done: an item that fails for ever has some 150 a day
//! and process, unless [`WorkQueue::max_attempts`] ends that. A slot without items is off the list some three minutes after its end, and no look reads it again. A partition takes 1,000
//! items of each process and 5,000 of one, so it stays below the 100,000 tombstones at which Cassandra refuses to read it, unless more
//! than 25 processes enqueue that much in one minute.
//!
//! # Versions before 0.4
//!
//! Their items lie in hours, which this one reads too. They do not find the items of this one: workers are updated before the
//! processes that enqueue.
//!
//! # Where the article's text is unsafe, unfair or can stop
//!
//! - *`number_hash[id] < worker_number`* leaves out the id: two workers with the same number both process the item
//!   (`under_the_articles_text_two_with_one_number_both_have_the_item`).
//! - *The numbers are read before the wait for choosing workers*, and not again: a worker does not see a number that is
//!   drawn meanwhile (`under_the_articles_text_a_number_drawn_during_the_wait_is_not_seen`; with this recipe
//!   `a_number_drawn_during_the_wait_is_seen`).
//! - *"The algorithm will eventually block"*, says the article of locks and asks for leases: a dead worker's number or
//!   choosing keeps an item for ever (`under_the_articles_text_a_dead_workers_item_is_never_handed_out_again`). Rows with
//!   a TTL alone make it unsafe: no worker sees a chooser that stalls for a TTL, and it draws another worker's number
//!   (`a_chooser_that_stalls_for_a_ttl_has_nothing`).
//! - *The scan may be older than the item's end*: a worker that read it before then writes its number to an item that is
//!   gone, and processes nothing (`under_the_articles_text_an_item_that_is_done_is_handed_out_once_more`). Here a worker
//!   that has an item checks that it still exists.
//! - *"Enqueuing a work item has no consistency factor constraints"*: a worker may see the `0=0` without the details
//!   (`under_the_articles_text_an_item_may_have_no_details`). Here both are written at QUORUM, in that order. A process
//!   that dies between the two leaves a payload that no worker finds; its enqueue was not answered.
//! - *A crash between the deletes* leaves an item without details in the scan. The next worker that finds it removes the
//!   rest (`a_worker_that_dies_between_the_deletes_leaves_nothing_to_do_again`).
//! - *A delete by one clock of what another wrote* may be older than that, and do nothing: the item would be done for
//!   ever (`clocks_that_differ_by_minutes_change_nothing_but_the_order`).
//! - *Scanning from 0* passes over all items that were ever done (`a_look_costs_the_same_after_many_items`), and all
//!   workers compete for one item (`workers_that_meet_spread_over_the_next_items`).

mod claim;
mod enqueue;
mod id;
mod item;
mod list;
mod rows;
mod scan;
mod slot;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use holdfast_runtime::select;

use super::cassandra::{Cassandra, LockerOptions};
use super::lock_task::passing;
use super::locker::Wait;
use super::locker_base::LockerBase;
use super::recipe::{Names, Naming};
use super::statement::Ident;
use crate::check_lock_name;
use crate::{Error, Result};
use claim::{Claim, Shared};
use enqueue::Enqueued;
use holdfast_guard::Backoff;
pub use id::ItemId;
pub use item::WorkItem;
pub use list::{ItemStatus, Listed};
use rows::Rows;
use scan::Scanner;

/// The longest pause between two looks of a worker that finds nothing.
const IDLE_MAX: Duration = Duration::from_secs(2);
/// How many items of one look are tried.
const TRIES: usize = 3;

/// The wiki's three column families, and three of Holdfast's own: to find their content, and for dead letters.
pub(crate) const NAMES: &[Naming] = &[
    Naming::new(
        "work-details-table",
        &[("TABLE", "work_details", "")],
        "The contents of the items of work, and their attempts",
    ),
    Naming::new(
        "work-choosing-table",
        &[("TABLE", "work_choosing", "")],
        "Which workers choose a number for an item",
    ),
    Naming::new(
        "work-numbers-table",
        &[("TABLE", "work_numbers", "")],
        "The items in order, with the workers' numbers",
    ),
    Naming::new(
        "work-hours-table",
        &[("TABLE", "work_hours", "")],
        "The hours in which there are items of versions before 0.4",
    ),
    Naming::new("work-aside-table", &[("TABLE", "work_aside", "")], "The dead letters"),
    Naming::new(
        "work-slots-table",
        &[("TABLE", "work_slots", "")],
        "The slots in which there are items",
    ),
];

/// The names of the work queues' tables, for deployments with other names. Their columns have fixed
/// names.
#[derive(Clone, Debug)]
pub struct WorkTables {
    pub(crate) details: Ident,
    pub(crate) choosing: Ident,
    pub(crate) numbers: Ident,
    pub(crate) hours: Ident,
    pub(crate) aside: Ident,
    pub(crate) slots: Ident,
}

impl Default for WorkTables {
    /// `work_details`, `work_choosing`, `work_numbers`, the article's column families; and `work_hours`, `work_aside`, `work_slots`.
    fn default() -> Self {
        Self::of(&Names::default())
    }
}

impl WorkTables {
    /// Names the tables exactly as the server has them: details, choosing, numbers, the hours that have items of versions before 0.4, the
    /// dead letters, the slots that have items.
    #[must_use]
    pub fn named(tables: [&str; 6]) -> Self {
        let [details, choosing, numbers, hours, aside, slots] = tables.map(Ident::new);
        Self { details, choosing, numbers, hours, aside, slots }
    }

    pub(crate) fn of(names: &Names) -> Self {
        let mut names = NAMES.iter().map(|naming| names.one(naming));
        Self::named(std::array::from_fn(|_| names.next().unwrap_or_default()))
    }

    /// Each table, and what follows its name in `CREATE TABLE`.
    pub(crate) fn created(&self) -> [String; 6] {
        let Self { details, choosing, numbers, hours, aside, slots } = self;
        [
            format!(
                "{details} (\"queue\" text, \"item\" text, \"name\" text, \"value\" text, \
                 PRIMARY KEY ((\"queue\", \"item\"), \"name\"))"
            ),
            format!(
                "{choosing} (\"queue\" text, \"item\" text, \"worker\" text, \
                 PRIMARY KEY ((\"queue\", \"item\"), \"worker\"))"
            ),
            format!(
                "{numbers} (\"queue\" text, \"hour\" bigint, \"item\" text, \"worker\" text, \"number\" bigint, \
                 PRIMARY KEY ((\"queue\", \"hour\"), \"item\", \"worker\"))"
            ),
            format!("{hours} (\"queue\" text, \"hour\" bigint, PRIMARY KEY (\"queue\", \"hour\"))"),
            format!("{aside} (\"queue\" text, \"item\" text, PRIMARY KEY (\"queue\", \"item\"))"),
            format!(
                "{slots} (\"queue\" text, \"slot\" bigint, \"listing\" text, \
                 PRIMARY KEY (\"queue\", \"slot\", \"listing\"))"
            ),
        ]
    }
}

/// A queue of work; see the [module](self). Cheap to clone: clones in one process share where to look.
#[derive(Clone)]
pub struct WorkQueue {
    rows: Rows,
    scanner: Arc<Scanner>,
    enqueued: Arc<Enqueued>,
    max_attempts: Option<u32>,
}

impl WorkQueue {
    /// The queue `name` on this keyspace. It sends no statement yet, and no queue has to be created: it exists as long as
    /// it has items. The options' TTL is that of the lease on an item.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidConfig`] if TTL and skew do not fit together, [`Error::Refused`] for a name that no lock may have
    /// either.
    pub fn new(
        cassandra: &Cassandra,
        options: &LockerOptions,
        tables: WorkTables,
        name: &str,
    ) -> Result<Self> {
        check_lock_name(name)?;
        let base = LockerBase::new(cassandra, options)?;
        let rows = Rows { base, names: Arc::new(tables), queue: name.into() };
        Ok(Self {
            scanner: Arc::new(Scanner::new(rows.clone())),
            rows,
            enqueued: Arc::new(Enqueued::new(cassandra.runtime().clock.clone())),
            max_attempts: None,
        })
    }

    /// Makes an item a dead letter after this many attempts, instead of handing it out once
    /// more: it is kept and listed, and no worker gets it. The worker that finds it does so, so all
    /// workers should use the same number.
    ///
    /// Default: no item becomes one.
    #[must_use]
    pub fn max_attempts(mut self, attempts: u32) -> Self {
        self.max_attempts = Some(attempts);
        self
    }

    /// The queue's name.
    pub fn name(&self) -> &str {
        &self.rows.queue
    }

    /// Takes the next item, and waits for one as long as `wait` allows; `None` if no item was free. One that this process gave back
    /// undone is not for a while (see "Order" in the [module](self)).
    ///
    /// Dropping the future gives back an item that was taken meanwhile.
    ///
    /// # Errors
    ///
    /// [`Error::Unreachable`] if Cassandra gave no answer before `wait` was over, [`Error::Refused`] if it refuses a
    /// statement. After each the caller has no item.
    pub async fn next(&self, wait: Wait) -> Result<Option<WorkItem>> {
        let base = &self.rows.base;
        let began = base.now();
        let limit = wait.limit(base.answer_limit).map(|limit| began + limit);
        let mut unanswered = None;
        let found = select! {
            found = self.look_until_had(wait.waits(), &mut unanswered) => return found,
            () = passing(limit, &*base.runtime().clock) => None,
        };
        match unanswered {
            None => Ok(found),
            Some(last) => Err(base.cassandra.unreachable(began, last)),
        }
    }

    /// `unanswered` is the fault of the last look.
    async fn look_until_had(
        &self,
        waits: bool,
        unanswered: &mut Option<String>,
    ) -> Result<Option<WorkItem>> {
        let mut pauses = Backoff::new(IDLE_MAX);
        loop {
            match self.look().await {
                Ok(Some(item)) => return Ok(Some(item)),
                Ok(None) if !waits => return Ok(None),
                Ok(None) => *unanswered = None,
                Err(Error::Unreachable { last, .. }) => *unanswered = Some(last),
                Err(error) => return Err(error),
            }
            let runtime = self.rows.base.runtime();
            runtime.sleep(pauses.next(&*runtime.rng)).await;
        }
    }

    /// `work_item_id = "lowest row key where number CF only has the 0=0 column"`, and an attempt to take it; the next
    /// ones too, if another worker has it.
    async fn look(&self) -> Result<Option<WorkItem>> {
        let base = &self.rows.base;
        let free = self.scanner.free().await;
        let mut free = free.map_err(|fault| base.cassandra.failed(fault, base.now()))?;
        for _ in 0..TRIES {
            let random = base.runtime().rng.next_u64();
            let Some(id) = self.scanner.draw(&mut free, random) else { return Ok(None) };
            let item = self.take(id).await?;
            self.scanner.learn(item.is_some());
            if item.is_some() {
                return Ok(item);
            }
        }
        Ok(None)
    }

    /// `None`: another worker has it, or it is over.
    async fn take(&self, id: ItemId) -> Result<Option<WorkItem>> {
        let shared = Arc::new(Shared::default());
        let (rows, scanner) = (self.rows.clone(), self.scanner.clone());
        let claim = Claim::new(rows, id.clone(), self.max_attempts, shared.clone(), scanner);
        let base = &self.rows.base;
        match base.hold(id.as_str(), Wait::No, claim, Arc::default()).await {
            Ok(guard) => {
                let clock = base.runtime().clock.clone();
                Ok(Some(WorkItem::new(id, guard, shared, clock)))
            }
            Err(Error::NotGranted { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

impl fmt::Debug for WorkQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WorkQueue").field("name", &self.name()).finish_non_exhaustive()
    }
}
