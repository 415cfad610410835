//! One attempt at one lock: the lease, a token drawn while the lease is held, and the read that covers both.

use std::sync::Arc;
use std::time::Duration;

use holdfast_runtime::Rng;

use super::Fallback;
use super::authority_watcher::{Acquiring, AuthorityWatcher, Holding};
use super::fence;
use super::row_view::Permit;
use crate::FencingToken;
use crate::database::{Fault, Tables};
use crate::lease::{LeaseRow, LeaseTable};
use crate::lock_task::{Attempt, Left, Reached, Renewal};
use crate::owner::{OwnerId, Signature};
use crate::statement::{Ident, Value};
use holdfast_guard::Safety;

/// See the module.
pub(super) struct FallbackRow {
    rows: Rows,
    watcher: AuthorityWatcher,
    lease: LeaseRow,
    /// A lease that the attempt has to give back before it requests anything else.
    given_up: Option<LeaseRow>,
    drawn: Option<(FencingToken, Permit)>,
    holding: Option<Holding>,
    /// Makes the watcher watch the scope until the attempt holds the lock.
    acquiring: Option<Acquiring>,
}

/// Where the leases of one lock are, and which owner writes them.
struct Rows {
    tables: Arc<Tables>,
    leases: Arc<LeaseTable>,
    partition: Vec<(Ident, Value)>,
    name: String,
    signature: Signature,
    ttl_s: i32,
    rng: Arc<dyn Rng>,
}

impl FallbackRow {
    pub(super) fn new(of: &Fallback, name: &str, acquiring: Acquiring) -> Self {
        let rng = of.config.runtime.rng.clone();
        let ttl_s = of.config.timing.ttl_s();
        let rows = Rows {
            tables: of.cassandra.tables().clone(),
            leases: of.leases.clone(),
            partition: of.partition_of(name),
            name: name.to_owned(),
            signature: of.signature.clone(),
            ttl_s,
            rng,
        };
        Self {
            watcher: of.watcher.clone(),
            lease: rows.fresh(),
            rows,
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
        self.given_up = Some(std::mem::replace(&mut self.lease, self.rows.fresh()));
        self.take_back().await
    }

    /// Gives back the lease that was given up.
    async fn take_back(&mut self) -> Result<(), Fault> {
        if let Some(lease) = &mut self.given_up {
            lease.give_back().await?;
            self.given_up = None;
        }
        Ok(())
    }
}

impl Rows {
    /// A lease with a new owner id.
    fn fresh(&self) -> LeaseRow {
        let owner = OwnerId::draw(&self.signature, &*self.rng);
        let (tables, leases) = (self.tables.clone(), self.leases.clone());
        LeaseRow::new(tables, leases, &self.name, owner, self.ttl_s, Arc::default())
            .within(self.partition.clone())
    }
}

impl Attempt for FallbackRow {
    /// Acquires the lease, draws a number from the fence, and renews the lease, so that it draws the number while it holds
    /// the lease. If one of them has no answer, the next attempt begins with the lease again, and the number is spent.
    async fn advance(&mut self) -> Result<Reached, Fault> {
        // The read is older than the lease, so the hold's time counts from before the hold began.
        let permit = match self.watcher.permit() {
            Ok(permit) => permit,
            Err(why) => {
                self.give_up().await?;
                return Err(Fault::NotDone(why));
            }
        };
        self.take_back().await?;
        let attempted = self.lease.advance().await?;
        let Reached::Hold { .. } = attempted else { return Ok(attempted) };
        let number = fence::draw(&self.rows.tables, &self.rows.name).await?;
        let number = u64::try_from(number).ok();
        let token = number.and_then(|number| FencingToken::new(permit.epoch, number));
        let token = token.ok_or_else(|| fence::used_up(&self.rows.name))?;
        self.drawn = Some((token, permit));
        match self.lease.renew().await {
            Renewal::Applied(started) => Ok(Reached::Hold { started }),
            Renewal::Gone => Ok(Reached::HeldBy { owner: None, again: None }),
            Renewal::Unknown => Err(Fault::Unknown("a renewal was not answered".into())),
        }
    }

    fn begins(&mut self, safety: &Arc<Safety>) {
        let Some((token, permit)) = self.drawn else { return };
        self.holding = Some(self.watcher.holds(token, permit, safety.clone()));
        if self.watcher.is_in_time(safety) {
            self.acquiring = None;
        }
    }

    fn lasts(&self, ttl: Duration) -> Duration {
        self.watcher.hold_lasts().min(ttl)
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
