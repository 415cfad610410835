//! Golden scenarios: one story per file in `tests/scripts`, commands above `---`, the table's
//! output below. `UPDATE=1 cargo test -p holdfast-core --test scripts` writes the present output;
//! the reviewer reads the difference.
//!
//! ```text
//! open S TTL [IDENTITY]         the next session, which has to get number S; that of an identity knows
//!                               closed holds
//! close S | expire S [tenure=N]
//! acquire S LOCKS [any=N] [id=N] [done=N]   waits; ids count up from 1 by themselves
//! try S LOCKS [any=N] [id=N] [done=N]       does not
//!                               both with what it says besides: [head-start=MS] [owner=N] [-- NOTE]
//! cancel S ID [done=N]
//! stop-waiting S ID
//! release S TOKEN [LOCKS] [done=N]
//! set S TOKEN LOCK TEXT [id=N] [done=N]
//! clear S TOKEN LOCK | confirm S TOKEN LOCK
//! import OWNER TTL ROW …        the next session, if anything comes in; a ROW is `+a` held, `+a:text`
//!                               with a value, `?a` waited for
//! claim S LOCK OWNER [id=N] [done=N]
//! scope PREFIX | unscope PREFIX  set, removed
//! suspend PREFIX | resume PREFIX EPOCH | raise PREFIX EPOCH
//! rules on | rules off           by an administrator, like the next two
//! role ROLE VERB:PREFIX …       all that it allows
//! give IDENTITY ROLE …          all roles that it has
//! end S REASON [now=1]          by an administrator, like the next two
//! cut-off IDENTITY REASON [now=1]
//! close-holds LOCK REASON [now=1] [of=N]   every holder's, or that under token N of epoch 1
//! limit LOCK N | limit LOCK none [IDENTITY]   of its permits, for good
//! freeze PREFIX|* MESSAGE [IDENTITY] | thaw PREFIX|*   `*` is all names
//! end-closed S TOKEN [tenure=N]
//! limits name=N …               those not named are the defaults
//! table-bytes N                 how many bytes the table may take
//! work N                        how many steps of work one command may do
//! carry-on                      with what earlier commands have left
//! counters name=N …             starts anew with these; token=-N is N before the last
//! tenure N | stamp N            of the entries that follow
//! passes MS                     at the leader, before the next entry
//! show                          everything that is in the table
//! bytes                         what it counts towards that limit
//! ```
//!
//! LOCKS is `a,b,~c,2/4*d`, `c` shared, two of the four permits of `d`; `any=N` asks for at least N of them. A TEXT of `x*5000` is 5,000
//! times `x`; `-` is no bytes.
//!
//! The output shows tokens of epoch 1 without it, others as EPOCH:COUNTER; `release 1 2:7` names
//! one of epoch 2. `s1#2` is request 2 of session 1.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a script that cannot be played fails the test"
)]

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::panic::catch_unwind;
use std::path::{Path, PathBuf};

use holdfast_core::{
    AccessName, Answer, Applied, Batch, Caller, ClosedLock, Command, Counters, Deed, FencingToken,
    Has, Identity, ImportRow, Item, LEASE_PARTS, Label, LeaseView, LimitView, Limits, LockName,
    LockTable, LogIndex, NamePrefix, Need, Quota, RequestId, Right, RuleChange, ScopePrefix,
    SessionId, Tenure, Terms, ValueChange, Verb,
};
use holdfast_mutants::{Mutant, while_armed};

mod telling;
use telling::{holder, scope_line, sign, standing, tell, value, who};

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

/// The rule of I6 taken away: the script says something else.
#[test]
fn an_expiry_of_another_tenure_is_accepted_without_the_rule() {
    let script = include_str!("scripts/expiry_of_another_tenure.txt");
    let said = while_armed(Mutant::ExpiryFromOtherTenure, || play(script));
    assert!(!said.contains("found expired in tenure 1"), "{said}");
}

