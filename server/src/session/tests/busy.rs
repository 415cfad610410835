//! The busiest locks, as a node that leads finds them.

use holdfast_core::{Command, Label, LockName, Need, RequestId, SessionId, Tenure};

use super::*;
use crate::session::busy::Order;

const T: Tenure = Tenure::new(1);

impl World {
    fn open(&self) -> SessionId {
        let label = Label::parse("busy").unwrap();
        let open = Command::OpenSession { ttl_ms: 10_000, label, secret_hash: [0; 32] };
        let index = self.fake.commit(open, T).index;
        let mut found = None;
        self.hub.consensus().read(&mut |table, _| {
            found = table.sessions().map(|session| session.session).max();
        });
        found.unwrap_or_else(|| panic!("no session at {index}"))
    }

    fn asks(&self, session: SessionId, request: u64, name: &str) {
        let acquire = Command::Acquire {
            session,
            done_below: RequestId::new(request),
            request: RequestId::new(request),
            items: vec![holdfast_core::Item::exclusive(LockName::parse(name).unwrap())],
            need: Need::All,
            wait: true,
        };
        self.fake.commit(acquire, T).outcome.unwrap();
    }

    /// The names that are found, as far as they are looked at.
    async fn busiest(&self, prefix: &str, order: Order) -> (Vec<String>, bool) {
        let found = self.hub.busiest(prefix, order).await;
        let mut names: Vec<String> = found.names.iter().map(ToString::to_string).collect();
        names.sort();
        names.dedup();
        (names, found.is_whole)
    }
}

#[tokio::test(start_paused = true)]
async fn of_a_small_table_the_first_answer_has_all() {
    let world = World::new().await;
    let (one, two) = (world.open(), world.open());
    world.asks(one, 1, "a/held");
    world.asks(one, 2, "a/wanted");
    world.asks(two, 1, "a/wanted");
    world.asks(two, 2, "b/held");

    let queues = world.busiest("", Order::LongestQueue).await;
    assert_eq!(queues, (vec!["a/wanted".to_owned()], true));
    let held = world.busiest("a/", Order::LongestHeld).await;
    assert_eq!(held, (vec!["a/held".to_owned(), "a/wanted".to_owned()], true));
}

#[tokio::test(start_paused = true)]
async fn grants_and_waits_are_counted_from_the_first_question_on() {
    let world = World::new().await;
    let session = world.open();
    world.asks(session, 1, "before");
    let rate = async |name: &str| {
        let found = world.hub.busiest("", Order::Hottest).await;
        (found.rates.of(&LockName::parse(name).unwrap()).grants, found.rates.total().grants)
    };
    assert_eq!(rate("before").await, (0.0, 0.0));
    for request in 0..20 {
        world.asks(session, 10 + request, &format!("after-{}", request % 2));
        world.runtime.sleep(Duration::from_millis(100)).await;
    }
    let (one, all) = rate("after-0").await;
    // The second request for a lock waits behind the first: one grant of each.
    assert!(one > 0.0 && all > one && all < 10.0, "{one} of {all}");
}

#[tokio::test(start_paused = true)]
async fn a_large_table_is_looked_at_in_the_background() {
    let world = World::new().await;
    // A session may have so many requests.
    for many in 0..40 {
        let session = world.open();
        for nth in 0..200 {
            world.asks(session, nth + 1, &format!("lock-{many}-{nth}"));
        }
    }
    let (first, is_whole) = world.busiest("", Order::LongestHeld).await;
    assert!(!is_whole && !first.is_empty());
    world.runtime.sleep(Duration::from_secs(2)).await;
    let (then, is_whole) = world.busiest("", Order::LongestHeld).await;
    assert!(is_whole && then.len() >= 200, "{} names", then.len());
}
