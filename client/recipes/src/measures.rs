//! What the lockers report to the facade `metrics`; docs/cassandra.md, "What to watch", lists it.
//!
//! Labels hold names of recipes, modes and scopes, never those of locks. In a process without a recorder all of it does nothing.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use holdfast_runtime::{Clock, Instant};
use metrics::{
    Unit, counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram,
};

use super::database::{Answer, Database, Fault};
use super::modes::LockerMode;
use super::statement::{Action, Statement};
use crate::{Error, LostReason, Result};

const WAIT: &str = "holdfast_recipe_wait_seconds";
const WAITERS: &str = "holdfast_recipe_waiters";
const HOLD: &str = "holdfast_recipe_hold_seconds";
const HOLDS: &str = "holdfast_recipe_holds";
const RENEWALS: &str = "holdfast_recipe_renewals_total";
const LOSSES: &str = "holdfast_recipe_losses_total";
const STATEMENT: &str = "holdfast_cassandra_statement_seconds";
const SCOPE_WAIT: &str = "holdfast_scope_wait_seconds";
const SCOPE_LOCKERS: &str = "holdfast_scope_lockers";
const SCOPE_ROW: &str = "holdfast_scope_row_renewed_timestamp_seconds";

#[derive(Clone, Copy)]
enum Kind {
    Counter,
    Gauge,
    Histogram,
}

/// Each metric with its kind, its unit and its meaning.
const DESCRIBED: [(&str, Kind, Unit, &str); 10] = [
    (WAIT, Kind::Histogram, Unit::Seconds, "From asking for a lock to the end of the call"),
    (WAITERS, Kind::Gauge, Unit::Count, "Calls that ask for a lock now"),
    (HOLD, Kind::Histogram, Unit::Seconds, "From the grant of a hold to its end"),
    (HOLDS, Kind::Gauge, Unit::Count, "Locks that are held now"),
    (RENEWALS, Kind::Counter, Unit::Count, "Renewals of holds, by what became of them"),
    (LOSSES, Kind::Counter, Unit::Count, "Holds that were lost, by the reason"),
    (STATEMENT, Kind::Histogram, Unit::Seconds, "From sending a statement to its outcome"),
    (SCOPE_WAIT, Kind::Histogram, Unit::Seconds, "The same as for a recipe, of calls to a Locker"),
    (SCOPE_LOCKERS, Kind::Gauge, Unit::Count, "Lockers, by the mode in which they ask for locks"),
    (
        SCOPE_ROW,
        Kind::Gauge,
        Unit::Seconds,
        "When the row of a Locker was last renewed, since 1970",
    ),
];

/// Tells the recorder of this process, once it is installed, the unit and the meaning of each metric that the lockers report.
pub fn describe_metrics() {
    for (name, kind, unit, meaning) in DESCRIBED {
        match kind {
            Kind::Counter => describe_counter!(name, unit, meaning),
            Kind::Gauge => describe_gauge!(name, unit, meaning),
            Kind::Histogram => describe_histogram!(name, unit, meaning),
        }
    }
}

/// A call that asks for a lock. It counts as abandoned if it is dropped.
pub(crate) struct Asking<R: Fn(&'static str, f64)> {
    clock: Arc<dyn Clock>,
    began: Instant,
    outcome: &'static str,
    /// Reports the outcome, and the seconds that it took.
    report: R,
}

/// A call asks for a lock of a recipe.
pub(crate) fn asking(
    recipe: &'static str,
    clock: Arc<dyn Clock>,
) -> Asking<impl Fn(&'static str, f64)> {
    gauge!(WAITERS, "recipe" => recipe).increment(1);
    Asking::begin(clock, move |outcome, took| {
        gauge!(WAITERS, "recipe" => recipe).decrement(1);
        histogram!(WAIT, "recipe" => recipe, "outcome" => outcome).record(took);
    })
}

/// A call asks a `Locker` for a lock; `mode` says in which mode that asks.
pub(crate) fn asking_in_scope(
    scope: &str,
    clock: Arc<dyn Clock>,
    mode: impl Fn() -> Option<LockerMode>,
) -> Asking<impl Fn(&'static str, f64)> {
    Asking::begin(clock, move |outcome, took| {
        let (scope, mode) = (scope.to_owned(), mode_label(mode()));
        histogram!(SCOPE_WAIT, "scope" => scope, "mode" => mode, "outcome" => outcome).record(took);
    })
}

