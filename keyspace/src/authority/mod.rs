//! The row that determines which of two stores serves a scope (DESIGN §10): what leaders and
//! falling-back clients share. Each of them decides for itself what it does with the row, and when.
//!
//! `authority(scope, mode, epoch, beat, take_over_ms, hold_ms, cluster)`, changed by LWT on all six, decided among all
//! datacenters, read at SERIAL, never retried. No column has a TTL.
//!
//! With other than 16 partitions for the leases of the scope, their number stands behind the mode (`native/256`): a process of an
//! earlier release, which would look for a lease in another partition, knows no such mode, and refuses the row.
//!
//! `cluster` is the native store whose leaders keep the row: leaders of two clusters on one row would bump it in turn,
//! each with authority. It is null in a row that version 0.1 made; a leader writes it with its next bump, on condition
//! that it is null. Version 0.1 names the column in no statement: its writes leave the cell as it is, and what it
//! compares changes with every write (`beat`, or mode and epoch), so no mixture of versions weakens what a change
//! compares.
//!
//! `take_over_ms` and `hold_ms` are W and V. Leaders write them from their settings, and every process uses only those
//! of the row: so no client can wait for less, or hold for longer, than the leader believes.

mod durations;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use holdfast_runtime::{Clock, Instant};

use crate::database::{Conditional, Fault, Row, Tables};
use crate::statement::{Action, Cells, Ident, Statement, Value};

pub use durations::{AnswerLimit, DoNotFit, Durations};

/// The last epoch of a scope; a token has room for 32,767. Epochs never wrap.
pub const EPOCH_MAX: u16 = 32_000;

/// All columns but the key.
const COLUMNS: [&str; 6] = ["mode", "epoch", "beat", "take_over_ms", "hold_ms", "cluster"];

/// Which store serves a scope.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Mode {
    /// The native one, while some of its clients may not know of the row yet: no client takes over.
    Preparing,
    /// The native one, while its leader's authority lasts.
    Native,
    /// Cassandra.
    Cassandra,
    /// Cassandra, for existing holds only; no new hold begins.
    Draining,
    /// The native one, without fallback: no client takes over any more.
    Retired,
}

impl Mode {
    const ALL: [Self; 5] =
        [Self::Preparing, Self::Native, Self::Cassandra, Self::Draining, Self::Retired];

    /// The text in the table.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Preparing => "preparing",
            Self::Native => "native",
            Self::Cassandra => "cassandra",
            Self::Draining => "draining",
            Self::Retired => "retired",
        }
    }

    /// The mode of that name.
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|mode| mode.as_str() == text)
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The number of partitions over which the leases of a scope are spread. Each is one partition of Paxos: the more there are, the
/// more locks change hands at once. It stands in the scope's row, and changes only while the native store serves the scope: then no
/// lease counts, and no drain misses one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Buckets(u16);

impl Buckets {
    /// The most.
    pub const MAX: u16 = 4_096;
    /// What a scope has that is new.
    pub const OF_NEW_SCOPES: Self = Self(256);

    /// So many; `None` for none, or for more than [`Buckets::MAX`].
    pub fn new(number: u16) -> Option<Self> {
        (1..=Self::MAX).contains(&number).then_some(Self(number))
    }

    /// Each of them.
    pub fn all(self) -> impl Iterator<Item = i64> {
        0..i64::from(self.0)
    }

    /// That of the lease of a name. FNV-1a: it spreads names evenly, and gives every process the same value for ever.
    pub fn of(self, name: &str) -> i64 {
        let mixed = name.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
        // The low bits alone are poorly mixed.
        let folded = (mixed ^ (mixed >> 32)) & 0xffff_ffff;
        i64::try_from(folded).unwrap_or_default() % i64::from(self.0)
    }
}

/// What every release before had.
impl Default for Buckets {
    fn default() -> Self {
        Self(16)
    }
}

impl fmt::Display for Buckets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The id of a cluster of the native store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClusterTag(u128);

impl ClusterTag {
    /// The tag of the 16 bytes that the cluster's nodes report; `None` for any other length.
    pub fn new(id: &[u8]) -> Option<Self> {
        <[u8; 16]>::try_from(id).ok().map(u128::from_be_bytes).map(Self)
    }

    fn parse(text: &str) -> Option<Self> {
        let is_one = text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        u128::from_str_radix(text, 16).ok().filter(|_| is_one).map(Self)
    }
}

