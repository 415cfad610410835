//! The lock recipes for suites on real Cassandra nodes: each by its name, with clients of one recipe that write a history together, in this
//! process and in others.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use holdfast_recipes::{
    BakeryForm, BakeryTables, Cassandra, Housekeeper, Layout, LockerOptions, RemoteLocker,
    TokenTables,
};
use holdfast_runtime::{Runtime, Task};
use nix::sys::signal::Signal;
use serde::{Deserialize, Serialize};
use tempfile::TempDir;

use crate::cassandra::{Nodes, Stage};
use crate::check::Report;
use crate::history::{ClientId, LostCause, Record, Recorder, What, merge, read};
use crate::legacy::passed;
use crate::program::Program;
use crate::remote::RemoteScribe;
use crate::run::judge;

/// The length of a working client's hold.
pub const WORK: Duration = Duration::from_millis(20);
/// The interval between two looks at what clients recorded.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// How long a process may take to confirm a command, or to end: so long that only a hanging process exceeds it.
const STEP_LIMIT: Duration = Duration::from_mins(2);

/// One of the recipes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Recipe {
    /// The lease.
    Lease,
    /// The queue.
    Queue,
    /// The tokens with LWT.
    TokensLwt,
    /// The bakery in the wiki's form.
    Bakery,
    /// The bakery in the form of the article on PHP, in tables of its own: [`php_tables`].
    BakeryPhp,
    /// The older recipe of the thesis.
    Shadow,
    /// The tokens without LWT.
    TokensOptimistic,
}

/// The tables of the bakery in PHP. Its flags are of another type.
pub fn php_tables() -> BakeryTables {
    BakeryTables::named("numbers_php", "choosing_php", ["key", "column1", "value"])
        .of_form(BakeryForm::Php)
}

impl Recipe {
    /// All recipes that suites run side by side in one keyspace, in one form, in tables of their usual names.
    pub const ALL: [Self; 4] = [Self::Lease, Self::Queue, Self::TokensLwt, Self::Bakery];
    /// The same in all forms. A stage needs [`Recipe::make_tables_of_forms`].
    pub const ALL_FORMS: [Self; 5] =
        [Self::Lease, Self::Queue, Self::TokensLwt, Self::Bakery, Self::BakeryPhp];
    /// Those that their own articles gave up, because they do not promise progress: they have a suite of their own. The shadow recipe
    /// shares the table of main rows with the queue, so it needs a keyspace without the queue.
    pub const OLDER: [Self; 2] = [Self::Shadow, Self::TokensOptimistic];

    /// Makes the tables of those forms that have no table of the usual name.
    pub async fn make_tables_of_forms(stage: &Stage) {
        let layout = Layout { bakery: php_tables(), ..Layout::default() };
        stage.make(layout, &["numbers_php", "choosing_php"]).await;
    }

    /// The recipe, whatever its form.
    fn of_any_form(self) -> holdfast_recipes::Recipe {
        match self {
            Self::Lease => holdfast_recipes::Recipe::Lease,
            Self::Queue => holdfast_recipes::Recipe::Queue,
            Self::TokensLwt => holdfast_recipes::Recipe::TokensLwt,
            Self::Bakery | Self::BakeryPhp => holdfast_recipes::Recipe::Bakery,
            Self::Shadow => holdfast_recipes::Recipe::Shadow,
            Self::TokensOptimistic => holdfast_recipes::Recipe::TokensOptimistic,
        }
    }

    /// Its name on the command line, with its form where that is not the default.
    pub fn name(self) -> &'static str {
        if self == Self::BakeryPhp { "bakery-php" } else { self.of_any_form().as_str() }
    }

    /// The recipe of that name.
    pub fn named(name: &str) -> Option<Self> {
        let all = Self::ALL_FORMS.into_iter().chain(Self::OLDER);
        all.into_iter().find(|recipe| recipe.name() == name)
    }

    /// A locker on the tables of their usual names, or on those of the form.
    pub fn locker(self, cassandra: &Cassandra, options: &LockerOptions) -> Arc<dyn RemoteLocker> {
        let mut layout = Layout::default();
        if self == Self::BakeryPhp {
            layout.bakery = php_tables();
        }
        self.of_any_form().locker(cassandra, options, &layout).unwrap()
    }
}

/// The TTL of cells, and by how much the nodes' clocks may differ.
#[derive(Clone, Copy, Debug)]
pub struct Times {
    /// The TTL of cells.
    pub ttl: Duration,
    /// By how much the clocks may differ.
    pub skew: Duration,
}

impl Times {
    /// So short that a test can wait for its end: safe for 4.9 s, renewed every 1.6 s.
    pub const SHORT: Self = Self { ttl: Duration::from_secs(9), skew: Duration::from_secs(3) };
    /// The shortest TTL of production, and the largest skew that it allows.
    pub const USUAL: Self = Self { ttl: Duration::from_mins(3), skew: Duration::from_mins(1) };
}

