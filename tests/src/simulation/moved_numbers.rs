//! Numbers of a sequence that moves: the processes of a scope that moves draw them through a locker of another scope, which never falls back
//! (Cassandra has no sequences of a scope that does), while an operator gives the sequence to the store and brings it back, and gives up now
//! and then.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::sync::atomic::Ordering;
use std::time::Duration;

use holdfast::Client;
use holdfast_core::{Answer, Deed, LockName};
use holdfast_migrate::import::Fault;
use holdfast_migrate::sequences::{Moved, MovingSequences, NativeSequences, Told};
use holdfast_recipes::{
    Cassandra, Lease, LeaseTable, Locker, LockerMode, ModesTable, ScopeModes, Sequences,
};
use tokio::sync::oneshot;

use super::locker_client::{AGAIN, options};
use super::mover::Mover;
use super::stage::Stage;
use crate::draw::Draw;
use crate::history::What;

/// The scope, and the sequence in it.
const NUMBERED: &str = "n/";
const NUMBERS: &str = "n/1";
/// The number of the operator.
const OPERATOR: u64 = 2_290_004;
/// Longest pause between two draws, and how long one is waited for at most, milliseconds.
const PAUSE_MS: u64 = 800;
const LIMIT_MS: u64 = 8_000;
/// The most numbers of a draw.
const COUNT: u64 = 50;
/// Longest pause between two moves, milliseconds, and the longest time that the operator gives one, which is longer than a return takes.
const MOVE_MS: u64 = 6_000;
const MOVED_MS: u64 = 60_000;

impl Mover {
    /// Begins to draw numbers, if this run has them. What it returns is told when the process has drawn its last.
    pub(super) fn begin_numbers(
        &self,
        client: &Client,
        cassandra: &Cassandra,
    ) -> Option<oneshot::Receiver<()>> {
        let (tell, told) = oneshot::channel();
        let (mover, client, cassandra) = (self.clone(), client.clone(), cassandra.clone());
        let drawing = async move {
            mover.draw_numbers(client, &cassandra).await;
            let _ = tell.send(());
        };
        self.numbers.then(|| self.base.runtime.spawn("numbers", drawing).detach())?;
        Some(told)
    }

    async fn draw_numbers(&self, client: Client, cassandra: &Cassandra) {
        let base = &self.base;
        let mut draw = Draw::new(base.seed.rotate_left(21));
        let Some(locker) = self.numbered(client, cassandra).await else { return };
        let Ok(sequence) = locker.sequence(NUMBERS) else { return };
        for take in 0.. {
            if base.is_stopped() {
                return;
            }
            base.runtime.sleep(Duration::from_millis(draw.below(PAUSE_MS))).await;
            let count = u32::try_from(1 + draw.below(COUNT)).unwrap_or(1);
            let count = NonZeroU32::new(count).unwrap_or(NonZeroU32::MIN);
            let name = NUMBERS.to_owned();
            base.recorder.write(base.id, What::TakeNumbers { take, name, count: count.get() });
            let limit = Duration::from_millis(draw.below(LIMIT_MS));
            let drawn = base.runtime.timeout(limit, sequence.draw(count)).await;
            // What a draw without an answer was given belongs to nobody.
            let drawn = drawn.ok().and_then(Result::ok);
            let first = drawn.and_then(|numbers| u64::try_from(numbers.start).ok());
            base.recorder.write(base.id, What::NumbersTaken { take, first });
        }
    }

    /// Where the sequence is does not follow from the mode.
    async fn numbered(&self, client: Client, cassandra: &Cassandra) -> Option<Locker> {
        let base = &self.base;
        let options = options("numbers", base.id);
        while !base.is_stopped() {
            let lease = Lease::new(cassandra, &options, LeaseTable::default()).ok()?;
            let builder = Locker::builder(cassandra, NUMBERED, lease).native(client.clone());
            let started = builder.row(options.clone()).start(LockerMode::Cassandra).await;
            if let Ok(locker) = started {
                return Some(locker);
            }
            base.runtime.sleep(AGAIN).await;
        }
        None
    }
}

impl Stage<'_> {
    /// An operator moves the sequence between the stores until the run's faults are over.
    pub(super) async fn move_sequences(&self) {
        if !self.moves_plan().is_some_and(|plan| plan.numbers) {
            return;
        }
        let cassandra = self.cassandra_of(OPERATOR);
        let Ok(modes) = ScopeModes::new(&cassandra, NUMBERED, ModesTable::default()) else {
            return self.wrong("no scope can be called as the moving one is".to_owned());
        };
        let rows = Sequences::new(&cassandra, &LeaseTable::default());
        let native = Leader { stage: self };
        let runtime = self.world.client_process(OPERATOR).runtime();
        let (scope, modes, rows, native) = (NUMBERED, &modes, &rows, &native);
        let sequences = MovingSequences { scope, modes, rows, native, runtime };
        let mut draw = Draw::new(self.plan.seed ^ OPERATOR);
        let end = self.runtime.clock.now() + self.plan.length();
        while self.runtime.clock.now() < end {
            self.runtime.sleep(Duration::from_millis(draw.below(MOVE_MS))).await;
            let left = end.saturating_since(self.runtime.clock.now());
            let limit = left.min(Duration::from_millis(draw.below(MOVED_MS)));
            let there = draw.below(2) == 0;
            let moving = async {
                if there {
                    sequences.give(&mut |told| self.told(&told)).await
                } else {
                    sequences.bring_back(&mut |told| self.told(&told)).await
                }
            };
            // Another one goes on from where this one ended.
            let _ = self.runtime.timeout(limit, moving).await;
        }
    }

    fn told(&self, told: &Told<'_>) {
        if matches!(told, Told::Of(_, Moved::There { .. })) {
            self.moving.sequence_moves.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// The sequences of the store, at its present leader.
struct Leader<'a> {
    stage: &'a Stage<'a>,
}

impl Leader<'_> {
    async fn answer(&self, deed: Deed) -> Result<Answer, Fault> {
        let answer = self.stage.answer_to(&self.stage.world, deed).await;
        let outcome = answer.ok_or_else(|| Fault::Unknown("no answer".to_owned()))?;
        outcome.map_err(|rejection| Fault::Refused(rejection.to_string()))
    }
}

fn named(name: &str) -> Result<LockName, Fault> {
    LockName::parse(name).map_err(|error| Fault::Refused(error.to_string()))
}

impl NativeSequences for Leader<'_> {
    async fn cluster(&self) -> Result<String, Fault> {
        let reader = self.stage.world.client_builder(OPERATOR).reader();
        let asked = async move { reader.ok()?.status().await.ok() };
        let status = self.stage.world.as_client(OPERATOR, asked).await.flatten();
        status.map_or_else(
            || Err(Fault::Unknown("no status".to_owned())),
            |status| Ok(hex::encode(status.cluster)),
        )
    }

    /// A number is taken to learn which was the last.
    async fn sequences(&self, _: &str) -> Result<BTreeMap<String, u64>, Fault> {
        let sequence = named(NUMBERS)?;
        match self.answer(Deed::Advance { sequence, by: 1 }).await? {
            Answer::Advanced { first } => Ok(BTreeMap::from([(NUMBERS.to_owned(), first)])),
            other => Err(Fault::Unknown(format!("{other:?}"))),
        }
    }

    async fn begin_sequence(&self, name: &str, at: u64) -> Result<(), Fault> {
        let sequence = named(name)?;
        self.answer(Deed::BeginSequence { sequence, at }).await.map(drop)
    }
}
