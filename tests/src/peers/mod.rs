//! Holdfast beside other lock stores, in one run: `just bench-peers`.
//!
//! | module | what |
//! |---|---|
//! | [`peer`] | the stores: how their members and clients are started (`tests/peers` has the sources) |
//! | [`topology`], [`site`] | where members and clients are, with a relay between their networks |
//! | [`cell`] | what is measured, and the figures of a run |
//! | `cluster` | the members of one store while it is measured |
//! | [`limits`] | what the machine and the networks allow |
//! | [`table`] | medians, spread and ratios, as tables |
//!
//! In each round each store has its turn, in each round another one first, so that an hour in which the
//! machine is slow is so for all. Only one store runs at a time.

pub mod cell;
mod cluster;
pub mod limits;
pub mod peer;
pub mod site;
pub mod table;
pub mod topology;

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Parser;
use holdfast_runtime::{Clock, Runtime};
use serde::Serialize;

use crate::net::{LAYING, leave_for_an_own_network};
use crate::packet_relay::TUN;
use cell::{CELLS, Cell, Row};
use cluster::Running;
use peer::Peer;
use site::Site;
use table::Measured;
use topology::Topology;

/// What makes the tables: its marks stand around them.
pub const PROGRAM: &str = "holdfast-bench-peers";
/// As many rounds as a table of the documents needs at least.
const ROUNDS: u32 = 3;
/// The topologies of the documents.
const TOPOLOGIES: &str = "loopback,0ms,0.25ms,5ms";
/// How long each of the limits is measured.
const LIMIT_LENGTH: Duration = Duration::from_secs(1);
/// What a cell takes besides its window, and a cluster until it is measured, mostly. For the estimate.
const CELL_BESIDES: u32 = 6;
const CLUSTER_BESIDES: u32 = 12;

/// Measures ours and other lock stores, those that are installed, in turns.
///
/// Prints what it measures, and at the end the tables. Root sees networks with a delay.
#[derive(Clone, Debug, Parser)]
#[command(name = PROGRAM, version)]
pub struct Options {
    /// Measured seconds of each cell, after 2 s of warm-up.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=600))]
    pub seconds: u32,
    /// How many rounds.
    #[arg(long, default_value_t = ROUNDS, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub rounds: u32,
    /// Where members and clients are: loopback, or networks of their own with this delay each way. At 0ms
    /// only what shows the relay's cost is measured.
    #[arg(long, value_delimiter = ',', default_value = TOPOLOGIES)]
    pub topologies: Vec<Topology>,
    /// Workload and clients of each cell.
    #[arg(long, value_delimiter = ',', default_value = CELLS)]
    pub cells: Vec<Cell>,
    /// Only these stores.
    #[arg(long, value_delimiter = ',', value_enum)]
    pub only: Vec<Peer>,
    /// The folder into which `tests/peers/install` builds. The stores' data lie below it while they run.
    #[arg(long, default_value = "target/peers")]
    pub home: PathBuf,
    /// A file that gets a line of JSON for each run of a cell and each measurement of the limits.
    #[arg(long)]
    pub rows: Option<PathBuf>,
    /// A page that gets the tables between its marks, if this is a whole run: three rounds or more of all
    /// stores, topologies and cells.
    #[arg(long)]
    pub write: Option<PathBuf>,
}

impl Options {
    /// Why the tables of this run are not those of a page.
    pub fn is_a_part(&self) -> Option<String> {
        let written = |all: &mut dyn Iterator<Item = String>| all.collect::<Vec<_>>().join(",");
        let topologies = written(&mut self.topologies.iter().map(ToString::to_string));
        let cells = written(&mut self.cells.iter().map(ToString::to_string));
        if self.rounds < ROUNDS {
            Some(format!("{} of at least {ROUNDS} rounds", self.rounds))
        } else if !self.only.is_empty() {
            Some("only some of the stores".into())
        } else if topologies != TOPOLOGIES || cells != CELLS {
            Some(format!("not the topologies {TOPOLOGIES} and the cells {CELLS}"))
        } else {
            None
        }
    }

    /// The stores that are asked for.
    fn peers(&self) -> &[Peer] {
        if self.only.is_empty() { Peer::all() } else { &self.only }
    }