/// 32 hexadecimal digits, as in the table.
impl fmt::Display for ClusterTag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// The content of the row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AuthorityRow {
    /// The store that serves the scope.
    pub mode: Mode,
    /// The epoch of the tokens that are given out meanwhile; it rises with every switch.
    pub epoch: u16,
    /// How often the leader has bumped the row in this epoch.
    pub beat: i64,
    /// W and V, for every reader of the row. While holds in Cassandra may be safe, V does not change; W gets shorter
    /// only when all authority that was counted by the longer one is over.
    pub durations: Durations,
    /// The cluster whose leaders keep the row; `None`: version 0.1 made the row, and no leader has
    /// written it yet.
    pub cluster: Option<ClusterTag>,
    /// The partitions of the scope's leases.
    pub buckets: Buckets,
}

impl AuthorityRow {
    /// The row with one more beat.
    #[must_use]
    pub fn bumped(self) -> Self {
        Self { beat: self.beat.wrapping_add(1), ..self }
    }

    /// Whether a hold in Cassandra under a token of `epoch` may go on under this row.
    pub fn extends(self, epoch: u16) -> bool {
        match self.mode {
            Mode::Cassandra => self.epoch == epoch,
            Mode::Draining => u32::from(self.epoch) == u32::from(epoch) + 1,
            Mode::Preparing | Mode::Native | Mode::Retired => false,
        }
    }

    /// Reads a row as the database returns it. A row whose W and V make no sense is not trusted in
    /// anything.
    fn parse(row: &Row) -> Result<Self, String> {
        let text = |name: &str| row.text(&Ident::new(name)).ok_or_else(|| format!("has no {name}"));
        let number =
            |name: &str| row.long(&Ident::new(name)).ok_or_else(|| format!("has no {name}"));
        let said = text("mode")?;
        let (mode, buckets) =
            mode_and_buckets(said).ok_or_else(|| format!("has the unknown mode {said:?}"))?;
        let epoch = number("epoch")?;
        let fits = u16::try_from(epoch).ok().filter(|epoch| *epoch <= EPOCH_MAX);
        let epoch = fits.ok_or_else(|| format!("has the epoch {epoch}, not 0 to {EPOCH_MAX}"))?;
        let length = |name: &str| {
            let count =
                row.long(&Ident::new(name)).ok_or_else(|| format!("has no {name}; {MEND}"))?;
            let count = u64::try_from(count);
            count.map(Duration::from_millis).map_err(|_| format!("has a negative {name}; {MEND}"))
        };
        let durations = Durations::new(length("take_over_ms")?, length("hold_ms")?);
        let durations = durations.map_err(|misfit| format!("is not trusted: {misfit}; {MEND}"))?;
        let cluster = row.text(&Ident::new("cluster"));
        let tag = |text: &str| {
            ClusterTag::parse(text)
                .ok_or_else(|| format!("has the cluster {text:?}, which is no id"))
        };
        let cluster = cluster.map(tag).transpose()?;
        Ok(Self { mode, epoch, beat: number("beat")?, durations, cluster, buckets })
    }

    fn mode_cell(self) -> String {
        if self.buckets == Buckets::default() {
            self.mode.to_string()
        } else {
            format!("{}/{}", self.mode, self.buckets)
        }
    }

    fn cells(self) -> Cells {
        let cell = |name: &str, value: Value| (Ident::new(name), Some(value));
        vec![
            cell("mode", Value::Text(self.mode_cell())),
            cell("epoch", Value::from(i64::from(self.epoch))),
            cell("beat", Value::from(self.beat)),
            cell("take_over_ms", Value::from(millis(self.durations.take_over_wait()))),
            cell("hold_ms", Value::from(millis(self.durations.v()))),
            (Ident::new("cluster"), self.cluster.map(|cluster| Value::Text(cluster.to_string()))),
        ]
    }
}

impl fmt::Display for AuthorityRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (w, v) = (self.durations.take_over_wait(), self.durations.v());
        let mode = self.mode_cell();
        write!(f, "{mode} in epoch {}, beat {}, W {w:?}, V {v:?}", self.epoch, self.beat)
    }
}

/// Reads the cell of the mode. A number that no release writes there makes the row unknown, as any other odd mode does.
fn mode_and_buckets(cell: &str) -> Option<(Mode, Buckets)> {
    let Some((mode, number)) = cell.split_once('/') else {
        return Some((Mode::parse(cell)?, Buckets::default()));
    };
    let buckets = number.parse().ok().and_then(Buckets::new)?;
    (buckets.to_string() == number && buckets != Buckets::default())
        .then_some(Mode::parse(mode)?)
        .map(|mode| (mode, buckets))
}

