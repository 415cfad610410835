//! The watcher's end of a watch, and a model of a watcher's view: written from the comments of the
//! protocol, without a look at the server.

use std::collections::BTreeMap;

use holdfast_core::{Caller, LockTable, LogIndex, Mode};
use holdfast_proto::v1::lock_change::What;
use holdfast_proto::v1::watch_event::Body as Told;
use holdfast_proto::v1::{self, LockChange, LockInfo, WatchRequest, WatchResponse, WatchResume};
use tokio::sync::mpsc;

use super::*;
use crate::consensus::Consensus;

/// The watcher's end.
#[derive(Debug)]
pub(super) struct Watching {
    runtime: Runtime,
    messages: mpsc::Receiver<WatchResponse>,
    read: VecDeque<(u64, Told)>,
    /// The last complete index that was told.
    pub(super) complete: u64,
    /// The messages that said that the watch goes on.
    pub(super) resumed: u64,
    /// The cluster ids that were told.
    pub(super) clusters: Vec<Bytes>,
    end: oneshot::Receiver<Result<(), StreamError>>,
}

impl World {
    pub(super) async fn watch(&self, prefix: &str) -> Result<Watching, StreamError> {
        self.watch_holding(prefix, 1).await
    }

    /// A watch whose transport takes this many messages before it pushes back.
    pub(super) async fn watch_holding(
        &self,
        prefix: &str,
        messages: usize,
    ) -> Result<Watching, StreamError> {
        let asked = WatchRequest { prefix: prefix.to_owned(), resume: None };
        self.watch_as(&asked, messages).await
    }

    /// A watch that goes on after an index.
    pub(super) async fn go_on(&self, prefix: &str, after: u64) -> Result<Watching, StreamError> {
        let mut watching = self.watch_as(&going_on(prefix, after), 1).await?;
        watching.complete = after;
        Ok(watching)
    }

    pub(super) async fn watch_as(
        &self,
        asked: &WatchRequest,
        messages: usize,
    ) -> Result<Watching, StreamError> {
        let watcher = self.hub.watch(asked, &Caller::default()).await?;
        let (outgoing, messages) = mpsc::channel(messages);
        let (tell, end) = oneshot::channel();
        let hub = self.hub.clone();
        let serve = async move {
            let _ = tell.send(hub.serve_watch(watcher, outgoing).await);
        };
        self.runtime.spawn("watch", serve).detach();
        Ok(Watching {
            runtime: self.runtime.clone(),
            messages,
            read: VecDeque::new(),
            complete: 0,
            resumed: 0,
            clusters: Vec::new(),
            end,
        })
    }

    /// The locks below a prefix, as they are.
    pub(super) fn locks(&self, prefix: &str) -> BTreeMap<String, Lock> {
        let mut locks = BTreeMap::new();
        Handle(self.fake.clone()).read(&mut |table: &LockTable, _: LogIndex| {
            locks = table.locks_after(prefix, None, usize::MAX).map(|lock| truth(&lock)).collect();
        });
        locks
    }
}

/// The request of a watch that goes on after an index.
pub(super) fn going_on(prefix: &str, after: u64) -> WatchRequest {
    let resume = WatchResume { after_index: after, cluster_id: CLUSTER };
    WatchRequest { prefix: prefix.to_owned(), resume: Some(resume) }
}

fn truth(lock: &holdfast_core::LockView<'_>) -> (String, Lock) {
    let holders = lock.holders().map(|holder| {
        let shared = holder.mode == Mode::Shared;
        (holder.grant.token.get(), (holder.grant.session.get(), shared))
    });
    let value = lock.value.map(|value| (value.bytes.to_vec(), value.set_by.get(), value.suspect));
    let truth = Lock { holders: holders.collect(), waiting: lock.waiting, value };
    (lock.name.as_str().to_owned(), truth)
}

impl Watching {
    /// The next message, whole.
    pub(super) async fn message(&mut self) -> Vec<(u64, Told)> {
        assert_eq!(self.read, [], "events of an earlier message were not looked at");
        let runtime = self.runtime.clone();
        let message = runtime.timeout(Duration::from_mins(1), self.messages.recv()).await;
        let message = message.expect("a message comes").expect("the watch goes on");
        self.take_in(&message)
    }

    /// The events of a message, as they come over the wire.
    fn take_in(&mut self, message: &WatchResponse) -> Vec<(u64, Told)> {
        let WatchResponse { complete_index, cluster_id, resumed, .. } = message;
        if *complete_index > 0 {
            assert!(*complete_index >= self.complete, "it goes back to {complete_index}");
            self.complete = *complete_index;
        }
        self.resumed += u64::from(*resumed);
        if !cluster_id.is_empty() {
            self.clusters.push(cluster_id.clone());
        }
        let events = message.events().unwrap().into_iter();
        events.map(|event| (event.index, event.body.unwrap())).collect()
    }

