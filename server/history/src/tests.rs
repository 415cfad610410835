//! A history of a table that real commands change: what it says, and what it says after a crash, a gap, a full disk.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use holdfast_core::{
    Applied, Batch, Caller, Command, Deed, FencingToken, Identity, Item, Label, LockName,
    LockTable, LogIndex, NamePrefix, Need, RequestId, SessionId, Tenure,
};
use holdfast_mutants::{Mutant, while_armed};
use holdfast_replication::consensus::{AppliedEntry, EntryContent, MemberIds, Recorder as _};
use holdfast_runtime::Runtime;

use crate::{
    Bounds, Cursor, Found, History, Names, Page, Query, Record, Settings, Stretch, What, Why,
};

const STORE: [u8; 16] = [7; 16];
const ROOMY: Bounds = Bounds { bytes_max: 64 << 20, age_max: Duration::MAX, reserve_bytes: 0 };
/// The wall clock of entry 0; each entry is a second later.
const BEGAN_MS: u64 = 1_700_000_000_000;

/// A node's table and history.
struct Node {
    table: LockTable,
    history: Arc<History>,
    index: u64,
    tenure: u64,
}

fn open(folder: &Path, bounds: Bounds) -> Arc<History> {
    let settings = Settings { folder: folder.to_owned(), store: STORE, bounds };
    History::open(&settings, Runtime::system().clock).unwrap()
}

impl Node {
    fn new(folder: &Path, bounds: Bounds) -> Self {
        let history = open(folder, bounds);
        history.restored(LogIndex::new(0));
        Self { table: LockTable::new(), history, index: 0, tenure: 1 }
    }

    /// The next entry of the log has these commands.
    fn apply(&mut self, commands: Vec<Command>) {
        self.index += 1;
        let (index, tenure) = (LogIndex::new(self.index), Tenure::new(self.tenure));
        let stamp_ms = BEGAN_MS + self.index * 1_000;
        let batch = Batch { stamp_ms, commands, ..Batch::default() };
        let mut applied: Vec<Applied> = Vec::new();
        self.table.apply_batch(index, tenure, &batch, &mut applied).unwrap();
        let content = EntryContent::Batch(&batch.commands, &applied);
        self.history.applied(&AppliedEntry { index, tenure, content, table: &self.table });
    }

    fn opens_session(&mut self, label: &str) {
        let label = Label::parse(label).unwrap();
        let knows_closed = true;
        let open = Deed::OpenSession { ttl_ms: 10_000, label, secret_hash: [0; 32], knows_closed };
        self.apply(vec![open.by(&Caller::default())]);
    }

    /// The session of the only one that is open.
    fn session(&self) -> SessionId {
        self.table.sessions().next().unwrap().session
    }

    fn page(&self, query: Query) -> Page {
        self.history.read(&Query { limit: 1_000, ..query }).unwrap()
    }

    fn all(&self) -> Vec<Found> {
        self.page(Query::default()).found
    }

    /// Each second entry is a grant of a lock of its own, each other one its release.
    fn works(&mut self, session: SessionId, times: u64) {
        for _ in 0..times {
            let nth = self.index;
            self.apply(vec![acquire(session, 1_000 + nth, &[&format!("lock-{nth}")])]);
            let token = self.token(session, nth);
            self.apply(vec![release(session, token)]);
        }
    }

    fn token(&self, session: SessionId, nth: u64) -> FencingToken {
        let name = LockName::parse(&format!("lock-{nth}")).unwrap();
        let lock = self.table.lock(&name).unwrap();
        let holder = lock.holders().find(|holder| holder.grant.session == session);
        holder.unwrap().grant.token
    }
}

fn acquire(session: SessionId, request: u64, names: &[&str]) -> Command {
    let item = |name: &&str| Item::exclusive(LockName::parse(name).unwrap());
    Command::Acquire {
        session,
        done_below: RequestId::new(request),
        request: RequestId::new(request),
        items: names.iter().map(item).collect(),
        need: Need::All,
        wait: true,
    }
}

fn release(session: SessionId, token: FencingToken) -> Command {
    Command::Release { session, done_below: RequestId::new(0), token, locks: Vec::new() }
}

/// What happened, in words, with the entry in which it did.
fn told(found: &[Found]) -> Vec<String> {
    found.iter().map(words).collect()
}

