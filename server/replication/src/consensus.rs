//! Replication as sessions and calls see it: propose, confirm, read.
//!
//! `raft/` implements [`Consensus`] with openraft. All layers above depend on this trait only, so that a
//! session can be tested against a replica of one node that commits at once.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use holdfast_core::{Applied, Command, Event, LockTable, LogIndex, Outcome, Rejection, Tenure};
use holdfast_runtime::{BoxFuture, Runtime};
use tokio::sync::watch;

use crate::error::ProposeError;

/// A command that was committed and applied on this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Committed {
    /// The entry that held the command.
    pub index: LogIndex,
    /// The outcome of the core, equal on all nodes.
    pub outcome: Outcome,
}

/// This node led, with a quorum behind it, at an instant after the call began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Confirmed {
    /// The tenure that was confirmed.
    pub tenure: Tenure,
    /// Everything that was committed when the call began is applied on this node: a read of the table
    /// from now on is linearizable (I18).
    pub applied: LogIndex,
}

/// The role of this node in the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Role {
    /// The node serves no client: it follows, stands for election, has just been elected and not yet
    /// applied an entry of its own tenure, or stops.
    Following {
        /// The leader, as far as this node knows.
        leader: Option<LeaderHint>,
    },
    /// It leads and has applied an entry that it proposed itself in this tenure (DESIGN §7). It may have
    /// lost its quorum since: only [`Consensus::confirm`] shows that.
    Leading {
        /// The tenure.
        tenure: Tenure,
    },
}

impl Role {
    /// The tenure, if this node leads.
    pub fn tenure(&self) -> Option<Tenure> {
        match self {
            Self::Following { .. } => None,
            Self::Leading { tenure } => Some(*tenure),
        }
    }

    /// The leader, if another node leads and this node knows it.
    pub fn leader(&self) -> Option<LeaderHint> {
        match self {
            Self::Following { leader } => leader.clone(),
            Self::Leading { .. } => None,
        }
    }
}

/// Where to find the leader.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaderHint {
    /// Its node id.
    pub node_id: u64,
    /// Where clients reach it.
    pub advertise: String,
}

/// Called with the outcome of a command. Runs on the node's runtime and must not block.
pub type Done = Box<dyn FnOnce(Result<Committed, ProposeError>) + Send>;

/// A replica, as the layers above see it.
pub trait Consensus: Send + Sync + 'static {
    /// The role of this node, and every change of it.
    fn role(&self) -> watch::Receiver<Role>;

    /// Proposes `command`; `done` is called exactly once, in any case.
    ///
    /// Commands of one caller are committed in the order in which they were submitted. Never
    /// forwarded: a node that does not lead refuses.
    fn submit(&self, command: Command, done: Done);

    /// Confirms by a quorum round begun after this call that this node leads, and waits until what was
    /// committed before is applied. Callers that come while a round is under way share the next one,
    /// however many they are. Cancel safe.
    ///
    /// # Errors
    ///
    /// [`ProposeError::NotLeader`] or [`ProposeError::Unavailable`], within a few heartbeats;
    /// [`ProposeError::ShuttingDown`] of a node that stops. Never because there are many callers.
    fn confirm(&self) -> BoxFuture<'static, Result<Confirmed, ProposeError>>;

    /// Reads the table as of the index given with it. Quick: it blocks `apply` meanwhile.
    fn read(&self, look: &mut dyn FnMut(&LockTable, LogIndex));

    /// The last entry that this node had, in its log or a snapshot, when the replica started; 0 if it had
    /// none. What is applied up to there was written before the start, and most of it applied then too: a
    /// restart applies it again, or a few entries for the first time whose commit it had not seen.
    fn had_at_start(&self) -> LogIndex;

    /// Sets the listener to what is applied. Called once, before the node starts to serve.
    fn attach(&self, listener: Arc<dyn Listener>);
}

impl fmt::Debug for dyn Consensus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Consensus")
    }
}

/// [`Consensus::submit`] as a future. Dropping it does not withdraw the command.
///
/// # Errors
///
/// Those that the command's [`Done`] receives.
pub async fn propose(
    consensus: &dyn Consensus,
    command: Command,
) -> Result<Committed, ProposeError> {
    let (tell, told) = tokio::sync::oneshot::channel();
    consensus.submit(
        command,
        Box::new(move |result| {
            // The caller may have gone; the command stands all the same.
            let _ = tell.send(result);
        }),
    );
    told.await.unwrap_or(Err(ProposeError::ShuttingDown))
}

