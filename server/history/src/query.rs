//! Reading a history: a page of what is asked for, as it lies in the files.

use std::io;

use holdfast_core::{LockName, SessionId, Verb};
use holdfast_mutants::mutant;
use holdfast_replication::storage::Disk;
use memchr::memmem::Finder;

use crate::files::{self, Settings};
use crate::frame::{self, Frame};
use crate::record::{Act, Record, What};

/// Most records of a page.
pub const PAGE_RECORDS_MAX: usize = 10_000;
/// A page that has so many bytes is full.
pub const PAGE_BYTES: usize = 2 << 20;

/// What is asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Query {
    /// Which locks.
    pub names: Names,
    /// Only what is about that session.
    pub session: Option<SessionId>,
    /// Only what happened at this time or later, Unix milliseconds.
    pub since_ms: u64,
    /// Only what happened before this time.
    pub until_ms: Option<u64>,
    /// Only what lies before this place.
    pub before: Option<Cursor>,
    /// The page has the last ones that match, and no more than these: 1 to [`PAGE_RECORDS_MAX`].
    pub limit: usize,
}

/// Locks by their names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Names {
    /// All; and what is about no lock: elections, members, rules.
    #[default]
    All,
    /// One lock.
    One(LockName),
    /// Those that begin with a prefix.
    Prefix(String),
}

/// A place in a history: a record of an entry of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cursor {
    /// The entry.
    pub index: u64,
    /// Which of its records.
    pub nth: u32,
}

/// Entries of the log that follow each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stretch {
    /// They come after this one.
    pub after: u64,
    /// The last of them.
    pub through: u64,
}

/// A part of a page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// Something that happened.
    Record(Record),
    /// What happened in these entries is not known here.
    Gap(Stretch),
}

/// What a history has of what was asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Page {
    /// In the order of the log.
    pub found: Vec<Found>,
    /// Where to go on to earlier ones; `None`: there are no more.
    pub earlier: Option<Cursor>,
    /// The history begins after this entry, if the page goes back so far.
    pub begins_after: Option<u64>,
    /// It ends with this entry; `None`: it is empty.
    pub through: Option<u64>,
}

/// Reads a page.
///
/// # Errors
///
/// As from the system.
pub(crate) fn read(disk: &dyn Disk, settings: &Settings, query: &Query) -> io::Result<Page> {
    let (page, wanted) = (Page::default(), Wanted::of(query));
    let mut reading = Reading { query, wanted, page, bytes: 0, later: None };
    for file in files::list(disk, &settings.folder)?.iter().rev() {
        let bytes = match disk.open(&file.path).and_then(|file| files::read(file.as_ref())) {
            Ok(bytes) => bytes,
            // It became too old meanwhile.
            Err(error) if error.kind() == io::ErrorKind::NotFound => break,
            Err(error) => return Err(error),
        };
        if frame::check_head(&bytes, settings.store).is_err() {
            continue;
        }
        for frame in frame::frames(&bytes).0.iter().rev() {
            if reading.take(frame).is_break() {
                return Ok(reading.finished());
            }
        }
    }
    let begins = reading.later;
    reading.page.begins_after = begins;
    Ok(reading.finished())
}

/// A page that is read backwards.
struct Reading<'a> {
    query: &'a Query,
    wanted: Wanted,
    /// Its parts in reverse.
    page: Page,
    bytes: usize,
    /// The entry after which the frame that was read last, which is a later one, has something.
    later: Option<u64>,
}

type Flow = std::ops::ControlFlow<()>;

