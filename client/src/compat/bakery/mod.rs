//! Lamport's bakery: who wants in draws a number, and the lowest number is in.
//!
//! Seeds: the page *Locking* of the Cassandra wiki and the article on a PHP implementation; their steps are
//! cited in `spot.rs`. No LWT: plain writes and reads at QUORUM, with timestamps of our own. Two rows for
//! each lock, in tables of their own: *choosing* has a flag for each who is drawing, *numbers* a number for
//! each who has drawn.
//!
//! | | [`BakeryForm::Wiki`] | [`BakeryForm::Php`] |
//! |---|---|---|
//! | before it draws | nothing | waits for who is choosing (step 1) |
//! | its flag, up | 1, a `bigint` (line 1) | `true`, a `boolean` (step 2) |
//! | its flag, down | deleted (line 5) | `false` (step 5), deleted when it leaves (step 10) |
//!
//! # What it promises
//!
//! - **Safety.** While a guard is safe, no other client of this module has the lock. Lamport's argument, with
//!   what it asks of the tables: take two who have drawn, of whom the one behind goes in. It looked at
//!   *choosing* after its own number was acknowledged, and at *numbers* after that.
//!   - It found the other's flag down because that was lowered: not before the other's number was
//!     acknowledged. So its look at the numbers shows that one, and it waits.
//!   - Or because the flag was not yet acknowledged: then the other read the numbers later than that, saw
//!     this one's, and drew a higher one.
//!
//!   Both need only that a read at QUORUM sees what was acknowledged at QUORUM before it was sent, each
//!   table for itself; that the two rows lie in two tables does not matter. And they need three things of
//!   time: the flag stands until the number is acknowledged, the number stands from then on without a gap,
//!   and what is late counts for nothing. So who had no acknowledgement before the
//!   [safe deadline](LockerOptions::max_skew) of its flag, or of the number's last write, draws again.
//!   The safe deadline of a guard counts from the number's last acknowledged write. Once it has drawn, the
//!   flag is of no matter to it.
//! - **Liveness.** Who has the lowest number gets the lock. Cells have TTLs: a dead holder, a dead
//!   waiter and who died while choosing are over after TTL and skew.
//! - **Order.** By number: who draws after another one's number was acknowledged is behind it. Of those who
//!   draw at the same time chance decides, and of equal numbers the ids, which are drawn at random. Who had to
//!   draw again is at the end.
//! - **Fencing.** None: numbers begin again at 1 when nobody is in line.
//!
//! # What it costs
//!
//! To take a free lock six round trips (the flag, the numbers, the number, the flag again, who is choosing,
//! the numbers), seven in the PHP form; one to give it back, and two in that form. `try` looks once more.
//! A waiter reads the numbers every 50 ms to 2 s, the first two behind the holder at least
//! every 200 ms, and all of them write their number again every `(TTL − skew)/3`, as a holder does. A read is
//! of the whole line: a hundred waiters read a hundred cells each.
//!
//! # Who else is there
//!
//! Clients of the seeds on the same tables exclude, and are excluded, if the columns are `text`, `text` and
//! `bigint` (flags of the PHP form `boolean`). The seeds' ids are integers. A deployment whose columns are of type `int` is
//! refused by name with the first statement: an id of ours is that of one attempt, a text, and no column's type
//! can be changed. `holdfast-migrate` reads such tables.
//!
//! Against a number equal to ours of somebody else's we do not count on how he compares ids: ours is drawn again.
//!
//! # Where the seeds' texts are unsafe, unfair or can stop
//!
//! - *Wiki, line 13* compares numbers without the id, though its Pascal above does: of two with equal
//!   numbers both go in. Here ids decide, and against a stranger see above.
//! - *Wiki, line 7* reads the numbers once, before line 9 has waited for who is choosing: the number that the
//!   wait was for is not looked at, and both go in. Here they are read after the wait.
//! - *PHP, step 1*, "to make sure that nobody is withdrawing new number", gives nothing: two look at
//!   the same time and find nobody. Step 6 is what excludes. What it costs is a round trip, and one who always
//!   finds somebody choosing never draws. Here the form waits for those that it saw at its first look, once.
//! - *A chooser that dies stops everybody*, for ever; so does a holder, as the wiki says itself. Here both
//!   rows have TTLs, and hence the three things of time above.
//! - *"Any operation that fails must be repeated until it succeeds."* A client that gives up the
//!   acknowledgement of its number and lowers its flag is not seen by the next. Here no step is taken before the
//!   last one was acknowledged; and a write that arrives late loses to the one that was sent later.
//! - *"I'm not sure the consistency applies across CFs"*: it need not; see the argument. At ONE
//!   nothing is left of that, whichever column family things are in.
//! - *Waiting for who is choosing* looks at everybody each time: those who come later hold up who
//!   was there before. Here it is who was choosing at the first look.
//! - *A `false` that a dead process left* stands for ever, harmless, a cell for each process id. Ours end.
//! - *Numbers grow* as long as somebody is in line. Before the last one an acquire is refused, and so it is
//!   beside a number that is none (negative, null): who is first, nobody could say. 0 is not in line, as Lamport has it.
//! - *Tombstones*, as in [`queue`](super::queue): a hold leaves two.

