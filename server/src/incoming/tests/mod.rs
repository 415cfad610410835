mod handshakes;

use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicU64, Ordering};

use holdfast_mutants::{Mutant, arm};
use holdfast_runtime::simulated;
use rustix::io::Errno;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::*;

/// Fails with the same error a number of times, then yields one connection, and nothing after it.
struct Failing {
    error: Errno,
    left: u64,
    asked: Arc<AtomicU64>,
}

impl Accept for Failing {
    type Connection = ();

    fn accept(&mut self) -> BoxFuture<'_, io::Result<()>> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        let fails = self.left > 0;
        self.left = self.left.saturating_sub(1);
        let answer = if fails { Err(self.error.into()) } else { Ok(()) };
        Box::pin(std::future::ready(answer))
    }
}

/// The connections of a listener that fails this often, and a counter of its calls.
fn failing(
    error: Errno,
    left: u64,
    metrics: &ConnectionMetrics,
) -> (Incoming<Failing>, Arc<AtomicU64>) {
    let asked = Arc::new(AtomicU64::new(0));
    let listener = Failing { error, left, asked: asked.clone() };
    let runtime = simulated::runtime(1, 0);
    (Incoming::new(listener, Port::Clients, 1, metrics, runtime), asked)
}

fn count(family: &Family<Label, Counter>) -> u64 {
    family.get_or_create(&[("port", "clients")]).get()
}

/// R3.
#[tokio::test(start_paused = true)]
async fn a_system_without_descriptors_is_asked_ten_times_a_second_and_not_without_end() {
    for error in [Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::NOMEM, Errno::PERM] {
        let metrics = ConnectionMetrics::default();
        let (mut incoming, asked) = failing(error, u64::MAX, &metrics);
        let minute =
            simulated::runtime(1, 0).timeout(Duration::from_mins(1), incoming.next()).await;

        assert!(minute.is_err(), "a connection out of nothing");
        let asked = asked.load(Ordering::Relaxed);
        assert!((590..620).contains(&asked), "{error:?}: asked {asked} times in a minute");
        assert_eq!(count(&metrics.put_off), asked, "{error:?}");
    }
}

/// How long it takes to accept a connection after a hundred tries without a descriptor.
async fn after_a_hundred_tries() -> Duration {
    let metrics = ConnectionMetrics::default();
    let (mut incoming, _) = failing(Errno::MFILE, 100, &metrics);
    let clock = incoming.runtime.clock.clone();
    let since = clock.now();
    incoming.next().await;
    clock.now().saturating_since(since)
}

#[tokio::test(start_paused = true)]
async fn when_there_are_descriptors_again_the_next_connection_is_accepted_within_a_tenth_of_a_second()
 {
    // 10, 20, 40 and 80 ms, then 96 pauses of 100 ms.
    assert_eq!(after_a_hundred_tries().await, Duration::from_millis(9_750));
}

/// The rule taken away: the loop spins.
#[tokio::test(start_paused = true)]
async fn without_the_pause_a_hundred_tries_take_no_time() {
    arm(Some(Mutant::AcceptWithoutPause));
    let took = after_a_hundred_tries().await;
    arm(None);
    assert_eq!(took, Duration::ZERO);
}

/// Each error concerns one connection, which is gone with it.
#[tokio::test(start_paused = true)]
async fn a_client_that_left_before_its_turn_holds_up_nobody() {
    let metrics = ConnectionMetrics::default();
    let (mut incoming, _) = failing(Errno::CONNABORTED, 1_000, &metrics);
    let clock = incoming.runtime.clock.clone();
    let since = clock.now();

    incoming.next().await;

    assert_eq!((clock.now(), count(&metrics.put_off)), (since, 0));
}

/// How long a paced port takes for so many connections that come at once.
async fn time_for(connections: u32, per_second: u64) -> Duration {
    let (incoming, _) = failing(Errno::MFILE, 0, &ConnectionMetrics::default());
    let mut incoming = incoming.paced(per_second);
    let clock = incoming.runtime.clock.clone();
    let since = clock.now();
    for _ in 0..connections {
        incoming.next().await;
    }
    clock.now().saturating_since(since)
}