    /// The cells that are measured at a topology.
    fn cells_at(&self, topology: Topology) -> Vec<Cell> {
        let all = self.cells.iter().copied();
        all.filter(|cell| !topology.is_for_the_relay() || cell.shows_the_relay()).collect()
    }
}

/// Measures everything; `say` gets a line for each thing that is done.
///
/// The calling thread moves into a network of its own if it can, for the rest of its life.
///
/// # Errors
///
/// Why it could not go on. A store that fails is left out, and named in the result.
pub async fn run(options: &Options, say: &dyn Fn(&str)) -> Result<Measured, String> {
    let mut measured = Measured { rounds: options.rounds, ..Measured::default() };
    let peers = installed(options, &mut measured.left_out);
    let sites = sites(options, &mut measured.left_out)?;
    for left_out in &measured.left_out {
        say(&format!("left out: {left_out}"));
    }
    let turns: Vec<Vec<Peer>> = (0..options.rounds).map(|round| in_turn(&peers, round)).collect();
    say(&format!("about {} minutes", minutes(options, &sites, peers.len())));
    let mut run = Run { options, say, measured };
    for (round, peers) in (1..).zip(&turns) {
        for site in &sites {
            run.limits(site, round)?;
            for peer in peers {
                run.store(*peer, site, round).await?;
            }
        }
    }
    Ok(run.measured)
}

/// The stores that are there; the others are added to `left_out`.
fn installed(options: &Options, left_out: &mut Vec<String>) -> Vec<Peer> {
    let mut peers = options.peers().to_vec();
    peers.retain(|peer| match peer.is_installed(&options.home) {
        Ok(()) => true,
        Err(why) => {
            left_out.push(format!("{}, which is not installed ({why})", peer.word()));
            false
        }
    });
    peers
}

/// The networks that this machine allows; the others are added to `left_out`.
fn sites(options: &Options, left_out: &mut Vec<String>) -> Result<Vec<Site>, String> {
    let mut allowed = leave_for_an_own_network(&[LAYING]);
    if allowed.is_ok() && !Path::new(TUN).exists() {
        allowed = Err(format!("{TUN} is missing (modprobe tun)"));
    }
    let mut sites = Vec::new();
    for (first, topology) in (1..).step_by(10).zip(&options.topologies) {
        let delay = match topology {
            Topology::Loopback => {
                sites.push(Site::on_loopback());
                continue;
            }
            Topology::Apart(delay) => *delay,
        };
        match &allowed {
            Ok(()) => {
                let site = Site::apart(delay, first);
                sites.push(site.map_err(|error| format!("the network of {topology}: {error}"))?);
            }
            Err(why) => left_out.push(format!("{topology}, without networks of its own ({why})")),
        }
    }
    Ok(sites)
}

/// The stores in the order of a round: in each round another one is first.
fn in_turn(peers: &[Peer], round: u32) -> Vec<Peer> {
    let mut turn = peers.to_vec();
    if !turn.is_empty() {
        let first = usize::try_from(round).unwrap_or(0) % turn.len();
        turn.rotate_left(first);
    }
    turn
}

/// How long all of it takes, mostly.
fn minutes(options: &Options, sites: &[Site], peers: usize) -> u32 {
    let peers = u32::try_from(peers).unwrap_or(u32::MAX);
    let seconds = sites.iter().map(|site| {
        let cells = options.cells_at(site.topology).len();
        let cells = u32::try_from(cells).unwrap_or(u32::MAX);
        peers * (CLUSTER_BESIDES + cells * (options.seconds + CELL_BESIDES))
    });
    (options.rounds * seconds.sum::<u32>()).div_ceil(60)
}

/// What one run collects.
struct Run<'a> {
    options: &'a Options,
    say: &'a dyn Fn(&str),
    measured: Measured,
}

