//! Watchers on virtual time: what they receive, how they end, and that nothing waits for them.

use holdfast_core::{Command, FencingToken, RequestId, SessionId, Tenure, ValueChange};
use holdfast_core::{Label, LockName, Need};
use holdfast_mutants::{Mutant, arm};
use holdfast_proto::v1::LostReason;
use holdfast_proto::v1::lock_change::What;
use holdfast_proto::v1::watch_event::Body as Told;

use super::watchers::{Model, Watching};
use super::*;
use crate::session::watch::{ROUND_EVERY, UNCONFIRMED_MAX};

const TENURE: Tenure = Tenure::new(1);

/// Commands of a test, committed as if a client had proposed them.
impl World {
    pub(super) fn commit(&self, command: Command) {
        self.fake.commit(command, TENURE);
    }

    pub(super) fn open_session(&self, label: &str) -> SessionId {
        let label = Label::parse(label).unwrap();
        let open = Command::OpenSession { ttl_ms: 900_000, label, secret_hash: [0; 32] };
        let outcome = self.fake.commit(open, TENURE).outcome;
        let Ok(holdfast_core::Answer::SessionOpened { session }) = outcome else {
            panic!("{outcome:?}");
        };
        session
    }

    pub(super) fn acquire(&self, session: SessionId, request: u64, name: &str) {
        self.commit(acquiring(session, request, name));
    }
}

pub(super) fn acquiring(session: SessionId, request: u64, name: &str) -> Command {
    Command::Acquire {
        session,
        done_below: RequestId::new(0),
        request: RequestId::new(request),
        items: vec![holdfast_core::Item::exclusive(LockName::parse(name).unwrap())],
        need: Need::All,
        wait: true,
    }
}

pub(super) fn cancelling(session: SessionId, request: u64) -> Command {
    let request = RequestId::new(request);
    Command::Cancel { session, done_below: request, request }
}