/// Clients of one recipe on a stage, and the history that they write.
#[derive(Debug)]
pub struct Party<'a> {
    stage: &'a Stage,
    recipe: Recipe,
    times: Times,
    recorder: Recorder,
    /// One file for each process.
    histories: TempDir,
    /// The task that frees the locks of dead clients, where the recipe needs it.
    _housekeeper: Option<Task>,
}

impl<'a> Party<'a> {
    /// A party without clients yet, with a housekeeper of ours where the recipe needs one.
    pub fn new(stage: &'a Stage, recipe: Recipe, times: Times) -> Self {
        let housekeeper =
            (recipe == Recipe::TokensLwt).then(|| keep_house(&stage.cassandra(), times.ttl));
        Self { _housekeeper: housekeeper, ..Self::keeping_no_house(stage, recipe, times) }
    }

    /// The same, without a housekeeper.
    pub fn keeping_no_house(stage: &'a Stage, recipe: Recipe, times: Times) -> Self {
        let recorder = Recorder::in_memory(Runtime::system().clock);
        let histories = tempfile::tempdir().unwrap();
        Self { stage, recipe, times, recorder, histories, _housekeeper: None }
    }

    /// One party for each recipe: side by side they take no longer than one.
    pub fn of_each(stage: &'a Stage, times: Times) -> Vec<Self> {
        Self::of(stage, &Recipe::ALL, times)
    }

    /// One party for each of these.
    pub fn of(stage: &'a Stage, recipes: &[Recipe], times: Times) -> Vec<Self> {
        recipes.iter().map(|recipe| Self::new(stage, *recipe, times)).collect()
    }

    /// Its recipe.
    pub fn recipe(&self) -> Recipe {
        self.recipe
    }

    /// A locker of its own: it counts as a process for locks.
    pub fn locker(&self, service: &str) -> Arc<dyn RemoteLocker> {
        let Times { ttl, skew } = self.times;
        let options = LockerOptions::default().service(service).ttl(ttl).max_skew(skew);
        self.recipe.locker(&self.stage.cassandra(), &options)
    }

    /// A client with a locker of its own.
    pub fn client(&self, id: u64) -> RemoteScribe {
        self.scribe(self.locker(&format!("client-{id}")), id)
    }

    /// A client of any locker.
    pub fn scribe(&self, locker: Arc<dyn RemoteLocker>, id: u64) -> RemoteScribe {
        RemoteScribe::of(locker, ClientId(id), self.recorder.clone())
    }

    /// Clients 1 to `number` work until `until` returns true.
    pub async fn work(&self, number: u64, names: &[&str], until: &(dyn Fn() -> bool + Sync)) {
        let clients: Vec<_> = (1..=number).map(|id| self.client(id)).collect();
        join_all(clients.iter().map(|client| client.work(names, WORK, until))).await;
    }

    /// How many locks its clients in this process have released so far.
    pub fn given_back(&self) -> usize {
        self.recorder.count(|what| matches!(what, What::Released { .. }))
    }

    /// Lets clients work for so long, and then until locks have passed so often from old clients, whose numbers begin with `first_old`, to
    /// ours and back: that takes longer on a slow machine, and this test does not measure speed.
    pub async fn pass_locks(&self, first_old: u64, times: usize, length: Duration) {
        let runtime = Runtime::system();
        let give_up_at = runtime.clock.now() + length + STEP_LIMIT * 2;
        runtime.sleep(length).await;
        while runtime.clock.now() < give_up_at {
            let so_far = merge(vec![self.history_of_processes(), self.recorder.so_far()]);
            let (to_us, to_them) = passed(&so_far, first_old);
            if to_us >= times && to_them >= times {
                return;
            }
            runtime.sleep(LOOK_EVERY).await;
        }
    }

    /// A process of ours as client `id`: `hold NAME` or `work NAME…`. It prints `held`, or `ready`.
    pub fn process(&self, id: u64, task: &[&str]) -> LockProcess {
        self.start(None, id, self.times.skew.as_secs(), task)
    }

    /// A process of a third-party client, whose first thread is client `id`.
    pub fn foreign(&self, python: &Path, script: &Path, id: u64, task: &[&str]) -> LockProcess {
        let program = Some((python.to_path_buf(), script));
        self.start(program, id, 0, task)
    }

    fn start(
        &self,
        foreign: Option<(PathBuf, &Path)>,
        id: u64,
        skew_s: u64,
        task: &[&str],
    ) -> LockProcess {
        let history = self.histories.path().join(id.to_string());
        let (ttl_s, skew_s, id) =
            (self.times.ttl.as_secs().to_string(), skew_s.to_string(), id.to_string());
        let (stage, path) = (self.stage, history.to_str().unwrap());
        let place = [self.recipe.name(), stage.points(), stage.keyspace(), &ttl_s];
        let program = match foreign {
            None => {
                let arguments = [&place[..], &[&skew_s, path, &id], task].concat();
                Program::start("holdfast-cassandra-holder", &arguments)
            }
            Some((python, script)) => {
                // -B: Python writes nothing beside the script.
                let arguments = [&["-B", script.to_str().unwrap()], &place[..], &[path, &id], task];
                Program::start_at(&python, &arguments.concat())
            }
        };
        LockProcess { program, history }
    }