/// What an operator does about a row with unusable durations.
const MEND: &str = "write both columns by hand, no shorter than any W and V that were in use (docs/cassandra.md, \
                    \"The authority row\")";

fn millis(length: Duration) -> i64 {
    // Durations are bounded.
    i64::try_from(length.as_millis()).unwrap_or(i64::MAX)
}

/// A read of the row. It includes every write that was acknowledged before it began, and shows the
/// row at one instant between `began` and `ended`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Look {
    /// Not later than it was sent.
    pub began: Instant,
    /// Not earlier than it was answered.
    pub ended: Instant,
    /// The row; `None`: there is no such row, and the scope has no fallback.
    pub row: Option<AuthorityRow>,
}

/// The outcome of a change of the row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// The row is changed.
    Done {
        /// Not later than the change was sent.
        began: Instant,
        /// Not earlier than it was answered.
        ended: Instant,
    },
    /// The row differed from what the change expected, and is unchanged. The caller reads it before
    /// it concludes anything.
    Otherwise,
}

/// One scope's row.
#[derive(Clone)]
pub struct Authority {
    tables: Arc<Tables>,
    clock: Arc<dyn Clock>,
    scope: String,
}

impl Authority {
    /// The row of the scope of names that begin with `scope`, in the table `authority`. This sends nothing.
    pub fn new(tables: Arc<Tables>, clock: Arc<dyn Clock>, scope: &str) -> Self {
        Self { tables, clock, scope: scope.to_owned() }
    }

    /// The names' prefix.
    pub fn scope(&self) -> &str {
        &self.scope
    }

    /// Reads the row.
    ///
    /// # Errors
    ///
    /// [`Fault`]: the row stays unknown. [`Fault::Refused`] also for a row that this project did
    /// not write.
    pub async fn read(&self) -> Result<Look, Fault> {
        let columns = COLUMNS.map(Ident::new).into();
        let began = self.clock.now();
        let read = self.tables.read(self.statement(Action::SelectSerial { columns })).await?;
        let ended = self.clock.now();
        let row = read.as_ref().map(AuthorityRow::parse).transpose();
        let row = row.map_err(|what| self.unreadable(&what))?;
        Ok(Look { began, ended, row })
    }

    /// Creates the row, if there is none.
    ///
    /// # Errors
    ///
    /// [`Fault`]; after [`Fault::Unknown`] the row may have been created, or may be later.
    pub async fn create(&self, row: AuthorityRow) -> Result<Change, Fault> {
        self.write(Action::InsertIfAbsent { cells: row.cells(), ttl_s: None }).await
    }

    /// Changes the row, if all of it is as in `from`.
    ///
    /// # Errors
    ///
    /// [`Fault`]; after [`Fault::Unknown`] the row may have been changed, or may be later. Until a read shows it, a
    /// process that would gain from the change acts as if it had not happened, and one that would lose as if it had.
    pub async fn change(&self, from: AuthorityRow, to: AuthorityRow) -> Result<Change, Fault> {
        let (cells, only_if) = (to.cells(), from.cells());
        self.write(Action::UpdateIf { cells, ttl_s: None, only_if }).await
    }

    async fn write(&self, action: Action) -> Result<Change, Fault> {
        let (began, answer) = self.tables.conditional(self.statement(action)).await;
        let ended = self.clock.now();
        answer.map(|answer| match answer {
            Conditional::Applied => Change::Done { began, ended },
            Conditional::NotApplied(_) => Change::Otherwise,
        })
    }

    fn statement(&self, action: Action) -> Statement {
        let key = vec![(Ident::new("scope"), Value::from(self.scope.as_str()))];
        Statement::new(Ident::new("authority"), key, action).decided_everywhere()
    }

    fn unreadable(&self, what: &str) -> Fault {
        Fault::Refused(format!("table authority: the row of scope {:?} {what}", self.scope))
    }
}

