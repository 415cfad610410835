//! The async client of Holdfast: fair locks with leases, fencing tokens and pushed grants.
//!
//! ```no_run
//! use std::time::Duration;
//!
//! #[tokio::main(flavor = "current_thread")]
//! async fn main() -> holdfast::Result<()> {
//!     // One session, kept by one background task: keepalives, reconnects, changes of leader.
//!     let client = holdfast::Client::connect(["127.0.0.1:7420"]).await?;
//!
//!     // Waits in the lock's queue, first in first out; nobody polls.
//!     let guard = client.lock("orders/42").wait(Duration::from_secs(30)).await?;
//!
//!     // Give the token to the resource: it refuses a token lower than the largest it has seen.
//!     println!("{} is held under token {}", guard.name(), guard.token());
//!
//!     // Work is dropped where it stands when the lock is not certainly held any more.
//!     guard.run(async { /* … */ }).await?;
//!
//!     guard.release().await?;
//!     client.close().await
//! }
//! ```
//!
//! # More than one lock
//!
//! - [`Client::lock`]`(…)`[`.shared()`](Acquire::shared): readers beside readers.
//! - [`Client::lock_all`]: several locks, all of them or none, under one token.
//! - [`Client::any_of`]: whichever of several are free.
//! - [`Guard::value`], [`Guard::set_value`]: a few bytes that go to the next holder with the grant.
//! - [`Acquire::enqueue`]: the place in the queue, as a future and as a stream of changes.
//! - [`Client::election`]: one leader at a time, and observers who are told who leads.
//! - [`Client::semaphore`]: up to so many permits of one lock are held together.
//! - [`Client::sequence`]: numbers that are given out once.
//! - [`Client::claim`]: takes over a hold or a place that was imported from another store.
//! - [`Reader::watch`]: changes of locks, for observers without a session.
//!
//! `client/examples` shows them at work: fenced writes, a batch worker, leader election.
//!
//! # What is promised
//!
//! - While [`Guard::is_safe`] is true, no other client holds its locks; where it shares a lock, no
//!   other client holds that lock exclusively. A guard that is not safe never becomes safe again.
//! - Tokens of later grants are larger, for ever (I3).
//! - Dropping an acquire or a guard leaves nothing behind: the client cancels the request or
//!   releases the hold.
//! - A request keeps its place in a queue over broken connections and changes of leader.
//!
//! No lock can hold back a write that was on its way when the lock was lost. The token is for that.

mod acquire;
mod admin;
mod attaching;
mod backup;
mod builder;
mod busy;
mod client;
mod cluster;
mod contention;
mod cut_off;
mod election;
mod endpoints;
mod explain;
mod freeze;
mod guard;
mod history;
mod hold;
mod import;
mod info;
mod items;
mod lease;
mod owner;
mod queue_place;
mod quotas;
mod reader;
mod rules;
mod scopes;
mod semaphore;
mod sequence;
mod session;
mod session_info;
mod transport;
mod value;
mod watch;
mod wire;

pub use acquire::{Acquire, TryAcquire};
pub use admin::Admin;
pub use backup::BackupStream;
pub use builder::Builder;
pub use busy::{Busiest, BusyLock, BusyOrder, SessionPage, Totals};
pub use client::Client;
pub use cluster::{ClusterMember, ClusterStatus};
pub use contention::{Contention, Contentions};
pub use cut_off::{Ending, EndingHold};
pub use election::{Campaign, Election, Leader, LeaderEvent, Leaders, Leadership};
pub use explain::{CycleStep, ExplainedHolder, ExplainedLock, ExplainedWait, Explanation};
pub use freeze::Freeze;
pub use guard::{Guard, GuardedLock};
pub use history::{HistoryEntry, HistoryEvent, HistoryPage, HistoryQuery};
pub use holdfast_guard::{
    Error, FencingToken, GuardState, GuardStates, Holder, LostReason, Mode, RefusalReason, Result,
};
pub use holdfast_runtime::Instant;
#[cfg(feature = "tls")]
pub use holdfast_tls::Tls;
pub use import::{ImportGroup, ImportOutcome, ImportRow, ImportedState};
pub use info::{
    ClosedLock, LockInfo, LockScope, Member, NodeStatus, Page, PermitLimit, Place, Waiter,
};
pub use items::LockItem;
pub use owner::Owner;
pub use queue_place::QueuePlace;
pub use quotas::{IdentityUsage, Quota, Quotas};
pub use reader::Reader;
pub use rules::{AuthStatus, Right, Role, Rules, TokenInfo};
pub use scopes::{ScopeStatus, Scopes};
pub use semaphore::Semaphore;
pub use sequence::{Sequence, SequenceInfo};
pub use session_info::{RequestState, SessionInfo, SessionRequest};
/// For the recipes, whose time service is reached in the same way.
#[cfg(feature = "tls")]
#[doc(hidden)]
pub use transport::Dialling;
#[doc(hidden)]
pub use transport::{Bearer, GrpcTransport, Line, told};
pub use value::Value;
pub use watch::{ChangeKind, LockChange, Watch, WatchEvent};
