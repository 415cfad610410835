//! The core alone: one command as one entry, beside 10, 10⁴ and 10⁶ held locks or waiters. Every
//! command is to cost the logarithm of what it touches (DESIGN §4).
#![allow(clippy::disallowed_methods, reason = "a bench reads the real clock")]

mod support;

use std::hint::black_box;
use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion};
use holdfast_core::{Applied, Command, FencingToken, SessionId};
use support::{
    HeadStarts, Played, TENURE, acquire, acquire_permit, batch, cancel, granted, open, opened,
    release, set_value,
};

const SIZES: [u64; 3] = [10, 10_000, 1_000_000];
/// Locks of the session that is expired.
const HOLDS: u64 = 10;

fn main() {
    let mut criterion = Criterion::default().configure_from_args();
    beside_locks(&mut criterion);
    beside_waiters(&mut criterion);
    beside_ranked_waiters(&mut criterion);
    criterion.final_summary();
}

/// Applies the command and tells how long that took, encoding and building it left out.
fn timed(played: &mut Played, command: Command) -> (Duration, Applied) {
    let entry = batch(command);
    let begun = Instant::now();
    let applied = black_box(played.apply_batch(black_box(&entry)));
    (begun.elapsed(), applied)
}

/// A session that confirms each answer, so that nothing is kept for it.
struct Client {
    session: SessionId,
    next: u64,
}

impl Client {
    fn of(played: &mut Played) -> Self {
        Self { session: played.open(), next: 0 }
    }