fn words(found: &Found) -> String {
    let Record { index, what, .. } = match found {
        Found::Gap(Stretch { after, through }) => return format!("gap {after}..{through}"),
        Found::Record(record) => record,
    };
    let names = |items: &[Item]| -> Vec<String> {
        items.iter().map(|item| item.lock.as_str().to_owned()).collect()
    };
    match what {
        What::Held(hold) => {
            format!("{index} held {:?} by {}", names(&hold.items), hold.label.as_str())
        }
        What::Over(over) => format!("{index} {:?} {:?}", over.why, names(&over.items)),
        What::Closed { items, reason, .. } => {
            format!("{index} closed {:?}: {}", names(items), reason.as_str())
        }
        What::Act(act) => format!("{index} {} {} on {}: {}", act.by, act.verb, act.on, act.detail),
        What::Elected { tenure } => format!("{index} elected {tenure}"),
        What::Members { voters, learners } => format!("{index} members {voters:?} {learners:?}"),
    }
}

fn admin() -> Caller {
    Caller { identity: Identity::parse("cn:ops").unwrap(), is_admin: true }
}

#[test]
fn a_history_says_who_held_what_and_why_it_ended_and_what_operators_did() {
    let folder = tempfile::tempdir().unwrap();
    let mut node = Node::new(folder.path(), ROOMY);
    node.opens_session("worker-7");
    let session = node.session();
    node.apply(vec![acquire(session, 1, &["a", "b"])]);
    node.apply(vec![acquire(session, 2, &["a"])]);
    let lock = LockName::parse("a").unwrap();
    let reason = Label::parse("stuck").unwrap();
    let close = Deed::CloseHolds { lock, token: None, reason, now: true };
    node.apply(vec![close.by(&admin())]);
    let (prefix, message) = (NamePrefix::parse("jobs/").unwrap(), Label::parse("upgrade").unwrap());
    node.apply(vec![Deed::Freeze { prefix, message }.by(&admin())]);
    node.apply(vec![Command::CloseSession { session }]);

    let words = told(&node.all());
    assert_eq!(
        words,
        [
            "1 elected 1",
            "2 held [\"a\", \"b\"] by worker-7",
            "4 cn:ops now on a: stuck",
            "4 Forced [\"a\", \"b\"]",
            "4 held [\"a\"] by worker-7",
            "5 cn:ops freeze on jobs/: frozen: upgrade",
            "6 Closed [\"a\"]",
        ]
    );
    let Found::Record(last) = node.all().pop().unwrap() else { panic!("a gap") };
    assert_eq!(last.at_ms, BEGAN_MS + 6_000);
    assert!(matches!(last.what, What::Over(over) if over.why == Why::Closed));
}

#[test]
fn a_page_is_about_the_locks_and_the_session_and_the_time_that_were_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let mut node = Node::new(folder.path(), ROOMY);
    node.opens_session("one");
    let session = node.session();
    node.apply(vec![acquire(session, 1, &["a/1", "b/1"])]);
    node.apply(vec![acquire(session, 2, &["a/2"])]);
    let of = |names| told(&node.page(Query { names, ..Query::default() }).found);

    let one = Names::One(LockName::parse("a/1").unwrap());
    assert_eq!(of(one), ["2 held [\"a/1\"] by one"], "and not that b/1 was held with it");
    let prefix = Names::Prefix("a/".to_owned());
    assert_eq!(of(prefix), ["2 held [\"a/1\"] by one", "3 held [\"a/2\"] by one"]);

    let of_session = Query { session: Some(SessionId::new(999)), ..Query::default() };
    assert_eq!(told(&node.page(of_session).found), [""; 0]);
    let of_session = Query { session: Some(session), ..Query::default() };
    assert_eq!(node.page(of_session).found.len(), 2);

    let (since_ms, until_ms) = (BEGAN_MS + 2_000, Some(BEGAN_MS + 3_000));
    let at_two = Query { since_ms, until_ms, ..Query::default() };
    assert_eq!(told(&node.page(at_two).found), ["2 held [\"a/1\", \"b/1\"] by one"]);
}

/// Frames without a lock's name are not decoded; an act about a prefix of it has another name.
#[test]
fn a_freeze_of_a_prefix_is_part_of_the_past_of_each_lock_under_it() {
    let folder = tempfile::tempdir().unwrap();
    let mut node = Node::new(folder.path(), ROOMY);
    node.opens_session("one");
    let session = node.session();
    node.apply(vec![acquire(session, 1, &["jobs/1"])]);
    node.all();
    node.works(session, 3);
    node.all();
    let (prefix, message) = (NamePrefix::parse("jobs/").unwrap(), Label::default());
    node.apply(vec![Deed::Freeze { prefix, message }.by(&admin())]);
    let names = Names::One(LockName::parse("jobs/1").unwrap());
    let told = told(&node.page(Query { names, ..Query::default() }).found);
    assert_eq!(told.len(), 2, "{told:?}");
    assert!(told[1].contains("freeze on jobs/"), "{told:?}");
}