impl<R: Fn(&'static str, f64)> Asking<R> {
    fn begin(clock: Arc<dyn Clock>, report: R) -> Self {
        Self { began: clock.now(), clock, outcome: "abandoned", report }
    }

    pub(crate) fn end<T>(mut self, answer: &Result<T>) {
        self.outcome = match answer {
            Ok(_) => "granted",
            Err(Error::NotGranted { .. }) => "not_granted",
            Err(Error::Unreachable { .. }) => "unreachable",
            Err(Error::Refused { .. }) => "refused",
            Err(_) => "failed",
        };
    }
}

impl<R: Fn(&'static str, f64)> Drop for Asking<R> {
    fn drop(&mut self) {
        (self.report)(self.outcome, since(&*self.clock, self.began));
    }
}

/// A hold of a recipe, until it is dropped.
pub(crate) struct Holding {
    recipe: &'static str,
    clock: Arc<dyn Clock>,
    began: Instant,
}

impl Holding {
    pub(crate) fn begin(recipe: &'static str, clock: Arc<dyn Clock>) -> Self {
        gauge!(HOLDS, "recipe" => recipe).increment(1);
        Self { recipe, began: clock.now(), clock }
    }

    /// `outcome`: `applied`, `late` (applied so late that the hold was in jeopardy), `unknown` or `gone`.
    pub(crate) fn renewed(&self, outcome: &'static str) {
        counter!(RENEWALS, "recipe" => self.recipe, "outcome" => outcome).increment(1);
    }

    pub(crate) fn lost(&self, reason: LostReason) {
        let reason = reason_label(reason);
        counter!(LOSSES, "recipe" => self.recipe, "reason" => reason).increment(1);
    }
}

impl Drop for Holding {
    fn drop(&mut self) {
        gauge!(HOLDS, "recipe" => self.recipe).decrement(1);
        histogram!(HOLD, "recipe" => self.recipe).record(since(&*self.clock, self.began));
    }
}

/// Counts one `Locker` in the mode in which it asks for locks, until it is dropped.
pub(crate) struct ModeCount {
    scope: String,
    mode: Option<LockerMode>,
}

impl ModeCount {
    /// A `Locker` without a row yet.
    pub(crate) fn new(scope: &str) -> Self {
        let count = Self { scope: scope.to_owned(), mode: None };
        count.gauge().increment(1);
        count
    }

    pub(crate) fn is_in(&mut self, mode: Option<LockerMode>) {
        if self.mode == mode {
            return;
        }
        self.gauge().decrement(1);
        self.mode = mode;
        self.gauge().increment(1);
    }

    fn gauge(&self) -> metrics::Gauge {
        gauge!(SCOPE_LOCKERS, "scope" => self.scope.clone(), "mode" => mode_label(self.mode))
    }
}

impl Drop for ModeCount {
    fn drop(&mut self) {
        self.gauge().decrement(1);
    }
}

/// The row of a `Locker` was renewed by a write that was sent at `sent`.
pub(crate) fn row_renewed(scope: &str, clock: &dyn Clock, sent: Instant) {
    let age = clock.now().saturating_since(sent);
    let at = Duration::from_millis(clock.wall_ms()).saturating_sub(age);
    gauge!(SCOPE_ROW, "scope" => scope.to_owned()).set(at.as_secs_f64());
}

/// A database whose statements are timed. One whose future is dropped before its outcome is not counted.
pub(crate) struct Timed {
    pub(crate) database: Arc<dyn Database>,
    pub(crate) clock: Arc<dyn Clock>,
}

impl Database for Timed {
    fn execute(&self, statement: Statement) -> BoxFuture<'static, Result<Answer, Fault>> {
        let (kind, clock, sent) = (kind_of(&statement), self.clock.clone(), self.clock.now());
        let executing = self.database.execute(statement);
        Box::pin(async move {
            let answer = executing.await;
            let outcome = match &answer {
                Ok(_) => "answered",
                Err(Fault::Unknown(_)) => "unknown",
                Err(Fault::NotDone(_)) => "not_done",
                Err(Fault::Refused(_)) => "refused",
            };
            histogram!(STATEMENT, "kind" => kind, "outcome" => outcome)
                .record(since(&*clock, sent));
            answer
        })
    }

    fn endpoints(&self) -> Vec<String> {
        self.database.endpoints()
    }

    fn keyspace(&self) -> String {
        self.database.keyspace()
    }
}

