//! Tasks.

use std::fmt;

use crate::BoxFuture;

/// Starts tasks.
pub trait Spawn: Send + Sync + 'static {
    /// Starts `future`. `name` is for people who inspect a running process.
    fn spawn(&self, name: &'static str, future: BoxFuture<'static, ()>) -> Task;
}

/// The implementation of a [`Task`].
pub trait TaskHandle: Send + Sync {
    /// Ends the task at its next await, if it has not ended.
    fn abort(&self);
    /// Whether it has ended.
    fn is_finished(&self) -> bool;
}

/// A running task; it is ended when this is dropped.
#[must_use = "dropping a task ends it; detach it if it is to run on"]
pub struct Task(Option<Box<dyn TaskHandle>>);

impl Task {
    /// Wraps an implementation.
    pub fn new(handle: Box<dyn TaskHandle>) -> Self {
        Self(Some(handle))
    }

    /// Lets the task run on by itself.
    pub fn detach(mut self) {
        self.0 = None;
    }

    /// Whether the task has ended.
    pub fn is_finished(&self) -> bool {
        self.0.as_ref().is_none_or(|handle| handle.is_finished())
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        if let Some(handle) = &self.0 {
            handle.abort();
        }
    }
}

impl fmt::Debug for Task {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Task").field("finished", &self.is_finished()).finish()
    }
}