#[test]
fn pages_follow_each_other_backwards_and_have_everything_once() {
    let folder = tempfile::tempdir().unwrap();
    let mut node = Node::new(folder.path(), ROOMY);
    node.opens_session("one");
    let session = node.session();
    // Several records of one entry, too.
    let many = (0..5).map(|nth| acquire(session, 100 + nth, &[&format!("m-{nth}")])).collect();
    node.apply(many);
    node.works(session, 10);
    let whole = node.all();

    let (mut pages, mut before): (Vec<Vec<Found>>, Option<Cursor>) = (Vec::new(), None);
    loop {
        let page = node.history.read(&Query { before, limit: 3, ..Query::default() }).unwrap();
        pages.insert(0, page.found);
        before = page.earlier;
        if before.is_none() {
            assert_eq!(page.begins_after, Some(0));
            break;
        }
    }
    assert_eq!(pages.concat(), whole);
    assert_eq!(whole.len(), 1 + 5 + 20);
}

/// I39. Whatever the crash left, and from wherever the table is rebuilt.
#[test]
fn after_a_restart_nothing_stands_in_it_twice_and_what_is_missing_is_a_gap() {
    restarts();
}

#[test]
fn each_rule_of_a_history_is_missed_when_it_is_broken() {
    for mutant in [Mutant::HistoryTwice, Mutant::HistoryHidesGaps] {
        let run = while_armed(mutant, || std::panic::catch_unwind(restarts));
        assert!(run.is_err(), "nothing showed that {mutant} was armed");
    }
}

fn restarts() {
    let folder = tempfile::tempdir().unwrap();
    let mut node = Node::new(folder.path(), ROOMY);
    node.opens_session("one");
    let session = node.session();
    node.works(session, 4);
    let whole = told(&node.all());
    assert_eq!(whole.len(), 9);
    drop(node);

    // The whole log is applied again, and goes on.
    let mut node = Node::new(folder.path(), ROOMY);
    node.opens_session("one");
    node.works(session, 5);
    let after = told(&node.all());
    assert_eq!(after[..9], whole);
    assert_eq!(after.len(), 11);
    drop(node);

    // The table begins with a snapshot of entries that the history does not have.
    let history = open(folder.path(), ROOMY);
    history.restored(LogIndex::new(20));
    let mut node = Node { table: LockTable::new(), history, index: 20, tenure: 2 };
    node.table.note_index(LogIndex::new(20));
    node.opens_session("two");
    let session = node.session();
    node.works(session, 1);
    let words = told(&node.all());
    assert_eq!(
        words[11..],
        ["gap 11..20", "22 held [\"lock-21\"] by two", "23 Released [\"lock-21\"]"]
    );
}

/// I39.
#[test]
fn of_a_file_that_a_crash_has_cut_anywhere_the_rest_is_written_again_or_is_a_gap() {
    let folder = tempfile::tempdir().unwrap();
    let mut node = Node::new(folder.path(), ROOMY);
    node.opens_session("one");
    let session = node.session();
    for _ in 0..3 {
        node.works(session, 1);
        // A frame of its own.
        node.all();
    }
    let whole = told(&node.all());
    drop(node);
    let path = fs::read_dir(folder.path()).unwrap().next().unwrap().unwrap().path();
    let bytes = fs::read(&path).unwrap();

    for length in (0..=bytes.len()).step_by(7).chain([bytes.len()]) {
        let cut = tempfile::tempdir().unwrap();
        fs::write(cut.path().join(path.file_name().unwrap()), &bytes[..length]).unwrap();
        let mut node = Node::new(cut.path(), ROOMY);
        node.opens_session("one");
        node.works(session, 3);
        assert_eq!(told(&node.all()), whole, "{length} bytes");
        drop(node);

        let history = open(cut.path(), ROOMY);
        history.restored(LogIndex::new(7));
        assert_eq!(
            told(&history.read(&Query { limit: 99, ..Query::default() }).unwrap().found),
            whole
        );
    }
}

