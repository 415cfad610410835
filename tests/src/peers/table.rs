//! The tables of `docs/benchmarks.md`: the median of the rounds, their spread, and how many times better
//! Holdfast is.

use std::fmt::Write as _;

use super::cell::{Cell, Figures, Row, Workload};
use super::limits::Limits;
use super::peer::Peer;
use super::topology::Topology;

/// Everything that was measured, and what was not.
#[derive(Clone, Debug, Default)]
pub struct Measured {
    /// The runs of cells.
    pub rows: Vec<Row>,
    /// The limits beside them.
    pub limits: Vec<Limits>,
    /// What was left out, and why.
    pub left_out: Vec<String>,
    /// How many rounds there were.
    pub rounds: u32,
}

/// One column: a figure of a cell.
struct Column {
    title: String,
    cell: Cell,
    figure: Figure,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Figure {
    Acquire,
    Rate,
    HandOver,
    Cpu,
    Packets,
}

impl Figure {
    fn of(self, figures: &Figures) -> Option<f64> {
        match self {
            Self::Acquire => Some(figures.acq_p50_us? / 1e3),
            Self::Rate => Some(figures.ops_per_s),
            Self::HandOver => Some(figures.ho_p50_us? / 1e3),
            Self::Cpu => figures.server_cpu_s_per_kop,
            Self::Packets => figures.lo_packets_per_op,
        }
    }

    /// How many times better ours is.
    fn ratio(self, ours: f64, theirs: f64) -> f64 {
        if self == Self::Rate { ours / theirs } else { theirs / ours }
    }
}

/// The values of the rounds.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Spread {
    median: f64,
    least: f64,
    most: f64,
    rounds: usize,
}

impl Spread {
    fn of(values: impl Iterator<Item = f64>) -> Option<Self> {
        let mut values: Vec<f64> = values.collect();
        values.sort_by(f64::total_cmp);
        let (least, most) = (*values.first()?, *values.last()?);
        let middle = values.len() / 2;
        let median = if values.len() % 2 == 1 {
            values[middle]
        } else {
            f64::midpoint(values[middle - 1], values[middle])
        };
        Some(Self { median, least, most, rounds: values.len() })
    }

    /// The median with lowest and highest in brackets.
    fn text(&self, rounds: u32) -> String {
        let Self { median, least, most, .. } = *self;
        let mut text = short(median);
        if self.rounds > 1 {
            let _ = write!(text, " ({}–{})", short(least), short(most));
        }
        if u32::try_from(self.rounds) != Ok(rounds) {
            let _ = write!(text, ", {} of {rounds} rounds", self.rounds);
        }
        text
    }
}

/// Three digits, and commas between thousands.
fn short(value: f64) -> String {
    match value {
        thousands if thousands >= 999.5 => {
            let digits = format!("{thousands:.0}");
            let mut text = String::new();
            for (index, digit) in digits.chars().enumerate() {
                if index > 0 && (digits.len() - index).is_multiple_of(3) {
                    text.push(',');
                }
                text.push(digit);
            }
            text
        }
        hundreds if hundreds >= 100.0 => format!("{hundreds:.0}"),
        tens if tens >= 10.0 => format!("{tens:.1}"),
        // More digits than other work leaves certain say nothing.
        ones if ones >= 0.1 => format!("{ones:.2}"),
        small => format!("{small:.3}"),
    }
}

impl Measured {
    /// All tables, as Markdown.
    pub fn tables(&self) -> String {
        let mut page = self.stores();
        for topology in self.topologies() {
            page.push_str(&self.table(topology));
        }
        page.push_str(&self.limits_table());
        page
    }

    /// The highest and the median share of other work, in cores.
    pub fn other_cores(&self) -> Option<(f64, f64)> {
        let spread = Spread::of(self.rows.iter().map(|row| row.other_cores))?;
        Some((spread.median, spread.most))
    }

    /// In the order in which they were measured.
    fn topologies(&self) -> Vec<Topology> {
        let mut topologies: Vec<Topology> = Vec::new();
        let measured = self.limits.iter().map(|limits| limits.topology);
        for topology in measured.chain(self.rows.iter().map(|row| row.topology)) {
            if !topologies.contains(&topology) {
                topologies.push(topology);
            }
        }
        topologies
    }

