//! What the metrics of locks and refusals say, and the log of long waits and holds.

use holdfast_core::{Command, Deed, Item, Label, LockName, Need, RequestId, SessionId, Tenure};
use holdfast_proto::v1::{KeepAliveManyRequest, SessionKey};
use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;

use super::*;
use crate::captured_log::Log;

const SECOND: Duration = Duration::from_secs(1);

fn by_prefix(prefixes: &[&str]) -> SessionSettings {
    let metrics_prefixes = prefixes.iter().map(|&prefix| prefix.to_owned()).collect();
    SessionSettings { metrics_prefixes, ..SessionSettings::default() }
}

impl World {
    async fn after(&self, length: Duration) {
        self.runtime.sleep(length).await;
    }

    /// The value of a series, by its name and labels as in a scrape.
    fn value(&self, series: &str) -> f64 {
        let metrics = self.hub.metrics();
        let mut registry = Registry::default();
        registry.register("wait", "", metrics.locks.wait.family);
        registry.register("hold", "", metrics.locks.hold.family);
        registry.register("grant", "", metrics.locks.grant.family);
        registry.register("queue_waiters", "", metrics.locks.queue_waiters.family);
        registry.register("longest_queue", "", metrics.locks.longest_queue);
        registry.register("refusals", "", metrics.refusals.counted);
        registry.register("grants", "", metrics.grants);
        registry.register("releases", "", metrics.releases);
        registry.register("closed_holds", "", metrics.closed_holds);
        let mut text = String::new();
        encode(&mut text, &registry).unwrap();
        let mut found =
            text.lines().filter_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
        found.next().unwrap_or_else(|| panic!("{series} is not in {text}")).parse().unwrap()
    }

    /// Count and sum of a histogram, for a prefix.
    fn times(&self, name: &str, prefix: &str) -> (f64, f64) {
        let labels = format!("{{prefix=\"{prefix}\"}}");
        (self.value(&format!("{name}_count{labels}")), self.value(&format!("{name}_sum{labels}")))
    }

    fn refusals(&self, reason: &str) -> f64 {
        self.value(&format!("refusals_total{{reason=\"{reason}\"}}"))
    }

    /// A command of a session of its own, whose client is no matter.
    fn commits(&self, command: Command) {
        self.fake.commit(command, Tenure::new(1)).outcome.unwrap();
    }
}

fn opens(label: &str) -> Command {
    let (label, caller) = (Label::parse(label).unwrap(), Caller::default());
    let (ttl_ms, secret_hash) = (600_000, [0; 32]);
    Deed::OpenSession { ttl_ms, label, secret_hash, knows_closed: true }.by(&caller)
}

fn asks(session: u64, request: u64, name: &str) -> Command {
    Command::Acquire {
        session: SessionId::new(session),
        done_below: RequestId::new(0),
        request: RequestId::new(request),
        items: vec![Item::exclusive(LockName::parse(name).unwrap())],
        need: Need::All,
        wait: true,
    }
}

fn cancels(session: u64, request: u64) -> Command {
    let (session, request) = (SessionId::new(session), RequestId::new(request));
    Command::Cancel { session, done_below: RequestId::new(0), request }
}

fn near(found: (f64, f64), expected: (f64, f64)) -> bool {
    (found.0 - expected.0).abs() < 1e-9 && (found.1 - expected.1).abs() < 0.01
}

#[tokio::test(start_paused = true)]
async fn a_wait_and_a_hold_are_measured_under_the_longest_prefix_of_the_lock() {
    let world = World::with(by_prefix(&["orders/", "orders/eu/"])).await;
    let (mut holder, _) = world.session().await;
    let (mut waiter, _) = world.session().await;
    holder.send(acquire(1, "orders/eu/7")).await;
    let token = holder.granted().await.token;
    waiter.send(acquire(1, "orders/eu/7")).await;
    assert!(matches!(waiter.next().await, Body::Queued(_)));

    world.after(3 * SECOND).await;
    holder.send(release(token)).await;
    waiter.granted().await;

    assert!(near(world.times("wait", "orders/eu/"), (1.0, 3.0)));
    assert!(near(world.times("hold", "orders/eu/"), (1.0, 3.0)));
    // The waiter's grant took as long as the holder did, and is none at once.
    assert!(near(world.times("grant", "orders/eu/"), (1.0, 0.0)));
    for name in ["wait", "hold", "grant"] {
        for prefix in ["orders/", "other"] {
            assert!(near(world.times(name, prefix), (0.0, 0.0)), "{name} of {prefix}");
        }
    }
}

/// From the coming in of the frame: also what the log takes.
#[tokio::test(start_paused = true)]
async fn a_grant_at_once_is_measured_from_the_coming_in_of_its_request_and_once() {
    let world = World::new().await;
    let (mut client, _) = world.session().await;
    world.fake.hold_commits();
    client.send(acquire(1, "jobs")).await;
    world.after(SECOND).await;
    world.fake.let_commits_go();
    client.granted().await;
    assert!(near(world.times("grant", "other"), (1.0, 1.0)));

    // A retry gets its answer again, and is no grant.
    client.send(acquire(1, "jobs")).await;
    client.granted().await;
    assert!(near(world.times("grant", "other"), (1.0, 1.0)));
}

