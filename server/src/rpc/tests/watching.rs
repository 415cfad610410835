//! Watches over real connections.

use std::collections::VecDeque;

use holdfast_proto::v1::{self, WatchRequest, WatchResponse, WatchResume, watch_event};

use super::*;

/// The events of the watch, one at a time.
struct Watched {
    stream: Streaming<WatchResponse>,
    read: VecDeque<watch_event::Body>,
    complete: u64,
    cluster_id: Bytes,
    resumed: bool,
}

impl Watched {
    async fn next(&mut self) -> Result<watch_event::Body, Status> {
        while self.read.is_empty() {
            let message = self.stream.message().await?.expect("the watch goes on");
            let events = message.events().unwrap().into_iter();
            self.read.extend(events.map(|event| event.body.unwrap()));
            self.complete = self.complete.max(message.complete_index);
            self.resumed |= message.resumed;
            if !message.cluster_id.is_empty() {
                self.cluster_id = message.cluster_id;
            }
        }
        Ok(self.read.pop_front().unwrap())
    }
}

impl Node {
    async fn watch(&self, prefix: &str) -> Result<Watched, Status> {
        self.watch_as(WatchRequest { prefix: prefix.to_owned(), resume: None }).await
    }

    async fn watch_as(&self, request: WatchRequest) -> Result<Watched, Status> {
        let stream = self.client().await.watch(request).await?.into_inner();
        let (read, cluster_id) = (VecDeque::new(), Bytes::new());
        Ok(Watched { stream, read, complete: 0, cluster_id, resumed: false })
    }
}

#[tokio::test]
async fn a_watch_tells_the_state_and_then_what_happens() {
    let node = node().await;
    node.hold(&["jobs/1", "other"]);
    let mut watched = node.watch("jobs/").await.unwrap();
    let watch_event::Body::Lock(lock) = watched.next().await.unwrap() else { panic!("no lock") };
    assert_eq!((lock.name.as_str(), lock.holders.len()), ("jobs/1", 1));
    assert!(matches!(watched.next().await, Ok(watch_event::Body::Synced(_))));

    node.acquire(1, 9, "jobs/2");
    let watch_event::Body::Change(change) = watched.next().await.unwrap() else { panic!("none") };
    assert_eq!(change.name, "jobs/2");
    node.hub.shutdown().await;
    assert_eq!(watched.next().await.unwrap_err().code(), Code::Unavailable);
}

/// By what the first watch was told: what it missed, or that it has to begin with the state.
#[tokio::test]
async fn a_watch_goes_on_over_a_new_connection_or_is_told_that_it_cannot() {
    let settings = SessionSettings { watch_recent_changes: 2, ..SessionSettings::default() };
    let node = node_with(settings).await;
    node.hold(&["jobs/1"]);
    let mut watched = node.watch("jobs/").await.unwrap();
    while !matches!(watched.next().await, Ok(watch_event::Body::Synced(_))) {}
    let (after_index, cluster_id) = (watched.complete, watched.cluster_id.clone());
    assert!(after_index > 0 && !cluster_id.is_empty() && !watched.resumed);
    drop(watched);
    let resume = Some(WatchResume { after_index, cluster_id });
    let goes_on = || WatchRequest { prefix: "jobs/".to_owned(), resume: resume.clone() };

    node.acquire(1, 9, "jobs/2");
    let mut watched = node.watch_as(goes_on()).await.unwrap();
    let watch_event::Body::Change(change) = watched.next().await.unwrap() else { panic!("none") };
    assert_eq!((change.name.as_str(), watched.resumed), ("jobs/2", true));
    assert!(watched.complete > after_index);

    node.acquire(1, 10, "jobs/3");
    node.acquire(1, 11, "jobs/4");
    let Err(status) = node.watch_as(goes_on()).await else { panic!("it goes on") };
    assert_eq!(status.code(), Code::OutOfRange);
    assert!(status.metadata().get("holdfast-compacted").is_some(), "{status:?}");
    let words = format!("the changes after index {after_index} are not all kept");
    assert!(status.message().contains(&words), "{status:?}");
    assert_eq!(calls::refusal_of(&status).reason(), v1::RefusalReason::Compacted);
}

#[tokio::test]
async fn a_watch_of_a_bad_prefix_is_refused_by_the_rule_it_breaks() {
    let node = node().await;
    let too_long = "x".repeat(513);
    let cases = [(too_long.as_str(), "512"), ("a\nb", "U+000A at byte 1"), ("\u{202e}", "U+202E")];
    for (prefix, words) in cases {
        let Err(status) = node.watch(prefix).await else { panic!("{prefix:?} is watched") };
        assert_eq!(status.code(), Code::InvalidArgument);
        assert!(status.message().contains(words), "{status:?}");
    }
    // The longest possible name.
    let mut watched = node.watch(&"x".repeat(512)).await.unwrap();
    assert!(matches!(watched.next().await, Ok(watch_event::Body::Synced(_))));
}

#[tokio::test]
async fn a_watch_on_a_node_that_does_not_lead_names_the_leader_in_its_metadata() {
    let node = node().await;
    node.fake.follow(Some("node-2:7420"));

    let Err(status) = node.watch("").await else { panic!("it is watched") };
    assert_eq!(status.code(), Code::Unavailable);
    assert_eq!(status.metadata().get(status::LEADER).unwrap(), "node-2:7420");
}

/// I27, over a real connection: the client can read what was sent before, then comes the reason.
#[tokio::test]
async fn a_watch_that_is_not_read_ends_by_the_name_of_the_limit() {
    let settings = SessionSettings { watch_backlog: 256, ..SessionSettings::default() };
    let node = node_with(settings).await;
    // The holder's label makes each change a large one.
    node.open_session(&"x".repeat(256));
    let mut watched = node.watch("").await.unwrap();
    for request in 1..=10_000 {
        node.acquire(1, request, "jobs");
        let (session, request) = (SessionId::new(1), RequestId::new(request));
        node.fake.commit(Command::Cancel { session, done_below: request, request }, Tenure::new(1));
        if request.get() % 100 == 0 {
            Runtime::system().sleep(Duration::from_millis(1)).await;
        }
    }

    let mut read = 0;
    let status = loop {
        match watched.next().await {
            Ok(_) => read += 1,
            Err(status) => break status,
        }
    };
    assert!(read < 20_000, "all {read} events came");
    assert_eq!(status.code(), Code::ResourceExhausted);
    assert!(status.message().contains("watch_backlog = 256"), "{status:?}");
}