/// One change each, as `(index, name, what, waiting)`.
pub(super) fn change(told: (u64, Told)) -> (u64, String, What, u64) {
    match told {
        (index, Told::Change(change)) => (index, change.name, change.what.unwrap(), change.waiting),
        other => panic!("not a change: {other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn an_empty_prefix_of_an_empty_table_is_synced_at_once() {
    let world = World::new().await;
    let mut watching = world.watch("").await.unwrap();

    assert!(matches!(watching.next().await, (0, Told::Synced(_))));
}

#[tokio::test(start_paused = true)]
async fn the_state_comes_first_in_the_order_of_names_and_only_below_the_prefix() {
    let world = World::new().await;
    let session = world.open_session("holder");
    for (request, name) in (1..).zip(["b/2", "a", "b/1", "b", "c"]) {
        world.acquire(session, request, name);
    }
    world.acquire(session, 9, "b/1");
    let mut watching = world.watch("b/").await.unwrap();

    let mut locks = Vec::new();
    loop {
        match watching.next().await {
            (_, Told::Lock(lock)) => locks.push(lock),
            (index, told) => {
                assert!(matches!(told, Told::Synced(_)));
                assert_eq!(index, 7);
                break;
            }
        }
    }
    let seen: Vec<_> = locks.iter().map(|lock| (lock.name.as_str(), lock.waiting)).collect();
    assert_eq!(seen, [("b/1", 1), ("b/2", 0)]);
    assert_eq!(locks[0].holders[0].label, "holder");
}

/// Two pages were read and the third was not: a release of a lock on them is sent, a release of a lock
/// after them leaves no trace. The names at the edges of the pages are those that could be lost, or sent
/// twice.
#[tokio::test(start_paused = true)]
async fn what_changes_between_two_pages_is_told_once_up_to_the_edge_of_the_last_one() {
    const PAGE: u64 = 256;
    let world = World::new().await;
    let session = world.open_session("holder");
    let name = |nth: u64| format!("lock/{nth:04}");
    for nth in 0..2 * PAGE + 10 {
        world.acquire(session, nth + 1, &name(nth));
    }
    // The first page lies in the transport, the second waits for room there.
    let mut watching = world.watch("").await.unwrap();
    world.settle().await;
    for nth in [2 * PAGE, 2 * PAGE - 1, PAGE, PAGE - 1] {
        world.commit(cancelling(session, nth + 1));
    }

    let mut model = Model::default();
    let mut changed = Vec::new();
    while !model.synced {
        let (index, told) = watching.next().await;
        if let Told::Change(change) = &told {
            changed.push(change.name.clone());
        }
        model.take_in(index, told);
    }
    assert_eq!(changed, [2 * PAGE - 1, PAGE, PAGE - 1].map(name));
    assert_eq!(model.locks, world.locks(""));
    watching.expect_silence(Duration::from_secs(1)).await;
}

/// Every kind of change, once, with its index.
#[tokio::test(start_paused = true)]
async fn every_change_is_told_once_and_in_order() {
    let world = World::new().await;
    let mut watching = world.watch("jobs").await.unwrap();
    watching.until_synced().await;
    let (first, second) = (world.open_session("first"), world.open_session("second"));

    world.acquire(first, 1, "jobs");
    let (index, name, what, waiting) = change(watching.next().await);
    let What::Granted(holder) = what else { panic!("{what:?}") };
    let told = (index, name.as_str(), holder.label.as_str(), waiting);
    assert_eq!(told, (3, "jobs", "first", 0));
    let token = holder.token;

    world.acquire(second, 1, "jobs");
    let (_, _, what, waiting) = change(watching.next().await);
    assert!(matches!(&what, What::Queued(waiter) if waiter.label == "second"), "{what:?}");
    assert_eq!(waiting, 1);

    world.commit(Command::SetValue {
        session: first,
        done_below: RequestId::new(0),
        request: RequestId::new(2),
        token: FencingToken::from_raw(token),
        lock: LockName::parse("jobs").unwrap(),
        change: ValueChange::Set(b"x".to_vec()),
    });
    let (_, _, what, _) = change(watching.next().await);
    let What::ValueChanged(changed) = what else { panic!("{what:?}") };
    assert_eq!(changed.value.unwrap().value.as_ref(), b"x");

    world.commit(Command::ExpireSession { session: first, tenure: TENURE });
    let (lost_at, _, what, waiting) = change(watching.next().await);
    let What::Lost(lost) = what else { panic!("{what:?}") };
    assert_eq!(lost.reason(), LostReason::SessionExpired);
    assert_eq!((lost.holder.unwrap().token, waiting), (token, 0));
    let (index, _, what, _) = change(watching.next().await);
    assert!(matches!(&what, What::ValueChanged(it) if it.value.as_ref().unwrap().suspect));
    assert_eq!(index, lost_at);
    let (index, _, what, _) = change(watching.next().await);
    assert!(matches!(&what, What::Granted(holder) if holder.label == "second"), "{what:?}");
    assert_eq!(index, lost_at);

    world.acquire(second, 2, "jobs");
    change(watching.next().await);
    world.commit(cancelling(second, 2));
    let (_, _, what, waiting) = change(watching.next().await);
    assert!(matches!(&what, What::Left(waiter) if waiter.request_id == 2), "{what:?}");
    assert_eq!(waiting, 0);
    world.commit(cancelling(second, 1));
    assert!(matches!(change(watching.next().await).2, What::Released(_)));
    watching.expect_silence(Duration::from_mins(1)).await;
}

/// An observer never sees a part of a set (I14): the changes of one entry travel in one message.
#[tokio::test(start_paused = true)]
async fn a_set_is_told_whole_in_one_message() {
    let world = World::new().await;
    let session = world.open_session("holder");
    let mut watching = world.watch("").await.unwrap();
    watching.until_synced().await;
    let Command::Acquire { session, done_below, request, mut items, need, wait } =
        acquiring(session, 1, "b")
    else {
        unreachable!()
    };
    items.push(holdfast_core::Item::shared(LockName::parse("a").unwrap()));
    world.commit(Command::Acquire { session, done_below, request, items, need, wait });

    let message = watching.message().await;
    let told: Vec<_> = message.into_iter().map(change).collect();
    let names: Vec<_> = told.iter().map(|(_, name, _, _)| name.as_str()).collect();
    assert_eq!(names, ["a", "b"]);
}

/// More holders than one event names follow as grants under the same index.
#[tokio::test(start_paused = true)]
async fn a_lock_with_many_readers_is_told_whole() {
    let world = World::new().await;
    for _ in 0..250 {
        let session = world.open_session("reader");
        let Command::Acquire { session, done_below, request, need, wait, .. } =
            acquiring(session, 1, "shared")
        else {
            unreachable!()
        };
        let items = vec![holdfast_core::Item::shared(LockName::parse("shared").unwrap())];
        world.commit(Command::Acquire { session, done_below, request, items, need, wait });
    }
    let mut watching = world.watch("").await.unwrap();
    let mut model = Model::default();
    let mut largest = 0;
    while !model.synced {
        let (index, told) = watching.next().await;
        if let Told::Lock(lock) = &told {
            largest = largest.max(lock.holders.len());
        }
        model.take_in(index, told);
    }

    assert_eq!(largest, 100);
    assert_eq!(model.locks, world.locks(""));
}

/// I27: the watch is cut, with the name of the limit; another one misses nothing, and the store goes on.
#[tokio::test(start_paused = true)]
async fn a_watcher_that_does_not_read_is_cut_and_nobody_else_is() {
    let settings = SessionSettings { watch_backlog: 64, ..SessionSettings::default() };
    let world = World::with(settings).await;
    let session = world.open_session("holder");
    let stuck = world.watch("").await.unwrap();
    let mut reading = world.watch("").await.unwrap();
    reading.until_synced().await;
    for request in 1..=500 {
        world.acquire(session, request, "jobs");
        world.commit(cancelling(session, request));
        for _ in 0..2 {
            change(reading.next().await);
        }
    }

    assert_eq!(world.hub.metrics().watches_cut.get(), 1);
    assert_eq!(world.hub.metrics().watches.get(), 1);
    assert_eq!(world.hub.metrics().grants.get(), 500);
    let (told, end) = stuck.rest().await;
    assert!(told.len() < 200, "{}", told.len());
    let limit = StreamError::Limit {
        limit: "watch_backlog",
        value: 64,
        message: "the watch was not read fast enough; begin it anew",
    };
    assert_eq!(end, Err(limit));
}

/// The limit counts what a watcher has not read, not what happens at once: a watcher that reads receives
/// an entry larger than the backlog.
#[tokio::test(start_paused = true)]
async fn one_entry_larger_than_the_backlog_cuts_nobody_who_reads() {
    let settings = SessionSettings { watch_backlog: 16, ..SessionSettings::default() };
    let world = World::with(settings).await;
    let session = world.open_session("holder");
    let mut watching = world.watch("").await.unwrap();
    watching.until_synced().await;
    let batch = (1..=1_000).map(|request| acquiring(session, request, &format!("jobs/{request}")));
    world.fake.commit_all(batch.collect(), TENURE);

    let mut model = Model { synced: true, ..Model::default() };
    while model.locks.len() < 1_000 {
        let (index, told) = watching.next().await;
        model.take_in(index, told);
    }
    assert_eq!(model.locks, world.locks(""));
}

#[tokio::test(start_paused = true)]
async fn watches_past_the_limit_are_refused_by_its_name_and_one_that_ends_makes_room() {
    let settings = SessionSettings { max_watches: 2, ..SessionSettings::default() };
    let world = World::with(settings).await;
    let first = world.watch("a").await.unwrap();
    let _second = world.watch("b").await.unwrap();

    let refused = world.watch("c").await.unwrap_err();
    assert!(matches!(refused, StreamError::Limit { limit: "max_watches", value: 2, .. }));
    drop(first);
    world.settle().await;
    let mut third = world.watch("c").await.unwrap();
    third.until_synced().await;
}

#[tokio::test(start_paused = true)]
async fn a_node_that_does_not_lead_serves_no_watch_and_names_the_leader() {
    let world = World::new().await;
    world.fake.follow(Some("node-2:7420"));
    world.settle().await;

    let refused = world.watch("").await.unwrap_err();
    let StreamError::Unavailable { leader, .. } = refused else { panic!("{refused:?}") };
    assert_eq!(leader.as_deref(), Some("node-2:7420"));
}

/// I18: a deposed leader that does not know it yet must not show the past.
#[tokio::test(start_paused = true)]
async fn a_watch_begins_only_after_a_quorum_round() {
    let world = World::new().await;
    world.fake.set_quorum(false);

    let refused = world.watch("").await.unwrap_err();
    assert!(matches!(refused, StreamError::Unavailable { .. }), "{refused:?}");
}

#[tokio::test(start_paused = true)]
async fn a_change_of_leader_ends_every_watch_with_where_to_go() {
    let world = World::new().await;
    let stuck = world.watch_holding("", 1).await.unwrap();
    let mut synced = world.watch("").await.unwrap();
    synced.until_synced().await;
    world.fake.follow(Some("node-2:7420"));
    world.settle().await;

    for watching in [stuck, synced] {
        let (_, end) = watching.rest().await;
        let Err(StreamError::Unavailable { leader, .. }) = end else { panic!("{end:?}") };
        assert_eq!(leader.as_deref(), Some("node-2:7420"));
    }
    assert_eq!(world.hub.metrics().watches.get(), 0);

    // The next tenure serves again.
    world.fake.lead(2);
    world.settle().await;
    world.watch("").await.unwrap().until_synced().await;
}

#[tokio::test(start_paused = true)]
async fn a_snapshot_that_replaces_the_state_ends_every_watch() {
    let world = World::new().await;
    let mut watching = world.watch("").await.unwrap();
    watching.until_synced().await;
    world.fake.restore();

    let (_, end) = watching.rest().await;
    assert!(matches!(end, Err(StreamError::Unavailable { .. })), "{end:?}");
}

/// No other message would reach its watchers: a leader that is cut off does not learn of another.
#[tokio::test(start_paused = true)]
async fn a_leader_that_is_long_without_a_quorum_ends_its_watches() {
    let world = World::new().await;
    let mut watching = world.watch("").await.unwrap();
    watching.until_synced().await;
    watching.expect_silence(3 * ROUND_EVERY).await;
    world.fake.set_quorum(false);
    let before = world.runtime.clock.now();

    let (_, end) = watching.rest().await;
    assert!(matches!(end, Err(StreamError::Unavailable { leader: None, .. })), "{end:?}");
    let took = world.runtime.clock.now().saturating_since(before);
    let longest = UNCONFIRMED_MAX + ROUND_EVERY + Duration::from_secs(1);
    assert!((2 * ROUND_EVERY..longest).contains(&took), "{took:?}");
}

/// A watch over a quorum that is missing during one round.
async fn over_one_failed_round() -> Watching {
    let world = World::new().await;
    let mut watching = world.watch("").await.unwrap();
    watching.until_synced().await;
    world.fake.set_quorum(false);
    world.runtime.sleep(ROUND_EVERY + ROUND_EVERY / 2).await;
    world.fake.set_quorum(true);
    world.runtime.sleep(4 * ROUND_EVERY).await;
    let session = world.open_session("holder");
    world.acquire(session, 1, "jobs");
    world.settle().await;
    watching
}

#[tokio::test(start_paused = true)]
async fn one_round_that_fails_ends_no_watch() {
    let mut watching = over_one_failed_round().await;

    assert!(matches!(change(watching.next().await).2, What::Granted(_)));
}

/// The rule of the test above taken away.
#[tokio::test(start_paused = true)]
async fn a_watch_that_one_round_ends_is_over() {
    arm(Some(Mutant::WatchEndsWithOneRound));
    let watching = over_one_failed_round().await;
    arm(None);

    let (_, end) = watching.rest().await;
    assert!(matches!(end, Err(StreamError::Unavailable { .. })), "{end:?}");
}

/// I32.
#[tokio::test(start_paused = true)]
async fn a_stop_ends_watches_at_once_whether_they_read_or_not() {
    let world = World::new().await;
    let session = world.open_session("holder");
    let stuck = world.watch_holding("", 1).await.unwrap();
    for request in 1..=10 {
        world.acquire(session, request, "jobs");
        world.settle().await;
    }
    let before = world.runtime.clock.now();
    world.hub.shutdown().await;

    assert_eq!(world.runtime.clock.now(), before);
    let (_, end) = stuck.rest().await;
    assert!(matches!(end, Err(StreamError::Unavailable { .. })), "{end:?}");
    assert!(matches!(world.watch("").await, Err(StreamError::Unavailable { .. })));
}

#[tokio::test(start_paused = true)]
async fn a_watcher_that_goes_leaves_nothing_behind() {
    let world = World::new().await;
    let session = world.open_session("holder");
    let mut watching = world.watch("jobs").await.unwrap();
    watching.until_synced().await;
    assert_eq!(world.hub.metrics().watches.get(), 1);
    drop(watching);
    world.settle().await;

    assert_eq!(world.hub.metrics().watches.get(), 0);
    let told = world.hub.metrics().watch_events.get();
    world.acquire(session, 1, "jobs");
    world.settle().await;
    assert_eq!(world.hub.metrics().watch_events.get(), told);
}

impl World {
    /// Sets the value of a lock of a new session `times` times, each of the largest size.
    fn change_values(&self, name: &str, times: u64) {
        let session = self.open_session("holder");
        let outcome = self.fake.commit(acquiring(session, 1, name), TENURE).outcome;
        let Ok(holdfast_core::Answer::Acquired {
            state: holdfast_core::Acquired::Granted { token, .. },
            ..
        }) = outcome
        else {
            panic!("{outcome:?}")
        };
        for request in (2..).map(RequestId::new).take(usize::try_from(times).unwrap()) {
            self.commit(Command::SetValue {
                session,
                done_below: request,
                request,
                token,
                lock: LockName::parse(name).unwrap(),
                change: ValueChange::Set(vec![7; 4 << 10]),
            });
        }
    }
}

/// I27: far fewer changes than `watch_backlog`, and more bytes than `outbox_bytes`.
#[tokio::test(start_paused = true)]
async fn a_watch_that_is_behind_by_many_bytes_is_cut() {
    let settings = SessionSettings { outbox_bytes: 1 << 20, ..SessionSettings::default() };
    let world = World::with(settings).await;
    let stuck = world.watch("").await.unwrap();
    world.settle().await;
    for round in 0..4 {
        world.change_values(&format!("jobs/{round}"), 100);
        world.settle().await;
    }

    let metrics = world.hub.metrics();
    assert_eq!((metrics.watches_cut.get(), metrics.watch_bytes.get()), (1, 0));
    let (_, end) = stuck.rest().await;
    assert!(matches!(end, Err(StreamError::Limit { limit: "outbox_bytes", .. })), "{end:?}");
}

/// I27: each watch is within its own bounds, and together they keep more than the budget. One that is
/// behind by more than its share ends; that is enough, and the others go on.
#[tokio::test(start_paused = true)]
async fn when_watches_keep_too_much_together_one_that_is_far_behind_ends_and_the_others_go_on() {
    let settings = SessionSettings {
        outbox_bytes: 2 << 20,
        outbox_bytes_total: 2 << 20,
        ..SessionSettings::default()
    };
    let world = World::with(settings).await;
    let first = world.watch("first").await.unwrap();
    let mut second = world.watch("second").await.unwrap();
    let mut slow = world.watch("slow").await.unwrap();
    world.settle().await;
    world.change_values("slow", 20);
    for round in 0..5 {
        for name in ["first", "second"] {
            world.change_values(&format!("{name}/{round}"), 100);
            world.settle().await;
        }
    }

    let metrics = world.hub.metrics();
    assert_eq!((metrics.watches.get(), metrics.watches_cut.get()), (2, 1));
    assert!(metrics.watch_bytes.get() < 2 << 20);
    let (_, end) = first.rest().await;
    let limit = matches!(end, Err(StreamError::Limit { limit: "outbox_bytes_total", .. }));
    assert!(limit, "{end:?}");
    second.until_synced().await;
    slow.until_synced().await;
}
