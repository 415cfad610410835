//! A State of many megabytes: the client takes it, or the session ends. No session holds locks for a
//! client that never gets its State (I31), and no client relies on a lease that was not renewed (I6).

use holdfast_core::{Command, LockName, Need, RequestId, SessionId, Tenure, ValueChange};
use holdfast_proto::v1::request_state::State as Stands;
use holdfast_proto::v1::{RefusalReason, State};
use prost::Message as _;

use super::*;

/// Most bytes that a client of 0.1 takes in a message.
const CLIENT_TAKES: usize = 16 << 20;
/// Locks of one set, each with the largest value: an entry of State of 290 KB.
const NAMES: u64 = 64;

impl World {
    /// Grants the session `sets` sets of [`NAMES`] locks with the largest values.
    fn hold_sets(&self, ticket: &Ticket, sets: u64) {
        let session = SessionId::new(ticket.session_id);
        let mut next_id = 1;
        for set in 0..sets {
            let request = RequestId::new(next_id);
            let name = |nth| LockName::parse(&format!("set {set}/lock {nth}")).unwrap();
            let locks: Vec<LockName> = (0..NAMES).map(name).collect();
            let items = locks.iter().cloned().map(holdfast_core::Item::exclusive).collect();
            let acquire = Command::Acquire {
                session,
                done_below: request,
                request,
                items,
                need: Need::All,
                wait: true,
            };
            let granted = self.fake.commit(acquire, Tenure::new(1)).outcome.unwrap();
            let holdfast_core::Answer::Acquired {
                state: holdfast_core::Acquired::Granted { token, .. },
                ..
            } = granted
            else {
                panic!("not granted: {granted:?}")
            };
            let change = |(nth, lock): (u64, LockName)| Command::SetValue {
                session,
                done_below: RequestId::new(next_id + 1),
                request: RequestId::new(next_id + 1 + nth),
                token,
                lock,
                change: ValueChange::Set(vec![7; 4 << 10]),
            };
            let changes = (0..).zip(locks).map(change).collect();
            self.fake.commit_all(changes, Tenure::new(1));
            next_id += 1 + NAMES;
        }
    }

    /// Resumes again and again for `length`, like a client that takes [`CLIENT_TAKES`] bytes in a
    /// message. `true` if it received a whole State.
    async fn resumes_for(&self, ticket: &Ticket, length: Duration) -> bool {
        let until = self.runtime.clock.now() + length;
        while self.runtime.clock.now() < until {
            let mut client = self.connect_holding(1);
            client.send(resume(ticket)).await;
            while let Some(frames) = client.message().await {
                if (ServerFrames { frames: frames.clone() }).encoded_len() > CLIENT_TAKES {
                    break;
                }
                if frames.iter().any(|frame| matches!(frame.body, Some(Body::State(_)))) {
                    return true;
                }
            }
            drop(client);
            self.runtime.sleep(Duration::from_millis(100)).await;
        }
        false
    }
}

/// The review's L3: 70 sets of 64 locks with the largest values are 18 MiB of State. The client of
/// 0.1 cannot decode it, comes back, and cannot decode it.
#[tokio::test(start_paused = true)]
async fn a_client_that_cannot_take_its_state_does_not_keep_its_session() {
    let world = World::new().await;
    let (gone, ticket) = world.session().await;
    world.hold_sets(&ticket, 70);
    drop(gone);

    let taken = world.resumes_for(&ticket, 4 * TTL).await;

    assert!(!taken);
    assert_eq!(world.hub.metrics().expiries.get(), 1, "held for ever by nobody (I31)");
}

/// The frames after one resume, until the stream fell silent.
struct Resumed {
    opened: Opened,
    /// In the order of the pages, with the index of each.
    pages: Vec<(u64, State)>,
    /// The frames after the State.
    behind: Vec<Body>,
    largest_message: usize,
}

