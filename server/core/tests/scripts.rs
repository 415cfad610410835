//! Golden scenarios: one story per file in `tests/scripts`, commands above `---`, what the program
//! said below. `UPDATE=1 cargo test -p holdfast-core --test scripts` writes what is said now; the
//! reviewer reads the difference.
//!
//! ```text
//! open S TTL                    the next session, which has to get number S
//! close S | expire S [tenure=N]
//! acquire S LOCK [id=N] [done=N]    waits; ids count up from 1 by themselves
//! try S LOCK [id=N] [done=N]        does not
//! cancel S ID [done=N]
//! release S TOKEN [done=N]
//! limits name=N …               those not named are the defaults
//! counters name=N …             starts anew with these; token=-N is N before the last
//! tenure N | stamp N            of the entries that follow
//! show                          everything that is in the table
//! ```
//!
//! Tokens are shown without their epoch. `s1#2` is request 2 of session 1.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a script that cannot be played fails the test"
)]

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use holdfast_core::{
    Acquired, Answer, Applied, Batch, Command, Counters, Event, FencingToken, Label, Limits,
    LockName, LockTable, LogIndex, Outcome, RequestId, RequestState, SessionId, Tenure, Was,
};

#[test]
fn every_script_says_what_it_said_before() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/scripts");
    let mut files: Vec<PathBuf> =
        std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    assert!(files.len() >= 20, "only {} scripts in {}", files.len(), folder.display());
    let mut differ = Vec::new();
    for file in files {
        let before = std::fs::read_to_string(&file).unwrap();
        let now = play(&before);
        if before != now {
            settle(&file, &now);
            differ.push((file, now));
        }
    }
    for (file, now) in &differ {
        println!("{} now says:\n\n{now}", file.display());
    }
    assert!(differ.is_empty() || updating(), "{} scripts differ (UPDATE=1?)", differ.len());
}

#[expect(clippy::disallowed_methods, reason = "a switch of the test, not of the core")]
fn updating() -> bool {
    std::env::var("UPDATE").is_ok_and(|value| value == "1")
}

#[expect(clippy::disallowed_methods, reason = "the test writes its own golden file")]
fn settle(file: &Path, now: &str) {
    if updating() {
        std::fs::write(file, now).unwrap();
    }
}

/// Plays a script and returns it with the output of each block as it is now.
fn play(script: &str) -> String {
    let mut stage = Stage::new(Counters::default());
    let mut written = String::new();
    for block in script.trim_end().split("\n\n") {
        let commands = block.split("\n---").next().unwrap();
        let mut output = String::new();
        for line in commands.lines().filter(|line| !line.starts_with('#')) {
            stage.play_line(line, &mut output);
        }
        if !written.is_empty() {
            written.push('\n');
        }
        writeln!(written, "{}", commands.trim_end()).unwrap();
        if !output.is_empty() {
            writeln!(written, "---\n{}", output.trim_end()).unwrap();
        }
    }
    written
}

struct Stage {
    table: LockTable,
    index: u64,
    tenure: u64,
    stamp_ms: u64,
    last_request: BTreeMap<u64, u64>,
}

/// The words of a line: what stands alone, and what is given by name.
struct Words<'a> {
    plain: Vec<&'a str>,
    named: BTreeMap<&'a str, i64>,
}

impl<'a> Words<'a> {
    fn of(line: &'a str) -> Self {
        let (named, plain): (Vec<_>, Vec<_>) =
            line.split_whitespace().partition(|word| word.contains('='));
        let named = named
            .into_iter()
            .map(|word| word.split_once('=').unwrap())
            .map(|(name, value)| (name, value.parse().unwrap()))
            .collect();
        Self { plain, named }
    }

    fn number(&self, at: usize) -> u64 {
        self.plain[at].parse().unwrap_or_else(|_| panic!("a number at {at} of {:?}", self.plain))
    }

    fn session(&self) -> SessionId {
        SessionId::new(self.number(1))
    }

    fn named(&self, name: &str) -> Option<u64> {
        self.named.get(name).map(|&value| value.cast_unsigned())
    }

    fn done_below(&self) -> RequestId {
        RequestId::new(self.named("done").unwrap_or(0))
    }
}

impl Stage {
    fn new(counters: Counters) -> Self {
        let table = LockTable::with_counters(counters);
        Self { table, index: 0, tenure: 1, stamp_ms: 0, last_request: BTreeMap::new() }
    }