    fn request(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    fn hold(&mut self, played: &mut Played, name: &str) -> FencingToken {
        let request = self.request();
        played.hold(self.session, request, name)
    }

    fn release(&self, token: FencingToken) -> Command {
        release(self.session, self.next, token)
    }
}

/// Adds up what `once` took.
fn repeat(times: u64, mut once: impl FnMut() -> Duration) -> Duration {
    (0..times).map(|_| once()).sum()
}

fn beside_locks(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("core, beside so many held locks");
    for size in SIZES {
        let mut played = Played::with_locks(size);
        let mut client = Client::of(&mut played);
        let mut bench = |what: &str, once: &mut dyn FnMut(&mut Played, &mut Client) -> Duration| {
            group.bench_function(BenchmarkId::new(what, size), |bencher| {
                bencher.iter_custom(|times| repeat(times, || once(&mut played, &mut client)));
            });
        };
        bench("acquire a free lock", &mut |played, client| {
            let request = client.request();
            let command = acquire(client.session, request, request, "free", true);
            let (took, applied) = timed(played, command);
            played.apply(client.release(granted(&applied).2));
            took
        });
        bench("release", &mut |played, client| {
            let token = client.hold(played, "free");
            timed(played, client.release(token)).0
        });
        bench("be denied", &mut |played, client| {
            let request = client.request();
            timed(played, acquire(client.session, request, request, "held/0000000", false)).0
        });
        bench("set a value of 256 bytes", &mut |played, client| {
            let token = client.hold(played, "valued");
            let request = client.request();
            let took = timed(played, set_value(client.session, request, token, "valued")).0;
            played.apply(client.release(token));
            took
        });
        bench("open a session", &mut |played, _| {
            let (took, applied) = timed(played, open());
            played.apply(Command::CloseSession { session: opened(&applied) });
            took
        });
        bench("close a session", &mut |played, _| {
            let session = played.open();
            timed(played, Command::CloseSession { session }).0
        });
        bench("expire a session with 10 locks", &mut |played, _| {
            let session = played.open();
            for lock in 0..HOLDS {
                played.hold(session, lock, &format!("expiring/{lock}"));
            }
            timed(played, Command::ExpireSession { session, tenure: TENURE }).0
        });
    }
    group.finish();
}

fn beside_waiters(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("core, beside so many waiters of the lock");
    for size in SIZES {
        let mut played = Played::with_waiters(size);
        let mut client = Client::of(&mut played);
        group.bench_function(BenchmarkId::new("queue", size), |bencher| {
            bencher.iter_custom(|times| {
                repeat(times, || {
                    let request = client.request();
                    let command = acquire(client.session, request, request, "wanted", true);
                    let took = timed(&mut played, command).0;
                    played.apply(cancel(client.session, request));
                    took
                })
            });
        });
        group.bench_function(BenchmarkId::new("cancel", size), |bencher| {
            bencher.iter_custom(|times| {
                repeat(times, || {
                    let request = client.request();
                    played.apply(acquire(client.session, request, request, "wanted", true));
                    timed(&mut played, cancel(client.session, request)).0
                })
            });
        });
        let mut line = Line::before(&mut played, &client);
        group.bench_function(BenchmarkId::new("hand over", size), |bencher| {
            bencher.iter_custom(|times| repeat(times, || line.hand_over(&mut played)));
        });
    }
    group.finish();
}

/// Of a semaphore, each with a head start of its own, so that requests enter its queue and leave it anywhere.
fn beside_ranked_waiters(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("core, beside so many waiters with head starts");
    for size in SIZES {
        let mut played = Played::with_ranked_waiters(size);
        let mut client = Client::of(&mut played);
        let mut head_starts = HeadStarts::default();
        group.bench_function(BenchmarkId::new("queue", size), |bencher| {
            bencher.iter_custom(|times| {
                repeat(times, || {
                    let request = client.request();
                    let ahead = head_starts.next();
                    let command = acquire_permit(client.session, request, request, "wanted", ahead);
                    let took = timed(&mut played, command).0;
                    played.apply(cancel(client.session, request));
                    took
                })
            });
        });
        group.bench_function(BenchmarkId::new("cancel", size), |bencher| {
            bencher.iter_custom(|times| {
                repeat(times, || {
                    let request = client.request();
                    let ahead = head_starts.next();
                    let session = client.session;
                    played.apply(acquire_permit(session, request, request, "wanted", ahead));
                    timed(&mut played, cancel(session, request)).0
                })
            });
        });
        let mut line =
            Line { head_starts: Some(head_starts), ..Line::before(&mut played, &client) };
        group.bench_function(BenchmarkId::new("hand over", size), |bencher| {
            bencher.iter_custom(|times| repeat(times, || line.hand_over(&mut played)));
        });
    }
    group.finish();
}

/// The queue of the lock that everybody wants; each holder queues again behind all others.
struct Line {
    session: SessionId,
    token: FencingToken,
    /// The holder's request, as the core counts it.
    request: u64,
    /// The next request of whichever session, above all there are.
    next: u64,
    /// Those of the requests that follow, if it is a semaphore.
    head_starts: Option<HeadStarts>,
}

impl Line {
    /// Ends the first holder, whose token nobody here knows: the next one holds.
    fn before(played: &mut Played, client: &Client) -> Self {
        let sessions = played.table.sessions().map(|view| view.session);
        let first = sessions.min().unwrap_or(client.session);
        let applied = played.apply(cancel(first, 0));
        let (session, request, token) = granted(&applied);
        Self { session, token, request: request.get(), next: 1_000_000, head_starts: None }
    }

    fn hand_over(&mut self, played: &mut Played) -> Duration {
        // With head starts, earlier requests of the session may wait still.
        let done_below = if self.head_starts.is_some() { 0 } else { self.request + 1 };
        let before = self.session;
        let (took, applied) = timed(played, release(before, done_below, self.token));
        self.next += 1;
        played.apply(match &mut self.head_starts {
            None => acquire(before, self.next, done_below, "wanted", true),
            Some(ahead) => acquire_permit(before, self.next, done_below, "wanted", ahead.next()),
        });
        let (session, request, token) = granted(&applied);
        (self.session, self.request, self.token) = (session, request.get(), token);
        took
    }
}
