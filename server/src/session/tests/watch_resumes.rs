//! Watches that go on where they ended, those that cannot, and those that wait in line for their state.

use holdfast_mutants::{Mutant, arm};
use holdfast_proto::v1::lock_change::What;
use holdfast_proto::v1::watch_event::Body as Told;

use super::watchers::{Watching, going_on};
use super::watching::{cancelling, change};
use super::*;
use crate::session::watch::PATIENCE;

fn keeping(changes: u64) -> SessionSettings {
    SessionSettings { watch_recent_changes: changes, ..SessionSettings::default() }
}

/// Index and name of every change that is ready.
async fn ready(watching: &mut Watching) -> Vec<(u64, String)> {
    let mut all = Vec::new();
    while let Some(told) = watching.next_now().await {
        let (index, name, ..) = change(told);
        all.push((index, name));
    }
    all
}

/// I23: nothing is missing, nothing comes twice, over the change of leader too: every node keeps what happened.
#[tokio::test(start_paused = true)]
async fn a_watch_goes_on_with_exactly_what_it_missed() {
    let world = World::new().await;
    let session = world.open_session("holder");
    world.acquire(session, 1, "jobs/1");
    let mut watching = world.watch("jobs/").await.unwrap();
    watching.until_synced().await;
    world.acquire(session, 2, "jobs/2");
    world.settle().await;
    assert_eq!(ready(&mut watching).await, [(3, "jobs/2".to_owned())]);
    assert_eq!((watching.complete, &watching.clusters[..]), (3, &[CLUSTER][..]));
    drop(watching);

    world.acquire(session, 3, "other");
    world.acquire(session, 4, "jobs/3");
    world.fake.follow(Some("node-2:7420"));
    world.settle().await;
    world.commit(cancelling(session, 1));
    world.fake.lead(2);
    world.settle().await;
    world.acquire(session, 5, "jobs/4");
    let mut watching = world.go_on("jobs/", 3).await.unwrap();

    let missed = [(5, "jobs/3"), (6, "jobs/1"), (7, "jobs/4")];
    let named = |told: &[(u64, &str)]| -> Vec<_> {
        told.iter().map(|(index, name)| (*index, (*name).to_owned())).collect()
    };
    assert_eq!(ready(&mut watching).await, named(&missed));
    assert_eq!((watching.resumed, watching.complete), (1, 7));
    world.acquire(session, 6, "jobs/5");
    world.settle().await;
    assert_eq!(ready(&mut watching).await, named(&[(8, "jobs/5")]));
    assert_eq!(world.hub.metrics().watches_resumed.get(), 1);
}

/// Thousands of changes go in parts, and what comes meanwhile follows.
#[tokio::test(start_paused = true)]
async fn what_was_missed_comes_in_parts_and_the_news_behind_it() {
    let world = World::new().await;
    let sessions = [(); 3].map(|()| world.open_session("holder"));
    let mut expected = Vec::new();
    for (request, session) in (1..=1_000).flat_map(|nth| sessions.map(|session| (nth, session))) {
        let name = format!("jobs/{request}/{}", session.get());
        world.acquire(session, request, &name);
        expected.push((4 + expected.len() as u64, name));
    }
    let mut watching = world.go_on("jobs/", 3).await.unwrap();
    world.settle().await;
    world.acquire(sessions[0], 1_001, "jobs/news");
    expected.push((3_004, "jobs/news".to_owned()));

    assert_eq!(ready(&mut watching).await, expected);
    assert_eq!(watching.complete, 3_004);
}

