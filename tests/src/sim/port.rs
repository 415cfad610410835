//! The port of a node, and calls to it.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use holdfast_runtime::{Runtime, select};
use holdfast_server::raft::Peer;
use holdfast_server::rpc::LockCalls;
use holdfast_server::session::Hub;
use tokio::sync::oneshot;

use super::connection::Frame;
use super::durability_probe::DurabilityProbe;
use super::link::{Host, Part};
use super::network::{Fate, Network};
use super::trace::digest_of;

/// What a process serves. Cheap to clone.
#[derive(Clone)]
pub(super) struct Port {
    /// Its process: what a message causes is a task of these.
    pub(super) runtime: Runtime,
    pub(super) peer: Arc<dyn Peer>,
    pub(super) hub: Arc<Hub>,
    pub(super) calls: LockCalls,
    /// Records the pledges of its node.
    pub(super) pledges: Arc<DurabilityProbe>,
}

/// A call under way.
pub(super) struct Call {
    pub(super) from: Host,
    pub(super) to: u64,
    pub(super) kind: &'static str,
    /// The request as it travels.
    pub(super) bytes: Vec<u8>,
    /// Whether it may arrive twice.
    pub(super) may_come_twice: bool,
}

type Answer<T> = oneshot::Sender<Option<T>>;

impl Network {
    /// Asks a node. `None`: no answer came, and the caller has noticed that none will. The request
    /// may have been carried out, once or twice.
    pub(super) async fn ask<T: Frame>(
        &self,
        call: Call,
        invoke: impl Fn(Port) -> BoxFuture<'static, T> + Send + Sync + 'static,
    ) -> Option<T> {
        let Call { from, to, kind, bytes, may_come_twice } = call;
        self.note(format_args!("{from}>n{to} {kind} {:016x}", digest_of(&bytes)));
        let Fate::Arrives(at, second) =
            self.send(from, Host::Node(to), bytes.len(), may_come_twice)
        else {
            self.0.world.sleep(self.given_up_after()).await;
            return None;
        };
        let invoke = Arc::new(invoke);
        let (answer, answered) = oneshot::channel();
        let network = self.clone();
        let first = Arc::clone(&invoke);
        self.spawn("call", async move {
            network.arrive((from, Host::Node(to), Part::Asked), at).await;
            network.answer(from, to, kind, &*first, answer).await;
        });
        if let Some(second) = second {
            let network = self.clone();
            self.spawn("call again", async move {
                network.arrive((from, Host::Node(to), Part::Asked), second).await;
                network.note(format_args!("{from}>n{to} {kind} comes again"));
                let (nobody, _) = oneshot::channel();
                network.answer(from, to, kind, &*invoke, nobody).await;
            });
        }
        answered.await.ok().flatten()
    }

    async fn answer<T: Frame>(
        &self,
        from: Host,
        to: u64,
        kind: &'static str,
        invoke: &(impl Fn(Port) -> BoxFuture<'static, T> + Send + Sync),
        answer: Answer<T>,
    ) {
        let host = Host::Node(to);
        let said = match self.port(to) {
            Some(port) => {
                let (tell, told) = oneshot::channel();
                let work = invoke(port.clone());
                port.runtime.spawn(kind, async move { drop(tell.send(work.await)) }).detach();
                select! {
                    // Dropped without an answer: the process is gone.
                    said = told => said.ok(),
                    () = self.until_missed(from, host) => return drop(answer.send(None)),
                }
            }
            None => None,
        };
        let Some(said) = said else {
            self.refused(from, to).await;
            return drop(answer.send(None));
        };
        let bytes = said.bytes();
        self.note(format_args!("n{to}>{from} {kind} {:016x}", digest_of(&bytes)));
        match self.send(host, from, bytes.len(), false) {
            Fate::Arrives(at, _) => {
                self.arrive((host, from, Part::Answered), at).await;
                drop(answer.send(Some(said)));
            }
            Fate::Lost => {
                self.0.world.sleep(self.given_up_after()).await;
                drop(answer.send(None));
            }
        }
    }

    /// Waits until the caller knows that nothing listens there.
    async fn refused(&self, from: Host, to: u64) {
        match self.send(Host::Node(to), from, 64, false) {
            Fate::Arrives(at, _) if !self.is_dark(to) => {
                self.arrive((Host::Node(to), from, Part::Answered), at).await;
            }
            _ => self.0.world.sleep(self.given_up_after()).await,
        }
    }

    fn given_up_after(&self) -> Duration {
        Duration::from_secs(5) + self.some_of(Duration::from_secs(5))
    }
}