    /// The stores that were measured, ours first.
    fn peers(&self) -> impl Iterator<Item = Peer> {
        let all = Peer::all().iter().copied();
        all.filter(|peer| self.rows.iter().any(|row| row.peer == *peer))
    }

    fn stores(&self) -> String {
        let mut page = String::from("| store | version | lock | once it has answered |\n");
        page.push_str("|---|---|---|---|\n");
        for peer in self.peers() {
            let facts = peer.facts();
            let (name, version, lock) = (facts.name, facts.version, facts.lock);
            // Infallible, here and below: a String takes whatever is written to it.
            let _ = writeln!(page, "| {name} | {version} | {lock} | {} |", facts.durability);
        }
        page.push('\n');
        for left_out in &self.left_out {
            let _ = writeln!(page, "Left out: {left_out}.\n");
        }
        page
    }

    fn table(&self, topology: Topology) -> String {
        let columns = self.columns(topology);
        if columns.is_empty() {
            return String::new();
        }
        let mut page = format!("**{}**\n\n", headline(topology));
        let titles: Vec<&str> = columns.iter().map(|column| &*column.title).collect();
        let _ = writeln!(page, "| | {} |", titles.join(" | "));
        let _ = writeln!(page, "|{}", "---|".repeat(columns.len() + 1));
        for peer in self.peers() {
            let cells = columns.iter().map(|column| self.cell(topology, peer, column));
            let cells = cells.collect::<Vec<_>>().join(" | ");
            let _ = writeln!(page, "| {} | {cells} |", peer.facts().name);
        }
        let floor = columns.iter().map(|column| self.floor(topology, column));
        let floor = floor.collect::<Vec<_>>().join(" | ");
        let _ = writeln!(page, "| *floor: a commit and nothing else* | {floor} |\n");
        page
    }

    /// The cells of a topology, in the order in which they were measured.
    fn columns(&self, topology: Topology) -> Vec<Column> {
        let mut cells: Vec<Cell> = Vec::new();
        for row in self.rows.iter().filter(|row| row.topology == topology) {
            if !cells.contains(&row.cell) {
                cells.push(row.cell);
            }
        }
        let mut columns: Vec<Column> = cells.iter().map(|cell| speed(*cell)).collect();
        // The same client number stands for all of a workload: what they cost differs less.
        let of = |workload| move |cell: &&Cell| cell.workload == workload;
        let shared = cells.iter().find(|cell| of(Workload::W3)(cell) && cell.clients >= 10);
        let shared = shared.or_else(|| cells.iter().find(of(Workload::W3)));
        columns.extend(shared.map(|cell| column(*cell, "hand-over p50, ms", Figure::HandOver)));
        for cell in cells.iter().find(of(Workload::W2)).into_iter().chain(shared) {
            columns.push(column(*cell, "server CPU s per 1,000", Figure::Cpu));
        }
        if topology == Topology::Loopback {
            columns.extend(shared.map(|cell| column(*cell, "packets", Figure::Packets)));
        }
        columns
    }

    fn spread(&self, topology: Topology, peer: Peer, column: &Column) -> Option<Spread> {
        let of_cell =
            |row: &&Row| (row.topology, row.peer, row.cell) == (topology, peer, column.cell);
        let rows = self.rows.iter().filter(of_cell);
        Spread::of(rows.filter_map(|row| column.figure.of(&row.figures)))
    }

    fn cell(&self, topology: Topology, peer: Peer, column: &Column) -> String {
        let Some(spread) = self.spread(topology, peer, column) else { return "–".into() };
        let mut text = spread.text(self.rounds);
        let ours = self.spread(topology, Peer::Holdfast, column);
        if let Some(ours) = ours.filter(|_| peer != Peer::Holdfast) {
            let ratio = column.figure.ratio(ours.median, spread.median);
            let _ = write!(text, " **{}×**", short(ratio));
        }
        let errors: u64 = self
            .rows
            .iter()
            .filter(|row| (row.topology, row.peer, row.cell) == (topology, peer, column.cell))
            .map(|row| row.figures.errors)
            .sum();
        if errors > 0 {
            let _ = write!(text, ", {errors} failed");
        }
        text
    }

