//! One voter: the same code, without other members to wait for.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt as _;
use holdfast_core::{
    AccessName, Acquired, Answer, Batch, Caller, Command, Deed, Event, FencingToken, Identity,
    Item, Label, Limits, LockName, LockTable, LogIndex, Missing, NAMES_MAX, NamePrefix, Need,
    Rejection, RequestId, Right, RuleChange, SessionId, VALUE_BYTES_MAX, ValueChange, Verb,
};
use holdfast_mutants::{Mutant, arm};

use openraft::ServerState;
use openraft::async_runtime::watch::WatchReceiver as _;
use openraft::raft::VoteRequest;

use super::cluster::{
    Cluster, acquire, commit, fault_of, has_session, open, open_session, outcome, submit,
};
use crate::consensus::{Consensus, Listener};
use crate::error::ProposeError;
use crate::raft::proposer::MAX_BATCH_BYTES;
use crate::raft::types::{CommittedLeaderId, EncodedBatch, Vote};
use crate::raft::{Fault, Forming, Replica, ReplicaConfig, ReplicaStore};
use crate::storage::RecordKind;

const AS_IT_IS: fn(&mut ReplicaConfig) = |_| ();

#[tokio::test(start_paused = true)]
async fn a_node_alone_forms_its_cluster_leads_and_commits() {
    let cluster = Cluster::started(1, AS_IT_IS).await;
    let (id, tenure) = cluster.leader().await;
    cluster.formed().await;
    let node = cluster.replica(id);

    let session = open(node).await;

    assert!(has_session(node, session));
    let confirmed = node.confirm().await.unwrap();
    assert_eq!(confirmed.tenure, tenure);
    assert_eq!(*node.forming().borrow(), Forming::Formed);
    assert!(node.status().cluster.is_some());
    cluster.shutdown().await;
}

