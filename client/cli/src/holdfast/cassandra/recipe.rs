//! The recipes behind one interface for the command line.

use std::sync::Arc;

use holdfast_recipes::{
    Bakery, BakeryForm, Cassandra, Layout, Lease, LockerOptions, OptimisticTokens, Queue,
    RemoteLocker, Shadow, TimeClient, Tokens,
};

use super::clock;
use crate::failure::Failure;

type Made = holdfast::Result<Arc<dyn RemoteLocker>>;
type Make = dyn Fn(&Cassandra, &LockerOptions, Layout) -> Made + Send + Sync;

/// One recipe.
pub(super) struct Recipe {
    name: &'static str,
    make: Box<Make>,
    /// The time service that it uses, if any.
    time: Option<TimeClient>,
}

impl Recipe {
    fn new(
        name: &'static str,
        make: impl Fn(&Cassandra, &LockerOptions, Layout) -> Made + Send + Sync + 'static,
    ) -> Self {
        Self { name, make: Box::new(make), time: None }
    }

    pub(super) fn lease() -> Self {
        Self::new("lease", |on, options, layout| {
            Ok(Arc::new(Lease::new(on, options, layout.lease)?))
        })
    }

    /// With places ordered by this machine's clock, or by a time service.
    pub(super) fn queue(time: Option<TimeClient>) -> Self {
        let asked = time.clone();
        let queue = Self::new("queue", move |on, options, layout| {
            let queue = Queue::new(on, options, layout.queue)?;
            Ok(Arc::new(match &asked {
                Some(time) => queue.with_time(Arc::new(time.clone())),
                None => queue,
            }))
        });
        Self { time, ..queue }
    }

    pub(super) fn tokens_lwt() -> Self {
        Self::new("tokens-lwt", |on, options, layout| {
            Ok(Arc::new(Tokens::new(on, options, layout.tokens)?))
        })
    }

    pub(super) fn bakery(form: BakeryForm) -> Self {
        Self::new("bakery", move |on, options, layout| {
            Ok(Arc::new(Bakery::new(on, options, layout.bakery.of_form(form))?))
        })
    }

    pub(super) fn shadow() -> Self {
        Self::new("shadow", |on, options, layout| {
            Ok(Arc::new(Shadow::new(on, options, layout.shadow)?))
        })
    }

    pub(super) fn tokens_optimistic() -> Self {
        Self::new("tokens-optimistic", |on, options, layout| {
            Ok(Arc::new(OptimisticTokens::new(on, options, layout.optimistic)?))
        })
    }

    /// Its name on the command line.
    pub(super) fn name(&self) -> &'static str {
        self.name
    }

    /// A locker of this recipe.
    pub(super) fn locker(&self, on: &Cassandra, options: &LockerOptions, layout: Layout) -> Made {
        (self.make)(on, options, layout)
    }

    /// Checks that the services it needs beside Cassandra answer.
    pub(super) async fn try_out(&self) -> Result<(), Failure> {
        match &self.time {
            Some(time) => clock::try_out(time).await,
            None => Ok(()),
        }
    }
}
