//! Random histories: clients that come and go, a store that loses its quorum, its leader and the
//! answers to its commands. Repeat one with `HOLDFAST_SEED`.

use holdfast_core::{Command, Tenure};
use holdfast_runtime::Instant;

use super::*;

const SEEDS: u64 = 30;
const CLIENTS: u64 = 8;
const LENGTH: Duration = Duration::from_mins(5);

/// A client and its belief: its session is safe until `safe`.
struct Believer {
    world: Arc<World>,
    ticket: Ticket,
    stream: Client,
    opened_at: Instant,
    /// When each keepalive was sent.
    sent: Vec<Instant>,
    safe: Instant,
    over: bool,
    /// Sessions that are over, and the last instant at which the client relied on them.
    past: Vec<(u64, Instant)>,
    acknowledged: u64,
}

impl World {
    fn draw(&self, below: u64) -> u64 {
        self.runtime.rng.next_u64() % below
    }

    fn draw_length(&self, at_most: Duration) -> Duration {
        at_most.mul_f64(f64::from(u32::try_from(self.draw(1_000)).unwrap()) / 1_000.0)
    }

    fn now(&self) -> Instant {
        self.runtime.clock.now()
    }
}

impl Believer {
    async fn new(world: Arc<World>) -> Self {
        let opened_at = world.now();
        let (stream, ticket) = world.session().await;
        let safe = opened_at + TTL;
        let (sent, past) = (vec![], vec![]);
        Self { world, ticket, stream, opened_at, sent, safe, over: false, past, acknowledged: 0 }
    }

    async fn live(mut self, until: Instant) -> Self {
        while self.world.now() < until {
            if self.over {
                self.begin_anew(until).await;
                continue;
            }
            match self.world.draw(12) {
                0 => self.resume().await,
                // Silent, now and then for longer than the lease.
                1 => self.listen(self.world.draw_length(TTL * 3 / 2)).await,
                _ => self.keep_alive().await,
            }
            self.listen(self.world.draw_length(TTL / 3)).await;
        }
        self
    }

    /// Opens a new session, as soon as the store allows it.
    async fn begin_anew(&mut self, until: Instant) {
        self.past.push((self.ticket.session_id, self.safe));
        while self.world.now() < until {
            self.opened_at = self.world.now();
            self.stream = self.world.connect();
            self.stream.send(open(TTL)).await;
            let runtime = self.world.runtime.clone();
            let answer = runtime.timeout(Duration::from_secs(5), self.stream.frame()).await;
            if let Ok(Some(Body::Opened(opened))) = answer {
                self.ticket = Ticket { session_id: opened.session_id, secret: opened.secret };
                self.safe = self.opened_at + TTL;
                self.over = false;
                return;
            }
            runtime.sleep(Duration::from_secs(1)).await;
        }
        self.past.pop();
    }

    async fn keep_alive(&mut self) {
        self.sent.push(self.world.now());
        let seq = self.sent.len() as u64;
        let frames = vec![ClientFrame { done_below: 0, body: Some(keep_alive(seq)) }];
        // Fails on a stream that has ended.
        let _ = self.stream.pipe.outgoing.send(ClientFrames { frames }).await;
    }

    /// Resumes as a client that knows pages, or as one of 0.1.
    async fn resume(&mut self) {
        self.opened_at = self.world.now();
        self.stream = if self.world.draw(2) == 0 {
            self.world.resume(&self.ticket).await
        } else {
            self.world.resume_in_pages(&self.ticket).await
        };
    }

    /// Receives frames for this long; resumes the session when the stream ends.
    async fn listen(&mut self, length: Duration) {
        let until = self.world.now() + length;
        while !self.over && self.world.now() < until {
            let left = until.saturating_since(self.world.now());
            let runtime = self.world.runtime.clone();
            match runtime.timeout(left, self.stream.frame()).await {
                Err(_) => return,
                Ok(Some(body)) => self.take_in(&body),
                Ok(None) => {
                    runtime.sleep(Duration::from_millis(200)).await;
                    self.resume().await;
                }
            }
        }
    }

