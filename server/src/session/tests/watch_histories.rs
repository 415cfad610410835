//! Random histories, watched. Whatever happens while the pages are read and later, the watcher's view
//! equals the table, at `Synced` and after every later entry (I4, I23); also over breaks after which it goes on.

use std::collections::BTreeMap;

use holdfast_core::{
    Answer, Command, FencingToken, Item, Label, LockName, Need, RequestId, SessionId, Tenure,
    ValueChange,
};

use holdfast_proto::v1::watch_event::Body as Told;

use super::watchers::{Lock, Model, Watching};
use super::*;
use crate::consensus::Committed;
use crate::session::watch::PATIENCE;

const SEEDS: u64 = 3;
/// Several pages' worth.
const NAMES: u64 = 1_500;
const SESSIONS: u64 = 40;
/// Entries committed before the watchers come, and while they watch.
const BEFORE: u64 = 500;
const MEANWHILE: u64 = 250;
/// Changes that are kept for watchers that come back: those of some dozen entries.
const KEPT: u64 = 120;
/// Pauses until each watcher has had its turn.
const TURNS: u32 = 20;
const PREFIXES: [&str; 4] = ["", "a/", "a/1", "b/"];

/// A table that changes at random, and the truth as of every index.
struct History {
    world: World,
    /// Next request id of each session that may be open.
    sessions: BTreeMap<u64, u64>,
    truth: BTreeMap<u64, BTreeMap<String, Lock>>,
    /// Whether locks are only acquired, so that there will be several pages of them.
    filling: bool,
}

impl History {
    async fn new(seed: u64) -> Self {
        let runtime = simulated::runtime(seed, 1_000_000);
        let settings = SessionSettings {
            watch_recent_changes: KEPT,
            watch_states: 2,
            ..SessionSettings::default()
        };
        let world = World::on(runtime, settings).await;
        let truth = BTreeMap::from([(0, BTreeMap::new())]);
        Self { world, sessions: BTreeMap::new(), truth, filling: true }
    }

    fn draw(&self, below: u64) -> u64 {
        self.world.runtime.rng.next_u64() % below
    }

    fn now(&self) -> &BTreeMap<String, Lock> {
        self.truth.last_key_value().unwrap().1
    }

    /// Commits one entry of some random commands.
    fn step(&mut self) {
        let commands: Vec<_> = (0..=self.draw(4)).map(|_| self.command()).collect();
        let committed = self.world.fake.commit_all(commands, Tenure::new(1));
        self.truth.insert(committed[0].index.get(), self.world.locks(""));
        for Committed { outcome, .. } in committed {
            if let Ok(Answer::SessionOpened { session }) = outcome {
                self.sessions.insert(session.get(), 1);
            }
        }
    }

    fn command(&mut self) -> Command {
        if (self.sessions.len() as u64) < SESSIONS {
            let label = Label::parse("one of many").unwrap();
            return Command::OpenSession { ttl_ms: 900_000, label, secret_hash: [0; 32] };
        }
        match self.draw(100) {
            _ if self.filling => self.acquire(),
            0..60 => self.acquire(),
            60..80 => self.release(),
            80..90 => self.set_value(),
            90..98 => self.cancel(),
            _ => self.end_session(),
        }
    }

    fn session(&self) -> SessionId {
        let nth = usize::try_from(self.draw(self.sessions.len() as u64)).unwrap();
        SessionId::new(*self.sessions.keys().nth(nth).unwrap())
    }

    fn request_of(&mut self, session: SessionId) -> RequestId {
        // A session that ended in this very entry is refused, whatever it asks.
        let Some(next) = self.sessions.get_mut(&session.get()) else { return RequestId::new(1) };
        *next += 1;
        RequestId::new(*next - 1)
    }

    /// A tenth of the names gets a quarter of the requests.
    fn name(&self) -> LockName {
        let names = if self.draw(4) == 0 { NAMES / 10 } else { NAMES };
        let number = self.draw(names);
        let folder = ["a", "b", "c"][usize::try_from(number % 3).unwrap()];
        LockName::parse(&format!("{folder}/{number}")).unwrap()
    }

