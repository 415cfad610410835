//! Which client is alive, which only believes it, and which node may decide: leases over real
//! processes (DESIGN §5; I5, I6, I7, I13, I19, I24).
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of a test fail it by a panic"
)]

use std::path::PathBuf;
use std::time::Duration;

use holdfast_proto::v1::client_frame::Body as Ask;
use holdfast_proto::v1::server_frame::Body as Told;
use holdfast_proto::v1::{InspectRequest, Open, Refusal, RefusalReason, Refused};
use holdfast_runtime::{Instant, Runtime};
use holdfast_tests::cluster::{Cluster, Setup};
use holdfast_tests::fault::{Line, Relay};
use holdfast_tests::history::{Asked, Change, ClientId, Record, Recorder, What, read};
use holdfast_tests::host_stall::{TooLate, retry_if_host_stalled};
use holdfast_tests::program::Program;
use holdfast_tests::run::judge;
use holdfast_tests::traffic::{Scribe, Wish};
use holdfast_tests::wire::{Ticket, Wire, connect};
use nix::sys::signal::Signal;

/// The margin of DESIGN §5.2, and the time that a loaded machine of two cores needs besides.
const LATE_AT_MOST: Duration = Duration::from_millis(1_500);
const PATIENCE: Duration = Duration::from_secs(20);

fn now() -> Instant {
    Runtime::system().clock.now()
}

async fn pause(ms: u64) {
    Runtime::system().sleep(Duration::from_millis(ms)).await;
}

fn recorder() -> Recorder {
    Recorder::in_memory(Runtime::system().clock)
}

async fn scribe(endpoints: &str, ttl_ms: u64, id: u64, recorder: &Recorder) -> Scribe {
    Scribe::connect(endpoints, Duration::from_millis(ttl_ms), ClientId(id), recorder.clone())
        .await
        .unwrap()
}

/// A process of its own that holds a lock.
struct Holder {
    program: Program,
    history: PathBuf,
    id: ClientId,
}

impl Holder {
    /// Starts the process and waits until it holds `name`.
    async fn start(cluster: &Cluster, ttl_ms: u64, name: &str, id: u64) -> Self {
        let history = cluster.folder().join(format!("holder-{id}.jsonl"));
        let path = PathBuf::from(env!("CARGO_BIN_EXE_holdfast-test-holder"));
        let (ttl_ms, number) = (ttl_ms.to_string(), id.to_string());
        let arguments =
            [&*cluster.endpoints(), &*ttl_ms, name, &*number, history.to_str().unwrap()];
        let mut program = Program::start_at(&path, &arguments);
        program.line("held ", PATIENCE).await;
        Self { program, history, id: ClientId(id) }
    }

    fn records(&self) -> Vec<Record> {
        read(&self.history).unwrap()
    }
}

#[tokio::test]
async fn a_client_that_dies_loses_its_lock_after_its_ttl_and_never_before() {
    retry_if_host_stalled(LATE_AT_MOST / 3, kill_a_holder).await;
}

async fn kill_a_holder() -> Result<(), TooLate> {
    const TTL_MS: u64 = 2_000;
    let cluster = Cluster::start(&Setup::nodes(1)).await;
    let recorder = recorder();
    let holder = Holder::start(&cluster, TTL_MS, "jobs", 1).await;
    let waiter = scribe(&cluster.endpoints(), 10_000, 2, &recorder).await;

    let die = async {
        pause(700).await;
        recorder.write(holder.id, What::Killed);
        holder.program.signal(Signal::SIGKILL);
        now()
    };
    let (granted, died) = tokio::join!(waiter.lock("jobs", PATIENCE), die);
    let late = now().saturating_since(died);
    granted.unwrap().release().await.unwrap();

    // Never before: the safe deadline that the dead client had recorded still counts.
    let report = judge(vec![recorder.take(), holder.records()]);
    assert_eq!(report.tally.safe_holds, 2);
    let limit = Duration::from_millis(TTL_MS) + LATE_AT_MOST;
    TooLate::unless(late < limit, || format!("{late:?} (I7)"))
}