/// A rule that is broken makes a script say something else, or the table contradict itself.
#[test]
fn each_rule_of_the_vocabulary_is_missed_when_it_is_broken() {
    let in_order = include_str!("scripts/permits_are_granted_in_strict_order.txt");
    let for_good = include_str!("scripts/a_limit_for_good.txt");
    let ahead = include_str!("scripts/a_head_start_is_bounded.txt");
    let owner = include_str!("scripts/an_owner_asks_again.txt");
    let frozen = include_str!("scripts/a_freeze_grants_nothing.txt");
    let urgent = include_str!("scripts/contended_is_told_again_of_larger_head_starts.txt");
    let numbers = include_str!("scripts/a_sequence_gives_each_number_once.txt");
    let floor = include_str!("scripts/some_of_several_are_granted_together.txt");
    let bound = include_str!("scripts/a_hold_lasts_its_least_and_its_most.txt");
    let long = include_str!("scripts/a_hold_that_lasted_too_long_counts_until_it_is_released.txt");
    let broken = [
        (Mutant::PassingNotTold, ahead),
        (Mutant::ClosedHoldsNotCounted, long),
        (Mutant::FrozenIsGranted, frozen),
        (Mutant::ThawLooksAtNothing, frozen),
        (Mutant::MoreUrgentUntold, urgent),
        (Mutant::FloorIgnored, floor),
        (Mutant::HoldAtLeastIgnored, bound),
        (Mutant::SnapshotWithoutClosed, bound),
        (Mutant::SequenceRepeats, numbers),
        (Mutant::SnapshotWithoutSequences, numbers),
        (Mutant::HeadStartIgnored, ahead),
        (Mutant::AgeStandsStill, ahead),
        (Mutant::OwnerWaitsForItself, owner),
        (Mutant::SnapshotWithoutTerms, owner),
        (Mutant::PermitsCountedAsOne, in_order),
        (Mutant::AboveLimitWaits, for_good),
        (Mutant::LimitOutlivesHolders, in_order),
        (Mutant::SnapshotWithoutLimits, for_good),
    ];
    for (mutant, script) in broken {
        assert_eq!(play(script), script);
        let said = while_armed(mutant, || catch_unwind(|| play(script)));
        assert!(said.is_err() || said.is_ok_and(|said| said != script), "{mutant:?}");
    }
}

/// Who held a closed lock, and for how long at least.
fn closed_by(closed: &ClosedLock) -> String {
    let ClosedLock { token, hold_at_least_ms, since_ms, label, .. } = closed;
    let (token, label) = (token.counter(), label.as_str());
    format!(", closed by {label} token={token} least={hold_at_least_ms} since={since_ms}")
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

/// Plays a script and returns it with the present output of each block.
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
    passes_ms: u64,
    last_request: BTreeMap<u64, u64>,
}

/// The words of a line: the plain ones, the `name=value` pairs, and the text behind `--`.
struct Words<'a> {
    plain: Vec<&'a str>,
    named: BTreeMap<&'a str, i64>,
    text: &'a str,
}

