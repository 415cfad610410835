//! Lamport's bakery: each client draws a number, and the client with the lowest number has the lock.
//!
//! Articles: the page *Locking* of the Cassandra wiki and the article on a PHP implementation;
//! `attempt.rs` cites their steps. No LWT: plain writes and reads at QUORUM, with the client's own
//! timestamps. Two rows for each lock, in tables of their own: *choosing* has a flag for each client
//! that is drawing, *numbers* a number for each client that has drawn.
//!
//! | | [`BakeryForm::Wiki`] | [`BakeryForm::Php`] |
//! |---|---|---|
//! | before it draws | nothing | waits for those that are choosing (step 1) |
//! | its flag, up | 1, a `bigint` (line 1) | `true`, a `boolean` (step 2) |
//! | its flag, down | deleted (line 5) | `false` (step 5), deleted when it leaves (step 10) |
//!
//! # What it promises
//!
//! - **Safety.** While a guard is safe, no other client of this module has the lock. Lamport's
//!   argument, with its demands on the tables: take two clients that have drawn; A has the lower
//!   number, and B, behind it, takes the lock. B looked at *choosing* after its own number was
//!   acknowledged, and at *numbers* after that.
//!   - B found A's flag down because A had lowered it: not before A's number was acknowledged. So B's
//!     look at the numbers shows A's number, and B waits.
//!   - Or because A's flag was not yet acknowledged: then A read the numbers later than that, saw B's
//!     number, and drew a higher one.
//!
//!   Both need only that a read at QUORUM sees what was acknowledged at QUORUM before it was sent, each
//!   table for itself; it does not matter that the two rows lie in two tables. And they need three
//!   things of time: the flag stands until the number is acknowledged, the number stands from then on
//!   without a gap, and late acknowledgements count for nothing. So a client without an acknowledgement
//!   before the [safe deadline](LockerOptions::max_skew) of its flag, or of the number's last write,
//!   draws again. The safe deadline of a guard counts from the number's last acknowledged write. Once
//!   the client has drawn, its flag no longer matters to it.
//! - **Liveness.** The client with the lowest number gets the lock. Cells have TTLs: those of a client
//!   that died while it held, waited or chose end after TTL and skew.
//! - **Order.** By number: a client that draws after another's number was acknowledged is behind it.
//!   Among clients that draw at the same time chance decides, and between equal numbers the ids, which
//!   are random. A client that had to draw again is at the end.
//! - **Fencing.** None: numbers begin again at 1 when the line is empty.
//!
//! # What it costs
//!
//! To take a free lock six round trips (the flag, the numbers, the number, the flag again, the
//! choosing, the numbers), seven in the PHP form; one to release it, and two in that form. `try` looks
//! once more. A waiter reads the numbers every 50 ms to 2 s, the first two behind the holder at least
//! every 200 ms, and all of them write their number again every `(TTL − skew)/3`, as a holder does. A
//! read is of the whole line: a hundred waiters read a hundred cells each.
//!
//! # Other clients on the same tables
//!
//! Clients of the articles on the same tables exclude, and are excluded, if the columns are `text`,
//! `text` and `bigint` (flags of the PHP form `boolean`). The articles' ids are integers. Tables whose
//! columns are of type `int` are refused, with their names, at the first statement: an id of this
//! recipe is a text for one attempt, and no column's type can be changed. `holdfast-migrate` reads such
//! tables.
//!
//! A client that finds its number equal to a foreign client's draws again: it does not rely on how that
//! client compares ids.
//!
//! # Where the articles' texts are unsafe, unfair or can stop
//!
//! - *Wiki, line 13* compares numbers without the id, though its Pascal above includes it: of two
//!   clients with equal numbers both take the lock. Here ids decide, and for foreign clients see above.
//! - *Wiki, line 7* reads the numbers once, before line 9 has waited for clients that are choosing: a
//!   client misses the number that it waited for, and both take the lock. Here it reads them after the
//!   wait.
//! - *PHP, step 1*, "to make sure that nobody is withdrawing new number", achieves nothing: two clients
//!   look at the same time and find no flag. Step 6 excludes. Step 1 costs a round trip, and a client
//!   that always finds another choosing never draws. Here this form waits once, for those that its
//!   first look found.
//! - *A chooser that dies stops all clients*, for ever; so does a holder, as the wiki says itself. Here
//!   both rows have TTLs, and hence the three things of time above.
//! - *"Any operation that fails must be repeated until it succeeds."* The next client does not see one
//!   that stops waiting for the acknowledgement of its number and lowers its flag. Here a client takes
//!   no step before the last one was acknowledged, and a write that arrives late loses to one that was
//!   sent later.
//! - *"I'm not sure the consistency applies across CFs"*: it need not; see the argument. At ONE nothing
//!   is left of that, whichever column families hold the cells.
//! - *Waiting for those that are choosing* looks at all flags each time: clients that come later delay
//!   those that came before. Here it waits for those that were choosing at the first look.
//! - *A `false` that a dead process left* stands for ever, harmless, a cell for each process id. Here
//!   it ends.
//! - *Numbers grow* as long as a client is in line. At the last number an acquire is refused, and so it
//!   is beside an invalid number (negative, null), which leaves open who is first. 0 is not in line, as
//!   with Lamport.
//! - *Tombstones*, as in [`queue`](super::queue): a hold leaves two.

mod attempt;
mod cells;
mod line;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::Arc;

use futures_util::future::BoxFuture;