/// I39: an installed snapshot skips entries while the node runs.
#[test]
fn an_installed_snapshot_leaves_a_gap() {
    let folder = tempfile::tempdir().unwrap();
    let mut node = Node::new(folder.path(), ROOMY);
    node.opens_session("one");
    let session = node.session();
    node.works(session, 1);
    node.history.restored(LogIndex::new(3));
    node.history.restored(LogIndex::new(9));
    node.index = 9;
    node.tenure = 5;
    node.table.note_index(LogIndex::new(9));
    node.works(session, 1);
    let words = told(&node.all());
    assert_eq!(words[3], "gap 3..9");
    assert_eq!(words.len(), 6, "who led meanwhile is not known: {words:?}");
    // A page that ends with the gap, where the time asked for ends as well: the next one does not show it again.
    let since = Query { since_ms: BEGAN_MS + 10_000, limit: 3, ..Query::default() };
    let page = node.history.read(&since).unwrap();
    assert_eq!(told(&page.found)[0], "gap 3..9");
    let before = page.earlier;
    let next = node.history.read(&Query { before, ..since }).unwrap();
    assert_eq!((before.is_some(), told(&next.found)), (true, vec![]));
    node.tenure = 6;
    node.works(session, 1);
    assert_eq!(told(&node.all())[6], "12 elected 6");
}

#[test]
fn the_oldest_files_go_when_there_is_too_much_or_they_are_too_old() {
    let folder = tempfile::tempdir().unwrap();
    let bounds = Bounds { bytes_max: 200 << 10, ..ROOMY };
    let mut node = Node::new(folder.path(), bounds);
    node.opens_session(&"x".repeat(200));
    let session = node.session();
    let mut most = 0;
    for _ in 0..40 {
        node.works(session, 50);
        node.all();
        let files = fs::read_dir(folder.path()).unwrap();
        most = most.max(files.map(|file| file.unwrap().metadata().unwrap().len()).sum::<u64>());
    }
    assert!((150 << 10..300 << 10).contains(&most), "{most} bytes");
    let page = node.page(Query { limit: 1_000, ..Query::default() });
    assert_eq!(page.found.len(), 1_000);
    let everything = node.history.read(&Query { limit: 10_000, ..Query::default() }).unwrap();
    assert!(everything.begins_after.unwrap() > 100, "{:?}", everything.begins_after);
    assert!(!told(&everything.found).iter().any(|word| word.starts_with("gap")));
    drop(node);

    // The records are of 2023, and the clock is that of the machine.
    let old = Bounds { age_max: Duration::from_secs(1), ..ROOMY };
    let history = open(folder.path(), old);
    let before = fs::read_dir(folder.path()).unwrap().count();
    assert!(before > 2);
    drop(history);
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "the one that grows stays");
}

#[test]
fn a_disk_without_room_stops_nothing_and_what_is_left_out_is_a_gap() {
    let folder = tempfile::tempdir().unwrap();
    let full = Bounds { reserve_bytes: u64::MAX, ..ROOMY };
    let mut node = Node::new(folder.path(), full);
    node.opens_session("one");
    let session = node.session();
    node.works(session, 2);
    assert_eq!(node.all(), []);
    drop(node);

    let history = open(folder.path(), ROOMY);
    history.restored(LogIndex::new(0));
    history.restored(LogIndex::new(5));
    let mut node = Node { table: LockTable::new(), history, index: 5, tenure: 1 };
    node.table.note_index(LogIndex::new(5));
    node.opens_session("two");
    let page = node.page(Query::default());
    assert_eq!((page.begins_after, page.through), (Some(5), Some(6)));
}

#[test]
fn members_and_elections_stand_in_it_too() {
    let folder = tempfile::tempdir().unwrap();
    let mut node = Node::new(folder.path(), ROOMY);
    node.opens_session("one");
    let members = MemberIds { voters: vec![1, 2], learners: vec![3] };
    node.index += 1;
    node.table.note_index(LogIndex::new(node.index));
    let content = EntryContent::Members(&members);
    let (index, tenure) = (LogIndex::new(node.index), Tenure::new(1));
    node.history.applied(&AppliedEntry { index, tenure, content, table: &node.table });
    node.tenure = 4;
    let session = node.session();
    node.works(session, 1);
    let words = told(&node.all());
    assert_eq!(words[..3], ["1 elected 1", "2 members [1, 2] [3]", "3 elected 4"]);
}

#[test]
fn files_of_another_store_are_left_alone_and_say_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let mut node = Node::new(folder.path(), ROOMY);
    node.opens_session("one");
    drop(node);
    let settings = Settings { folder: folder.path().to_owned(), store: [8; 16], bounds: ROOMY };
    let history = History::open(&settings, Runtime::system().clock).unwrap();
    history.restored(LogIndex::new(0));
    let mut node = Node { table: LockTable::new(), history, index: 0, tenure: 9 };
    node.opens_session("two");
    assert_eq!(told(&node.all()), ["1 elected 9"]);
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
}