mod cells;
mod line;
mod spot;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::Arc;

use futures_util::future::BoxFuture;

use super::cassandra::{Cassandra, LockerOptions};
use super::keeper::Keeping;
use super::locker::{OnCassandra, Patience, RemoteGuard, RemoteLocker};
use super::name::check_lock_name;
use super::owner::{OwnerId, Signature, Writer};
use super::stamps::Stamps;
use super::statement::Ident;
use crate::Result;
use cells::Cells;
use spot::BakerySpot;

/// Whose text it follows; see the [module](self). All clients of one pair of tables are of one form: their
/// flags are of different types.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BakeryForm {
    /// The page of the Cassandra wiki.
    #[default]
    Wiki,
    /// The article on the PHP implementation.
    Php,
}

impl BakeryForm {
    /// The type of the flags in CQL.
    #[cfg(feature = "cassandra")]
    pub(crate) fn flag_type(self) -> &'static str {
        match self {
            Self::Wiki => "bigint",
            Self::Php => "boolean",
        }
    }
}

/// Where numbers and flags are. Keys and ids are of type `text`, numbers `bigint`, flags as the form has
/// them.
#[derive(Clone, Debug)]
pub struct BakeryTables {
    pub(crate) numbers: Ident,
    pub(crate) choosing: Ident,
    pub(crate) key: Ident,
    pub(crate) column: Ident,
    pub(crate) value: Ident,
    pub(crate) form: BakeryForm,
}

impl Default for BakeryTables {
    /// `numbers` and `choosing`, both `(key, column1, value)`, of the wiki's form.
    fn default() -> Self {
        Self::named("numbers", "choosing", ["key", "column1", "value"])
    }
}

impl BakeryTables {
    /// The tables' names, and those of the columns of both, as the server has them. Of the wiki's form.
    #[must_use]
    pub fn named(numbers: &str, choosing: &str, columns: [&str; 3]) -> Self {
        let [key, column, value] = columns.map(Ident::new);
        let [numbers, choosing] = [numbers, choosing].map(Ident::new);
        Self { numbers, choosing, key, column, value, form: BakeryForm::default() }
    }

    /// Of that form.
    #[must_use]
    pub fn of_form(self, form: BakeryForm) -> Self {
        Self { form, ..self }
    }
}

/// Locks by the bakery; see the [module](self). Cheap to clone.
#[derive(Clone)]
pub struct Bakery {
    cassandra: Cassandra,
    keeping: Keeping,
    tables: Arc<BakeryTables>,
    signature: Signature,
    stamps: Arc<Stamps>,
}

impl Bakery {
    /// A locker on this keyspace. Nothing is asked of it yet.
    ///
    /// # Errors
    ///
    /// [`Error::Setting`](crate::Error::Setting) if TTL and skew make no sense together.
    pub fn new(
        cassandra: &Cassandra,
        options: &LockerOptions,
        tables: BakeryTables,
    ) -> Result<Self> {
        Ok(Self {
            cassandra: cassandra.clone(),
            keeping: cassandra.keeping(options)?,
            tables: Arc::new(tables),
            signature: cassandra.sign(options),
            stamps: Arc::new(Stamps::micros(cassandra.seams().clock.clone())),
        })
    }

    fn spot(&self, lock_id: &str, patience: Patience) -> BakerySpot {
        let cells = Cells {
            tables: self.cassandra.tables().clone(),
            names: self.tables.clone(),
            clock: self.keeping.seams.clock.clone(),
            stamps: self.stamps.clone(),
            lock: lock_id.to_owned(),
            owner: OwnerId::draw(&self.signature, &*self.keeping.seams.rng),
            ttl_s: self.keeping.terms.ttl_s(),
        };
        BakerySpot::new(cells, self.keeping.terms, patience.waits())
    }
}

impl RemoteLocker for Bakery {
    fn acquire<'a>(
        &'a self,
        lock_id: &'a str,
        patience: Patience,
    ) -> BoxFuture<'a, Result<RemoteGuard>> {
        Box::pin(async move {
            check_lock_name(lock_id)?;
            let spot = self.spot(lock_id, patience);
            let service = self.signature.service();
            self.keeping.acquire(lock_id, service, patience, spot, Arc::default()).await
        })
    }

    fn on_cassandra(&self, writer: &Writer) -> Option<OnCassandra> {
        let signature = self.signature.of_writer(writer);
        let BakeryTables { numbers, choosing, .. } = &*self.tables;
        let recipe = self.cassandra.recipe("bakery", &[numbers, choosing]);
        Some(OnCassandra::new(Self { signature, ..self.clone() }, recipe))
    }
}

impl fmt::Debug for Bakery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bakery").field("tables", &self.tables).finish_non_exhaustive()
    }
}