use super::cassandra::{Cassandra, LockerOptions};
use super::cells::{CellColumns, OwnCells};
use super::locker::{OnCassandra, RemoteGuard, RemoteLocker, Wait};
use super::locker_base::LockerBase;
use super::owner::Writer;
use super::recipe::{Names, Naming, Recipe, RecipeSpec, TableSpec};
use super::statement::Ident;
use crate::Result;
use attempt::BakeryAttempt;
use cells::Cells;

/// The article that it follows; see the [module](self). All clients of one pair of tables use one form:
/// the flags' types differ.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BakeryForm {
    /// The page of the Cassandra wiki.
    #[default]
    Wiki,
    /// The article on the PHP implementation.
    Php,
}

/// The names of the tables of numbers and flags. Keys and ids are of type `text`, numbers `bigint`,
/// flags as in the form.
#[derive(Clone, Debug)]
pub struct BakeryTables {
    pub(crate) numbers: Ident,
    pub(crate) choosing: Ident,
    pub(crate) key: Ident,
    pub(crate) column: Ident,
    pub(crate) value: Ident,
    pub(crate) form: BakeryForm,
}

/// Articles: the column families *numbers* and *choosing*. Ids are of type `text`: an id of this client is that of an
/// attempt, the articles' integers are those of processes.
const NUMBERS: TableSpec = TableSpec {
    name: Naming::new("numbers-table", &[("TABLE", "numbers", "")], "The numbers of the bakery"),
    columns: Naming::new(
        "bakery-columns",
        &[("KEY", "key", "text"), ("COLUMN", "column1", "text"), ("VALUE", "value", "bigint")],
        "The columns of both, as column families made through Thrift show them",
    ),
    key: 2,
};

const CHOOSING: TableSpec = TableSpec {
    name: Naming::new(
        "choosing-table",
        &[("TABLE", "choosing", "")],
        "The processes that are choosing a number",
    ),
    ..NUMBERS
};

/// The columns of the flags in the form of PHP.
const PHP_FLAGS: &[(&str, &str, &str)] =
    &[("KEY", "key", "text"), ("COLUMN", "column1", "text"), ("VALUE", "value", "boolean")];

pub(crate) const SPEC: RecipeSpec = RecipeSpec {
    name: "bakery",
    rows: "Lamport's bakery: who is choosing, and the numbers that were drawn",
    tables: &[NUMBERS, CHOOSING],
    names: &[NUMBERS.name, CHOOSING.name, NUMBERS.columns],
    locker: |on, options, layout| Ok(Arc::new(Bakery::new(on, options, layout.bakery.clone())?)),
};

impl Default for BakeryTables {
    /// `numbers` and `choosing`, both `(key, column1, value)`, in the wiki's form.
    fn default() -> Self {
        Self::of(&Names::default())
    }
}

impl BakeryTables {
    /// Names the tables, and the columns of both, exactly as the server has them. In the wiki's form.
    #[must_use]
    pub fn named(numbers: &str, choosing: &str, columns: [&str; 3]) -> Self {
        let [key, column, value] = columns.map(Ident::new);
        let [numbers, choosing] = [numbers, choosing].map(Ident::new);
        Self { numbers, choosing, key, column, value, form: BakeryForm::default() }
    }

    pub(crate) fn of(names: &Names) -> Self {
        let [numbers, choosing] = [NUMBERS, CHOOSING].map(|spec| names.one(&spec.name));
        Self::named(numbers, choosing, names.each(&NUMBERS.columns))
    }

    pub(crate) fn created(&self) -> [String; 2] {
        let Self { numbers, choosing, key, column, value, form } = self;
        let mut flags = CHOOSING;
        if *form == BakeryForm::Php {
            flags.columns.names = PHP_FLAGS;
        }
        [(NUMBERS, numbers), (flags, choosing)]
            .map(|(spec, at)| spec.created(at, &[key, column, value]))
    }

    /// Uses that form.
    #[must_use]
    pub fn of_form(self, form: BakeryForm) -> Self {
        Self { form, ..self }
    }
}

/// Locks by the bakery; see the [module](self). Cheap to clone.
#[derive(Clone)]
pub struct Bakery {
    base: LockerBase,
    tables: Arc<BakeryTables>,
}

impl Bakery {
    /// A locker on this keyspace. It sends no statement yet.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidConfig`](crate::Error::InvalidConfig) if TTL and skew do not fit together.
    pub fn new(
        cassandra: &Cassandra,
        options: &LockerOptions,
        tables: BakeryTables,
    ) -> Result<Self> {
        Ok(Self { base: LockerBase::new(cassandra, options)?, tables: Arc::new(tables) })
    }

    fn attempt(&self, lock_id: &str, wait: Wait) -> BakeryAttempt {
        let BakeryTables { key, column, value, .. } = (*self.tables).clone();
        let own =
            OwnCells::new(&self.base, lock_id, CellColumns { key, column, value: Some(value) });
        BakeryAttempt::new(Cells { own, names: self.tables.clone() }, wait.waits())
    }
}

impl RemoteLocker for Bakery {
    fn acquire<'a>(&'a self, lock_id: &'a str, wait: Wait) -> BoxFuture<'a, Result<RemoteGuard>> {
        Box::pin(self.base.acquire(lock_id, wait, move || self.attempt(lock_id, wait)))
    }

    fn on_cassandra(&self, writer: &Writer) -> Option<OnCassandra> {
        let base = self.base.written_by(writer);
        let BakeryTables { numbers, choosing, .. } = &*self.tables;
        Some(self.base.built_on(
            Recipe::Bakery,
            &[numbers, choosing],
            Self { base, ..self.clone() },
        ))
    }
}

impl fmt::Debug for Bakery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bakery").field("tables", &self.tables).finish_non_exhaustive()
    }
}