impl Client {
    /// Receives until the stream is silent for a second.
    async fn take_state(&mut self) -> Resumed {
        let runtime = self.runtime.clone();
        let (mut opened, mut pages, mut behind, mut largest_message) = (None, vec![], vec![], 0);
        while let Ok(Some(frames)) = runtime.timeout(Duration::from_secs(1), self.message()).await {
            let message = ServerFrames { frames };
            largest_message = largest_message.max(message.encoded_len());
            for frame in message.frames {
                match frame.body.unwrap() {
                    Body::Opened(body) => opened = Some(body),
                    Body::State(page) => {
                        assert_eq!(behind, [], "nothing comes between pages");
                        pages.push((frame.index, page));
                    }
                    body => behind.push(body),
                }
            }
        }
        Resumed { opened: opened.expect("Opened"), pages, behind, largest_message }
    }
}

#[tokio::test(start_paused = true)]
async fn a_client_of_0_1_is_refused_a_state_it_cannot_take_by_the_limits_name_and_not_renewed() {
    let world = World::new().await;
    let (gone, ticket) = world.session().await;
    world.hold_sets(&ticket, 70);
    drop(gone);
    world.runtime.sleep(NEARLY_TTL).await;

    let (rest, end) = world.resume(&ticket).await.rest().await;

    let [Body::Refused(refused)] = &rest[..] else { panic!("not refused: {} frames", rest.len()) };
    let refusal = refused.refusal.as_ref().unwrap();
    assert_eq!((refusal.reason(), &*refusal.limit), (RefusalReason::Limit, "state_bytes"));
    assert_eq!(end, Ok(()));
    world.runtime.sleep(Duration::from_secs(2)).await;
    assert_eq!(world.hub.metrics().expiries.get(), 1, "its lease ran out where it was");
}

/// The largest State that fits is sent whole: Opened renews, and both are in one message.
#[tokio::test(start_paused = true)]
async fn a_client_of_0_1_gets_a_state_of_many_megabytes_whole() {
    let world = World::new().await;
    let (gone, ticket) = world.session().await;
    world.hold_sets(&ticket, 50);
    drop(gone);

    let mut client = world.resume(&ticket).await;
    let frames = client.message().await.unwrap();

    assert!(matches!(&frames[0].body, Some(Body::Opened(opened)) if !opened.lease_unmoved));
    let Some(Body::State(state)) = &frames[1].body else { panic!("not State") };
    let held = state.requests.iter().filter(|one| matches!(one.state, Some(Stands::Granted(_))));
    assert_eq!((held.count(), state.more), (50, false));
    let bytes = (ServerFrames { frames }).encoded_len();
    assert!(bytes > 12 << 20 && bytes < CLIENT_TAKES, "{bytes}");
}

#[tokio::test(start_paused = true)]
async fn a_large_state_comes_whole_in_pages_of_less_than_a_mebibyte_as_of_one_index() {
    let world = World::new().await;
    let (gone, ticket) = world.session().await;
    world.hold_sets(&ticket, 70);
    drop(gone);

    let resumed = world.resume_in_pages(&ticket).await.take_state().await;

    assert!(resumed.opened.lease_unmoved);
    assert!(resumed.largest_message < 1 << 20, "{}", resumed.largest_message);
    let (last, before) = resumed.pages.split_last().unwrap();
    assert!(before.len() > 30 && before.iter().all(|(_, page)| page.more) && !last.1.more);
    assert!(resumed.pages.iter().all(|(index, page)| {
        (index, page.next_request_id) == (&last.0, last.1.next_request_id)
    }));
    let requests = resumed.pages.iter().flat_map(|(_, page)| &page.requests);
    let values: usize = requests
        .map(|one| match &one.state {
            Some(Stands::Granted(granted)) => granted.values.len(),
            _ => 0,
        })
        .sum();
    assert_eq!(values, 70 * 64);
    assert_eq!(world.hub.metrics().outbox_bytes.get(), 0, "all has left");
}

/// A command of the older stream that was still on its way releases a set while the client takes the
/// first page (I23).
#[tokio::test(start_paused = true)]
async fn what_happens_while_state_is_sent_comes_behind_its_last_page() {
    let world = World::new().await;
    let (gone, ticket) = world.session().await;
    world.hold_sets(&ticket, 10);
    drop(gone);
    let mut client = world.resume_in_pages(&ticket).await;
    world.settle().await;

    let last = RequestId::new(9 * (1 + NAMES) + 1);
    let session = SessionId::new(ticket.session_id);
    let cancel = Command::Cancel { session, done_below: RequestId::new(0), request: last };
    world.fake.commit(cancel, Tenure::new(1));
    let Resumed { pages, behind, .. } = client.take_state().await;

    let held = pages.iter().flat_map(|(_, page)| &page.requests);
    let held = held.filter(|one| matches!(one.state, Some(Stands::Granted(_))));
    assert_eq!((held.count(), pages.len() > 2), (10, true), "as of one index");
    let [Body::Released(released)] = &behind[..] else { panic!("not released: {behind:?}") };
    assert_eq!(released.request_id, last.get());
}

