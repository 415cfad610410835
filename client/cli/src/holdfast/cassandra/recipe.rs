//! A recipe, and what the command line adds to it.

use std::sync::Arc;

use holdfast_recipes::{
    BakeryForm, Cassandra, Layout, LockerOptions, Queue, Recipe, RemoteLocker, TimeClient,
};

use super::clock;
use crate::failure::Failure;

/// A recipe in the form that was asked for.
pub(super) struct Chosen {
    pub(super) recipe: Recipe,
    /// The time service by which the queue takes its places; `None`: this machine's clock.
    pub(super) time: Option<TimeClient>,
    /// The form of the bakery.
    pub(super) form: BakeryForm,
}

impl From<Recipe> for Chosen {
    fn from(recipe: Recipe) -> Self {
        Self { recipe, time: None, form: BakeryForm::default() }
    }
}

impl Chosen {
    /// A locker of this recipe.
    pub(super) fn locker(
        &self,
        on: &Cassandra,
        options: &LockerOptions,
        mut layout: Layout,
    ) -> holdfast::Result<Arc<dyn RemoteLocker>> {
        if let Some(time) = &self.time {
            let queue = Queue::new(on, options, layout.queue)?;
            return Ok(Arc::new(queue.with_time(Arc::new(time.clone()))));
        }
        layout.bakery = layout.bakery.of_form(self.form);
        self.recipe.locker(on, options, &layout)
    }

    /// Checks that the services it needs beside Cassandra answer.
    pub(super) async fn try_out(&self) -> Result<(), Failure> {
        match &self.time {
            Some(time) => clock::try_out(time).await,
            None => Ok(()),
        }
    }
}