    /// The next message, as it is, if it is ready.
    pub(super) fn raw(&mut self) -> Option<WatchResponse> {
        self.messages.try_recv().ok()
    }

    /// The next event of a message that was received.
    pub(super) fn received(&mut self) -> Option<(u64, Told)> {
        self.read.pop_front()
    }

    /// The next event, within a minute.
    pub(super) async fn next(&mut self) -> (u64, Told) {
        while self.read.is_empty() {
            self.read = self.message().await.into();
        }
        self.read.pop_front().unwrap()
    }

    /// The next event, if there is one or it comes without time passing.
    pub(super) async fn next_now(&mut self) -> Option<(u64, Told)> {
        let runtime = self.runtime.clone();
        while self.read.is_empty() {
            let message = runtime.timeout(Duration::from_millis(1), self.messages.recv()).await;
            let message = message.ok()?.expect("the watch goes on");
            self.read = self.take_in(&message).into();
        }
        self.read.pop_front()
    }

    pub(super) async fn until_synced(&mut self) {
        while !matches!(self.next().await, (_, Told::Synced(_))) {}
    }

    pub(super) async fn expect_silence(&mut self, length: Duration) {
        assert_eq!(self.read, []);
        let runtime = self.runtime.clone();
        if let Ok(message) = runtime.timeout(length, self.messages.recv()).await {
            panic!("not silent: {message:?}");
        }
    }

    /// The remaining events, and how the watch ends, within a minute.
    pub(super) async fn rest(mut self) -> (Vec<(u64, Told)>, Result<(), StreamError>) {
        let runtime = self.runtime.clone();
        let to_the_end = async {
            let mut rest = Vec::from(std::mem::take(&mut self.read));
            while let Some(message) = self.messages.recv().await {
                rest.extend(self.take_in(&message));
            }
            (rest, self.end.await.unwrap())
        };
        runtime.timeout(Duration::from_mins(1), to_the_end).await.expect("the watch ends")
    }
}

/// The view of one lock.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Lock {
    /// By token: the session, and whether it shares.
    pub(super) holders: BTreeMap<u64, (u64, bool)>,
    pub(super) waiting: u64,
    /// Bytes, token, suspect.
    pub(super) value: Option<(Vec<u8>, u64, bool)>,
}

/// A watcher's view.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Model {
    pub(super) locks: BTreeMap<String, Lock>,
    pub(super) synced: bool,
    pub(super) index: u64,
}

impl Model {
    /// Adds an event. Fails on an event that comes twice, or out of order.
    pub(super) fn take_in(&mut self, index: u64, told: Told) {
        assert!(index >= self.index, "index {index} comes after {}", self.index);
        self.index = index;
        match told {
            Told::Synced(_) => {
                assert!(!self.synced, "synced twice");
                self.synced = true;
            }
            Told::Lock(lock) => self.shown(&lock),
            Told::Change(change) => self.changed(change),
        }
    }

    fn shown(&mut self, lock: &LockInfo) {
        assert!(!self.synced, "a page after the last");
        let mut known = Lock {
            waiting: lock.waiting,
            value: lock.value.as_ref().map(value),
            ..Lock::default()
        };
        assert_eq!(known.value.is_some(), lock.has_value);
        lock.holders.iter().for_each(|holder| known.hold(holder));
        assert_eq!(self.locks.insert(lock.name.clone(), known), None, "{} came twice", lock.name);
    }

    fn changed(&mut self, change: LockChange) {
        let lock = self.locks.entry(change.name.clone()).or_default();
        lock.waiting = change.waiting;
        match change.what.expect("a change says what") {
            What::Queued(_) | What::Left(_) => {}
            What::Granted(holder) => lock.hold(&holder),
            What::Released(holder) => lock.let_go(&holder),
            What::Lost(lost) => lock.let_go(&lost.holder.expect("somebody lost it")),
            What::ValueChanged(changed) => {
                let value = changed.value.as_ref().map(value);
                assert_ne!(lock.value, value, "the value of {} changed twice", change.name);
                lock.value = value;
            }
        }
        if *lock == Lock::default() {
            self.locks.remove(&change.name);
        }
    }
}

impl Lock {
    fn hold(&mut self, holder: &v1::Holder) {
        let shared = holder.mode() == v1::Mode::Shared;
        let before = self.holders.insert(holder.token, (holder.session_id, shared));
        assert_eq!(before, None, "granted twice: {holder:?}");
    }

    fn let_go(&mut self, holder: &v1::Holder) {
        let held = self.holders.remove(&holder.token);
        assert!(held.is_some(), "not held: {holder:?}");
    }
}

fn value(value: &v1::Value) -> (Vec<u8>, u64, bool) {
    (value.value.to_vec(), value.token, value.suspect)
}
