//! A worker of the article: its loop unchanged, one statement at a time.

use futures_util::future::BoxFuture;

use super::*;
use crate::seed_clients::SeedClient;

/// The next step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Line {
    Write,
    Read,
    Delete,
    Over { had: bool },
}

pub(super) struct SeedWorker {
    session: String,
    stamps: SeedStamps,
    next: Line,
}

impl SeedWorker {
    /// "generate `service_session_id`".
    pub(super) fn new(machine: &Machine, session: &str) -> Self {
        let stamps = SeedStamps::new(machine);
        Self { session: session.to_owned(), stamps, next: Line::Write }
    }

    /// With a clock that is ahead by this much from now on.
    pub(super) fn ahead(mut self, milliseconds: i64) -> Self {
        self.stamps.ahead_ms = milliseconds;
        self
    }

    /// Whether it got the token, once it knows.
    pub(super) fn had(&self) -> Option<bool> {
        match self.next {
            Line::Over { had } => Some(had),
            _ => None,
        }
    }

    /// All steps, or the remaining ones.
    pub(super) async fn finish(&mut self, model: &Model) -> bool {
        loop {
            if let Some(had) = self.had() {
                return had;
            }
            self.step(model).await;
        }
    }

    /// "delete (token, `service_session_id`)".
    pub(super) async fn release(&self, model: &Model) {
        model.execute(TOKENS.erase(&self.session, self.stamps.now_us())).await.unwrap();
    }
}

impl SeedClient for SeedWorker {
    fn step<'a>(&'a mut self, model: &'a Model) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            self.next = match self.next {
                Line::Write => {
                    let write = TOKENS.put(&self.session, FOR_EVER, self.stamps.now_us());
                    model.execute(write).await.unwrap();
                    Line::Read
                }
                Line::Read if TOKENS.names(model).await == [self.session.as_str()] => {
                    Line::Over { had: true }
                }
                Line::Read => Line::Delete,
                Line::Delete => {
                    self.release(model).await;
                    Line::Over { had: false }
                }
                over @ Line::Over { .. } => over,
            };
        })
    }
}