impl Run<'_> {
    fn limits(&mut self, site: &Site, round: u32) -> Result<(), String> {
        let folder = self.folder()?;
        let limits = limits::measure(site, folder.path(), round, LIMIT_LENGTH);
        let limits = limits.map_err(|error| format!("the limits of {}: {error}", site.topology))?;
        (self.say)(&format!(
            "round {round}, {}: a round trip takes {:.0} µs, a commit {:.0} µs",
            site.topology, limits.round_trip.p50_us, limits.commit.p50_us
        ));
        self.keep(&limits)?;
        self.measured.limits.push(limits);
        Ok(())
    }

    /// Measures the cells of one store, on a cluster of its own that ends with this call.
    async fn store(&mut self, peer: Peer, site: &Site, round: u32) -> Result<(), String> {
        let (topology, folder) = (site.topology, self.folder()?);
        let home = std::path::absolute(&self.options.home).map_err(|error| error.to_string())?;
        let failed = |what: &str, why: &str| {
            format!("{what} of {} at {topology} in round {round} ({why})", peer.word())
        };
        let cluster = match Running::start(peer, site, &home, folder.path()).await {
            Ok(cluster) => cluster,
            Err(why) => {
                self.leave_out(failed("the cells", &why));
                return Ok(());
            }
        };
        let relay = || site.relayed().map_or(0.0, |(_, cpu)| cpu);
        for cell in self.options.cells_at(topology) {
            match cluster.run(cell, self.options.seconds, relay).await {
                Ok((figures, other_cores)) => {
                    let row = Row { peer, topology, cell, round, other_cores, figures };
                    (self.say)(&told(&row));
                    self.keep(&row)?;
                    self.measured.rows.push(row);
                }
                Err(why) => self.leave_out(failed(&format!("the cell {cell}"), &why)),
            }
        }
        Ok(())
    }

    fn leave_out(&mut self, what: String) {
        (self.say)(&format!("left out: {what}"));
        self.measured.left_out.push(what);
    }

    /// A folder for data and logs, on the disk of the project: one in memory would sync nothing.
    fn folder(&self) -> Result<tempfile::TempDir, String> {
        let home = &self.options.home;
        let failed = |error: std::io::Error| format!("{}: {error}", home.display());
        std::fs::create_dir_all(home).map_err(failed)?;
        let home = std::path::absolute(home).map_err(failed)?;
        tempfile::Builder::new().prefix("run-").tempdir_in(home).map_err(failed)
    }

    fn keep(&self, row: &impl Serialize) -> Result<(), String> {
        let Some(path) = &self.options.rows else { return Ok(()) };
        let line = serde_json::to_string(row).map_err(|error| error.to_string())?;
        let write = || {
            let mut file = std::fs::OpenOptions::new().create(true).append(true).open(path)?;
            writeln!(file, "{line}")
        };
        write().map_err(|error| format!("{}: {error}", path.display()))
    }
}

fn told(row: &Row) -> String {
    let Row { peer, topology, cell, round, other_cores, figures } = row;
    let mut line = format!(
        "round {round}, {topology}, {}, {cell}: {:.0} a second",
        peer.word(),
        figures.ops_per_s
    );
    if let Some(us) = figures.acq_p50_us {
        // Infallible, here and below: a String takes whatever is written to it.
        let _ = write!(line, ", acquire p50 {:.2} ms", us / 1e3);
    }
    let _ = write!(line, ", other work {other_cores:.2} cores");
    if figures.errors > 0 {
        let _ = write!(line, ", {} failed", figures.errors);
    }
    line
}

/// What stands above the tables: the run, and the machine.
pub fn heading(options: &Options, arguments: &[String], measured: &Measured) -> String {
    let mut command = vec!["just".to_owned(), "bench-peers".to_owned()];
    command.extend(arguments.iter().cloned());
    let others = measured.other_cores().map_or_else(String::new, |(median, most)| {
        format!(" Other work took {median:.2} cores in the middle, at most {most:.2}.")
    });
    format!(
        "Measured on {} by `{}`, rounds: {}, {} s a cell, in each round another store first, only one \
         store at a time. {}{others}\n\nA cell has the median of the rounds, the lowest and the highest, and \
         in bold how many times better Holdfast is.\n\n",
        date(&*Runtime::system().clock),
        command.join(" "),
        options.rounds,
        options.seconds,
        machine()
    )
}

fn date(clock: &dyn Clock) -> String {
    let date = format!("@{}", clock.wall_ms() / 1_000);
    let commit = output("git", &["rev-parse", "--short", "HEAD"]);
    let commit = commit.map_or_else(String::new, |commit| format!(" ({commit})"));
    output("date", &["-u", "-d", &date, "+%-d %B %Y"]).unwrap_or_default() + &commit
}