#[tokio::test(start_paused = true)]
async fn a_hold_that_is_lost_with_its_session_is_measured_and_a_wait_that_is_given_up_is_not() {
    let world = World::new().await;
    let (mut holder, _) = world.session().await;
    holder.send(acquire(1, "jobs")).await;
    holder.granted().await;
    world.commits(opens("waiter"));
    world.commits(asks(2, 1, "jobs"));
    world.commits(cancels(2, 1));

    world.after(TTL + SECOND).await;

    let (count, sum) = world.times("hold", "other");
    assert!((count - 1.0).abs() < 1e-9 && sum > 10.0 && sum < 10.2, "{count}, {sum}");
    assert!(near(world.times("wait", "other"), (0.0, 0.0)));
}

/// What began in an earlier tenure began by another clock.
#[tokio::test(start_paused = true)]
async fn a_new_tenure_measures_nothing_that_began_before_it() {
    let world = World::new().await;
    for session in 1..=2 {
        world.commits(opens("one"));
        world.commits(asks(session, 1, "jobs"));
    }
    world.fake.follow(None);
    world.settle().await;
    world.fake.lead(2);
    world.after(SECOND).await;

    world.commits(cancels(1, 1));
    assert!(near(world.times("hold", "other"), (0.0, 0.0)));
    assert!(near(world.times("wait", "other"), (0.0, 0.0)));
    // The hold began in this tenure.
    world.after(SECOND).await;
    world.commits(cancels(2, 1));
    assert!(near(world.times("hold", "other"), (1.0, 1.0)));
}

#[tokio::test(start_paused = true)]
async fn queues_are_counted_by_prefix_also_those_from_before_the_tenure_and_not_by_a_follower() {
    let world = World::with(by_prefix(&["a/"])).await;
    for session in 1..=5 {
        world.commits(opens("one"));
        world.commits(asks(session, 1, "a/1"));
    }
    world.commits(asks(1, 2, "b"));
    world.commits(asks(2, 2, "b"));
    world.fake.follow(None);
    world.settle().await;
    world.fake.lead(2);
    world.after(SECOND).await;

    let shown = |series: &str| world.value(series);
    assert_eq!(shown("longest_queue").to_bits(), 4.0_f64.to_bits());
    assert_eq!(shown("queue_waiters{prefix=\"a/\"}").to_bits(), 4.0_f64.to_bits());
    assert_eq!(shown("queue_waiters{prefix=\"other\"}").to_bits(), 1.0_f64.to_bits());

    world.fake.follow(None);
    world.settle().await;
    assert_eq!(shown("longest_queue").to_bits(), 0.0_f64.to_bits());
    assert_eq!(shown("queue_waiters{prefix=\"a/\"}").to_bits(), 0.0_f64.to_bits());
}

/// One look is bounded; the next pulse goes on with it.
#[tokio::test(start_paused = true)]
async fn more_queues_than_one_look_takes_are_all_counted() {
    let world = World::new().await;
    for session in 1..=4 {
        world.commits(opens("one"));
        for request in 1..=700 {
            let lock = request + 700 * ((session - 1) / 2);
            world.commits(asks(session, request, &format!("lock-{lock}")));
        }
    }

    world.after(2 * SECOND).await;

    assert!((world.value("queue_waiters{prefix=\"other\"}") - 1_400.0).abs() < 1e-9);
    assert!((world.value("longest_queue") - 1.0).abs() < 1e-9);
}

/// The counters begin at 0 with the process.
#[tokio::test(start_paused = true)]
async fn what_a_restart_applies_again_and_a_snapshot_brings_is_not_counted() {
    let runtime = simulated::runtime(1, 1_000_000);
    let fake = Fake::new(runtime.clone());
    fake.had_before(4);
    let world = World::over(fake, runtime, SessionSettings::default()).await;
    world.commits(opens("one"));
    world.commits(asks(1, 1, "jobs"));
    world.commits(cancels(1, 1));
    world.commits(asks(1, 2, "jobs"));
    assert!(world.value("grants_total") + world.value("releases_total") < 0.5);

    world.fake.restore();
    assert!(world.value("grants_total") < 0.5);
    world.commits(cancels(1, 2));
    world.commits(asks(1, 3, "jobs"));
    assert!((world.value("grants_total") - 1.0).abs() < 1e-9);
    assert!((world.value("releases_total") - 1.0).abs() < 1e-9);
}