#[tokio::test]
async fn a_client_whose_connection_is_cut_resumes_with_the_same_holds_and_places() {
    let cluster = Cluster::start(&Setup::nodes(1)).await;
    let relay = Relay::before(&cluster.nodes()[0].listen).await;
    let recorder = recorder();
    let cut = scribe(relay.address(), 5_000, 1, &recorder).await;
    let owner = scribe(&cluster.endpoints(), 5_000, 2, &recorder).await;
    let late = scribe(&cluster.endpoints(), 5_000, 3, &recorder).await;
    let held = cut.lock("held", PATIENCE).await.unwrap();
    let token = held.token();
    let awaited = owner.lock("awaited", PATIENCE).await.unwrap();

    let cutting = async {
        pause(300).await;
        for _ in 0..4 {
            relay.cut_once().await;
            pause(400).await;
            assert!(held.note(), "cut, but in time to resume");
        }
        awaited.release().await.unwrap();
    };
    let first = async {
        let granted = cut.lock("awaited", PATIENCE).await.unwrap();
        let token = granted.token();
        granted.release().await.unwrap();
        token
    };
    let second = async {
        pause(150).await;
        let granted = late.lock("awaited", PATIENCE).await.unwrap();
        let token = granted.token();
        granted.release().await.unwrap();
        token
    };
    let ((), first, second) = tokio::join!(cutting, first, second);

    assert!(first < second, "the place was kept (I9)");
    assert_eq!(held.token(), token);
    held.release().await.unwrap();
    judge(vec![recorder.take()]);
}

#[tokio::test]
async fn a_client_frozen_past_its_ttl_is_not_safe_when_it_wakes() {
    const TTL_MS: u64 = 1_500;
    let cluster = Cluster::start(&Setup::nodes(1)).await;
    let recorder = recorder();
    let holder = Holder::start(&cluster, TTL_MS, "jobs", 1).await;
    let waiter = scribe(&cluster.endpoints(), 10_000, 2, &recorder).await;

    pause(300).await;
    holder.program.signal(Signal::SIGSTOP);
    let granted = waiter.lock("jobs", PATIENCE).await.unwrap();
    holder.program.signal(Signal::SIGCONT);
    let woken_ns = recorder.now_ns();
    granted.keep(Duration::from_millis(500)).await;
    granted.release().await.unwrap();

    // The judge checks that it was never safe beside the other client; here only that it checked.
    let records = holder.records();
    let looks = records.iter().filter(|record| record.at_ns > woken_ns);
    let safe: Vec<bool> = looks
        .filter_map(|record| match record.what {
            What::IsSafe { safe, .. } => Some(safe),
            _ => None,
        })
        .collect();
    assert!(safe.len() > 5 && safe.iter().all(|safe| !safe), "{safe:?}");
    judge(vec![recorder.take(), records]);
}

#[tokio::test]
async fn a_client_whose_line_falls_silent_is_unsafe_before_the_next_is_granted() {
    const TTL_MS: u64 = 1_500;
    let cluster = Cluster::start(&Setup::nodes(1)).await;
    let relay = Relay::before(&cluster.nodes()[0].listen).await;
    let recorder = recorder();
    let silent = scribe(relay.address(), TTL_MS, 1, &recorder).await;
    let waiter = scribe(&cluster.endpoints(), 10_000, 2, &recorder).await;
    let held = silent.lock("jobs", PATIENCE).await.unwrap();

    let watching = async {
        pause(300).await;
        relay.set(Line::Silent);
        let give_up = now() + PATIENCE;
        while held.note() && now() < give_up {
            pause(5).await;
        }
    };
    let granted = async {
        let granted = waiter.lock("jobs", PATIENCE).await.unwrap();
        assert!(!held.note(), "two are safe (I6)");
        granted
    };
    let ((), granted) = tokio::join!(watching, granted);

    granted.release().await.unwrap();
    relay.set(Line::Open);
    judge(vec![recorder.take()]);
}

