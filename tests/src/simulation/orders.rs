//! What operators order for everybody: names are frozen and thawed, and limits of permits are set (DESIGN §16, I38).

use std::num::NonZeroU32;
use std::sync::atomic::Ordering;
use std::time::Duration;

use holdfast_core::{Deed, Label, LockName, NamePrefix, Rejection};
use holdfast_server::consensus::Consensus as _;

use super::operator::AGAIN;
use super::stage::{STAGE, Stage};
use crate::history::{Order, What};
use crate::sim::World;
use crate::traffic::Mix;

/// The largest limit that an operator sets.
const LARGEST_LIMIT: u64 = 6;

impl Stage<'_> {
    /// Freezes one of the names that the clients share, or all of them, for so long.
    pub(super) async fn freeze(&self, which: u64, lasts: Duration) -> Option<()> {
        let name = which % (self.plan.names + 1);
        let begins = if name == self.plan.names { "traffic/".into() } else { Mix::name(name) };
        let prefix = NamePrefix::parse(&begins).ok()?;
        let message = Label::parse("an operator looks into it").ok()?;
        let deed = Deed::Freeze { prefix: prefix.clone(), message };
        self.order(Order::Freeze(begins.clone()), deed).await;
        self.runtime.sleep(lasts).await;
        self.order(Order::Thaw(begins), Deed::Thaw { prefix }).await;
        Some(())
    }

    /// Sets the limit of a lock of which clients ask for permits without naming one.
    pub(super) async fn set_limit(&self, which: u64) -> Option<()> {
        let name = Mix::kept(which % Mix::KEPT);
        let permits = u32::try_from(1 + which / Mix::KEPT % LARGEST_LIMIT).ok()?;
        let (lock, limit) = (LockName::parse(&name).ok()?, Some(NonZeroU32::new(permits)?));
        self.order(Order::Limit { name, permits }, Deed::SetLimit { lock, limit }).await;
        Some(())
    }

    /// An order, in the history. Whether an attempt without an answer was done is not known, so it is asked for until there is one. An
    /// order that is refused may still have been done by an attempt before.
    async fn order(&self, order: Order, deed: Deed) {
        let number = self.orders.fetch_add(1, Ordering::Relaxed);
        self.recorder.write(STAGE, What::Order { number, order });
        if self.until_answered(&self.world, deed).await {
            self.recorder.write(STAGE, What::OrderDone { number });
        }
    }

    /// Returns whether it is done. A name that is not frozen needs no thaw: an earlier attempt was done, or that of another operator.
    async fn until_answered(&self, world: &World<'_>, deed: Deed) -> bool {
        loop {
            match self.answer_to(world, deed.clone()).await {
                Some(Ok(_) | Err(Rejection::NotFrozen { .. })) => return true,
                Some(Err(_)) => return false,
                None => self.runtime.sleep(AGAIN).await,
            }
        }
    }

    /// The prefixes that are frozen, as a leader with a quorum shows them.
    async fn frozen_names(&self, world: &World<'_>) -> Option<Vec<NamePrefix>> {
        let asked = world.ask_leader(|replica| async move {
            replica.confirm().await.ok()?;
            let mut frozen = Vec::new();
            replica.read(&mut |table, _| {
                frozen = table.freezes().map(|(prefix, _)| prefix.clone()).collect();
            });
            Some(frozen)
        });
        asked.await.flatten()
    }

    /// Thaws all that is frozen, in this world or one that was restored after it: an operator may have been cut off.
    pub(super) async fn thaw_all(&self, world: &World<'_>) {
        if !self.plan.orders {
            return;
        }
        let frozen = loop {
            match self.frozen_names(world).await {
                Some(frozen) => break frozen,
                None => self.runtime.sleep(AGAIN).await,
            }
        };
        for prefix in frozen {
            self.until_answered(world, Deed::Thaw { prefix }).await;
        }
    }
}
