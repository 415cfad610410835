//! Holds and places that are taken once and must exist after every fault: what was acknowledged
//! survives (I19).

use std::time::Duration;

use holdfast_proto::v1::Mode;
use holdfast_runtime::Runtime;

use crate::history::{ClientId, Recorder};
use crate::wire::{Ticket, Wire, item};

/// Long enough that no test outlasts it.
const TTL: Duration = Duration::from_mins(2);

/// One session that holds `count` locks exclusively, one of them with a value, a set of which it
/// released one name, and a lock in shared mode; and a second session that waits behind each of
/// these.
#[derive(Debug)]
pub struct Witness {
    recorder: Recorder,
    /// The number of the holder's grants; as many requests wait behind them.
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
        Self::take_for(TTL, address, recorder, first, count).await
    }

    /// The same with a lease of this length, which only [`Witness::look_again`] renews.
    pub async fn take_for(
        ttl: Duration,
        address: &str,
        recorder: &Recorder,
        first: u64,
        count: u64,
    ) -> Self {
        let mut holder = Member::open(ttl, address, recorder, ClientId(first)).await;
        let mut waiter = Member::open(ttl, address, recorder, ClientId(first + 1)).await;
        for request in 1..=count {
            let name = format!("witness/{first}/{request}");
            holder.wire.acquire(request, &name, true).await;
            holder.wire.granted(request).await;
            waiter.wire.acquire(request, &name, true).await;
            waiter.wire.queued(request).await;
        }
        let name = |which: &str| format!("witness/{first}/{which}");
        take_a_set(&mut holder.wire, &mut waiter.wire, count + 1, name).await;
        share(&mut holder.wire, &mut waiter.wire, count + 2, &name("shared")).await;
        let count = count + 2;
        let token = holder.token(1);
        holder.wire.set_value(count + 1, token, &name("1"), b"left by the witness").await;
        holder.wire.value_set(count + 1).await;
        Self { recorder: recorder.clone(), count, holder, waiter }
    }

    /// Resumes both sessions at the leader; State goes into the history, where the judge compares
    /// it with what was acknowledged.
    pub async fn look_again(&mut self, leader: &str) {
        // The store also keeps the holder's change of a value for a retry.
        for (member, count) in [(&mut self.holder, self.count + 1), (&mut self.waiter, self.count)]
        {
            let shown = member.resume(leader, &self.recorder).await;
            assert_eq!(shown as u64, count, "{} lost some of its requests", member.id);
        }
    }

    /// Releases everything: each waiter is granted in turn and releases too. Then both sessions are
    /// closed.
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

/// The holder has a set and releases one name of it; the waiter asks for a set that shares a name
/// with the rest.
async fn take_a_set(
    holder: &mut Wire,
    waiter: &mut Wire,
    request: u64,
    name: impl Fn(&str) -> String,
) {
    let set = ["set", "kept", "given back"].map(|which| item(&name(which), Mode::Exclusive));
    holder.acquire_several(request, set.into(), None, true).await;
    let token = holder.granted(request).await;
    holder.release_names(token, &[&name("given back")]).await;
    holder.released(token).await;
    let set = ["set", "given back"].map(|which| item(&name(which), Mode::Exclusive));
    waiter.acquire_several(request, set.into(), None, true).await;
    waiter.queued(request).await;
}

/// The holder shares the lock, the waiter asks for it exclusively.
async fn share(holder: &mut Wire, waiter: &mut Wire, request: u64, name: &str) {
    holder.acquire_several(request, vec![item(name, Mode::Shared)], None, true).await;
    holder.granted(request).await;
    waiter.acquire(request, name, true).await;
    waiter.queued(request).await;
}

impl Member {
    async fn open(ttl: Duration, address: &str, recorder: &Recorder, id: ClientId) -> Self {
        let mut wire = Wire::dial(address).await.unwrap().recorded(recorder.clone(), id);
        let ticket = wire.begin(u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX)).await;
        Self { id, ticket, wire }
    }

    /// How many requests wait or hold, as the leader's State shows them.
    async fn resume(&mut self, leader: &str, recorder: &Recorder) -> usize {
        // A leader that was just elected may still wait for an entry of its own.
        for _ in 0..50 {
            let Ok(wire) = Wire::dial(leader).await else {
                Runtime::system().sleep(Duration::from_millis(100)).await;
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