/// A set of which one name was released, and a lock that is shared: the client believes in none of
/// them when other clients are granted them, the released name was free all along, and the value
/// that the silent client left is suspect.
#[tokio::test]
async fn a_silent_client_loses_all_it_holds_before_others_are_granted_any_of_it() {
    const TTL_MS: u64 = 1_500;
    let cluster = Cluster::start(&Setup::nodes(1)).await;
    let relay = Relay::before(&cluster.nodes()[0].listen).await;
    let recorder = recorder();
    let silent = scribe(relay.address(), TTL_MS, 1, &recorder).await;
    let other = scribe(&cluster.endpoints(), 10_000, 2, &recorder).await;
    let set = Wish::all(["a", "b", "c"].map(Asked::exclusive).into());
    let set = silent.acquire(&set, PATIENCE).await.unwrap();
    set.change_value("a", Change::Set("half done".into())).await.unwrap();
    set.release_names(&["c".into()]).await.unwrap();
    let reading = silent.acquire(&Wish::shared("r"), PATIENCE).await.unwrap();
    other.lock("c", PATIENCE).await.unwrap().release().await.unwrap();

    let watching = async {
        relay.set(Line::Silent);
        let give_up = now() + PATIENCE;
        while set.note() && reading.note() && now() < give_up {
            pause(5).await;
        }
    };
    let taking = async {
        let all = Wish::all(["a", "b", "r"].map(Asked::exclusive).into());
        let granted = other.acquire(&all, PATIENCE).await.unwrap();
        assert!(!set.note() && !reading.note(), "two are safe (I6)");
        granted
    };
    let ((), granted) = tokio::join!(watching, taking);

    let value = granted.guard().lock("a").value().unwrap();
    assert!(value.is_suspect && value.token.get() == set.token(), "{value:?}");
    relay.set(Line::Open);
    granted.keep(Duration::from_millis(500)).await;
    assert!(!set.note() && !reading.note(), "what was lost stays lost");
    granted.release().await.unwrap();
    judge(vec![recorder.take()]);
}

/// Resumes `ticket`'s session at the leader, with as many attempts as it takes.
async fn resume(address: &str, ticket: &Ticket, recorder: &Recorder, id: u64) -> Wire {
    let mut wire = Wire::dial(address).await.unwrap().recorded(recorder.clone(), ClientId(id));
    wire.resume(ticket).await;
    wire
}

/// A frozen leader wakes up with frames in its sockets and deadlines that passed meanwhile.
#[tokio::test]
async fn a_deposed_leader_grants_nothing_renews_nothing_and_expires_nobody() {
    // The new leader leads to the end, and this test keeps a session of two seconds alive.
    retry_if_host_stalled(Duration::from_millis(500), wake_a_deposed_leader).await;
}

async fn wake_a_deposed_leader() -> Result<(), TooLate> {
    let cluster = Cluster::start(&Setup::nodes(3)).await;
    cluster.all_ready().await;
    let recorder = recorder();
    let old = cluster.leader().await;
    let address = cluster.nodes()[old].listen.clone();
    let mut stranded = Wire::dial(&address).await.unwrap().recorded(recorder.clone(), ClientId(1));
    stranded.begin(60_000).await;
    let mut brief = Wire::dial(&address).await.unwrap().recorded(recorder.clone(), ClientId(2));
    let ticket = brief.begin(2_000).await;
    brief.acquire(1, "brief", true).await;
    let token = brief.granted(1).await;

    cluster.freeze(old);
    stranded.acquire(1, "stranded", true).await;
    stranded.keep_alive(1).await;
    let new = cluster.leader_among(|index| index != old).await;
    let address = cluster.nodes()[new].listen.clone();
    let mut brief = resume(&address, &ticket, &recorder, 2).await;
    for seq in 1..6 {
        pause(400).await;
        kept_alive(&mut brief, seq).await?;
    }
    cluster.thaw(old);
    for seq in 6..14 {
        pause(300).await;
        kept_alive(&mut brief, seq).await?;
    }

    for told in frames_of(&mut stranded).await {
        let refused = matches!(told, Told::Redirect(_) | Told::Refused(_) | Told::GoingAway(_));
        assert!(refused, "a deposed leader said {told:?}");
    }
    let mut client = connect(&address).await.unwrap();
    let mut holder = async |name: &str| {
        let request = InspectRequest { name: name.into() };
        let lock = client.inspect(request).await.unwrap().into_inner().lock;
        lock.and_then(|lock| lock.holders.first().map(|holder| holder.token))
    };
    assert_eq!(holder("brief").await, Some(token), "nobody was expired");
    assert_eq!(holder("stranded").await, None, "nothing was granted");
    judge(vec![recorder.take()]);
    Ok(())
}