fn since(clock: &dyn Clock, began: Instant) -> f64 {
    clock.now().saturating_since(began).as_secs_f64()
}

fn kind_of(statement: &Statement) -> &'static str {
    if statement.is_conditional() {
        "lwt"
    } else if statement.is_serial_read() {
        "serial_read"
    } else if matches!(statement.action, Action::Put { .. } | Action::Erase { .. }) {
        "write"
    } else {
        "read"
    }
}

fn mode_label(mode: Option<LockerMode>) -> &'static str {
    mode.map_or("none", LockerMode::as_str)
}

fn reason_label(reason: LostReason) -> &'static str {
    match reason {
        LostReason::DeadlinePassed => "deadline_passed",
        LostReason::Revoked => "revoked",
        LostReason::AuthorityPassed => "authority_passed",
        _ => "other",
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};
    use std::io::Write;
    use std::sync::{Mutex, PoisonError};

    use holdfast_runtime::simulated::Machine;
    use metrics::{KeyName, with_local_recorder};
    use metrics_util::debugging::{DebugValue, DebuggingRecorder, Snapshotter};

    use super::*;
    use crate::cassandra::Cassandra;
    use crate::lease::{Lease, LeaseTable};
    use crate::locker::{RemoteLocker, Wait};
    use crate::model::{Model, Odds};
    use crate::modes::Locker;
    use crate::test_support::{cassandra, options, world};

    const fn secs(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    /// What a recorder was told, by name and labels, as people write them: `name{a=b,c=d}`. Of a histogram all values.
    struct Seen(BTreeMap<String, Vec<f64>>);

    impl Seen {
        fn by(snapshotter: &Snapshotter) -> Self {
            let seen = snapshotter.snapshot().into_vec().into_iter().map(|(key, _, _, value)| {
                let labels =
                    key.key().labels().map(|label| format!("{}={}", label.key(), label.value()));
                let labels: BTreeSet<String> = labels.collect();
                let labels = labels.into_iter().collect::<Vec<_>>().join(",");
                (format!("{}{{{labels}}}", key.key().name()), values(value))
            });
            Self(seen.collect())
        }

        fn all(&self, name: &str) -> &[f64] {
            self.0.get(name).map_or(&[], Vec::as_slice)
        }

        fn one(&self, name: &str) -> f64 {
            match self.all(name) {
                [one] => *one,
                several => panic!("{name}: {several:?} of {:?}", self.0.keys()),
            }
        }

        fn is(&self, name: &str, expected: f64) -> bool {
            (self.one(name) - expected).abs() < 1e-9
        }

        fn count(&self, name: &str) -> usize {
            self.all(name).len()
        }

        fn names(&self) -> BTreeSet<&str> {
            self.0.keys().filter_map(|name| name.split('{').next()).collect()
        }
    }

    fn values(value: DebugValue) -> Vec<f64> {
        match value {
            DebugValue::Counter(count) => vec![f64::from(u32::try_from(count).unwrap())],
            DebugValue::Gauge(value) => vec![value.into_inner()],
            DebugValue::Histogram(values) => values.into_iter().map(Into::into).collect(),
        }
    }

    /// Runs `work` on a model of the tables, and returns what a recorder was told meanwhile.
    fn recorded(work: impl FnOnce(&Machine, &Model)) -> Seen {
        let (recorder, (machine, model)) = (DebuggingRecorder::new(), world(1));
        let snapshotter = recorder.snapshotter();
        with_local_recorder(&recorder, || work(&machine, &model));
        Seen::by(&snapshotter)
    }

    fn lease(on: &Cassandra, service: &str) -> Lease {
        Lease::new(on, &options(service, secs(30), secs(10)), LeaseTable::default()).unwrap()
    }

    #[test]
    fn waits_holds_and_renewals_are_reported_by_recipe_and_outcome() {
        let seen = recorded(|machine, model| {
            let [a, b] = ["a", "b"].map(|name| cassandra(model, &machine.process(name)));
            let (holder, other) = (lease(&a, "a"), lease(&b, "b"));
            let runtime = machine.world().runtime();
            machine.run(async {
                let held = holder.lock("jobs").await.unwrap();
                assert!(other.try_lock("jobs").await.unwrap().is_none());
                assert!(runtime.timeout(secs(60), other.lock("jobs")).await.is_err());
                held.release().await.unwrap();
                other.acquire("", Wait::No).await.unwrap_err();
                a.settled().await;
            });
        });
        let wait = |outcome: &str| format!("{WAIT}{{outcome={outcome},recipe=lease}}");
        assert!(seen.one(&wait("granted")) < 1.0);
        assert!(seen.one(&wait("not_granted")) < 1.0);
        assert!((59.0..61.0).contains(&seen.one(&wait("abandoned"))));
        assert!((59.0..62.0).contains(&seen.one(&format!("{HOLD}{{recipe=lease}}"))));
        for gauge in [WAITERS, HOLDS] {
            assert!(seen.is(&format!("{gauge}{{recipe=lease}}"), 0.0), "{gauge}: all are over");
        }
        let applied = seen.one(&format!("{RENEWALS}{{outcome=applied,recipe=lease}}"));
        assert!((6.0..=12.0).contains(&applied), "each third of what is certain: {applied}");
        assert_eq!(seen.count(&format!("{RENEWALS}{{outcome=unknown,recipe=lease}}")), 0);
        let statements =
            |kind: &str| seen.count(&format!("{STATEMENT}{{kind={kind},outcome=answered}}"));
        assert!(statements("lwt") >= 8, "{:?}", seen.0);
        assert!(statements("read") > 30, "a waiter looks every two seconds");
    }

    #[test]
    fn a_renewal_that_is_applied_in_jeopardy_is_late() {
        let seen = recorded(|machine, model| {
            let on = cassandra(model, &machine.process("a"));
            let holder = lease(&on, "a");
            machine.run(async {
                let held = holder.lock("jobs").await.unwrap();
                // Due after 6.2 of the 18.7 s that are certain, in jeopardy after 12.4.
                model.set_brown_out(secs(7));
                machine.world().runtime().sleep(secs(10)).await;
                model.set_brown_out(secs(0));
                machine.world().runtime().sleep(secs(5)).await;
                held.release().await.unwrap();
            });
        });
        assert!(seen.is(&format!("{RENEWALS}{{outcome=late,recipe=lease}}"), 1.0));
        assert!(seen.is(&format!("{RENEWALS}{{outcome=applied,recipe=lease}}"), 1.0), "the next");
    }

    /// A hold that is lost because no statement is done any more, and a lock that is asked for meanwhile.
    fn loses_a_lock(machine: &Machine, model: &Model) {
        let on = cassandra(model, &machine.process("a"));
        let holder = lease(&on, "a");
        machine.run(async {
            let held = holder.lock("jobs").await.unwrap();
            model.set_odds(Odds { unavailable: 1_000, ..Odds::default() });
            assert_eq!(held.lost().await, LostReason::DeadlinePassed);
            assert!(holder.try_lock("other").await.is_err());
            model.set_odds(Odds::default());
            on.settled().await;
        });
    }

    #[test]
    fn a_loss_is_reported_by_its_reason() {
        let seen = recorded(loses_a_lock);
        assert!(seen.is(&format!("{LOSSES}{{reason=deadline_passed,recipe=lease}}"), 1.0));
        assert!(seen.one(&format!("{RENEWALS}{{outcome=unknown,recipe=lease}}")) >= 2.0);
        assert_eq!(seen.count(&format!("{WAIT}{{outcome=unreachable,recipe=lease}}")), 1);
        assert!(seen.count(&format!("{STATEMENT}{{kind=lwt,outcome=unknown}}")) >= 2);
    }

    #[test]
    fn a_loss_is_logged_with_its_lock_and_recipe() {
        let lines = Lines::default();
        let subscriber = tracing_subscriber::fmt().with_ansi(false).with_writer(lines.clone());
        tracing::subscriber::with_default(subscriber.finish(), || {
            let (machine, model) = world(1);
            loses_a_lock(&machine, &model);
            // A place in the code that another test reached first may have been found without a subscriber. Now all of them are known.
            tracing::callsite::rebuild_interest_cache();
            lines.forget();
            let (machine, model) = world(1);
            loses_a_lock(&machine, &model);
        });
        let said = lines.text();
        let lost = said.lines().find(|line| line.contains("the lock is lost")).unwrap();
        assert!(lost.contains(r#"WARN lock{lock="jobs" recipe="lease"}"#), "{lost}");
        assert!(lost.contains("reason=its safe deadline passed"), "{lost}");
        assert!(said.contains("no renewal was answered for two thirds"), "{said}");
    }

    #[test]
    fn a_locker_is_counted_in_its_mode_and_tells_when_its_row_was_renewed() {
        let (mut while_it_locks, mut renewed_at) = (None, 0.0);
        let recorder = DebuggingRecorder::new();
        let snapshotter = recorder.snapshotter();
        let (machine, model) = world(1);
        let on = cassandra(&model, &machine.process("a"));
        with_local_recorder(&recorder, || {
            machine.run(async {
                let row = options("a", secs(30), secs(10));
                let locker = Locker::builder(&on, "orders/", lease(&on, "a")).row(row);
                let locker = locker.start(LockerMode::Cassandra).await.unwrap();
                machine.world().runtime().sleep(secs(60)).await;
                locker.lock("orders/7").await.unwrap().release().await.unwrap();
                while_it_locks = Some(Seen::by(&snapshotter));
                renewed_at =
                    Duration::from_millis(machine.world().runtime().clock.wall_ms()).as_secs_f64();
                drop(locker);
                on.settled().await;
            });
        });
        let lockers = |mode: &str| format!("{SCOPE_LOCKERS}{{mode={mode},scope=orders/}}");
        let seen = while_it_locks.unwrap();
        assert!(seen.is(&lockers("cassandra"), 1.0) && seen.is(&lockers("none"), 0.0));
        let wait = format!("{SCOPE_WAIT}{{mode=cassandra,outcome=granted,scope=orders/}}");
        assert_eq!(seen.count(&wait), 1);
        let age = renewed_at - seen.one(&format!("{SCOPE_ROW}{{scope=orders/}}"));
        assert!((0.0..7.0).contains(&age), "each third of what is certain of the row: {age}");

        // A snapshot takes what it shows: gauges begin anew.
        let after = Seen::by(&snapshotter);
        assert!(after.is(&lockers("cassandra"), -1.0) && after.is(&lockers("none"), 0.0));
    }

    /// Each metric has a row in the document, with its kind and its meaning, and the document has no other.
    #[test]
    fn the_document_has_each_metric() {
        let document = include_str!("../../../docs/cassandra.md");
        let rows: BTreeSet<_> = document
            .lines()
            .filter_map(|line| {
                let mut cells = line.strip_prefix("| `holdfast_")?.split(" | ");
                let (name, _, kind) = (cells.next()?, cells.next()?, cells.next()?);
                let meaning =
                    cells.next()?.split(". ").next()?.trim_end_matches(" |").trim_end_matches('.');
                Some((format!("holdfast_{}", name.trim_end_matches('`')), kind, meaning))
            })
            .collect();
        let described: BTreeSet<_> = DESCRIBED
            .iter()
            .map(|(name, kind, _, meaning)| {
                let kind = match kind {
                    Kind::Counter => "counter",
                    Kind::Gauge => "gauge",
                    Kind::Histogram => "histogram",
                };
                ((*name).to_owned(), kind, *meaning)
            })
            .collect();
        assert_eq!(rows, described);
    }

    /// A recorder learns the meaning of each metric before it is used.
    #[test]
    fn a_recorder_is_told_what_each_metric_means() {
        let recorder = DebuggingRecorder::new();
        let snapshotter = recorder.snapshotter();
        with_local_recorder(&recorder, || {
            describe_metrics();
            counter!(LOSSES, "recipe" => "lease", "reason" => "revoked").increment(1);
        });
        let told = snapshotter.snapshot().into_vec();
        let [(key, unit, meaning, _)] = told.as_slice() else { panic!("{} metrics", told.len()) };
        assert_eq!(KeyName::from(key.key().name().to_owned()), KeyName::from(LOSSES));
        assert_eq!(*unit, Some(Unit::Count));
        assert_eq!(meaning.as_deref(), Some("Holds that were lost, by the reason"));
        assert_eq!(Seen::by(&snapshotter).names(), BTreeSet::from([LOSSES]));
    }

    /// What a subscriber wrote.
    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl Lines {
        fn forget(&self) {
            self.0.lock().unwrap_or_else(PoisonError::into_inner).clear();
        }

        fn text(&self) -> String {
            let bytes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            String::from_utf8_lossy(&bytes).into_owned()
        }
    }

    impl Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap_or_else(PoisonError::into_inner).write(bytes)
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    impl tracing_subscriber::fmt::MakeWriter<'_> for Lines {
        type Writer = Self;

        fn make_writer(&self) -> Self {
            self.clone()
        }
    }
}