    fn acquire(&mut self) -> Command {
        let session = self.session();
        let request = self.request_of(session);
        let count = if self.draw(3) == 0 { 1 + self.draw(4) } else { 1 };
        let names: std::collections::BTreeSet<LockName> = (0..count).map(|_| self.name()).collect();
        let item = |lock| match self.draw(3) {
            0 => Item::shared(lock),
            _ => Item::exclusive(lock),
        };
        let items = names.into_iter().map(item).collect();
        let need = match self.draw(4) {
            0 => Need::Any { min: 0 },
            1 => Need::Any { min: 1 },
            _ => Need::All,
        };
        let wait = self.draw(5) > 0;
        Command::Acquire { session, done_below: RequestId::new(0), request, items, need, wait }
    }

    /// A lock that is held: its name, session and token.
    fn held(&self) -> Option<(LockName, SessionId, FencingToken)> {
        let held: Vec<_> = self.now().iter().filter(|(_, lock)| !lock.holders.is_empty()).collect();
        let nth = usize::try_from(self.draw(held.len().max(1) as u64)).unwrap();
        let (name, lock) = held.get(nth)?;
        let (&token, &(session, _)) = lock.holders.first_key_value()?;
        let name = LockName::parse(name).unwrap();
        Some((name, SessionId::new(session), FencingToken::from_raw(token)))
    }

    fn release(&mut self) -> Command {
        let Some((name, session, token)) = self.held() else { return self.acquire() };
        let locks = if self.draw(2) == 0 { vec![name] } else { vec![] };
        Command::Release { session, done_below: RequestId::new(0), token, locks }
    }

    fn set_value(&mut self) -> Command {
        let Some((lock, session, token)) = self.held() else { return self.acquire() };
        let request = self.request_of(session);
        let change = match self.draw(4) {
            0 => ValueChange::Clear,
            1 => ValueChange::Confirm,
            _ => ValueChange::Set(self.draw(1 << 20).to_be_bytes().to_vec()),
        };
        let done_below = RequestId::new(0);
        Command::SetValue { session, done_below, request, token, lock, change }
    }

    fn cancel(&mut self) -> Command {
        let session = self.session();
        let request = RequestId::new(1 + self.draw(self.sessions[&session.get()]));
        Command::Cancel { session, done_below: RequestId::new(0), request }
    }

    fn end_session(&mut self) -> Command {
        let session = self.session();
        self.sessions.remove(&session.get());
        match self.draw(2) {
            0 => Command::CloseSession { session },
            _ => Command::ExpireSession { session, tenure: Tenure::new(1) },
        }
    }
}

/// A watcher and its view, judged by the truth.
struct Judged {
    prefix: &'static str,
    /// `None` after a break, until it goes on.
    watching: Option<Watching>,
    /// Up to where it was told everything, at the last break.
    after: u64,
    model: Model,
    /// Events before `Synced` that were no page: news between pages.
    between: u64,
    compared: u64,
    /// How often it went on after a break, and how often it could not.
    resumed: u64,
    compacted: u64,
}

impl Judged {
    async fn new(history: &History, prefix: &'static str) -> Self {
        Self {
            prefix,
            watching: Some(history.world.watch(prefix).await.unwrap()),
            after: 0,
            model: Model::default(),
            between: 0,
            compared: 0,
            resumed: 0,
            compacted: 0,
        }
    }

    /// Receives some of the events that are ready.
    async fn read(&mut self, history: &History, events: u64) {
        for _ in 0..events {
            let Some(watching) = &mut self.watching else { return };
            let Some((index, told)) = watching.next_now().await else { return };
            self.take_in(history, index, told);
        }
    }

    fn take_in(&mut self, history: &History, index: u64, told: Told) {
        if index > self.model.index && self.model.synced {
            self.compare(history, index - 1);
        }
        if let Told::Change(_) = told {
            self.between += u64::from(!self.model.synced);
        }
        self.model.take_in(index, told);
    }