/// A thousand commands submitted at once: the first is proposed at once, those that come meanwhile
/// go together.
#[tokio::test(start_paused = true)]
async fn commands_submitted_together_share_entries_and_keep_their_order() {
    let cluster = Cluster::started(1, AS_IT_IS).await;
    let (id, _) = cluster.leader().await;
    let node = cluster.replica(id);
    let session = open(node).await;
    let before = node.status().last_log.unwrap();

    let waiting: Vec<_> =
        (0..1_000).map(|request| submit(node, acquire(session, request, "jobs"))).collect();
    let mut places = Vec::new();
    for told in waiting {
        match outcome(told.await.unwrap()) {
            Ok(Answer::Acquired { state: Acquired::Queued { place, .. }, .. }) => {
                places.push(place);
            }
            Ok(Answer::Acquired { state: Acquired::Granted { .. }, .. }) => {}
            other => panic!("{other:?}"),
        }
    }

    assert_eq!(places, (0..999).collect::<Vec<u64>>());
    let entries = node.status().last_log.unwrap() - before;
    assert!(entries <= 4, "1,000 commands took {entries} entries");
    cluster.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_restart_goes_on_from_snapshot_and_log() {
    let mut cluster = Cluster::started(1, |config| {
        config.snapshot_log_bytes = 4 << 10;
        config.log_kept = 0;
    })
    .await;
    let (_, tenure) = cluster.leader().await;
    let mut sessions = Vec::new();
    for _ in 0..50 {
        sessions.push(open(cluster.replica(1)).await);
    }
    cluster.until("a snapshot", |cluster| cluster.replica(1).status().snapshot.is_some()).await;
    // The last commands that a leader proposes by itself.
    let limited = |cluster: &Cluster| {
        let mut limits = (None, None);
        cluster.replica(1).read(&mut |table, _| {
            limits = (table.max_table_bytes(), table.work_limit());
        });
        limits.0.is_some() && limits.1.is_some()
    };
    cluster.until("the limits of bytes and of work", limited).await;
    let hash = cluster.hashes();

    cluster.restart(1).await;
    let (_, next) = cluster.leader().await;

    assert!(next > tenure, "a term was led twice: {tenure} and {next}");
    assert_eq!(cluster.hashes(), hash);
    assert!(sessions.iter().all(|session| has_session(cluster.replica(1), *session)));
    cluster.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_leader_puts_its_configured_limits_into_the_log() {
    let cluster = Cluster::started(1, |config| config.limits.max_sessions = 1).await;
    cluster.leader().await;
    let node = cluster.replica(1);
    let limits = |table: &LockTable| table.limits();
    cluster
        .until("the limits are set", |cluster| {
            let mut now = Limits::default();
            cluster.replica(1).read(&mut |table, _| now = limits(table));
            now.max_sessions == 1
        })
        .await;
    open(node).await;

    let second = commit(node, open_session()).await.outcome;

    assert_eq!(second, Err(Rejection::TooManySessions { limit: 1 }));
    cluster.shutdown().await;
}

/// An eighth of the places, one of ten here, is reserved for commands that free.
#[tokio::test(start_paused = true)]
async fn commands_past_the_limit_are_refused_and_the_others_are_not() {
    let cluster = Cluster::started(1, |config| config.max_pending_commands = 10).await;
    cluster.leader().await;
    let node = cluster.replica(1);

    let waiting: Vec<_> = (0..15).map(|_| submit(node, open_session())).collect();
    let mut refused = 0;
    for told in waiting {
        match told.await.unwrap() {
            Ok(_) => {}
            Err(ProposeError::Overloaded { limit: 10 }) => refused += 1,
            Err(other) => panic!("{other}"),
        }
    }

    assert_eq!(refused, 6);
    cluster.shutdown().await;
}

/// A session's holds under these names; returns their tokens.
async fn hold(node: &Arc<Replica>, session: SessionId, locks: u64) -> Vec<FencingToken> {
    let mut tokens = Vec::new();
    for request in 1..=locks {
        let name = format!("{session}/{request}");
        let held = outcome(submit(node, acquire(session, request, &name)).await.unwrap());
        let Ok(Answer::Acquired { state: Acquired::Granted { token, .. }, .. }) = held else {
            panic!("not granted: {held:?}")
        };
        tokens.push(token);
    }
    tokens
}

fn release(session: SessionId, token: FencingToken) -> Command {
    Command::Release { session, done_below: RequestId::new(0), token, locks: Vec::new() }
}

fn cancel(session: SessionId, request: u64) -> Command {
    Command::Cancel { session, done_below: RequestId::new(0), request: RequestId::new(request) }
}

/// I31: commands that free shrink the load, however many there are.
#[tokio::test(start_paused = true)]
async fn what_frees_is_never_refused_for_load() {
    let cluster = Cluster::started(1, |config| config.max_pending_commands = 16).await;
    cluster.leader().await;
    let node = cluster.replica(1);
    let mut holders = Vec::new();
    for _ in 0..8 {
        let session = open(node).await;
        holders.push((session, hold(node, session, 32).await));
        assert!(submit(node, acquire(session, 99, "one")).await.unwrap().is_ok());
    }
    let others: Vec<_> = (0..40).map(|_| submit(node, open_session())).collect();

    let released: Vec<_> = holders
        .iter()
        .flat_map(|(session, tokens)| tokens.iter().map(|token| release(*session, *token)))
        .map(|command| submit(node, command))
        .collect();
    let cancelled: Vec<_> =
        holders.iter().map(|(session, _)| submit(node, cancel(*session, 99))).collect();

    for told in released.into_iter().chain(cancelled) {
        let told = told.await.unwrap();
        assert!(told.as_ref().is_ok_and(|done| done.outcome.is_ok()), "{told:?}");
    }
    let mut refused = 0;
    for told in others {
        refused += u64::from(told.await.unwrap() == Err(ProposeError::Overloaded { limit: 16 }));
    }
    assert_eq!(refused, 40 - 14, "all places but the two kept ones were taken");
    cluster.shutdown().await;
}

/// I31: a set is given back name by name, and values are confirmed meanwhile (seed 1000002586).
#[tokio::test(start_paused = true)]
async fn each_lock_of_a_set_can_be_given_back_alone_beside_values_that_are_confirmed() {
    assert_eq!(releases_refused_beside_confirmed_values().await, 0);
}

/// The rule taken away: the confirmed values take the places of the releases.
#[tokio::test(start_paused = true)]
async fn values_that_are_confirmed_in_the_places_of_releases_have_some_refused() {
    arm(Some(Mutant::ConfirmsCountAsFreeing));
    let refused = releases_refused_beside_confirmed_values().await;
    arm(None);
    assert!(refused > 0);
}

async fn releases_refused_beside_confirmed_values() -> usize {
    let cluster = Cluster::started(1, |config| config.max_pending_commands = 16).await;
    cluster.leader().await;
    let node = cluster.replica(1);
    let session = open(node).await;
    let names: Vec<LockName> =
        (0..NAMES_MAX).map(|number| LockName::parse(&format!("set/{number}")).unwrap()).collect();
    let done_below = RequestId::new(0);
    let wanted = Command::Acquire {
        session,
        done_below,
        request: RequestId::new(1),
        items: names.iter().cloned().map(Item::exclusive).collect(),
        need: Need::All,
        wait: false,
    };
    let held = outcome(submit(node, wanted).await.unwrap());
    let Ok(Answer::Acquired { state: Acquired::Granted { token, .. }, .. }) = held else {
        panic!("not granted: {held:?}")
    };

    let confirm = |number: u64| Command::SetValue {
        session,
        done_below,
        request: RequestId::new(2 + number),
        token,
        lock: names[0].clone(),
        change: ValueChange::Confirm,
    };
    let confirmed: Vec<_> = (0..40).map(|number| submit(node, confirm(number))).collect();
    let release = |name: &LockName| Command::Release {
        session,
        done_below,
        token,
        locks: vec![name.clone()],
    };
    let released: Vec<_> = names.iter().map(|name| submit(node, release(name))).collect();

    let mut refused = 0;
    for told in released {
        let told = told.await.unwrap();
        refused += usize::from(told.is_err());
        assert!(told.is_err() || outcome(told).is_ok());
    }
    for told in confirmed {
        let told = told.await.unwrap();
        assert!(matches!(told, Ok(_) | Err(ProposeError::SessionOverloaded { .. })), "{told:?}");
    }
    cluster.shutdown().await;
    refused
}

/// I31: a client gives up waits that load refuses, and cancels them before it hears that; then it gives its lock back (run 9930007519).
#[tokio::test(start_paused = true)]
async fn a_release_has_its_place_behind_cancels_of_what_load_refused() {
    assert_eq!(releases_refused_behind_idle_cancels().await, 0);
}

/// The rule taken away: the cancels take the places of the releases.
#[tokio::test(start_paused = true)]
async fn cancels_that_count_with_releases_have_some_refused() {
    arm(Some(Mutant::CancelsCrowdReleases));
    let refused = releases_refused_behind_idle_cancels().await;
    arm(None);
    assert!(refused > 0);
}

async fn releases_refused_behind_idle_cancels() -> usize {
    let cluster = Cluster::started(1, |config| config.max_pending_commands = 16).await;
    cluster.leader().await;
    let node = cluster.replica(1);
    let session = open(node).await;
    let tokens = hold(node, session, 8).await;

    let cancels: Vec<_> =
        (100..140).map(|request| submit(node, cancel(session, request))).collect();
    let released: Vec<_> =
        tokens.iter().map(|token| submit(node, release(session, *token))).collect();

    let mut refused = 0;
    for told in released {
        let told = told.await.unwrap();
        refused += usize::from(told.is_err());
        assert!(told.is_err() || outcome(told).is_ok());
    }
    let mut idle_refused = 0;
    for told in cancels {
        idle_refused += usize::from(told.await.unwrap().is_err());
    }
    assert!(idle_refused > 40 - 10, "{idle_refused}: what does not exist has the session's share");
    cluster.shutdown().await;
    refused
}

/// I31: nothing shows the requests yet, which wait to be proposed or are on their way.
#[tokio::test(start_paused = true)]
async fn a_request_that_is_on_its_way_can_be_cancelled_whatever_else_frees() {
    let cluster = Cluster::started(1, |config| config.max_pending_commands = 64).await;
    cluster.leader().await;
    let node = cluster.replica(1);
    let (session, other) = (open(node).await, open(node).await);
    let held = hold(node, other, 1).await;
    let asked: Vec<_> =
        (1..=12).map(|request| submit(node, acquire(session, request, "jobs"))).collect();
    // The first of them leave the queue.
    tokio::task::yield_now().await;
    let left = 12 - node.status().waiting_commands;
    let flood: Vec<_> = (0..20).map(|_| submit(node, release(other, held[0]))).collect();

    let cancelled: Vec<_> =
        (1..=12).map(|request| submit(node, cancel(session, request))).collect();

    assert!(left > 0, "none is on its way");
    for told in cancelled.into_iter().chain(asked) {
        assert!(told.await.unwrap().is_ok());
    }
    let refused = futures_util::future::join_all(flood).await;
    assert!(refused.into_iter().any(|told| told.unwrap().is_err()));
    cluster.shutdown().await;
}

/// Four sessions that send as much as they can leave room for the fifth, for acquires and releases.
#[tokio::test(start_paused = true)]
async fn one_session_cannot_fill_the_queue() {
    let cluster = Cluster::started(1, |config| config.max_pending_commands = 64).await;
    cluster.leader().await;
    let node = cluster.replica(1);
    let (greedy, modest) = (open(node).await, open(node).await);

    let asked: Vec<_> =
        (1..=60).map(|request| submit(node, acquire(greedy, request, "jobs"))).collect();
    let other = submit(node, acquire(modest, 1, "jobs"));

    let mut refused = 0;
    for told in asked {
        match told.await.unwrap() {
            Ok(_) => {}
            Err(ProposeError::SessionOverloaded { session, limit: 14 }) if session == greedy => {
                refused += 1;
            }
            Err(other) => panic!("{other}"),
        }
    }
    assert_eq!(refused, 60 - 14, "a quarter of 56");
    assert!(other.await.unwrap().is_ok());
    cluster.shutdown().await;
}

/// 50,000 copies of one release, as a stream may send in a second: only the session that sends them
/// is refused.
#[tokio::test(start_paused = true)]
async fn a_flood_of_releases_is_refused_to_the_session_that_sends_it() {
    let cluster = Cluster::started(1, |config| config.max_pending_commands = 64).await;
    cluster.leader().await;
    let node = cluster.replica(1);
    let (rogue, other) = (open(node).await, open(node).await);
    let token = *hold(node, rogue, 1).await.first().unwrap();
    let tokens = hold(node, other, 32).await;

    let flood: Vec<_> = (0..50_000).map(|_| submit(node, release(rogue, token))).collect();
    let acquired = submit(node, acquire(other, 40, "jobs"));
    let released: Vec<_> =
        tokens.iter().map(|token| submit(node, release(other, *token))).collect();
    let waited = node.status().waiting_commands;

    assert!(waited <= 2 + 1 + 32, "{waited} commands wait");
    let mut refused = 0;
    for told in flood {
        let told = told.await.unwrap();
        refused += u64::from(matches!(
            told,
            Err(ProposeError::SessionOverloaded { session, .. }) if session == rogue
        ));
    }
    assert_eq!(
        refused,
        50_000 - 2,
        "its share of the kept places, which is as much as it could free"
    );
    assert!(acquired.await.unwrap().is_ok());
    for told in released {
        assert!(outcome(told.await.unwrap()).is_ok());
    }
    cluster.shutdown().await;
}

/// A session that sends one cancel is not told to send fewer.
#[tokio::test(start_paused = true)]
async fn a_cancel_behind_the_releases_of_others_is_refused_for_the_load_of_all() {
    let cluster = Cluster::started(1, |config| config.max_pending_commands = 64).await;
    cluster.leader().await;
    let node = cluster.replica(1);
    let (busy, other) = (open(node).await, open(node).await);
    let tokens = hold(node, busy, 8).await;

    let released: Vec<_> = tokens.iter().map(|token| submit(node, release(busy, *token))).collect();
    let cancelled = submit(node, cancel(other, 1));

    assert!(
        matches!(cancelled.await.unwrap(), Err(ProposeError::Overloaded { limit: 64 })),
        "the eight kept places are taken, and it has nothing to free"
    );
    for told in released {
        assert!(outcome(told.await.unwrap()).is_ok());
    }
    cluster.shutdown().await;
}

/// R1: 65,536 of the largest commands would take two gigabytes.
#[tokio::test(start_paused = true)]
async fn commands_past_the_limit_of_bytes_are_refused_and_releases_are_not() {
    let cluster = Cluster::started(1, |config| config.max_pending_bytes = 80_000).await;
    cluster.leader().await;
    let node = cluster.replica(1);
    let mut holders = Vec::new();
    for _ in 0..6 {
        let session = open(node).await;
        holders.push((session, hold(node, session, 1).await));
    }

    let asked: Vec<_> = holders.iter().map(|(one, _)| submit(node, large(*one))).collect();
    let status = node.status();
    let again = submit(node, large(holders[0].0));
    let released: Vec<_> =
        holders.iter().map(|(one, tokens)| submit(node, release(*one, tokens[0]))).collect();

    assert!(status.waiting_bytes > 33_000 && status.waiting_bytes <= 70_000, "{status:?}");
    let mut outcomes = Vec::new();
    for told in asked {
        outcomes.push(told.await.unwrap().map(|_| ()));
    }
    assert_eq!(outcomes[..2], [Ok(()), Ok(())]);
    assert!(
        outcomes[2..]
            .iter()
            .all(|one| *one == Err(ProposeError::OverloadedBytes { limit: 80_000 }))
    );
    assert!(again.await.unwrap().is_err());
    for told in released {
        assert!(outcome(told.await.unwrap()).is_ok());
    }
    assert_eq!(node.status().waiting_bytes, 0);
    cluster.shutdown().await;
}

/// The largest set of the longest names: 33 KB.
fn large(session: SessionId) -> Command {
    let name = |number| LockName::parse(&format!("{number:0>512}")).unwrap();
    let items = (0..NAMES_MAX).map(|number| Item::exclusive(name(number))).collect();
    let (request, done_below) = (RequestId::new(2), RequestId::new(0));
    Command::Acquire { session, done_below, request, items, need: Need::All, wait: true }
}

/// The rule of the test above taken away.
#[tokio::test(start_paused = true)]
async fn without_the_limit_of_bytes_more_than_that_waits() {
    let cluster = Cluster::started(1, |config| config.max_pending_bytes = 80_000).await;
    cluster.leader().await;
    let node = cluster.replica(1);
    let mut sessions = Vec::new();
    for _ in 0..6 {
        sessions.push(open(node).await);
    }

    arm(Some(Mutant::PendingBytesNotCounted));
    let asked: Vec<_> = sessions.iter().map(|one| submit(node, large(*one))).collect();
    arm(None);

    let waiting = node.status().waiting_bytes;
    assert!(waiting > 80_000, "{waiting} bytes of {} commands", asked.len());
    cluster.shutdown().await;
}

/// Every repetition has the same result: commands that left leave nothing in the counts.
#[tokio::test(start_paused = true)]
async fn what_was_refused_is_counted_and_what_left_makes_room() {
    let cluster = Cluster::started(1, |config| config.max_pending_commands = 16).await;
    cluster.leader().await;
    let node = cluster.replica(1);
    for _ in 0..3 {
        let session = open(node).await;
        let asked: Vec<_> =
            (1..=10).map(|request| submit(node, acquire(session, request, "jobs"))).collect();
        let mut refused = 0;
        for told in asked {
            refused += u64::from(told.await.unwrap().is_err());
        }
        assert_eq!(refused, 6, "its share is four places");
    }

    assert_eq!(node.metrics().commands_refused.get(), 18);
    assert_eq!((node.status().waiting_commands, node.status().waiting_bytes), (0, 0));
    cluster.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn below_the_disk_reserve_only_what_frees_or_ends_is_proposed() {
    let cluster = Cluster::started(1, AS_IT_IS).await;
    cluster.leader().await;
    let node = cluster.replica(1);
    let session = open(node).await;
    let (first, done_below) = (RequestId::new(1), RequestId::new(0));
    let lock = LockName::parse("held").unwrap();
    let held = outcome(submit(node, acquire(session, 1, "held")).await.unwrap());
    let Ok(Answer::Acquired { state: Acquired::Granted { token, .. }, .. }) = held else {
        panic!("not granted: {held:?}")
    };
    let write = |request, change| {
        let (request, lock) = (RequestId::new(request), lock.clone());
        submit(node, Command::SetValue { session, done_below, request, token, lock, change })
    };

    cluster.nodes[&1].store.set_free_space(1_000);
    cluster.runtime.sleep(Duration::from_secs(3)).await;
    let opened = submit(node, open_session()).await.unwrap();
    let acquired = submit(node, acquire(session, 2, "jobs")).await.unwrap();
    let set = write(3, ValueChange::Set(b"7".to_vec())).await.unwrap();
    let cleared = write(4, ValueChange::Clear).await.unwrap();
    let locks = vec![lock.clone()];
    let release = Command::Release { session, done_below: first, token, locks };
    let released = submit(node, release).await.unwrap();
    let cancelled = submit(
        node,
        Command::Cancel { session, done_below: RequestId::new(0), request: RequestId::new(9) },
    );
    let cancelled = cancelled.await.unwrap();
    let closed = submit(node, Command::CloseSession { session }).await.unwrap();
    cluster.nodes[&1].store.set_free_space(u64::MAX);
    cluster.runtime.sleep(Duration::from_secs(3)).await;

    assert_eq!(opened, Err(ProposeError::DiskReserve));
    assert_eq!(acquired, Err(ProposeError::DiskReserve));
    assert_eq!(set, Err(ProposeError::DiskReserve));
    assert!(outcome(cleared).is_ok());
    assert!(outcome(released).is_ok());
    assert!(outcome(cancelled).is_ok());
    assert_eq!(outcome(closed), Ok(Answer::SessionEnded));
    open(node).await;
    cluster.shutdown().await;
}

/// I28: openraft's next caller panics if the first one to wait for its end is gone.
#[tokio::test(start_paused = true)]
async fn a_stop_that_is_given_up_brings_no_later_caller_down() {
    let cluster = Cluster::started(1, AS_IT_IS).await;
    let (_, tenure) = cluster.leader().await;
    let node = cluster.replica(1);

    assert!(node.shutdown().now_or_never().is_none(), "it stops at once: nothing was given up");
    cluster.runtime.sleep(Duration::from_secs(1)).await;

    let request = VoteRequest::new(Vote::new(tenure.get() + 1, 2), None);
    assert!(node.raft().vote(request).await.is_err());
    node.shutdown().await;
}

/// I26: the leader asks the rules first, and nothing of it reaches the log. I34: a command that overtakes
/// the change that forbids it is refused when it is applied.
#[tokio::test(start_paused = true)]
async fn what_is_forbidden_is_never_appended() {
    let cluster = Cluster::started(1, AS_IT_IS).await;
    cluster.leader().await;
    let node = cluster.replica(1);
    let by = |who: &str, is_admin, deed| {
        let caller = Caller { identity: Identity::parse(who).unwrap(), is_admin };
        submit(node, Command::By { caller, deed })
    };
    let rule = |change| by("cn:ops", true, Deed::Rule { change });
    let worker = AccessName::parse("worker").unwrap();
    let right = |prefix| Right { verb: Verb::Acquire, prefix: NamePrefix::parse(prefix).unwrap() };
    let identity = Identity::parse("cn:app").unwrap();
    for change in [
        RuleChange::SetRole { role: worker.clone(), rights: [right("jobs/")].into() },
        RuleChange::SetRoles { identity, roles: [worker.clone()].into() },
        RuleChange::Turn { on: true },
    ] {
        assert_eq!(outcome(rule(change).await.unwrap()), Ok(Answer::RulesChanged));
    }
    let label = Label::parse("app").unwrap();
    let opens = |who| {
        by(
            who,
            false,
            Deed::OpenSession {
                ttl_ms: 5_000,
                label: label.clone(),
                secret_hash: [1; 32],
                knows_closed: true,
            },
        )
    };
    let opened = outcome(opens("cn:app").await.unwrap());
    let Ok(Answer::SessionOpened { session }) = opened else { panic!("not opened: {opened:?}") };

    let before = node.status().last_log;
    let forbidden = submit(node, acquire(session, 1, "pay/1")).await.unwrap();
    let stranger = opens("cn:stranger").await.unwrap();
    assert_eq!(node.status().last_log, before);
    let missing = Missing::On { verb: Verb::Acquire, name: "pay/1".to_owned() };
    assert_eq!(forbidden, Err(ProposeError::Forbidden(missing)));
    assert_eq!(stranger, Err(ProposeError::Forbidden(Missing::Any)));

    let taken_away = rule(RuleChange::SetRole { role: worker, rights: [right("pay/")].into() });
    let overtaken = submit(node, acquire(session, 2, "jobs/1"));
    assert!(outcome(taken_away.await.unwrap()).is_ok());
    let missing = Missing::On { verb: Verb::Acquire, name: "jobs/1".to_owned() };
    assert_eq!(outcome(overtaken.await.unwrap()), Err(Rejection::Forbidden(missing)));
    assert!(outcome(submit(node, acquire(session, 2, "pay/1")).await.unwrap()).is_ok());
    cluster.shutdown().await;
}

/// Beyond a group of the log store, sled would write outside the file that we sync (I19).
#[tokio::test(start_paused = true)]
async fn an_entry_of_the_largest_commands_stays_within_a_group_of_the_log() {
    let cluster = Cluster::started(1, AS_IT_IS).await;
    cluster.leader().await;
    let node = cluster.replica(1);
    let session = open(node).await;
    let name = |number: usize| LockName::parse(&format!("{number:0>512}")).unwrap();
    let items: Vec<Item> = (0..NAMES_MAX).map(|number| Item::exclusive(name(number))).collect();
    let commands = (1..=12).map(|request| {
        let (request, done_below) = (RequestId::new(request), RequestId::new(0));
        let change = ValueChange::Set(vec![7; VALUE_BYTES_MAX]);
        let (items, need, lock) = (items.clone(), Need::All, name(1));
        if request.get() % 2 == 0 {
            Command::Acquire { session, done_below, request, items, need, wait: true }
        } else {
            let token = FencingToken::from_raw(1);
            Command::SetValue { session, done_below, request, token, lock, change }
        }
    });

    // All of them wait to be proposed before the first is.
    let told: Vec<_> = commands.map(|command| submit(node, command)).collect();
    for told in told {
        assert!(told.await.unwrap().is_ok());
    }

    let log = cluster.nodes[&1].store.log();
    let records = log.entries(0..u64::MAX, usize::MAX);
    let batches = records.iter().filter(|record| record.kind == RecordKind::Batch);
    let sizes: Vec<usize> = batches.map(|record| record.payload.len()).collect();
    assert!(sizes.iter().all(|size| *size <= MAX_BATCH_BYTES + 1_024), "{sizes:?}");
    assert!(sizes.iter().any(|size| *size > 33_000), "{sizes:?}");
    cluster.shutdown().await;
}

/// I28, I29: no entry is skipped, none is guessed at.
#[tokio::test(start_paused = true)]
async fn an_entry_that_cannot_be_read_stops_the_node() {
    let unreadable: [&[u8]; 3] = [b"", &[0xFF, 0xFF, 0, 0], &[1, 0, 7, 7, 7]];
    for bytes in unreadable {
        let cluster = Cluster::started(1, AS_IT_IS).await;
        let (_, tenure) = cluster.leader().await;
        let node = cluster.replica(1);
        let batch = EncodedBatch(Bytes::from_static(bytes));
        let leader = CommittedLeaderId::new(tenure.get());
        node.raft().write(batch).with_leader(leader).await.unwrap();
        let fault = fault_of(&cluster.runtime, node).await;

        assert!(matches!(fault, Fault::Unreadable { .. }), "{bytes:?}: {fault:?}");
        let after = submit(node, open_session()).await.unwrap();
        assert!(after.is_err());
        cluster.shutdown().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_disk_that_fails_stops_the_node_and_nobody_is_told_a_lie() {
    let cluster = Cluster::started(1, AS_IT_IS).await;
    cluster.leader().await;
    let node = cluster.replica(1);

    cluster.nodes[&1].store.fail();
    let told = submit(node, open_session()).await.unwrap();
    fault_of(&cluster.runtime, node).await;

    assert!(!told.unwrap_err().is_certainly_not_applied());
    cluster.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_stop_answers_everybody() {
    let cluster = Cluster::started(1, AS_IT_IS).await;
    cluster.leader().await;
    let node = cluster.replica(1);

    let waiting: Vec<_> = (0..5_000).map(|_| submit(node, open_session())).collect();
    let confirming = node.confirm();
    node.shutdown().await;

    for told in waiting {
        assert!(told.await.is_ok(), "somebody was not answered");
    }
    drop(confirming.await);
    let late = submit(node, open_session()).await.unwrap();
    assert!(late.is_err());
}

/// The listener is called before the proposer's callback, with the state after the entry.
#[tokio::test(start_paused = true)]
async fn a_listener_hears_of_each_batch_before_its_proposer() {
    #[derive(Default)]
    struct Heard(Mutex<Vec<(u64, usize, u64)>>);
    impl Listener for Heard {
        fn applied(&self, index: LogIndex, events: &[Event], table: &LockTable) {
            let sessions = table.counts().sessions;
            self.0.lock().unwrap().push((index.get(), events.len(), sessions));
        }
        fn restored(&self, _index: LogIndex, _table: &LockTable) {}
    }
    let cluster = Cluster::started(1, AS_IT_IS).await;
    let heard = Arc::new(Heard::default());
    cluster.replica(1).attach(heard.clone());
    cluster.leader().await;

    let committed = commit(cluster.replica(1), open_session()).await;

    assert_eq!(heard.0.lock().unwrap().last(), Some(&(committed.index.get(), 1, 1)));
    cluster.shutdown().await;
}

/// I16: the leader's state hash travels in its batches; here every 1,024th entry checks itself.
#[tokio::test(start_paused = true)]
async fn witnesses_travel_in_batches() {
    let cluster = Cluster::started(1, AS_IT_IS).await;
    cluster.leader().await;
    let node = cluster.replica(1);
    for _ in 0..1_100 {
        let told = submit(node, open_session()).await.unwrap();
        assert!(told.is_ok());
    }

    let log = cluster.nodes[&1].store.log();
    let records: Vec<_> = log
        .entries(0..u64::MAX, usize::MAX)
        .into_iter()
        .filter(|record| record.kind == RecordKind::Batch)
        .filter_map(|record| Batch::decode(&record.payload).unwrap().witness)
        .collect();

    assert_eq!(records.len(), 1);
    assert_eq!(records[0].index, LogIndex::new(1_024));
    cluster.shutdown().await;
}

/// Restarts a member with a disk that finishes only its first writes. Returns the cluster if the
/// member leads according to openraft while the first entry of its tenure is not yet applied.
async fn leads_without_a_tenure(writes: u64) -> Option<Cluster> {
    let mut cluster = Cluster::started(1, AS_IT_IS).await;
    cluster.formed().await;
    let left = cluster.kill(1).await;
    left.stall_after(writes);
    cluster.start(1, left).await;
    cluster.runtime.sleep(Duration::from_secs(5)).await;
    let node = cluster.replica(1);
    let leads = node.raft().metrics().borrow_watched().state == ServerState::Leader;
    (leads && node.role().borrow().tenure().is_none()).then_some(cluster)
}

/// openraft's last report, that this node leads, stands for ever once it has stopped. A task that
/// asks again and again would take the only thread, and time would stand still: hence a separate
/// thread.
#[test]
fn a_leader_whose_disk_fails_before_its_tenure_began_ends() {
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .start_paused(true)
            .build()
            .unwrap();
        let faults = runtime.block_on(async {
            let mut faults = Vec::new();
            for writes in 0..6 {
                let Some(cluster) = leads_without_a_tenure(writes).await else { continue };
                cluster.nodes[&1].store.fail();
                faults.push(fault_of(&cluster.runtime, cluster.replica(1)).await);
                cluster.runtime.sleep(Duration::from_secs(5)).await;
                cluster.shutdown().await;
            }
            faults
        });
        let _ = tell.send(faults);
    });

    let faults = told.recv_timeout(Duration::from_mins(1)).expect("a task takes the whole thread");

    assert!(!faults.is_empty(), "no node was caught between election and tenure");
    assert!(faults.iter().all(|fault| matches!(fault, Fault::Stopped { .. })), "{faults:?}");
}