    /// Everything that processes recorded so far, in order.
    pub fn history_of_processes(&self) -> Vec<Record> {
        let files = std::fs::read_dir(self.histories.path()).unwrap();
        merge(files.map(|file| read(&file.unwrap().path()).unwrap()).collect())
    }

    /// Judges all records. A violation is kept, and the test fails.
    pub fn judge(self) -> Report {
        self.judge_and_keep().0
    }

    /// The same; also returns the records.
    pub fn judge_and_keep(self) -> (Report, Vec<Record>) {
        let records = self.take_history();
        (judge(vec![records.clone()]), records)
    }

    /// All records, in order, not judged yet.
    pub fn take_history(self) -> Vec<Record> {
        merge(vec![self.history_of_processes(), self.recorder.take()])
    }
}

/// Every party's clients work while `act` runs; then all are judged. Each must have been granted locks so often.
#[expect(clippy::print_stdout, reason = "what was measured is shown with the test's output")]
pub async fn each_under_load(
    stage: &Stage,
    times: Times,
    (clients, names, least): (u64, &[&str], usize),
    act: impl AsyncFnOnce(&Nodes),
) {
    let runtime = Runtime::system();
    let parties = Party::of_each(stage, times);
    let over = AtomicBool::new(false);
    let is_over = || over.load(Ordering::Relaxed);
    let working = parties.iter().map(|party| party.work(clients, names, &is_over));
    let acting = async {
        act(stage.nodes()).await;
        // A slow machine takes longer to reach the number.
        let enough = async {
            while parties.iter().any(|party| party.given_back() < least) {
                runtime.sleep(LOOK_EVERY).await;
            }
        };
        let _ = runtime.timeout(STEP_LIMIT, enough).await;
        over.store(true, Ordering::Relaxed);
    };
    tokio::join!(join_all(working), acting);
    for party in parties {
        let recipe = party.recipe();
        let report = party.judge();
        println!("{recipe:?}: {report}");
        assert!(report.tally.safe_holds >= least, "{recipe:?}: {report}");
    }
}

/// Sweeps again and again, until this is dropped.
pub fn keep_house(cassandra: &Cassandra, grace: Duration) -> Task {
    let mut housekeeper = Housekeeper::new(cassandra, TokenTables::default(), grace).unwrap();
    Runtime::system().spawn("housekeeper", async move {
        loop {
            // The next sweep repeats whatever got no answer.
            let _ = housekeeper.sweep().await;
            Runtime::system().sleep(grace / 6).await;
        }
    })
}

/// A process with clients of one recipe, and the file of their history.
#[derive(Debug)]
pub struct LockProcess {
    program: Program,
    history: PathBuf,
}

impl LockProcess {
    /// Waits until it has printed this line.
    pub async fn says(&mut self, line: &str) {
        self.program.line(line, STEP_LIMIT).await;
    }

    /// Waits until it has asked for a lock, and a little longer.
    pub async fn waits(&self) {
        let asked = |record: &Record| matches!(record.what, What::Acquire { .. });
        while !self.history.exists() || !read(&self.history).unwrap().iter().any(asked) {
            Runtime::system().sleep(Duration::from_millis(50)).await;
        }
        Runtime::system().sleep(Duration::from_secs(1)).await;
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) {
        self.program.signal(signal);
    }

    /// Asks it to end, and waits until it has, as it should.
    pub async fn end(self) {
        self.program.signal(Signal::SIGTERM);
        let ended = self.program.end(STEP_LIMIT).await;
        assert_eq!(ended.code, Some(0), "{ended:?}");
    }
}

/// The first record in which a client of ours found its lock gone before its safe deadline. On a slow machine a holder may be without an
/// answer for so long that it gives up; that is not a loss to another client.
pub fn robbed(records: &[Record]) -> Option<&Record> {
    let mut safe_until = BTreeMap::new();
    records.iter().find(|record| match record.what {
        What::SafeGrant { token, until_ns } => {
            safe_until.insert((record.client, token), until_ns);
            false
        }
        What::Lost { token, cause: LostCause::Gone } => {
            safe_until.get(&(record.client, token)).is_some_and(|end| record.at_ns < *end)
        }
        _ => false,
    })
}

/// The longest time between two grants of one name, and which name that is.
pub fn longest_pause(records: &[Record]) -> Option<(Duration, String)> {
    let mut granted = BTreeMap::<&str, Vec<u64>>::new();
    for record in records {
        if let What::Granted { names, .. } = &record.what {
            for name in names {
                granted.entry(name).or_default().push(record.at_ns);
            }
        }
    }
    let pauses = granted.into_iter().flat_map(|(name, instants)| {
        let pairs = instants.windows(2).map(|pair| pair[1] - pair[0]).collect::<Vec<_>>();
        pairs.into_iter().map(|ns| (Duration::from_nanos(ns), name.to_owned()))
    });
    pauses.max()
}