#[tokio::test(start_paused = true)]
async fn a_refusal_is_counted_once_by_its_reason_on_a_stream() {
    let world = World::new().await;
    let (mut holder, _) = world.session().await;
    holder.send(acquire(1, "jobs")).await;
    holder.granted().await;
    let (mut client, _) = world.session().await;

    client.send(try_acquire(1, "jobs")).await;
    assert!(matches!(client.next().await, Body::Denied(_)));
    assert!((world.refusals("lock_held") - 1.0).abs() < 1e-9);

    client.send(release(9)).await;
    assert!(matches!(client.next().await, Body::Refused(_)));
    client.send(acquire(0, "jobs")).await;
    assert!(matches!(client.next().await, Body::Refused(_)));
    let mut stranger = world.connect();
    let ticket = Ticket { session_id: 99, secret: vec![0; 16].into() };
    stranger.send(resume(&ticket)).await;
    assert!(matches!(stranger.next().await, Body::Refused(_)));
    for reason in ["not_holder", "invalid", "session_unknown"] {
        assert!((world.refusals(reason) - 1.0).abs() < 1e-9, "{reason}");
    }
    assert!(world.refusals("limit") < 0.5);
}

#[tokio::test(start_paused = true)]
async fn each_session_that_a_keepalive_of_many_does_not_renew_is_a_refusal() {
    let world = World::new().await;
    let (_client, ticket) = world.session().await;
    let key = SessionKey { session_id: ticket.session_id, secret: ticket.secret.clone() };
    let unknown = SessionKey { session_id: 99, ..key.clone() };
    let sessions = vec![key, unknown.clone(), unknown];

    let asked = KeepAliveManyRequest { sessions };
    world.hub.keep_alive_many(&asked, &Caller::default()).await.unwrap();

    assert!((world.refusals("session_unknown") - 2.0).abs() < 1e-9);
}

#[tokio::test(start_paused = true)]
async fn a_hold_that_is_closed_from_outside_is_counted() {
    let world = World::new().await;
    world.commits(opens("one"));
    world.commits(asks(1, 1, "jobs"));
    let (lock, reason) = (LockName::parse("jobs").unwrap(), Label::parse("why").unwrap());
    let deed = Deed::CloseHolds { lock, token: None, reason, now: false };

    world.commits(deed.clone().by(&Caller::default()));
    world.commits(deed.by(&Caller::default()));

    assert!((world.value("closed_holds_total") - 1.0).abs() < 1e-9, "the second closes nothing");
}

fn logging() -> SessionSettings {
    let (log_waits_over_ms, log_holds_over_ms) = (2_000, 5_000);
    SessionSettings { log_waits_over_ms, log_holds_over_ms, ..SessionSettings::default() }
}

#[tokio::test(start_paused = true)]
async fn a_long_wait_and_a_long_hold_have_a_line_that_says_whose() {
    let log = Log::start();
    let world = World::with(logging()).await;
    for (session, label) in [(1, "holder"), (2, "waiter"), (3, "last")] {
        world.commits(opens(label));
        world.commits(asks(session, 1, "jobs"));
        world.after(SECOND).await;
    }
    // Held and waited for a second.
    world.commits(asks(1, 2, "quick"));
    world.commits(asks(2, 2, "quick"));
    world.after(SECOND).await;
    world.commits(cancels(1, 2));
    // Held for five seconds, and so not longer; waited for four.
    world.after(SECOND).await;
    world.commits(cancels(1, 1));
    // Waited for nine, held for six.
    world.after(6 * SECOND).await;
    world.commits(cancels(2, 1));

    let lines = |what: &str| log.lines(what);
    assert!(lines("a hold lasted long").iter().all(|line| line.contains("label=\"waiter\"")));
    let (waits, holds) = (lines("a request waited long"), lines("a hold lasted long"));
    assert_eq!((waits.len(), holds.len()), (2, 1), "{waits:?} {holds:?}");
    for (line, parts) in [
        (
            &waits[0],
            ["lock=\"jobs\"", "locks=1", "session=2", "label=\"waiter\"", "waited_ms=4000"],
        ),
        (&holds[0], ["lock=\"jobs\"", "locks=1", "session=2", "label=\"waiter\"", "held_ms=6000"]),
    ] {
        for part in parts {
            assert!(line.contains(part), "{part} is not in {line}");
        }
        assert!(!line.contains("identity"), "nobody has proved anything: {line}");
    }
}

#[tokio::test(start_paused = true)]
async fn without_its_settings_no_wait_and_no_hold_has_a_line() {
    let log = Log::start();
    let world = World::new().await;
    for session in 1..=2 {
        world.commits(opens("one"));
        world.commits(asks(session, 1, "jobs"));
    }
    world.after(100 * SECOND).await;
    world.commits(cancels(1, 1));

    assert!(log.lines("long").is_empty());
}

/// A thousand waits that end at once fill no disk, and none is forgotten.
#[tokio::test(start_paused = true)]
async fn a_storm_of_long_waits_has_ten_lines_and_one_with_the_number_of_the_others() {
    let log = Log::start();
    let world = World::with(logging()).await;
    world.commits(opens("holder"));
    world.commits(opens("waiter"));
    for request in 1..=1_000 {
        world.commits(asks(1, request, &format!("lock-{request}")));
        world.commits(asks(2, request, &format!("lock-{request}")));
    }
    world.after(3 * SECOND).await;
    for request in 1..=1_000 {
        world.commits(cancels(1, request));
    }
    world.after(11 * SECOND).await;

    let lines = log.lines("waited long");
    assert_eq!(lines.len(), 11, "{lines:?}");
    assert!(lines[10].contains("times=990"), "{}", lines[10]);
}