impl<'a> Words<'a> {
    fn of(line: &'a str) -> Self {
        let (line, text) = line.split_once(" -- ").unwrap_or((line, ""));
        let (named, plain): (Vec<_>, Vec<_>) =
            line.split_whitespace().partition(|word| word.contains('='));
        let named = named
            .into_iter()
            .map(|word| word.split_once('=').unwrap())
            .map(|(name, value)| (name, value.parse().unwrap()))
            .collect();
        Self { plain, named, text }
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

    fn token(&self) -> FencingToken {
        let (epoch, counter) = self.plain[2].split_once(':').unwrap_or(("1", self.plain[2]));
        FencingToken::new(epoch.parse().unwrap(), counter.parse().unwrap()).unwrap()
    }

    fn need(&self) -> Need {
        match self.named("any") {
            Some(min) => Need::Any { min: u32::try_from(min).unwrap() },
            None => Need::All,
        }
    }

    fn terms(&self) -> Terms {
        Terms {
            head_start_ms: u32::try_from(self.named("head-start").unwrap_or(0)).unwrap(),
            owner: self.named("owner").unwrap_or(0),
            note: Label::parse(self.text).unwrap(),
            max_hold_ms: u32::try_from(self.named("most").unwrap_or(0)).unwrap(),
            hold_at_least_ms: u32::try_from(self.named("least").unwrap_or(0)).unwrap(),
        }
    }

    /// The locks at a place of the line; none if the line ends before it.
    fn items(&self, at: usize) -> Vec<Item> {
        let text = self.plain.get(at).copied().unwrap_or_default();
        let names = text.split(',').filter(|name| !name.is_empty());
        names
            .map(|text| {
                let (permits, name) = text.split_once('*').unwrap_or(("", text));
                let lock = |text| LockName::parse(text).unwrap();
                match (permits.split_once('/'), name.strip_prefix('~')) {
                    (Some((count, limit)), _) => {
                        Item::permits(lock(name), count.parse().unwrap(), limit.parse().unwrap())
                    }
                    (None, Some(name)) => Item::shared(lock(name)),
                    (None, None) => Item::exclusive(lock(name)),
                }
            })
            .collect()
    }
}

impl Stage {
    fn new(counters: Counters) -> Self {
        let table = LockTable::with_counters(counters);
        let last_request = BTreeMap::new();
        Self { table, index: 0, tenure: 1, stamp_ms: 0, passes_ms: 0, last_request }
    }