    fn play_line(&mut self, line: &str, output: &mut String) {
        let words = Words::of(line);
        match words.plain[0] {
            "show" => self.show(output),
            "tenure" => self.tenure = words.number(1),
            "stamp" => self.stamp_ms = words.number(1),
            "counters" => *self = Self::new(counters(&words)),
            _ => {
                let command = self.command(&words);
                let applied = self.apply(command);
                if let Ok(Answer::SessionOpened { session }) = applied.outcome {
                    assert_eq!(session, words.session(), "sessions are numbered in order");
                }
                tell(&applied, output);
            }
        }
    }

    fn command(&mut self, words: &Words<'_>) -> Command {
        let (session, done_below) = match words.plain[0] {
            "limits" => (SessionId::new(0), RequestId::new(0)),
            _ => (words.session(), words.done_below()),
        };
        match words.plain[0] {
            "open" => Command::OpenSession {
                ttl_ms: words.number(2),
                label: Label::parse(&format!("client-{session}")).unwrap(),
                secret_hash: [7; 32],
            },
            "close" => Command::CloseSession { session },
            "expire" => {
                let tenure = Tenure::new(words.named("tenure").unwrap_or(self.tenure));
                Command::ExpireSession { session, tenure }
            }
            verb @ ("acquire" | "try") => {
                let last = self.last_request.entry(session.get()).or_default();
                let request = words.named("id").unwrap_or(*last + 1);
                *last = request.max(*last);
                let lock = LockName::parse(words.plain[2]).unwrap();
                let request = RequestId::new(request);
                Command::Acquire { session, done_below, request, lock, wait: verb == "acquire" }
            }
            "cancel" => {
                let request = RequestId::new(words.number(2));
                Command::Cancel { session, done_below, request }
            }
            "release" => {
                let token = FencingToken::new(1, words.number(2)).unwrap();
                Command::Release { session, done_below, token }
            }
            "limits" => Command::Configure { limits: limits(words) },
            other => panic!("no such command: {other}"),
        }
    }

    /// Applies one command, and lets the table go through a snapshot: nothing may change by that.
    fn apply(&mut self, command: Command) -> Applied {
        self.index += 1;
        let batch = Batch { stamp_ms: self.stamp_ms, witness: None, commands: vec![command] };
        let mut applied = Vec::new();
        let index = LogIndex::new(self.index);
        self.table.apply_batch(index, Tenure::new(self.tenure), &batch, &mut applied).unwrap();
        self.table.check().unwrap();
        let bytes = bytes_of(&self.table);
        self.table = LockTable::read_from(&mut bytes.as_slice()).unwrap();
        assert_eq!(bytes, bytes_of(&self.table));
        applied.pop().unwrap()
    }

    fn show(&self, output: &mut String) {
        for lock in self.table.locks_after("", None, usize::MAX) {
            match lock.holder {
                Some(held) => {
                    let holder = who(held.grant.session, held.grant.request);
                    let (token, since) = (held.grant.token.counter(), held.since_ms);
                    let (name, label) = (lock.name, held.label.as_str());
                    write!(output, "{name}: {holder} ({label}) token={token} since={since}")
                        .unwrap();
                }
                None => write!(output, "{}: held by nobody", lock.name).unwrap(),
            }
            for waiter in lock.waiters() {
                let (who, since) = (who(waiter.session, waiter.request), waiter.since_ms);
                write!(output, ", {who} waits since={since}").unwrap();
            }
            output.push('\n');
        }
        let mut sessions: Vec<_> = self.table.sessions().collect();
        sessions.sort_unstable();
        for (session, ttl_ms) in sessions {
            let view = self.table.session(session).unwrap();
            let mark = view.done_below;
            write!(output, "s{session} ttl={ttl_ms} done={mark}").unwrap();
            for request in self.table.requests(session) {
                write!(output, ", #{} {}", request.request, standing(request.state)).unwrap();
            }
            output.push('\n');
        }
        if output.is_empty() {
            output.push_str("nothing\n");
        }
    }
}

fn counters(words: &Words<'_>) -> Counters {
    let mut counters = Counters::default();
    for (&name, &value) in &words.named {
        let from = |end: u64| {
            if value < 0 { end.wrapping_add_signed(value) } else { value.cast_unsigned() }
        };
        match name {
            "token" => counters.token = from(FencingToken::COUNTER_MAX),
            "session" => counters.session = from(u64::MAX),
            "ticket" => counters.ticket = from(u64::MAX),
            other => panic!("no such counter: {other}"),
        }
    }
    counters
}

