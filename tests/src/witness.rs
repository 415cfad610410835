//! Holds and places that are taken once and must be there after every fault: what was
//! acknowledged survives (I19).

use std::time::Duration;

use holdfast_seams::Seams;

use crate::history::{ClientId, Recorder};
use crate::wire::{Ticket, Wire};

/// Long enough that no test outlasts it.
const TTL_MS: u64 = 120_000;

/// One session that holds `count` locks, and one that stands second in each of their queues.
#[derive(Debug)]
pub struct Witness {
    recorder: Recorder,
    count: u64,
    holder: Member,
    waiter: Member,
}

#[derive(Debug)]
struct Member {
    id: ClientId,
    ticket: Ticket,
    wire: Wire,
}

impl Witness {
    /// Takes the locks and the places at a node that leads; `first` and the id after it become
    /// the two sessions' ids in the history.
    pub async fn take(address: &str, recorder: &Recorder, first: u64, count: u64) -> Self {
        let mut holder = Member::open(address, recorder, ClientId(first)).await;
        let mut waiter = Member::open(address, recorder, ClientId(first + 1)).await;
        for request in 1..=count {
            let name = format!("witness/{first}/{request}");
            holder.wire.acquire(request, &name, true).await;
            holder.wire.granted(request).await;
            waiter.wire.acquire(request, &name, true).await;
            waiter.wire.queued(request).await;
        }
        Self { recorder: recorder.clone(), count, holder, waiter }
    }

    /// Resumes both sessions at the leader; what State shows goes into the history, where the
    /// checker compares it with what was acknowledged.
    pub async fn look_again(&mut self, leader: &str) {
        for member in [&mut self.holder, &mut self.waiter] {
            let shown = member.resume(leader, &self.recorder).await;
            assert_eq!(shown as u64, self.count, "{} lost some of its requests", member.id);
        }
    }

    /// Gives everything back: each waiter is granted in turn and gives back too. Then both
    /// sessions are closed.
    pub async fn hand_over(mut self, leader: &str) {
        self.look_again(leader).await;
        for request in 1..=self.count {
            let token = self.holder.token(request);
            self.holder.wire.release(token).await;
            self.holder.wire.released(token).await;
            let token = self.waiter.wire.granted(request).await;
            self.waiter.wire.release(token).await;
            self.waiter.wire.released(token).await;
        }
        for mut member in [self.holder, self.waiter] {
            member.wire.close().await;
            member.wire.end().await;
        }
    }
}

impl Member {
    async fn open(address: &str, recorder: &Recorder, id: ClientId) -> Self {
        let mut wire = Wire::dial(address).await.unwrap().recorded(recorder.clone(), id);
        let ticket = wire.begin(TTL_MS).await;
        Self { id, ticket, wire }
    }

    /// How many requests wait or hold, as the leader shows them.
    async fn resume(&mut self, leader: &str, recorder: &Recorder) -> usize {
        // A leader that was just elected may still wait for an entry of its own.
        for _ in 0..50 {
            let Ok(wire) = Wire::dial(leader).await else {
                Seams::system().sleep(Duration::from_millis(100)).await;
                continue;
            };
            self.wire = wire.recorded(recorder.clone(), self.id);
            let state = self.wire.resume(&self.ticket).await;
            return state.requests.len();
        }
        panic!("{} cannot reach {leader} to resume", self.id);
    }

    /// The token under which the last State showed a request as held.
    fn token(&self, request: u64) -> u64 {
        self.wire.held(request).unwrap_or_else(|| panic!("{} does not hold {request}", self.id))
    }
}
