//! A thread of the article: listing 3 unchanged, one statement at a time.

use futures_util::future::BoxFuture;

use super::*;
use crate::seed_clients::SeedClient;

/// What listing 3 returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Success,
    AnotherThreadIsOwner,
    ConcurrentAttempt,
}

/// The next step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    One,
    Seven,
    Eight,
    Ten,
    Eleven,
    Twelve,
    Fourteen,
    Over(Verdict),
}

pub(super) struct SeedThread {
    id: String,
    stamps: SeedStamps,
    /// The reading of step 10: it reads the main row's cells once more, or goes by those of step 1.
    reads_again: bool,
    ttl_s: i32,
    /// At step 1.
    main_was_empty: bool,
    next: Step,
}

impl SeedThread {
    pub(super) fn new(machine: &Machine, id: &str) -> Self {
        let stamps = SeedStamps::new(machine);
        let (id, next) = (id.to_owned(), Step::One);
        Self { id, stamps, reads_again: true, ttl_s: FOR_EVER, main_was_empty: true, next }
    }

    /// Goes by what step 1 saw.
    pub(super) fn literal(self) -> Self {
        Self { reads_again: false, ..self }
    }

    /// With a TTL on its cells, and nothing else (thesis, §5.3).
    pub(super) fn with_ttl(self, ttl_s: i32) -> Self {
        Self { ttl_s, ..self }
    }

    /// With a clock that is ahead by this much.
    pub(super) fn ahead(mut self, milliseconds: i64) -> Self {
        self.stamps.ahead_ms = milliseconds;
        self
    }

    /// The same thread calls once more.
    pub(super) fn again(self) -> Self {
        Self { next: Step::One, ..self }
    }

    pub(super) fn verdict(&self) -> Option<Verdict> {
        match self.next {
            Step::Over(verdict) => Some(verdict),
            _ => None,
        }
    }

    /// All steps, or the remaining ones.
    pub(super) async fn finish(&mut self, model: &Model) -> Verdict {
        loop {
            if let Some(verdict) = self.verdict() {
                return verdict;
            }
            self.step(model).await;
        }
    }

    pub(super) async fn steps(&mut self, number: usize, model: &Model) {
        for _ in 0..number {
            self.step(model).await;
        }
    }

    /// `Dispose`.
    pub(super) async fn release(&self, model: &Model) {
        model.execute(MAIN.erase(&self.id, self.stamps.now_us())).await.unwrap();
    }

    async fn put(&self, table: SeedTable, model: &Model) {
        model.execute(table.put(&self.id, self.ttl_s, self.stamps.now_us())).await.unwrap();
    }

    async fn leave_shadow(&self, model: &Model) {
        model.execute(SHADOW.erase(&self.id, self.stamps.now_us())).await.unwrap();
    }
}

impl SeedClient for SeedThread {
    fn step<'a>(&'a mut self, model: &'a Model) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            self.next = match self.next {
                Step::One => {
                    let there = MAIN.names(model).await;
                    self.main_was_empty = there.is_empty();
                    match there.as_slice() {
                        [one] if *one == self.id => Step::Over(Verdict::Success),
                        [_] => Step::Over(Verdict::AnotherThreadIsOwner),
                        _ => Step::Seven,
                    }
                }
                Step::Seven => {
                    self.put(SHADOW, model).await;
                    Step::Eight
                }
                Step::Eight if SHADOW.names(model).await.len() != 1 => Step::Fourteen,
                Step::Eight if self.reads_again => Step::Ten,
                Step::Eight if self.main_was_empty => Step::Eleven,
                Step::Ten if MAIN.names(model).await.is_empty() => Step::Eleven,
                Step::Eight | Step::Ten => Step::Fourteen,
                Step::Eleven => {
                    self.put(MAIN, model).await;
                    Step::Twelve
                }
                Step::Twelve => {
                    self.leave_shadow(model).await;
                    Step::Over(Verdict::Success)
                }
                Step::Fourteen => {
                    self.leave_shadow(model).await;
                    Step::Over(Verdict::ConcurrentAttempt)
                }
                over @ Step::Over(_) => over,
            };
        })
    }
}
