//! One attempt at one lock: the lease, a token drawn while the lease is held, and the read that covers both.

use std::sync::Arc;
use std::time::Duration;

use super::Fallback;
use super::authority_watcher::{Acquiring, Holding};
use super::row_view::Permit;
use crate::FencingToken;
use crate::database::{Conditional, Fault, Tables};
use crate::lease::LeaseRow;
use crate::lock_task::{Attempt, Left, Reached, Renewal};
use crate::statement::{Action, Ident, Statement, Value};
use holdfast_guard::Safety;
use holdfast_keyspace::authority::Buckets;

pub(super) struct FallbackRow {
    of: Fallback,
    name: String,
    /// The partitions among which the lease's was chosen.
    buckets: Buckets,
    lease: LeaseRow,
    /// A lease that the attempt has to give back before it requests anything else.
    given_up: Option<LeaseRow>,
    drawn: Option<(FencingToken, Permit)>,
    holding: Option<Holding>,
    /// Makes the watcher watch the scope until the attempt holds the lock.
    acquiring: Option<Acquiring>,
}

impl FallbackRow {
    pub(super) fn new(of: &Fallback, name: &str, acquiring: Acquiring) -> Self {
        Self {
            of: of.clone(),
            name: name.to_owned(),
            buckets: Buckets::default(),
            lease: fresh(of, name, Buckets::default()),
            given_up: None,
            drawn: None,
            holding: None,
            acquiring: Some(acquiring),
        }
    }

    /// Takes back what the attempt has written: a leader waits for remaining leases. The next lease has a new id even
    /// before a delete is answered, because a delete that is applied late must not hit it.
    async fn give_up(&mut self) -> Result<(), Fault> {
        self.take_back().await?;
        let next = fresh(&self.of, &self.name, self.buckets);
        self.given_up = Some(std::mem::replace(&mut self.lease, next));
        self.take_back().await
    }

    async fn take_back(&mut self) -> Result<(), Fault> {
        if let Some(lease) = &mut self.given_up {
            lease.give_back().await?;
            self.given_up = None;
        }
        Ok(())
    }
}

fn fresh(of: &Fallback, name: &str, buckets: Buckets) -> LeaseRow {
    let partition = of.partition_of(name, buckets);
    LeaseRow::new(&of.base, &of.leases, name, Arc::default()).within(partition)
}

impl Attempt for FallbackRow {
    const RECIPE: &'static str = "fallback";

    fn takes_turns(&self) -> bool {
        true
    }

    /// Acquires the lease, draws a number from the fence, and renews the lease, so that it draws the number while it holds
    /// the lease. If one of them has no answer, the next attempt begins with the lease again, and the number is spent.
    async fn advance(&mut self) -> Result<Reached, Fault> {
        // The read is older than the lease, so the hold's time counts from before the hold began.
        let permit = match self.of.watcher.permit() {
            Ok(permit) => permit,
            Err(why) => {
                self.give_up().await?;
                return Err(Fault::NotDone(why));
            }
        };
        // All who may hold it in this epoch look for its lease in this partition.
        if self.buckets != permit.buckets {
            self.buckets = permit.buckets;
            self.give_up().await?;
        }
        self.take_back().await?;
        let attempted = self.lease.advance().await?;
        let Reached::Hold { .. } = attempted else { return Ok(attempted) };
        let number = draw_token_number(self.of.base.cassandra.tables(), &self.name).await?;
        let number = u64::try_from(number).ok();
        let token = number.and_then(|number| FencingToken::new(permit.epoch, number));
        let token = token.ok_or_else(|| used_up(&self.name))?;
        self.drawn = Some((token, permit));
        self.lease.confirm().await
    }

    fn begins(&mut self, safety: &Arc<Safety>) {
        let Some((token, permit)) = self.drawn else { return };
        self.holding = Some(self.of.watcher.holds(token, permit, safety.clone()));
        // The attempt may have taken long.
        if safety.is_in_time(&*self.of.base.runtime().clock) {
            self.acquiring = None;
        }
    }

    fn lasts(&self, ttl: Duration) -> Duration {
        self.of.watcher.pace().hold().min(ttl)
    }

    fn token(&self) -> Option<FencingToken> {
        self.drawn.map(|(token, _)| token)
    }

    async fn renew(&mut self) -> Renewal {
        self.lease.renew().await
    }

    async fn give_back(&mut self) -> Result<Left, Fault> {
        (self.holding, self.acquiring) = (None, None);
        self.take_back().await?;
        self.lease.give_back().await
    }
}

/// Draws the next number of `name`, which no other call gets. Call it while the lock is held. The counters,
/// `fences(name, n)`, have no TTL, are never deleted, and know no epoch: they go on counting in a new one.
///
/// # Errors
///
/// [`Fault`]: the call drew no number, or one that is spent. Before it draws the next one, the caller has to check that
/// it still holds the lock.
async fn draw_token_number(tables: &Tables, name: &str) -> Result<i64, Fault> {
    let n = Ident::new("n");
    let look = Action::SelectSerial { columns: vec![n.clone()] };
    let before = tables.read(fence(name, look)).await?.and_then(|row| row.long(&n));
    let next = before.unwrap_or(0).checked_add(1).ok_or_else(|| used_up(name))?;
    let action = Action::UpdateIf {
        cells: vec![(n.clone(), Some(Value::from(next)))],
        ttl_s: None,
        only_if: vec![(n, before.map(Value::from))],
    };
    match tables.conditional(fence(name, action)).await.1? {
        Conditional::Applied => Ok(next),
        // An attempt that has ended drew a number late.
        Conditional::NotApplied(_) => {
            Err(Fault::NotDone(format!("the fence of {name:?} moved meanwhile")))
        }
    }
}

/// A token has no room for a larger number.
fn used_up(name: &str) -> Fault {
    Fault::Refused(format!("table fences: the numbers of {name:?} are used up, or not ours"))
}

fn fence(name: &str, action: Action) -> Statement {
    let key = vec![(Ident::new("name"), Value::from(name))];
    Statement::new(Ident::new("fences"), key, action).decided_everywhere()
}