impl fmt::Debug for Authority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Authority").field("scope", &self.scope).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use futures_util::FutureExt;
    use holdfast_runtime::{BoxFuture, Runtime};

    use super::*;
    use crate::database::{Answer, Database};

    #[test]
    fn a_hold_goes_on_under_its_own_epoch_and_under_the_draining_after_it() {
        let durations = Durations::default();
        let buckets = Buckets::default();
        let row =
            |mode, epoch| AuthorityRow { mode, epoch, beat: 0, durations, cluster: None, buckets };
        assert!(row(Mode::Cassandra, 4).extends(4));
        assert!(!row(Mode::Cassandra, 5).extends(4), "others held between");
        assert!(row(Mode::Draining, 5).extends(4));
        assert!(!row(Mode::Draining, 4).extends(4));
        assert!(!row(Mode::Draining, 6).extends(4));
        for mode in [Mode::Preparing, Mode::Native, Mode::Retired] {
            assert!(!row(mode, 4).extends(4), "{mode}");
        }
    }

    #[test]
    fn a_row_that_nobody_of_us_wrote_is_named() {
        assert!(AuthorityRow::parse(&row("native", 1, &[30_000, 15_000])).is_ok());
        let why = |mode: &str, epoch: i64| {
            AuthorityRow::parse(&row(mode, epoch, &[30_000, 15_000])).unwrap_err()
        };
        assert!(why("Native", 1).contains("unknown mode"));
        for odd in ["native/", "native/0", "native/16", "native/0256", "native/4097", "off/256"] {
            assert!(why(odd, 1).contains("unknown mode"), "{odd}");
        }
        assert!(why("native", -1).contains("epoch -1"));
        assert!(why("native", 32_001).contains("32001"));
        assert!(AuthorityRow::parse(&Row::default()).unwrap_err().contains("no mode"));
    }

    /// No process trusts it: nothing could stop one that waits for less, or holds for longer.
    #[test]
    fn a_row_whose_durations_are_missing_or_do_not_fit_is_not_trusted_and_it_says_what_to_do() {
        let why =
            |durations: &[i64]| AuthorityRow::parse(&row("cassandra", 1, durations)).unwrap_err();
        for (durations, says) in [
            (&[][..], "has no take_over_ms"),
            (&[30_000], "has no hold_ms"),
            (&[-30_000, 15_000], "negative take_over_ms"),
            (&[19_499, 15_000], "do not go together"),
            (&[i64::MAX, i64::MAX], "do not go together"),
        ] {
            let why = why(durations);
            assert!(why.contains(says) && why.contains("write both columns by hand"), "{why}");
        }
    }

    fn row(mode: &str, epoch: i64, durations: &[i64]) -> Row {
        let cell = |name: &str, value: Value| {
            (name.to_owned(), crate::database::Cell { value, ttl_s: None })
        };
        let said =
            [cell("mode", mode.into()), cell("epoch", epoch.into()), cell("beat", Value::from(0))];
        let lengths = ["take_over_ms", "hold_ms"].into_iter().zip(durations);
        let lengths = lengths.map(|(name, ms)| cell(name, Value::from(*ms)));
        Row(said.into_iter().chain(lengths).collect())
    }

    /// Records the statements, and has no row.
    #[derive(Default)]
    struct Asked(Mutex<Vec<Statement>>);

    impl Database for Asked {
        fn execute(&self, statement: Statement) -> BoxFuture<'static, Result<Answer, Fault>> {
            let is_read = matches!(statement.action, Action::SelectSerial { .. });
            self.0.lock().unwrap().push(statement);
            std::future::ready(Ok(if is_read { Answer::Read(None) } else { Answer::Applied }))
                .boxed()
        }

        fn endpoints(&self) -> Vec<String> {
            Vec::new()
        }
    }

    /// `SerialRead`, `EpochCompared` of the model: a read at QUORUM, or one that is decided within a datacenter, may
    /// miss earlier writes.
    #[test]
    fn the_row_is_read_at_serial_and_changed_on_condition_of_all_of_it_among_all_datacenters() {
        let (asked, clock) = (Arc::new(Asked::default()), Runtime::system().clock);
        let tables = Arc::new(Tables::new(asked.clone(), clock.clone()));
        let authority = Authority::new(tables, clock, "pay/");
        let durations = Durations::default();
        let cluster = ClusterTag::new(&[7; 16]);
        let (mode, buckets) = (Mode::Native, Buckets::OF_NEW_SCOPES);
        let row = AuthorityRow { mode, epoch: 3, beat: 7, durations, cluster, buckets };
        authority.read().now_or_never().unwrap().unwrap();
        authority.create(row).now_or_never().unwrap().unwrap();
        authority.change(row, row.bumped()).now_or_never().unwrap().unwrap();

        let asked = asked.0.lock().unwrap();
        assert!(asked.iter().all(|one| one.everywhere && one.table == Ident::new("authority")));
        let actions: Vec<_> = asked.iter().map(|one| one.action.clone()).collect();
        let columns = COLUMNS.map(Ident::new).into();
        let (ttl_s, only_if) = (None, row.cells());
        let expected = [
            Action::SelectSerial { columns },
            Action::InsertIfAbsent { cells: row.cells(), ttl_s },
            Action::UpdateIf { cells: row.bumped().cells(), ttl_s, only_if },
        ];
        assert_eq!(actions, expected);
    }

    /// Later releases find these rows in the tables of earlier ones.
    #[test]
    fn a_row_is_written_as_earlier_releases_wrote_it() {
        let of_0_1 = include_str!("../../../tests/fixtures/0.1/rows.cql");
        let of_0_2 = include_str!("../../../tests/fixtures/0.2/rows.cql");
        // 0.1 named no cluster.
        for (kept, cluster) in [(of_0_1, None), (of_0_2, ClusterTag::new(&[7; 16]))] {
            for (mode, epoch, beat) in [
                (Mode::Preparing, 1, 0),
                (Mode::Native, 3, 7),
                (Mode::Cassandra, 4, 0),
                (Mode::Draining, 5, 0),
                (Mode::Retired, 6, 2),
            ] {
                let durations = Durations::default();
                let buckets = Buckets::default();
                let row = AuthorityRow { mode, epoch, beat, durations, cluster, buckets };
                let mut cells = row.cells();
                cells.retain(|(_, value)| value.is_some());
                let columns: Vec<_> = cells.iter().map(|(name, _)| name.to_string()).collect();
                let values: Vec<_> = cells.into_iter().map(|(_, value)| in_cql(value)).collect();
                let (columns, values) = (columns.join(", "), values.join(", "));
                let row = format!("(\"scope\", {columns}) VALUES ('{mode}/', {values});");
                assert!(kept.contains(&row), "{row}");
            }
        }
    }

    fn in_cql(value: Option<Value>) -> String {
        match value {
            Some(Value::Text(text)) => format!("'{text}'"),
            Some(Value::Long(number)) => number.to_string(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn what_is_written_is_what_is_read() {
        let durations = Durations::new(Duration::from_micros(3_999_500), Duration::from_secs(2));
        let written = AuthorityRow {
            mode: Mode::Draining,
            epoch: 7,
            beat: -3,
            durations: durations.unwrap(),
            cluster: ClusterTag::new(&[0xa5; 16]),
            buckets: Buckets::OF_NEW_SCOPES,
        };
        let cells = written.cells();
        let there: Vec<_> = cells.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(there, COLUMNS);
        let cell = |(name, value): (Ident, Option<Value>)| {
            (name.as_str().to_owned(), crate::database::Cell { value: value.unwrap(), ttl_s: None })
        };
        let row = Row(cells.into_iter().map(cell).collect());
        assert_eq!(AuthorityRow::parse(&row), Ok(written));
    }

    /// Earlier releases read the mode by its name alone: they know none of this cell, and refuse the row.
    #[test]
    fn a_row_of_more_partitions_is_unknown_to_earlier_releases() {
        let durations = Durations::default();
        for mode in Mode::ALL {
            let of = |buckets| AuthorityRow {
                mode,
                epoch: 1,
                beat: 0,
                durations,
                cluster: None,
                buckets,
            };
            assert_eq!(of(Buckets::default()).mode_cell(), mode.as_str());
            let cell = of(Buckets::OF_NEW_SCOPES).mode_cell();
            assert_eq!((cell.as_str(), Mode::parse(&cell)), (format!("{mode}/256").as_str(), None));
        }
    }

    #[test]
    fn names_are_spread_over_all_partitions_of_a_scope() {
        for (number, least, most) in [(16, 500, 750), (256, 15, 70)] {
            let buckets = Buckets::new(number).unwrap();
            let mut counts = vec![0; usize::from(number)];
            for name in 0..10_000 {
                counts[usize::try_from(buckets.of(&format!("orders/{name}"))).unwrap()] += 1;
            }
            assert!(counts.iter().all(|count| (least..=most).contains(count)), "{counts:?}");
            assert_eq!(buckets.all().count(), usize::from(number));
        }
        assert_eq!((Buckets::new(0), Buckets::new(4_097)), (None, None));
    }
}