    fn play_line(&mut self, line: &str, output: &mut String) {
        let words = Words::of(line);
        match words.plain[0] {
            "show" => self.show(output),
            "bytes" => writeln!(output, "{} bytes", self.table.counts().table_bytes).unwrap(),
            "tenure" => self.tenure = words.number(1),
            "stamp" => self.stamp_ms = words.number(1),
            "passes" => self.passes_ms = words.number(1),
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

    fn ask(&mut self, (session, done_below): (SessionId, RequestId), words: &Words<'_>) -> Command {
        let request = self.request(session, words);
        let wish = (words.need(), words.plain[0] == "acquire");
        Command::acquire((session, done_below, request), words.items(2), wish, words.terms())
    }

    #[expect(clippy::too_many_lines, reason = "a table, one arm for each command")]
    fn command(&mut self, words: &Words<'_>) -> Command {
        let (session, done_below) = match words.plain[0] {
            "rules" | "role" | "give" | "quota" | "limits" | "table-bytes" | "import"
            | "lengthen" | "scope" | "work" | "carry-on" | "unscope" | "suspend" | "resume"
            | "raise" | "cut-off" | "close-holds" | "own" | "limit" | "freeze" | "thaw"
            | "advance" | "begin" | "open-lock" => (SessionId::new(0), RequestId::new(0)),
            _ => (words.session(), words.done_below()),
        };
        match words.plain[0] {
            "open" => open(session, words),
            "close" => Command::CloseSession { session },
            "expire" => Command::ExpireSession { session, tenure: self.tenure_in(words) },
            "acquire" | "try" => self.ask((session, done_below), words),
            "cancel" => {
                let request = RequestId::new(words.number(2));
                Command::Cancel { session, done_below, request }
            }
            "stop-waiting" => {
                let request = RequestId::new(words.number(2));
                Command::StopWaiting { session, request }
            }
            verb @ ("release" | "release-lost") => {
                let locks = words.items(3).into_iter().map(|item| item.lock).collect();
                let token = words.token();
                match verb {
                    "release" => Command::Release { session, done_below, token, locks },
                    _ => Command::ReleaseLost { session, done_below, token, locks },
                }
            }
            "set" | "clear" | "confirm" => {
                let request = self.request(session, words);
                let (token, change) = (words.token(), change(words));
                let lock = LockName::parse(words.plain[3]).unwrap();
                Command::SetValue { session, done_below, request, token, lock, change }
            }
            "import" => {
                let owner = Label::parse(words.plain[1]).unwrap();
                let rows = words.plain[3..].iter().map(|row| import_row(row)).collect();
                Command::Import { owner, ttl_ms: words.number(2), rows }
            }
            "lengthen" => {
                let owner = Label::parse(words.plain[1]).unwrap();
                let locks = words.plain[3..].iter().map(|lock| LockName::parse(lock).unwrap());
                let (ttl_ms, locks) = (words.number(2), locks.collect());
                Deed::LengthenImports { owner, ttl_ms, locks }.by(&Caller::default())
            }
            "claim" => {
                let request = self.request(session, words);
                let lock = LockName::parse(words.plain[2]).unwrap();
                let owner = Label::parse(words.plain[3]).unwrap();
                Command::Claim { session, done_below, request, lock, owner }
            }
            "scope" | "unscope" | "suspend" | "resume" | "raise" => scope_command(words),
            "rules" | "role" | "give" | "quota" => rule(words),
            "end" | "cut-off" | "close-holds" | "own" | "limit" | "freeze" | "thaw" | "advance"
            | "begin" => from_outside(words),
            "end-closed" => {
                let (token, tenure) = (words.token(), self.tenure_in(words));
                Command::EndClosed { session, token, tenure }
            }
            "too-long" => Command::EndLongHold { session, token: words.token() },
            "open-lock" => {
                let lock = LockName::parse(words.plain[1]).unwrap();
                Command::OpenLock { lock, token: words.token() }
            }
            "limits" => Command::Configure { limits: limits(words) },
            "table-bytes" => Command::LimitTable { max_bytes: words.number(1) },
            "work" | "carry-on" => work(words),
            other => panic!("no such command: {other}"),
        }
    }

    fn tenure_in(&self, words: &Words<'_>) -> Tenure {
        Tenure::new(words.named("tenure").unwrap_or(self.tenure))
    }

    fn request(&mut self, session: SessionId, words: &Words<'_>) -> RequestId {
        let last = self.last_request.entry(session.get()).or_default();
        let request = words.named("id").unwrap_or(*last + 1);
        *last = request.max(*last);
        RequestId::new(request)
    }

    /// Applies one command, and sends the table through a snapshot, which must change nothing.
    fn apply(&mut self, command: Command) -> Applied {
        self.index += 1;
        let (stamp_ms, aged_ms) = (self.stamp_ms, std::mem::take(&mut self.passes_ms));
        let batch = Batch { stamp_ms, aged_ms, witness: None, commands: vec![command] };
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
            let holders: Vec<String> = lock.holders().map(|held| holder(&held)).collect();
            let holders =
                if holders.is_empty() { "held by nobody".into() } else { holders.join(", ") };
            write!(output, "{}: {holders}", lock.name).unwrap();
            for waiter in lock.waiters() {
                let (who, since) = (who(waiter.session, waiter.request), waiter.since_ms);
                write!(output, ", {}{who} waits since={since}", sign(waiter.mode)).unwrap();
                write!(output, "{}", noted(waiter.note)).unwrap();
            }
            if let Some(carried) = lock.value {
                write!(output, ", carries {}", value(carried)).unwrap();
            }
            write!(output, "{}", lock.closed.map(closed_by).unwrap_or_default()).unwrap();
            if let Some(LimitView { permits, used, for_good }) = lock.limit {
                let for_good = if for_good { " for good" } else { "" };
                write!(output, ", {used} of {permits} permits{for_good}").unwrap();
            }
            output.push('\n');
        }
        let parts = 0..LEASE_PARTS;
        let mut sessions: Vec<_> = parts.flat_map(|part| self.table.leases_in(part)).collect();
        sessions.sort_unstable_by_key(|lease| lease.session);
        for LeaseView { session, ttl_ms, is_revoked, closed } in sessions {
            let view = self.table.session(session).unwrap();
            let mark = view.done_below;
            write!(output, "s{session} ttl={ttl_ms} done={mark}").unwrap();
            assert_eq!(is_revoked, view.revoked.is_some());
            if let Some(reason) = view.revoked {
                write!(output, " revoked={}", reason.as_str()).unwrap();
            }
            for (token, reason) in self.table.closed_holds(session) {
                let over = if closed.contains(&token) { "" } else { ", over" };
                let reason = reason.as_str();
                write!(output, " closed={}({reason}{over})", token.counter()).unwrap();
            }
            for request in self.table.requests(session) {
                write!(output, ", #{} {}", request.request, standing(&request)).unwrap();
            }
            output.push('\n');
        }
        for (prefix, freeze) in self.table.freezes() {
            let (message, by, since) = (freeze.message.as_str(), &freeze.by, freeze.since_ms);
            writeln!(output, "{:?} frozen by {by} since={since}: {message}", prefix.as_str())
                .unwrap();
        }
        for (name, last) in self.table.sequences_after("", None) {
            writeln!(output, "sequence {name} gave out numbers up to {last}").unwrap();
        }
        for view in self.table.scopes() {
            writeln!(output, "{}", scope_line(view.scope, Some(view.state))).unwrap();
        }
        if output.is_empty() {
            output.push_str("nothing\n");
        }
    }
}

fn open(session: SessionId, words: &Words<'_>) -> Command {
    let label = Label::parse(&format!("client-{session}")).unwrap();
    let (ttl_ms, secret_hash) = (words.number(2), [7; 32]);
    match words.plain.get(3) {
        None => Command::OpenSession { ttl_ms, label, secret_hash },
        Some(identity) => Command::By {
            caller: Caller { identity: Identity::parse(identity).unwrap(), is_admin: false },
            deed: Deed::OpenSession { ttl_ms, label, secret_hash, knows_closed: true },
        },
    }
}

fn rule(words: &Words<'_>) -> Command {
    let name = |text: &str| AccessName::parse(text).unwrap();
    let right = |text: &&str| {
        let (verb, prefix) = text.split_once(':').unwrap();
        let prefix = NamePrefix::parse(prefix).unwrap();
        Right { verb: Verb::parse(verb).unwrap(), prefix }
    };
    let rest = &words.plain[2..];
    let change = match words.plain[0] {
        "rules" => RuleChange::Turn { on: words.plain[1] == "on" },
        "role" => RuleChange::SetRole {
            role: name(words.plain[1]),
            rights: rest.iter().map(right).collect(),
        },
        "quota" => RuleChange::SetQuota {
            identity: (words.plain[1] != "all").then(|| Identity::parse(words.plain[1]).unwrap()),
            quota: Quota {
                sessions: words.named("sessions"),
                holds: words.named("holds"),
                waits: words.named("waits"),
                value_bytes: words.named("value-bytes"),
                connections: None,
            },
        },
        _ => RuleChange::SetRoles {
            identity: Identity::parse(words.plain[1]).unwrap(),
            roles: rest.iter().map(|role| name(role)).collect(),
        },
    };
    let caller = Caller { identity: Identity::parse("cn:ops").unwrap(), is_admin: true };
    Command::By { caller, deed: Deed::Rule { change } }
}

fn from_outside(words: &Words<'_>) -> Command {
    if words.plain[0] == "limit" {
        return limit_command(words);
    }
    if let "freeze" | "thaw" = words.plain[0] {
        return freeze_command(words);
    }
    if let "advance" | "begin" = words.plain[0] {
        return sequence_command(words);
    }
    if words.plain[0] == "own" {
        let identity = Identity::parse(words.plain[2]).unwrap();
        let deed = Deed::OwnSession { session: words.session() };
        return Command::By { caller: Caller { identity, is_admin: false }, deed };
    }
    let reason = Label::parse(words.plain[2]).unwrap();
    let now = words.named("now").is_some();
    let deed = match words.plain[0] {
        "end" => Deed::EndSession { session: words.session(), reason, now },
        "cut-off" => {
            Deed::CutOff { identity: Identity::parse(words.plain[1]).unwrap(), reason, now }
        }
        _ => {
            let lock = LockName::parse(words.plain[1]).unwrap();
            let token = words.named("of").map(|counter| FencingToken::new(1, counter).unwrap());
            Deed::CloseHolds { lock, token, reason, now }
        }
    };
    let caller = Caller { identity: Identity::parse("cn:ops").unwrap(), is_admin: true };
    Command::By { caller, deed }
}

/// By an administrator, unless an identity is named.
fn freeze_command(words: &Words<'_>) -> Command {
    let prefix = NamePrefix::parse(words.plain[1].trim_start_matches('*')).unwrap();
    let by = words.plain.get(3).copied().unwrap_or("cn:ops");
    let caller = Caller { identity: Identity::parse(by).unwrap(), is_admin: by == "cn:ops" };
    let deed = match words.plain[0] {
        "freeze" => Deed::Freeze { prefix, message: Label::parse(words.plain[2]).unwrap() },
        _ => Deed::Thaw { prefix },
    };
    Command::By { caller, deed }
}

/// By an administrator, unless an identity is named.
fn sequence_command(words: &Words<'_>) -> Command {
    let sequence = LockName::parse(words.plain[1]).unwrap();
    let by = words.plain.get(3).copied().unwrap_or("cn:ops");
    let caller = Caller { identity: Identity::parse(by).unwrap(), is_admin: by == "cn:ops" };
    let deed = match words.plain[0] {
        "advance" => Deed::Advance { sequence, by: words.plain[2].parse().unwrap() },
        _ => Deed::BeginSequence { sequence, at: words.number(2) },
    };
    Command::By { caller, deed }
}

/// By an administrator, unless an identity is named.
fn limit_command(words: &Words<'_>) -> Command {
    let lock = LockName::parse(words.plain[1]).unwrap();
    let limit = words.plain[2].parse().ok();
    let by = words.plain.get(3).copied().unwrap_or("cn:root");
    let caller = Caller { identity: Identity::parse(by).unwrap(), is_admin: by == "cn:root" };
    Command::By { caller, deed: Deed::SetLimit { lock, limit } }
}

fn scope_command(words: &Words<'_>) -> Command {
    let scope = ScopePrefix::parse(words.plain[1]).unwrap();
    let epoch = || u16::try_from(words.number(2)).unwrap();
    match words.plain[0] {
        "scope" => Command::SetScope { scope },
        "unscope" => Command::RemoveScope { scope },
        "suspend" => Command::Suspend { scope },
        "resume" => Command::Resume { scope, epoch: epoch() },
        _ => Command::RaiseEpoch { scope, epoch: epoch() },
    }
}

fn noted(note: &str) -> String {
    if note.is_empty() { String::new() } else { format!(" ({note})") }
}

fn work(words: &Words<'_>) -> Command {
    match words.plain[0] {
        "work" => Command::LimitWork { steps: words.number(1) },
        _ => Command::CarryOn,
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
            "epoch" => counters.epoch = u16::try_from(value).unwrap(),
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
            "max_value_bytes" => limits.max_value_bytes = value,
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

fn import_row(row: &str) -> ImportRow {
    let lock = |name: &str| LockName::parse(name).unwrap();
    match (row.split_at(1), row.split_once(':')) {
        (("?", name), _) => ImportRow { lock: lock(name), has: Has::Place },
        (_, Some((name, value))) => {
            ImportRow { lock: lock(&name[1..]), has: Has::Hold(Some(value.into())) }
        }
        ((_, name), None) => ImportRow { lock: lock(name), has: Has::Hold(None) },
    }
}

fn change(words: &Words<'_>) -> ValueChange {
    match words.plain[0] {
        "clear" => ValueChange::Clear,
        "confirm" => ValueChange::Confirm,
        _ => ValueChange::Set(match (words.plain[4], words.plain[4].split_once('*')) {
            ("-", _) => Vec::new(),
            (_, Some((text, times))) => text.repeat(times.parse().unwrap()).into_bytes(),
            (text, None) => text.into(),
        }),
    }
}