    /// What a commit allows: W1 waits for one, and each hand-over is at least one.
    fn floor(&self, topology: Topology, column: &Column) -> String {
        let of_topology = self.limits.iter().filter(|limits| limits.topology == topology);
        let commits = of_topology.map(|limits| limits.commit.p50_us);
        let values: Vec<f64> = match (column.cell.workload, column.figure) {
            (Workload::W1, Figure::Acquire) | (_, Figure::HandOver) => {
                commits.map(|commit| commit / 1e3).collect()
            }
            (Workload::W3, Figure::Rate) => commits.map(|commit| 1e6 / commit).collect(),
            _ => Vec::new(),
        };
        let spread = Spread::of(values.into_iter());
        spread.map_or_else(|| "–".into(), |spread| spread.text(self.rounds))
    }

    fn limits_table(&self) -> String {
        let mut page = String::from(
            "| the networks and the disk, µs | round trip p50 | p99 | commit p50 | p99 | sync p50 | p99 \
             | relay's CPU per packet |\n|---|---|---|---|---|---|---|---|\n",
        );
        for topology in self.topologies() {
            let rounds = || self.limits.iter().filter(|limits| limits.topology == topology);
            let shown = |figure: fn(&Limits) -> Option<f64>| {
                let spread = Spread::of(rounds().filter_map(figure));
                spread.map_or_else(|| "–".into(), |spread| spread.text(self.rounds))
            };
            let figures = [
                shown(|limits| Some(limits.round_trip.p50_us)),
                shown(|limits| Some(limits.round_trip.p99_us)),
                shown(|limits| Some(limits.commit.p50_us)),
                shown(|limits| Some(limits.commit.p99_us)),
                shown(|limits| Some(limits.sync.p50_us)),
                shown(|limits| Some(limits.sync.p99_us)),
                shown(|limits| limits.relay_us_per_packet),
            ];
            let _ = writeln!(page, "| {} | {} |", headline(topology), figures.join(" | "));
        }
        page.push('\n');
        page
    }
}

fn headline(topology: Topology) -> String {
    match topology {
        Topology::Loopback => "all on loopback".into(),
        Topology::Apart(_) if topology.is_for_the_relay() => {
            "a network for each member and one for the clients, no delay: what the relay costs"
                .into()
        }
        Topology::Apart(delay) => format!(
            "a network for each member and one for the clients, {} ms each way",
            delay.as_secs_f64() * 1e3
        ),
    }
}

fn speed(cell: Cell) -> Column {
    match cell.workload {
        Workload::W1 => column(cell, "acquire p50, ms", Figure::Acquire),
        Workload::W2 => column(cell, "pairs/s", Figure::Rate),
        Workload::W3 => column(cell, "hand-overs/s", Figure::Rate),
    }
}

fn column(cell: Cell, what: &str, figure: Figure) -> Column {
    let clients = if cell.clients == 1 { String::new() } else { format!(", {}", cell.clients) };
    Column { title: format!("{:?}{clients}: {what}", cell.workload), cell, figure }
}

#[cfg(test)]
mod tests {
    use super::super::limits::Times;
    use super::*;

    fn row(peer: Peer, topology: &str, cell: &str, round: u32, figures: Figures) -> Row {
        let (topology, cell) = (topology.parse().unwrap(), cell.parse().unwrap());
        Row { peer, topology, cell, round, other_cores: 0.01 * f64::from(round), figures }
    }

    fn acquire(us: f64) -> Figures {
        Figures { ops_per_s: 500.0, acq_p50_us: Some(us), ..Figures::default() }
    }

    fn shared(rate: f64, cpu: f64) -> Figures {
        Figures {
            ops_per_s: rate,
            ho_p50_us: Some(1e6 / rate),
            server_cpu_s_per_kop: Some(cpu),
            lo_packets_per_op: Some(12.0),
            ..Figures::default()
        }
    }

    fn limits(topology: &str, round: u32, commit: f64) -> Limits {
        let times = |p50_us| Times { p50_us, p99_us: 2.0 * p50_us };
        let relay_us_per_packet = (topology != "loopback").then_some(4.5);
        let topology = topology.parse().unwrap();
        let (round_trip, commit, sync) = (times(30.0), times(commit), times(200.0));
        Limits { topology, round, round_trip, commit, sync, relay_us_per_packet }
    }