impl Reading<'_> {
    /// Takes from a frame what belongs on the page. Breaks when nothing earlier does.
    fn take(&mut self, frame: &Frame<'_>) -> Flow {
        let cover = frame.cover;
        self.page.through.get_or_insert(cover.through);
        if let Some(later) = self.later.filter(|later| cover.through < *later) {
            self.gap(Stretch { after: cover.through, through: later }, cover.last_ms)?;
        }
        if cover.last_ms < self.query.since_ms {
            return Flow::Break(());
        }
        // A frame before it may have some of the same entries, if a later release has written it in between.
        let last = self.later.filter(|_| !mutant!(HistoryTwice)).unwrap_or(u64::MAX);
        let is_before = |before: &Cursor| cover.after < before.index;
        if self.query.before.as_ref().is_none_or(is_before) && self.wanted.may_be_in(frame) {
            for (place, record) in placed(frame.records()).into_iter().rev() {
                if place.index <= last {
                    self.record(place, record)?;
                }
            }
        }
        self.later = Some(cover.after.min(last));
        Flow::Continue(())
    }

    fn gap(&mut self, gap: Stretch, last_ms: u64) -> Flow {
        let query = self.query;
        let is_before = query.before.is_none_or(|before| gap.through < before.index);
        let is_in_time = query.until_ms.is_none_or(|until| last_ms < until);
        if !is_before || !is_in_time || mutant!(HistoryHidesGaps) {
            return Flow::Continue(());
        }
        self.make_room()?;
        self.page.found.push(Found::Gap(gap));
        Flow::Continue(())
    }

    fn record(&mut self, place: Cursor, record: Record) -> Flow {
        let query = self.query;
        let is_before = query.before.is_none_or(|before| place < before);
        let is_in_time = query.until_ms.is_none_or(|until| record.at_ms < until);
        // A change of the members goes by another clock than the records around it.
        let is_in_time = is_in_time && record.at_ms >= query.since_ms;
        if !is_before || !is_in_time {
            return Flow::Continue(());
        }
        let Record { index, at_ms, what } = record;
        let Some(what) = query.wanted(what) else { return Flow::Continue(()) };
        self.make_room()?;
        let record = Record { index, at_ms, what };
        self.bytes += borsh::object_length(&record).unwrap_or_default();
        self.page.found.push(Found::Record(record));
        self.page.earlier = Some(place);
        Flow::Continue(())
    }

    /// Breaks if the page is full.
    fn make_room(&mut self) -> Flow {
        let found = &self.page.found;
        if found.len() < self.query.limit.clamp(1, PAGE_RECORDS_MAX) && self.bytes < PAGE_BYTES {
            return Flow::Continue(());
        }
        Flow::Break(())
    }

    fn finished(mut self) -> Page {
        // A gap that was taken last is not shown again, whatever ended the page.
        if let Some(Found::Gap(gap)) = self.page.found.last() {
            self.page.earlier = Some(Cursor { index: gap.after + 1, nth: 0 });
        }
        // It was noted with each record, and counts if the page ended because it was full.
        let is_full = self.page.found.len() >= self.query.limit.clamp(1, PAGE_RECORDS_MAX)
            || self.bytes >= PAGE_BYTES;
        if !is_full || self.page.begins_after.is_some() {
            self.page.earlier = None;
        }
        self.page.found.reverse();
        self.page
    }
}

/// What has to stand in the bytes of a frame that has anything of what is asked for: most have nothing of one lock, and
/// need not be decoded then.
struct Wanted(Vec<Finder<'static>>);

impl Wanted {
    fn of(query: &Query) -> Self {
        let find = |bytes: &[u8]| Finder::new(bytes).into_owned();
        let names = match &query.names {
            Names::All => {
                return Self(
                    query.session.iter().map(|id| find(&id.get().to_le_bytes())).collect(),
                );
            }
            // With its length, as it is stored: others may begin so.
            Names::One(name) => borsh::to_vec(name.as_str()).unwrap_or_default(),
            Names::Prefix(prefix) => prefix.clone().into_bytes(),
        };
        // Acts that are about a prefix may be about these names, and do not have them.
        let acts = [Verb::Freeze, Verb::Scope].map(|verb| find(verb.name().as_bytes()));
        Self(std::iter::once(find(&names)).chain(acts).collect())
    }

    fn may_be_in(&self, frame: &Frame<'_>) -> bool {
        self.0.is_empty() || self.0.iter().any(|wanted| wanted.find(frame.bytes()).is_some())
    }
}

/// Records with their places.
fn placed(records: Vec<Record>) -> Vec<(Cursor, Record)> {
    let mut place = Cursor { index: 0, nth: 0 };
    let placed = records.into_iter().map(|record| {
        let nth = if record.index == place.index { place.nth + 1 } else { 0 };
        place = Cursor { index: record.index, nth };
        (place, record)
    });
    placed.collect()
}

impl Query {
    /// What is wanted of something that happened.
    fn wanted(&self, what: What) -> Option<What> {
        if let Some(session) = self.session
            && what.session() != Some(session)
        {
            return None;
        }
        match (&self.names, what) {
            (Names::All, what) => Some(what),
            (names, What::Act(act)) => names.concern(&act).then_some(What::Act(act)),
            (Names::One(name), what) => what.of_locks(&|lock| lock == name.as_str()),
            (Names::Prefix(prefix), what) => what.of_locks(&|lock| lock.starts_with(prefix)),
        }
    }
}

impl Names {
    /// Whether an act was about some of them.
    fn concern(&self, act: &Act) -> bool {
        let is_prefix = [Verb::Freeze, Verb::Scope].iter().any(|verb| verb.name() == act.verb);
        let of_lock = [Verb::Force, Verb::Now, Verb::Limit, Verb::Sequence];
        let is_lock = of_lock.iter().any(|verb| verb.name() == act.verb);
        match self {
            Self::All => true,
            Self::One(name) if is_prefix => name.as_str().starts_with(&act.on),
            Self::One(name) => is_lock && act.on == name.as_str(),
            Self::Prefix(prefix) if is_prefix => {
                prefix.starts_with(&act.on) || act.on.starts_with(prefix)
            }
            Self::Prefix(prefix) => is_lock && act.on.starts_with(prefix),
        }
    }
}