    fn take_in(&mut self, body: &Body) {
        let heard = match body {
            Body::KeptAlive(kept) => self.sent[usize::try_from(kept.seq).unwrap() - 1],
            Body::Opened(opened) if opened.lease_unmoved => return,
            Body::Opened(_) => self.opened_at,
            Body::SessionEnded(_) | Body::Refused(_) => {
                self.over = true;
                return;
            }
            _ => return,
        };
        self.acknowledged += 1;
        self.safe = self.safe.max(heard + TTL);
    }
}

/// The faults of a store, one after the other.
async fn misfortune(world: Arc<World>, until: Instant) {
    let mut tenure = 1;
    while world.now() < until {
        world.runtime.sleep(world.draw_length(TTL)).await;
        match world.draw(4) {
            0 => {
                world.fake.set_quorum(false);
                world.runtime.sleep(world.draw_length(2 * TTL)).await;
                world.fake.set_quorum(true);
            }
            1 => {
                world.fake.hold_confirms();
                world.runtime.sleep(world.draw_length(TTL)).await;
                world.fake.let_confirms_go();
            }
            2 => hold_commits(&world, tenure).await,
            _ => {
                change_of_leader(&world, tenure).await;
                tenure += 1;
            }
        }
    }
}

/// Holds commands back in the log; some end without an outcome, and are committed after that.
async fn hold_commits(world: &World, tenure: u64) {
    world.fake.hold_commits();
    world.runtime.sleep(world.draw_length(TTL)).await;
    let unknown = if world.draw(2) == 0 { world.fake.give_up_held_back() } else { vec![] };
    world.runtime.sleep(world.draw_length(TTL / 2)).await;
    for command in unknown {
        world.fake.commit(command, Tenure::new(tenure));
    }
    world.fake.let_commits_go();
}

/// The leader is deposed with commands in its log; the next one has some of them, and commits them
/// before its own first entry.
async fn change_of_leader(world: &World, tenure: u64) {
    world.fake.hold_commits();
    world.runtime.sleep(world.draw_length(TTL / 2)).await;
    world.fake.follow(None);
    let in_the_log: Vec<Command> = world.fake.give_up_held_back();
    world.runtime.sleep(world.draw_length(TTL)).await;
    for command in in_the_log {
        if world.draw(2) == 0 {
            world.fake.commit(command, Tenure::new(tenure));
        }
    }
    world.fake.let_commits_go();
    world.fake.lead(tenure + 1);
}

/// Returns how many acknowledgements and expiries the history of one seed had.
async fn history(seed: u64) -> (u64, usize) {
    let runtime = simulated::runtime(seed, 1_000_000);
    let world = Arc::new(World::on(runtime, SessionSettings::default()).await);
    let until = world.now() + LENGTH;
    let mut clients = Vec::new();
    for _ in 0..CLIENTS {
        clients.push(Believer::new(world.clone()).await);
    }
    let lives = futures_util::future::join_all(clients.into_iter().map(|one| one.live(until)));
    let (clients, ()) = tokio::join!(lives, misfortune(world.clone(), until));

    let expired = world.fake.expired();
    for client in &clients {
        let last = (client.ticket.session_id, client.safe);
        for (id, safe) in client.past.iter().copied().chain([last]) {
            let Some((_, at)) = expired.iter().find(|(session, _)| session.get() == id) else {
                continue;
            };
            let early = safe.saturating_since(*at);
            assert!(early.is_zero(), "HOLDFAST_SEED={seed}: session {id} expired {early:?} early");
        }
    }
    (clients.iter().map(|client| client.acknowledged).sum(), expired.len())
}

/// I6: whatever happens, no session ends while its client still relies on it by the last acknowledgement
/// that it received.
#[tokio::test(start_paused = true)]
async fn no_session_expires_before_its_client_gives_it_up() {
    let repeated = std::env::var("HOLDFAST_SEED").ok().map(|seed| seed.parse().unwrap());
    let seeds = repeated.map_or(0..SEEDS, |seed| seed..seed + 1);
    let mut sums = (0, 0);
    for seed in seeds {
        let (acknowledged, expired) = history(seed).await;
        sums = (sums.0 + acknowledged, sums.1 + expired);
    }

    println!("{} acknowledgements, {} expiries", sums.0, sums.1);
    assert!(repeated.is_some() || sums.0 > 5_000 && sums.1 > 300, "too little happened: {sums:?}");
}