    fn measured() -> Measured {
        let mut measured = Measured { rounds: 3, ..Measured::default() };
        for (round, us) in [(1, 600.0), (2, 660.0), (3, 500.0)] {
            let at = "loopback";
            measured.limits.push(limits(at, round, us / 2.0));
            measured.rows.push(row(Peer::Etcd, at, "W1:1", round, acquire(2.0 * us)));
            measured.rows.push(row(Peer::Holdfast, at, "W1:1", round, acquire(us)));
            measured.rows.push(row(Peer::Holdfast, at, "W3:10", round, shared(1_250.0, 0.9)));
        }
        measured.rows.push(row(Peer::Etcd, "loopback", "W3:10", 1, shared(100.0, 5.4)));
        measured
    }

    fn line<'a>(page: &'a str, start: &str) -> &'a str {
        let wanted = format!("| {start} |");
        let found = page.lines().rfind(|line| line.starts_with(&wanted));
        found.unwrap_or_else(|| panic!("no line {start} in {page}"))
    }

    #[test]
    fn a_cell_has_the_median_the_spread_and_how_many_times_better_ours_is() {
        let page = measured().table(Topology::Loopback);

        let titles = "| | W1: acquire p50, ms | W3, 10: hand-overs/s | W3, 10: hand-over p50, ms \
                      | W3, 10: server CPU s per 1,000 | W3, 10: packets |";
        assert!(page.contains(titles), "{page}");
        assert_eq!(
            line(&page, "**Holdfast**"),
            "| **Holdfast** | 0.60 (0.50–0.66) | 1,250 (1,250–1,250) | 0.80 (0.80–0.80) \
             | 0.90 (0.90–0.90) | 12.0 (12.0–12.0) |"
        );
        assert_eq!(
            line(&page, "etcd"),
            "| etcd | 1.20 (1.00–1.32) **2.00×** | 100, 1 of 3 rounds **12.5×** | 10.0, 1 of 3 rounds \
             **12.5×** | 5.40, 1 of 3 rounds **6.00×** | 12.0, 1 of 3 rounds **1.00×** |"
        );
        assert_eq!(
            line(&page, "*floor: a commit and nothing else*"),
            "| *floor: a commit and nothing else* | 0.30 (0.25–0.33) | 3,333 (3,030–4,000) | 0.30 \
             (0.25–0.33) | – | – |"
        );
    }

    #[test]
    fn what_failed_or_was_left_out_is_said() {
        let mut measured = measured();
        measured.left_out.push("hiqlite, which is not installed".into());
        for row in &mut measured.rows {
            row.figures.errors = u64::from(row.peer == Peer::Etcd);
        }
        let page = measured.tables();

        assert!(page.contains("\nLeft out: hiqlite, which is not installed.\n"), "{page}");
        assert!(page.contains("| etcd | 1.20 (1.00–1.32) **2.00×**, 3 failed |"), "{page}");
        assert!(page.contains("| etcd | 3.7.3 | `concurrency.Mutex` | synced"), "{page}");
        assert!(!page.contains("ZooKeeper"), "it was not measured: {page}");
    }

    #[test]
    fn each_topology_has_its_table_and_its_limits() {
        let mut measured = measured();
        measured.rows.push(row(Peer::Holdfast, "0.25ms", "W1:1", 1, acquire(1_700.0)));
        measured.limits.push(limits("0.25ms", 1, 1_400.0));
        let page = measured.tables();

        let apart = "a network for each member and one for the clients, 0.25 ms each way";
        assert!(page.contains(&format!("\n**{apart}**\n")), "{page}");
        assert_eq!(
            line(&page, apart),
            format!(
                "| {apart} | 30.0, 1 of 3 rounds | 60.0, 1 of 3 rounds | 1,400, 1 of 3 rounds | 2,800, 1 \
                 of 3 rounds | 200, 1 of 3 rounds | 400, 1 of 3 rounds | 4.50, 1 of 3 rounds |"
            )
        );
        assert!(line(&page, "all on loopback").ends_with("| – |"), "no relay there: {page}");
        assert_eq!(measured.other_cores(), Some((0.02, 0.03)));
    }

    #[test]
    fn figures_are_as_long_as_they_are_certain() {
        let shown = [0.0464, 0.0996, 0.66, 9.99, 12.34, 123.4, 999.6, 23_879.0, 1_234_567.0];

        assert_eq!(
            shown.map(short),
            ["0.046", "0.100", "0.66", "9.99", "12.3", "123", "1,000", "23,879", "1,234,567"]
        );
        assert_eq!(Spread::of([3.0, 1.0].into_iter()).map(|spread| spread.median), Some(2.0));
        assert_eq!(Spread::of(std::iter::empty()), None);
    }
}