fn limits(words: &Words<'_>) -> Limits {
    let mut limits = Limits::default();
    for (&name, &value) in &words.named {
        let value = value.cast_unsigned();
        match name {
            "max_sessions" => limits.max_sessions = value,
            "max_requests_per_session" => limits.max_requests_per_session = value,
            "max_waiters_per_lock" => limits.max_waiters_per_lock = value,
            "ttl_min_ms" => limits.ttl_min_ms = value,
            "ttl_max_ms" => limits.ttl_max_ms = value,
            other => panic!("no such limit: {other}"),
        }
    }
    limits
}

fn bytes_of(table: &LockTable) -> Vec<u8> {
    let mut bytes = Vec::new();
    table.freeze().write_to(&mut bytes).unwrap();
    bytes
}

fn who(session: SessionId, request: RequestId) -> String {
    format!("s{session}#{request}")
}

fn standing(state: RequestState) -> String {
    match state {
        RequestState::Waiting { place, .. } => format!("waits place={place}"),
        RequestState::Held { token, .. } => format!("holds token={}", token.counter()),
        RequestState::Denied { holder, .. } => format!("denied by s{holder}"),
        RequestState::Ended => "ended".into(),
    }
}

fn tell(applied: &Applied, output: &mut String) {
    for event in &applied.events {
        writeln!(output, "{}", event_line(event)).unwrap();
    }
    if let Some(line) = outcome_line(&applied.outcome) {
        writeln!(output, "{line}").unwrap();
    }
}

fn event_line(event: &Event) -> String {
    match event {
        Event::SessionOpened { session } => format!("s{session} opened"),
        Event::SessionEnded { session, cause } => format!("s{session} {cause:?}").to_lowercase(),
        Event::Queued { session, request, lock, place } => {
            format!("{} waits for {lock} place={place}", who(*session, *request))
        }
        Event::Granted { session, request, lock, token } => {
            format!("{} holds {lock} token={}", who(*session, *request), token.counter())
        }
        Event::Denied { session, request, lock, .. } => {
            format!("{} is denied {lock}", who(*session, *request))
        }
        Event::Left { session, request, lock } => {
            format!("{} no longer waits for {lock}", who(*session, *request))
        }
        Event::Released { session, request, lock, token } => {
            format!("{} gave back {lock} token={}", who(*session, *request), token.counter())
        }
        Event::Lost { session, request, lock, token, .. } => {
            format!("{} lost {lock} token={}", who(*session, *request), token.counter())
        }
        Event::Contended { session, request, lock, .. } => {
            format!("{} is told that others wait for {lock}", who(*session, *request))
        }
    }
}

/// What the caller learns beyond the events.
fn outcome_line(outcome: &Outcome) -> Option<String> {
    match outcome {
        Err(rejection) => Some(format!("rejected: {}", without_epochs(&rejection.to_string()))),
        Ok(Answer::Configured) => Some("limits set".into()),
        Ok(Answer::Acquired { request, state, fresh: false }) => {
            Some(format!("again: #{request} {}", acquired(*state)))
        }
        Ok(Answer::Cancelled { request, was }) => Some(match was {
            Was::Waiting => format!("#{request} was waiting"),
            Was::Held { token } => format!("#{request} was held token={}", token.counter()),
            Was::Ended => format!("#{request} had ended"),
            Was::Unknown => format!("#{request} was never seen; its id is spent"),
        }),
        // The events say it all.
        Ok(_) => None,
    }
}

fn acquired(state: Acquired) -> String {
    match state {
        Acquired::Granted { token } => format!("holds token={}", token.counter()),
        Acquired::Queued { place, holder: Some(holder) } => {
            format!("waits place={place} behind {}", who(holder.session, holder.request))
        }
        Acquired::Queued { place, holder: None } => {
            format!("waits place={place}, held by nobody")
        }
    }
}

/// Shows each token of epoch 1 by its counter alone.
fn without_epochs(text: &str) -> String {
    let epoch = FencingToken::new(1, 0).unwrap().get();
    let shorten = |word: &str| match word.parse::<u64>() {
        Ok(number) if (epoch..2 * epoch).contains(&number) => (number - epoch).to_string(),
        Ok(_) | Err(_) => word.to_string(),
    };
    text.split(' ').map(shorten).collect::<Vec<_>>().join(" ")
}