#[tokio::test(start_paused = true)]
async fn clients_that_all_connect_at_once_begin_at_a_pace() {
    assert_eq!(time_for(21, 1_000).await, Duration::ZERO, "a burst");
    assert_eq!(time_for(10_021, 1_000).await, Duration::from_secs(10));
}

#[tokio::test(start_paused = true)]
async fn a_connection_now_and_then_waits_for_nothing() {
    let (incoming, _) = failing(Errno::MFILE, 0, &ConnectionMetrics::default());
    let mut incoming = incoming.paced(100);
    let runtime = incoming.runtime.clone();
    for _ in 0..50 {
        let since = runtime.clock.now();
        incoming.next().await;
        assert_eq!(runtime.clock.now(), since);
        runtime.sleep(Duration::from_millis(10)).await;
    }
}

/// A port with room for `limit` connections, and its address.
async fn port(limit: u64, metrics: &ConnectionMetrics) -> (Incoming, SocketAddr) {
    port_for(Port::Clients, limit, metrics).await
}

async fn port_for(port: Port, limit: u64, metrics: &ConnectionMetrics) -> (Incoming, SocketAddr) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    (Incoming::new(listener, port, limit, metrics, Runtime::system()), address)
}

/// Both ends of a connection to such a port: what the server has, and the other.
async fn connected_to(port: Port) -> (TcpStream, TcpStream) {
    let (mut incoming, address) = port_for(port, 1, &ConnectionMetrics::default()).await;
    let other = TcpStream::connect(address).await.unwrap();
    let accepted = incoming.next().await;
    accepted.set_options();
    (accepted.stream, other)
}

#[tokio::test]
async fn a_browser_that_takes_nothing_of_its_page_is_cut_by_the_system() {
    let (mut page, _browser) = connected_to(Port::Admin).await;
    assert_eq!(rustix::net::sockopt::tcp_user_timeout(&page).unwrap(), UNREAD_FOR_MS);
    cut_when_unread(&page, 500);

    let much = vec![b'.'; 64 << 10];
    let filling = async {
        loop {
            if let Err(ended) = page.write_all(&much).await {
                return ended.kind();
            }
        }
    };

    let ended = Runtime::system().timeout(Duration::from_secs(30), filling).await;
    assert_eq!(ended.ok(), Some(io::ErrorKind::TimedOut));
}

#[tokio::test]
async fn a_client_that_is_stopped_for_a_while_keeps_its_connection() {
    let (session, _client) = connected_to(Port::Clients).await;
    assert_eq!(rustix::net::sockopt::tcp_user_timeout(&session).unwrap(), 0);
}

async fn is_closed(mut connection: TcpStream) -> bool {
    // A connection that is closed before it is read from may end with a reset.
    matches!(connection.read(&mut [0; 1]).await, Ok(0) | Err(_))
}

#[tokio::test]
async fn one_connection_more_than_the_limit_is_closed_and_counted_and_the_others_stay() {
    let metrics = ConnectionMetrics::default();
    let (mut incoming, address) = port(2, &metrics).await;
    let mut clients = Vec::new();
    for _ in 0..3 {
        clients.push(TcpStream::connect(address).await.unwrap());
    }
    let first = incoming.next().await;
    let _second = incoming.next().await;
    let open = metrics.open.get_or_create(&[("port", "clients")]).clone();
    assert_eq!(open.get(), 2);

    let third = clients.pop().unwrap();
    holdfast_runtime::select! {
        _ = incoming.next() => panic!("a third connection"),
        closed = is_closed(third) => assert!(closed),
    }
    assert_eq!((open.get(), count(&metrics.refused)), (2, 1));

    drop(first);
    assert_eq!(open.get(), 1);
    let _fourth = TcpStream::connect(address).await.unwrap();
    let _connection = incoming.next().await;
    assert_eq!((open.get(), count(&metrics.refused)), (2, 1));
}

#[test]
fn a_line_comes_every_ten_seconds_and_tells_of_all_since_the_last() {
    let mut lines = Lines::default();
    let start = Instant::from_origin(Duration::from_secs(100));
    let told: Vec<Option<u64>> =
        (0..25).map(|second| lines.due(start + Duration::from_secs(second))).collect();

    let due: Vec<(usize, u64)> =
        told.iter().enumerate().filter_map(|(at, told)| Some((at, (*told)?))).collect();
    assert_eq!(due, [(0, 1), (10, 10), (20, 10)]);
}
