//! One attempt at one lock: the lease, a token drawn while the lease is held, and the read that covers both.

use std::sync::Arc;
use std::time::Duration;

use super::Fallback;
use super::authority_watcher::{Acquiring, Holding};
use super::fence;
use super::row_view::Permit;
use crate::FencingToken;
use crate::database::Fault;
use crate::lease::LeaseRow;
use crate::lock_task::{Attempt, Left, Reached, Renewal};
use holdfast_guard::Safety;

/// See the module.
pub(super) struct FallbackRow {
    of: Fallback,
    name: String,
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
            lease: fresh(of, name),
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
        self.given_up = Some(std::mem::replace(&mut self.lease, fresh(&self.of, &self.name)));
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

/// A lease with a new owner id.
fn fresh(of: &Fallback, name: &str) -> LeaseRow {
    LeaseRow::new(&of.base, &of.leases, name, Arc::default()).within(of.partition_of(name))
}

impl Attempt for FallbackRow {
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
        self.take_back().await?;
        let attempted = self.lease.advance().await?;
        let Reached::Hold { .. } = attempted else { return Ok(attempted) };
        let number = fence::draw(self.of.base.cassandra.tables(), &self.name).await?;
        let number = u64::try_from(number).ok();
        let token = number.and_then(|number| FencingToken::new(permit.epoch, number));
        let token = token.ok_or_else(|| fence::used_up(&self.name))?;
        self.drawn = Some((token, permit));
        match self.lease.renew().await {
            Renewal::Applied(started) => Ok(Reached::Hold { started }),
            Renewal::Gone => Ok(Reached::HeldBy { owner: None, again: None }),
            Renewal::Unknown => Err(Fault::Unknown("a renewal was not answered".into())),
        }
    }

    fn begins(&mut self, safety: &Arc<Safety>) {
        let Some((token, permit)) = self.drawn else { return };
        self.holding = Some(self.of.watcher.holds(token, permit, safety.clone()));
        if self.of.watcher.is_in_time(safety) {
            self.acquiring = None;
        }
    }

    fn lasts(&self, ttl: Duration) -> Duration {
        self.of.watcher.hold_lasts().min(ttl)
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