/// Renews a lease of two seconds: if the host stalled for as long, the lease may be over, or
/// another node may lead.
async fn kept_alive(wire: &mut Wire, seq: u64) -> Result<(), TooLate> {
    wire.keep_alive(seq).await;
    loop {
        match wire.next_within(PATIENCE).await {
            Ok(Some(frame)) => match frame.body {
                Some(Told::KeptAlive(kept)) if kept.seq == seq => return Ok(()),
                _ => {}
            },
            end => return Err(TooLate(format!("the stream ended with {end:?}"))),
        }
    }
}

/// Every frame until the stream ends, or no more come.
async fn frames_of(wire: &mut Wire) -> Vec<Told> {
    let mut told = Vec::new();
    while let Ok(Some(frame)) = wire.next_within(Duration::from_secs(2)).await {
        told.extend(frame.body);
    }
    told
}

/// The followers are frozen when a silent session's lease runs out; the leader is killed, comes
/// back and forms a majority with one of them. A client that is told that its session lives must
/// find it alive for its whole TTL. (An expiry that was appended and not committed needs a disk
/// that is stopped at the right moment: `virtual_time.rs`.)
#[tokio::test]
async fn a_leader_that_crashes_while_a_lease_runs_out_expires_nobody_wrongly() {
    const TTL_MS: u64 = 1_500;
    let mut cluster = Cluster::start(&Setup::nodes(3)).await;
    cluster.all_ready().await;
    let recorder = recorder();
    let leader = cluster.leader().await;
    let (first, second) = ((leader + 1) % 3, (leader + 2) % 3);
    let address = cluster.nodes()[leader].listen.clone();
    let mut wire = Wire::dial(&address).await.unwrap().recorded(recorder.clone(), ClientId(1));
    let ticket = wire.begin(TTL_MS).await;
    wire.acquire(1, "jobs", true).await;
    wire.granted(1).await;

    cluster.freeze(first);
    cluster.freeze(second);
    pause(TTL_MS + 600).await;
    cluster.kill(leader);
    cluster.start_node(leader);
    pause(300).await;
    cluster.thaw(first);
    let alive = hear_first(&cluster, [leader, first], &ticket, &recorder).await;
    cluster.thaw(second);

    // A session that is known to live is kept alive and must stay; the judge finds one whose end is
    // reported while its client was told that it is safe (I6).
    if let Some(mut wire) = alive {
        for seq in 1..8 {
            wire.keep_alive(seq).await;
            wire.kept_alive(seq).await;
            pause(TTL_MS / 4).await;
        }
    }
    judge(vec![recorder.take()]);
}

/// Shows the session's secret to the nodes until one answers; `None` if that one reports that the
/// session is over.
async fn hear_first(
    cluster: &Cluster,
    nodes: [usize; 2],
    ticket: &Ticket,
    recorder: &Recorder,
) -> Option<Wire> {
    let give_up = now() + PATIENCE;
    for node in nodes.into_iter().cycle().take_while(|_| now() < give_up) {
        pause(20).await;
        let address = &cluster.nodes()[node].listen;
        let Ok(wire) = Wire::dial(address).await else { continue };
        let mut wire = wire.recorded(recorder.clone(), ClientId(1));
        let resume = Some(ticket.resume());
        wire.send(Ask::Open(Open { resume, ..Open::default() })).await;
        let frame = wire.next_within(Duration::from_secs(3)).await;
        match frame.ok().flatten().and_then(|frame| frame.body) {
            Some(Told::Opened(_)) => return Some(wire),
            Some(Told::Refused(refused)) if is_over(&refused) => return None,
            _ => {}
        }
    }
    panic!("none of {nodes:?} answered");
}

fn is_over(refused: &Refused) -> bool {
    let reason = refused.refusal.as_ref().map(Refusal::reason);
    reason == Some(RefusalReason::SessionUnknown)
}
