//! One interface to lock by, over Holdfast or over the lock recipes that teams run on Cassandra.
//!
//! [`RemoteLocker`] is the interface: a service that is written against it moves from one store to
//! the other by building another locker. The native [`Client`](holdfast::Client) implements it.
//!
//! # On Cassandra
//!
//! | locker | recipe | tables |
//! |---|---|---|
//! | `Lease` | a row with an owner and a TTL, by LWT | `leases(name, owner, value)` |
//! | `Queue` | a row of places in the queue, and a row with the holder | `lock_queue`, `lock_main` |
//! | `Tokens` | a row with a session for each lock, by LWT; sessions send heartbeats, a housekeeper removes dead ones | `tokens`, `token_times` |
//! | `Bakery` | a row of numbers, the lowest holds the lock, and a row of flags that mark clients drawing a number | `numbers`, `choosing` |
//! | `Shadow` | a row in which each client tests whether it is alone, and a row with the holder | `lock_shadow`, `lock_main` |
//! | `OptimisticTokens` | a row for each session that wants the lock; a session that is alone holds it | `optimistic_tokens` |
//!
//! Each locker is built from the caller's own session of the `scylla` driver. It excludes, and is excluded by, any
//! other client of the same recipe on the same table. Its promises hold as long as:
//!
//! - the wall clocks of any two nodes differ by at most the locker's `max_skew`;
//! - at most one of three nodes is down, and the keyspace has three replicas;
//! - a process checks its guard before it acts: a process that was paused past its safe deadline finds the guard lost,
//!   but no lock can hold back what it sent before;
//! - only the recipe writes to the tables.
//!
//! A `Locker` combines one of them with the native client. It moves from one store to the other while its locks are
//! held, beside processes that have not moved yet.
//!
//! [`clock`] is the time service that the queue can take its places from. A [`WorkQueue`] is no locker: it hands out
//! items of work, each to one worker at a time, by the bakery algorithm of its article.
//!
//! No recipe can push: every waiter polls, and a release wakes none of them.
//!
//! The lockers report to the facades `metrics` ([`describe_metrics`]) and `tracing`: a span `lock` for each lock that is asked for, until it
//! is given back.

mod alarms;
pub mod bakery;
mod batch;
mod cassandra;
mod cells;
mod claims;
pub mod clock;
mod doctor;
pub mod fallback;
pub mod lease;
mod lock_task;
mod locker;
mod locker_base;
mod measures;
pub mod modes;
mod opening;
pub mod optimistic;
mod owner;
pub mod queue;
pub mod recipe;
mod row_timing;
mod schema;
pub mod shadow;
pub mod tokens;
mod turns;
pub mod work;

#[cfg(test)]
mod name;
#[cfg(test)]
mod seed_clients;
#[cfg(test)]
mod test_support;

#[cfg(test)]
use holdfast_keyspace::model;
use holdfast_keyspace::{database, statement};

pub use holdfast_guard::{
    Error, FencingToken, GuardState, GuardStates, LostReason, RefusalReason, Result,
    check_lock_name,
};
pub use holdfast_tls::Tls;
pub use locker::{RemoteGuard, RemoteLocker, Wait};
/// For `holdfast-migrate`, which reads the tables that the lockers write.
#[doc(hidden)]
pub use opening::open;
pub use opening::{Contact, Credentials, SerialScope};
pub use schema::{Grants, Layout, NoReplication, Replication, Schema};
pub use {
    bakery::{Bakery, BakeryForm, BakeryTables},
    batch::{Batch, Bunch},
    cassandra::{Cassandra, LockerOptions},
    claims::{Claim, ClaimState, ClaimedLock},
    clock::TimePort,
    clock::{TimeAccess, TimeClient, TimeOptions, TimeReplica, TimeTable, TimeUpdate},
    database::StatementCounts,
    doctor::{Doctor, Finding, Verdict},
    fallback::FallbackOptions,
    lease::{Leader, Leadership, Lease, LeaseTable, Observer, Sequence, SequencePlace, Sequences},
    locker::OnCassandra,
    measures::describe_metrics,
    modes::{
        LeaderSeen, Locker, LockerBuilder, LockerLeadership, LockerMode, LockerObserver,
        LockerSequence, ModesTable, MoveRefused, Registered, ScopeModes, ScopeView, Stage,
    },
    optimistic::{OptimisticTable, OptimisticTokens},
    owner::Writer,
    queue::{LocalTime, Queue, QueueTables, QueueTime},
    recipe::Recipe,
    shadow::{Shadow, ShadowTables},
    tokens::{Housekeeper, Removed, Sweep, TokenTables, Tokens},
    work::{ItemId, ItemStatus, Listed, WorkItem, WorkQueue, WorkTables},
};
#[doc(hidden)]
pub use {
    cassandra::recipe_on,
    owner::{is_ours, service_of},
    tokens::term_of,
};