fn output(program: &str, arguments: &[&str]) -> Option<String> {
    let output = std::process::Command::new(program).args(arguments).output().ok()?;
    let said = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| said.trim().to_owned())
}

/// The machine, as far as `/proc` describes it.
fn machine() -> String {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let field = |text: &str, name: &str| {
        let line = text.lines().find(|line| line.starts_with(name))?;
        Some(line.split_once(':')?.1.trim().to_owned())
    };
    let (cpu, memory) = (read("/proc/cpuinfo"), read("/proc/meminfo"));
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let model = field(&cpu, "model name").unwrap_or_else(|| "unknown model".into());
    let kib =
        field(&memory, "MemTotal").and_then(|total| total.split(' ').next()?.parse::<u64>().ok());
    let gib = kib.map_or(0, |kib| kib.div_ceil(1 << 20));
    let kernel = read("/proc/sys/kernel/osrelease").trim().to_owned();
    format!("The machine: {cores} cores ({model}), {gib} GiB, Linux {kernel}.")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(arguments: &[&str]) -> Options {
        let arguments = [&[PROGRAM][..], arguments].concat();
        Options::try_parse_from(arguments).unwrap_or_else(|error| panic!("{error}"))
    }

    #[test]
    fn every_store_is_first_in_a_round_and_each_has_one_turn_in_each() {
        let peers = Peer::all();
        let turns: Vec<_> = (0..5).map(|round| in_turn(peers, round)).collect();
        let first: Vec<Peer> = turns.iter().map(|turn| turn[0]).collect();

        assert_eq!(first, peers);
        for turn in &turns {
            assert_eq!(turn.len(), peers.len());
            assert!(peers.iter().all(|peer| turn.contains(peer)), "{turn:?}");
        }
        assert_eq!(in_turn(&[], 3), []);
    }

    #[test]
    fn a_page_gets_the_tables_of_a_whole_run_only() {
        let part = |arguments: &[&str]| options(arguments).is_a_part();

        assert_eq!(part(&[]), None);
        assert_eq!(part(&["--seconds", "9", "--rounds", "4"]), None);
        assert_eq!(part(&["--rounds", "2"]), Some("2 of at least 3 rounds".into()));
        assert_eq!(part(&["--only", "etcd,hiqlite"]), Some("only some of the stores".into()));
        for other in [["--cells", "W1:1"], ["--topologies", "loopback"]] {
            assert!(part(&other).unwrap().contains("0.25ms,5ms and the cells W1:1,W2:64"));
        }
    }

    #[test]
    fn without_delay_only_what_shows_the_relay_is_measured() {
        let options = options(&[]);
        let at = |topology: &str| options.cells_at(topology.parse().unwrap()).len();

        assert_eq!((at("loopback"), at("0ms"), at("0.25ms")), (6, 3, 6));
    }

    #[test]
    fn a_store_that_is_not_installed_is_left_out_by_name() {
        let home = tempfile::tempdir().unwrap();
        let mut left_out = Vec::new();
        let options = options(&["--home", &home.path().to_string_lossy()]);

        assert_eq!(installed(&options, &mut left_out), [Peer::Holdfast]);
        let named: Vec<&str> = left_out.iter().filter_map(|line| line.split(',').next()).collect();
        assert_eq!(named, ["etcd", "zookeeper", "hiqlite", "hazelcast"]);
    }

    #[test]
    fn the_heading_has_command_machine_and_other_work() {
        let options = options(&["--seconds", "8"]);
        let arguments = ["--seconds".to_owned(), "8".to_owned()];
        let text = heading(&options, &arguments, &Measured::default());

        assert!(
            text.contains("by `just bench-peers --seconds 8`, rounds: 3, 8 s a cell"),
            "{text}"
        );
        assert!(text.contains("GiB, Linux "), "{text}");
        assert!(!text.contains("Other work"), "nothing was measured: {text}");
    }

    #[test]
    fn the_estimate_grows_with_what_is_asked_for() {
        let sites = [Site::on_loopback()];
        let five = minutes(&options(&[]), &sites, 5);

        assert_eq!(five, (3 * 5 * (12 + 6 * 11_u32)).div_ceil(60));
        assert!(minutes(&options(&["--cells", "W1:1"]), &sites, 5) < five);
        assert!(minutes(&options(&["--rounds", "1"]), &sites, 5) < five);
    }
}