/// How long a command waits until all members have reported that they know its version (I29): a new
/// leader asks them within a second or two, and asks a member that comes back every second.
pub const KNOWN_WITHIN: Duration = Duration::from_secs(5);
/// Pause between two tries.
const AGAIN: Duration = Duration::from_millis(100);

/// Proposes a command that may be the first of its version in the log. An operator's command right after
/// an election is thus not refused because members report their versions only a moment later.
///
/// Dropping the future leaves what was proposed alone.
///
/// # Errors
///
/// Those of [`propose`]; [`ProposeError::VersionNotKnown`] if a member did not report the version within
/// five seconds.
pub async fn propose_when_known(
    consensus: &dyn Consensus,
    runtime: &Runtime,
    command: Command,
) -> Result<Committed, ProposeError> {
    propose_known_within(consensus, runtime, command, KNOWN_WITHIN).await
}

/// As [`propose_when_known`], for a caller that would try elsewhere by then.
///
/// # Errors
///
/// As there, but within `limit`.
pub async fn propose_known_within(
    consensus: &dyn Consensus,
    runtime: &Runtime,
    command: Command,
    limit: Duration,
) -> Result<Committed, ProposeError> {
    let give_up_at = runtime.clock.now() + limit;
    loop {
        let result = propose(consensus, command.clone()).await;
        let may_pass = matches!(result, Err(ProposeError::VersionNotKnown { .. }));
        if !may_pass || runtime.clock.now() >= give_up_at {
            return result;
        }
        runtime.sleep(AGAIN).await;
    }
}

/// How long copies of a command that has not looked at everything are proposed. Beside 10⁷ locks a scope
/// takes about ten seconds.
const FINISHED_WITHIN: Duration = Duration::from_mins(1);
/// Pause before the next copy: others get in between.
const GO_ON_AFTER: Duration = Duration::from_millis(2);

/// As [`propose_when_known`], for a command that may have more to look at than one command may
/// ([`Rejection::Unfinished`]): copies of it go on from where the one before stopped.
///
/// Dropping the future leaves what was proposed alone.
///
/// # Errors
///
/// As there. After a minute the outcome may be [`Rejection::Unfinished`].
pub async fn propose_until_finished(
    consensus: &dyn Consensus,
    runtime: &Runtime,
    command: Command,
) -> Result<Committed, ProposeError> {
    let give_up_at = runtime.clock.now() + FINISHED_WITHIN;
    loop {
        let committed = propose_when_known(consensus, runtime, command.clone()).await?;
        let unfinished = matches!(committed.outcome, Err(Rejection::Unfinished { .. }));
        if !unfinished || runtime.clock.now() >= give_up_at {
            return Ok(committed);
        }
        runtime.sleep(GO_ON_AFTER).await;
    }
}

/// An entry of the log, right after it was applied.
#[derive(Clone, Copy)]
pub struct AppliedEntry<'a> {
    /// Its place in the log.
    pub index: LogIndex,
    /// The tenure in which it was proposed.
    pub tenure: Tenure,
    /// What it has.
    pub content: EntryContent<'a>,
    /// The state after it.
    pub table: &'a LockTable,
}

/// What an entry of the log has.
#[derive(Clone, Copy)]
pub enum EntryContent<'a> {
    /// Nothing: the first entry of a new leader.
    FirstOfTenure,
    /// The members, as they are from here on.
    Members(&'a MemberIds),
    /// Commands, and of each what it did.
    Batch(&'a [Command], &'a [Applied]),
}

/// The members of the cluster, by their node ids.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemberIds {
    /// Those that vote.
    pub voters: Vec<u64>,
    /// Those that do not.
    pub learners: Vec<u64>,
}

/// Keeps a record of what is applied on this node, leading or not, from before its first entry on.
pub trait Recorder: fmt::Debug + Send + Sync + 'static {
    /// The table is that of a snapshot as of `index`, or an empty one before the first entry: what was not heard up to
    /// there is not heard any more.
    fn restored(&self, index: LogIndex);

    /// An entry was applied. After a restart some are applied again that were heard before. Called under the table's
    /// lock: quick, no waiting.
    fn applied(&self, entry: &AppliedEntry<'_>);
}

/// Receives everything that is applied, in order, on every node, leading or not.
pub trait Listener: Send + Sync + 'static {
    /// The commands of entry `index` were applied and reported `events`; `table` is the state after it.
    /// Called under the table's lock and before the proposers' [`Done`]: quick, no waiting.
    fn applied(&self, index: LogIndex, events: &[Event], table: &LockTable);

    /// The whole state was replaced by a snapshot as of `index`.
    fn restored(&self, index: LogIndex, table: &LockTable);
}