/// A watch that ended at index 2; then more happened than is kept.
async fn after_a_long_break(world: &World) -> Result<Watching, StreamError> {
    let session = world.open_session("holder");
    world.acquire(session, 1, "jobs/1");
    for request in 2..=4 {
        world.acquire(session, request, &format!("jobs/{request}"));
    }
    world.go_on("jobs/", 2).await
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_missed_more_than_is_kept_is_told_so() {
    let world = World::with(keeping(2)).await;
    let refused = after_a_long_break(&world).await.unwrap_err();

    let StreamError::Compacted(why) = &refused else { panic!("{refused:?}") };
    assert!(why.contains("after index 2 are not all kept, only those after 3"), "{why}");
    assert_eq!(world.hub.metrics().watches_compacted.get(), 1);
    assert_eq!(world.hub.metrics().watches.get(), 0);
    // From where it is kept it goes on.
    let mut watching = world.go_on("jobs/", 3).await.unwrap();
    assert_eq!(ready(&mut watching).await.len(), 2);
}

/// The rule of the test above taken away: `jobs/2` is never told.
#[tokio::test(start_paused = true)]
async fn a_watch_that_goes_on_past_what_is_kept_misses_a_change() {
    arm(Some(Mutant::WatchResumesOverGap));
    let world = World::with(keeping(2)).await;
    let watching = after_a_long_break(&world).await;
    arm(None);

    let told = ready(&mut watching.unwrap()).await;
    assert_eq!(told, [(4, "jobs/3".to_owned()), (5, "jobs/4".to_owned())]);
}

#[tokio::test(start_paused = true)]
async fn an_index_of_another_cluster_or_of_a_state_that_was_replaced_is_not_gone_on_from() {
    let world = World::new().await;
    let session = world.open_session("holder");
    world.acquire(session, 1, "jobs/1");
    let mut other = going_on("jobs/", 1);
    other.resume.as_mut().unwrap().cluster_id = Bytes::from_static(b"another");
    let refused = world.watch_as(&other, 1).await.unwrap_err();
    assert!(matches!(refused, StreamError::Compacted(_)), "{refused:?}");
    let refused = world.go_on("jobs/", 1 << 40).await.unwrap_err();
    assert!(matches!(refused, StreamError::Compacted(_)), "ahead of the log: {refused:?}");

    world.fake.follow(None);
    world.settle().await;
    world.fake.restore();
    world.fake.lead(2);
    world.settle().await;
    world.acquire(session, 2, "jobs/2");
    let refused = world.go_on("jobs/", 1).await.unwrap_err();
    assert!(matches!(refused, StreamError::Compacted(_)), "{refused:?}");
    assert_eq!(ready(&mut world.go_on("jobs/", 2).await.unwrap()).await.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_reads_what_it_missed_too_slowly_is_told_that_it_is_gone() {
    let world = World::with(keeping(2_000)).await;
    let session = world.open_session("holder");
    let mut request = 0;
    let mut some_more = || {
        for _ in 0..1_000 {
            request += 1;
            world.acquire(session, request, "jobs/1");
            world.commit(cancelling(session, request));
        }
    };
    some_more();
    let watching = world.go_on("jobs/", 1).await.unwrap();
    world.settle().await;
    some_more();

    let (told, end) = watching.rest().await;
    assert!(told.len() < 2_000, "{}", told.len());
    assert!(matches!(end, Err(StreamError::Compacted(_))), "{end:?}");
}

/// Nothing happens to its own locks, and more than is kept happens to others.
#[tokio::test(start_paused = true)]
async fn a_watch_of_a_quiet_prefix_is_told_how_far_it_has_come() {
    let world = World::with(keeping(8)).await;
    let mut watching = world.watch("quiet/").await.unwrap();
    watching.until_synced().await;
    let session = world.open_session("holder");
    for request in 1..=20 {
        world.acquire(session, request, &format!("busy/{request}"));
        world.settle().await;
        assert_eq!(ready(&mut watching).await, [], "no event");
    }
    let complete = watching.complete;
    assert!(complete > 15, "{complete}");
    drop(watching);

    world.acquire(session, 21, "quiet/1");
    let mut watching = world.go_on("quiet/", complete).await.unwrap();
    assert_eq!(ready(&mut watching).await, [(22, "quiet/1".to_owned())]);
}

/// Both messages hold the same bytes, not a copy.
#[tokio::test(start_paused = true)]
async fn a_change_is_encoded_once_for_all_watchers() {
    let world = World::new().await;
    let mut watchers = [
        world.watch("").await.unwrap(),
        world.watch("jobs").await.unwrap(),
        world.watch("jobs").await.unwrap(),
    ];
    for watching in &mut watchers {
        watching.until_synced().await;
    }
    let session = world.open_session("holder");
    world.acquire(session, 1, "jobs");
    world.settle().await;

    let events: Vec<Bytes> = watchers
        .iter_mut()
        .map(|watching| watching.raw().expect("it is told").encoded_events.remove(0))
        .collect();
    assert!(events.iter().all(|event| event.as_ptr() == events[0].as_ptr()));
}

/// Six clients that read nothing, two places.
#[tokio::test(start_paused = true)]
async fn initial_states_are_shown_to_so_many_at_a_time_and_who_does_not_read_gives_way() {
    let settings =
        SessionSettings { watch_states: 2, watch_page_locks: 1, ..SessionSettings::default() };
    let world = World::with(settings).await;
    let session = world.open_session("holder");
    for request in 1..=4 {
        world.acquire(session, request, &format!("jobs/{request}"));
    }
    let mut watchers = Vec::new();
    for _ in 0..6 {
        watchers.push(world.watch("").await.unwrap());
    }
    world.settle().await;
    let waiting = || world.hub.metrics().watches_waiting.get();
    assert_eq!(waiting(), 4, "two are shown their state");
    for watching in &mut watchers[2..] {
        assert_eq!(watching.raw(), None, "it waits in line");
    }

    world.runtime.sleep(PATIENCE).await;
    world.settle().await;
    assert_eq!(waiting(), 2, "the first two gave way");
    world.runtime.sleep(2 * PATIENCE).await;
    assert_eq!(waiting(), 0, "each has its first page, which nobody reads");
    for mut watching in watchers {
        watching.until_synced().await;
        let events = world.locks("").len();
        assert_eq!(events, 4);
    }
}

/// A client that read slowly once stands in line again, between two pages. What happens meanwhile to the lock of its
/// first page reaches it, however much that is.
#[tokio::test(start_paused = true)]
async fn a_watch_in_line_for_its_next_page_is_told_the_news_of_the_pages_before() {
    let settings = SessionSettings {
        watch_states: 1,
        watch_page_locks: 1,
        watch_backlog: 16,
        ..SessionSettings::default()
    };
    let world = World::with(settings).await;
    let session = world.open_session("holder");
    for request in 1..=4 {
        world.acquire(session, request, &format!("jobs/{request}"));
        world.acquire(session, 100 + request, &format!("other/{request}"));
    }
    let mut slow = world.watch("jobs/").await.unwrap();
    // It gives way while its second page waits for room.
    world.runtime.sleep(PATIENCE + PATIENCE / 2).await;
    let _other = world.watch("other/").await.unwrap();
    world.settle().await;
    for page in ["jobs/1", "jobs/2"] {
        let (_, Told::Lock(lock)) = slow.next().await else { panic!("no page") };
        assert_eq!(lock.name, page);
    }
    world.settle().await;
    assert_eq!(world.hub.metrics().watches_waiting.get(), 1);

    for request in 5..45 {
        world.acquire(session, request, "jobs/1");
        let (_, name, what, _) = change(slow.next().await);
        assert!(name == "jobs/1" && matches!(what, What::Queued(_)), "{name}: {what:?}");
    }
    let mut left = Vec::new();
    loop {
        match slow.next().await {
            (_, Told::Lock(lock)) => left.push(lock.name),
            (_, told) => {
                assert!(matches!(told, Told::Synced(_)), "{told:?}");
                break;
            }
        }
    }
    assert_eq!(left, ["jobs/3", "jobs/4"]);
}