/// I6 and I31: Opened moved nothing; the keepalive behind State does, like any other.
#[tokio::test(start_paused = true)]
async fn a_resume_in_pages_renews_only_by_the_keepalive_behind_state() {
    for answers in [false, true] {
        let world = World::new().await;
        let (gone, ticket) = world.session().await;
        drop(gone);
        world.runtime.sleep(NEARLY_TTL).await;
        let mut client = world.resume_in_pages(&ticket).await;
        assert!(client.opened().await.lease_unmoved);
        assert!(matches!(client.next().await, Body::State(_)));
        if answers {
            client.send(keep_alive(1)).await;
            assert!(matches!(client.next().await, Body::KeptAlive(_)));
        }
        drop(client);

        world.runtime.sleep(Duration::from_millis(1_200)).await;
        assert_eq!(world.hub.metrics().expiries.get(), u64::from(!answers));
        world.runtime.sleep(TTL).await;
        assert_eq!(world.hub.metrics().expiries.get(), 1);
    }
}

/// §5.2 and I31: a session whose client shows the secret is held on, but not without end.
#[tokio::test(start_paused = true)]
async fn resumes_without_end_put_an_expiry_off_by_one_ttl_at_most() {
    let world = World::new().await;
    let (_gone, ticket) = world.session().await;
    let mut streams = Vec::new();
    for _ in 0..19 {
        world.runtime.sleep(Duration::from_secs(1)).await;
        streams.push(world.resume_in_pages(&ticket).await);
    }
    assert_eq!(world.hub.metrics().expiries.get(), 0, "it is held on");

    world.runtime.sleep(Duration::from_millis(1_200)).await;
    assert_eq!(world.hub.metrics().expiries.get(), 1);
}

/// The State fits into a message, and the client of 0.1 never takes it all the same: its line is too
/// slow, or it stops.
#[tokio::test(start_paused = true)]
async fn a_client_of_0_1_that_shows_nothing_after_any_state_is_renewed_for_two_ttls() {
    let world = World::new().await;
    let (gone, ticket) = world.session().await;
    drop(gone);
    let begun = world.runtime.clock.now();
    let mut refused = None;
    for _ in 0..60 {
        match world.resume(&ticket).await.first_and_gone().await {
            Body::Opened(opened) => assert!(!opened.lease_unmoved),
            Body::Refused(now) => {
                refused = now.refusal;
                break;
            }
            other => panic!("neither opened nor refused: {other:?}"),
        }
        world.runtime.sleep(Duration::from_secs(1)).await;
    }

    let refused = refused.expect("it is refused in the end");
    let after = world.runtime.clock.now().saturating_since(begun);
    assert_eq!(
        (refused.reason(), &*refused.limit),
        (RefusalReason::Limit, "resumes_without_a_frame")
    );
    assert!(after > 2 * TTL && after < 2 * TTL + Duration::from_secs(2), "{after:?}");
    world.runtime.sleep(TTL + Duration::from_millis(200)).await;
    assert_eq!(world.hub.metrics().expiries.get(), 1);
}

/// Its connection breaks again and again; now and then a stream lives long enough for a keepalive.
#[tokio::test(start_paused = true)]
async fn a_client_of_0_1_whose_line_flaps_is_resumed_as_long_as_it_lives() {
    let world = World::new().await;
    let (gone, ticket) = world.session().await;
    drop(gone);
    for round in 1..=100 {
        let mut client = world.resume(&ticket).await;
        client.opened().await;
        world.runtime.sleep(Duration::from_secs(1)).await;
        if round % 15 == 0 {
            client.send(keep_alive(round)).await;
            world.settle().await;
        }
    }
    assert_eq!(world.hub.metrics().expiries.get(), 0);
}

impl Client {
    /// The first frame; then the client is gone.
    async fn first_and_gone(mut self) -> Body {
        self.next().await
    }
}