    /// Breaks off, unless it has the state or an entry in parts.
    fn leave(&mut self, history: &History) {
        while let Some((index, told)) = self.watching.as_mut().and_then(Watching::received) {
            self.take_in(history, index, told);
        }
        let Some(watching) = &self.watching else { return };
        if self.model.synced && self.model.index <= watching.complete {
            self.after = watching.complete;
            self.watching = None;
        }
    }

    /// Goes on after a break with what it knows, or anew if changes since then are gone.
    async fn come_back(&mut self, history: &History) {
        if self.watching.is_some() {
            return;
        }
        match history.world.go_on(self.prefix, self.after).await {
            Ok(watching) => {
                self.resumed += 1;
                self.watching = Some(watching);
            }
            Err(StreamError::Compacted(_)) => {
                self.compacted += 1;
                self.model = Model::default();
                self.watching = Some(history.world.watch(self.prefix).await.unwrap());
            }
            Err(other) => panic!("{other:?}"),
        }
    }

    /// Compares after everything up to `index` was received.
    fn compare(&mut self, history: &History, index: u64) {
        let below = |(name, _): &(&String, _)| name.starts_with(self.prefix);
        let mut truth = history.truth[&index].iter().filter(below);
        let mut known = self.model.locks.iter();
        loop {
            match (known.next(), truth.next()) {
                (None, None) => break,
                (known, truth) => assert_eq!(known, truth, "as of {index}"),
            }
        }
        self.compared += 1;
    }
}

/// How often watchers were compared, how many changes they received between pages, how often they went on after a
/// break, and how often they could not.
type Sums = [u64; 4];

async fn history(seed: u64) -> Sums {
    // Shown if it fails.
    println!("HOLDFAST_SEED={seed}");
    let mut history = History::new(seed).await;
    for _ in 0..BEFORE {
        history.step();
    }
    history.filling = false;
    let mut watchers = Vec::new();
    for prefix in PREFIXES {
        watchers.push(Judged::new(&history, prefix).await);
    }
    for nth in 0..MEANWHILE {
        history.step();
        if nth % 50 == 25 {
            watchers.push(Judged::new(&history, "").await);
        }
        for watcher in &mut watchers {
            let events = history.draw(120);
            watcher.read(&history, events).await;
            match history.draw(40) {
                0 => watcher.leave(&history),
                1..=3 => watcher.come_back(&history).await,
                _ => {}
            }
        }
    }
    let last = *history.truth.last_key_value().unwrap().0;
    for watcher in &mut watchers {
        watcher.come_back(&history).await;
        // Its turn to be shown the state comes as soon as those before it give way.
        for _ in 0..TURNS {
            watcher.read(&history, u64::MAX).await;
            history.world.runtime.sleep(PATIENCE).await;
        }
        assert!(watcher.model.synced);
        watcher.compare(&history, last);
    }
    let sum = |of: fn(&Judged) -> u64| watchers.iter().map(of).sum();
    [
        sum(|watcher| watcher.compared),
        sum(|watcher| watcher.between),
        sum(|watcher| watcher.resumed),
        sum(|watcher| watcher.compacted),
    ]
}

#[tokio::test(start_paused = true)]
async fn what_a_watcher_was_told_is_what_the_table_holds_at_every_index() {
    let repeated = std::env::var("HOLDFAST_SEED").ok().map(|seed| seed.parse().unwrap());
    let seeds = repeated.map_or(0..SEEDS, |seed| seed..seed + 1);
    let mut sums = Sums::default();
    for seed in seeds {
        let one = history(seed).await;
        sums.iter_mut().zip(one).for_each(|(sum, more)| *sum += more);
    }

    let [compared, between, resumed, compacted] = sums;
    println!("{compared} comparisons, {between} changes between pages");
    println!("{resumed} went on, {compacted} began anew");
    let enough = compared > 2_000 && between > 300 && resumed > 20 && compacted > 3;
    assert!(repeated.is_some() || enough, "too little happened: {sums:?}");
}
