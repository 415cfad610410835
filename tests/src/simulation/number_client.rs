//! Clients that take numbers of sequences (DESIGN §16), without a session.

use std::num::NonZeroU32;
use std::time::Duration;

use holdfast::{Builder, Sequence};
use holdfast_runtime::Runtime;
use tokio::sync::watch;

use super::client::begin;
use super::stage::{Stage, in_history, lock};
use crate::draw::Draw;
use crate::history::{ClientId, Recorder, What};
use crate::sim::World;

/// The first of them.
const FIRST: u64 = 2_300_000;
const CLIENTS: u64 = 3;
/// The sequences that they share.
const SEQUENCES: u64 = 2;
/// Longest pause between two calls, milliseconds.
const PAUSE_MS: u64 = 400;
/// How many numbers a client takes of a cluster before it is lost, and of each one that is restored.
const AROUND_A_DISASTER: usize = 3;

struct NumberClient {
    id: ClientId,
    recorder: Recorder,
    runtime: Runtime,
    draw: Draw,
    sequences: Vec<Sequence>,
    /// The number of the next call.
    next: u64,
}

impl NumberClient {
    /// Of one node in a hundred calls, the block is the largest there is.
    fn count(&mut self) -> NonZeroU32 {
        let count = match self.draw.below(100) {
            0 => 1 << 16,
            1..50 => 1,
            other => other,
        };
        u32::try_from(count).ok().and_then(NonZeroU32::new).unwrap_or(NonZeroU32::MIN)
    }

    async fn until(mut self, stopped: watch::Receiver<bool>) {
        while !*stopped.borrow() {
            self.take().await;
            let pause = self.draw.below(PAUSE_MS);
            self.runtime.sleep(Duration::from_millis(pause)).await;
        }
    }

    /// One call, in the history.
    async fn take(&mut self) {
        let (take, count) = (self.next, self.count());
        self.next += 1;
        let place = self.draw.below(SEQUENCES);
        let Some(sequence) = self.sequences.get(usize::try_from(place).unwrap_or(0)) else {
            return;
        };
        let name = sequence.name().to_owned();
        self.write(What::TakeNumbers { take, name, count: count.get() });
        // Refused, or without an answer: the store may have given some out, to nobody.
        let first = sequence.take(count).await.ok().map(|numbers| *numbers.start());
        self.write(What::NumbersTaken { take, first });
    }

    fn write(&self, what: What) {
        self.recorder.write(self.id, what);
    }
}

impl<'a> Stage<'a> {
    /// Clients take numbers until the run ends, if it is a run with numbers.
    pub(super) fn begin_numbers(&self) {
        if !self.plan.numbers {
            return;
        }
        for number in FIRST..FIRST + CLIENTS {
            let Some(client) = self.number_client(&self.world, number) else { continue };
            let process = self.world.client_process(number);
            let work = client.until(self.ends.stop.subscribe());
            let actor = begin(&process, &self.recorder, in_history(number), work);
            lock(&self.actors).insert(number, actor);
        }
    }

    /// One client takes some numbers of a cluster around a disaster.
    ///
    /// # Errors
    ///
    /// The client is gone.
    pub(super) async fn take_some_numbers(
        &self,
        world: &World<'a>,
        number: u64,
    ) -> Result<(), String> {
        if !self.plan.numbers {
            return Ok(());
        }
        let Some(mut client) = self.number_client(world, number) else { return Ok(()) };
        let taken = world.as_client(number, async move {
            for _ in 0..AROUND_A_DISASTER {
                client.take().await;
            }
        });
        taken.await.ok_or_else(|| "I32: a client that takes numbers is gone".to_owned())
    }

    fn number_client(&self, world: &World<'a>, number: u64) -> Option<NumberClient> {
        let process = world.client_process(number);
        let builder: Builder = world.client_builder(number);
        let sequences = (0..SEQUENCES).map(|place| builder.sequence(format!("numbers/{place}")));
        Some(NumberClient {
            id: in_history(number),
            recorder: self.recorder.of(process.clone()),
            runtime: process.runtime(),
            draw: Draw::new(self.plan.seed ^ number),
            sequences: sequences.collect::<holdfast::Result<_>>().ok()?,
            next: 0,
        })
    }
}
