//! What is measured: a workload with so many clients, and the figures of one run of it.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize, Serializer};

use super::peer::Peer;
use super::topology::Topology;

/// The most clients of a cell.
const MOST_CLIENTS: u32 = 10_000;

/// A closed loop of acquire and release (`docs/benchmarks.md`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Workload {
    /// One client with a lock of its own.
    W1,
    /// Many clients, each with a lock of its own.
    W2,
    /// Many clients and one lock.
    W3,
}

/// A workload with so many clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cell {
    /// The workload.
    pub workload: Workload,
    /// How many clients.
    pub clients: u32,
}

/// The cells of the milestone.
pub const CELLS: &str = "W1:1,W2:64,W3:2,W3:10,W3:100,W3:500";

impl Cell {
    /// Whether it is measured where only the relay's cost is asked for: one that many clients keep busy
    /// shows the machine's limit, and not what a packet waits.
    pub fn shows_the_relay(self) -> bool {
        self.clients <= 10
    }
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}:{}", self.workload, self.clients)
    }
}

impl FromStr for Cell {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong =
            || format!("'{text}' is no cell such as W1:1, W2:64 or W3:10 (at most {MOST_CLIENTS})");
        let (workload, clients) = text.split_once(':').ok_or_else(wrong)?;
        let workload = match workload {
            "W1" => Workload::W1,
            "W2" => Workload::W2,
            "W3" => Workload::W3,
            _ => return Err(wrong()),
        };
        let clients = clients.parse().map_err(|_| wrong())?;
        let most = if workload == Workload::W1 { 1 } else { MOST_CLIENTS };
        if (1..=most).contains(&clients) { Ok(Self { workload, clients }) } else { Err(wrong()) }
    }
}

impl Serialize for Cell {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// What the clients of a run print, as far as it is used. A figure that does not apply is missing.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
pub struct Figures {
    /// Acquires and releases, or hand-overs, each second.
    pub ops_per_s: f64,
    /// Acquires or releases that failed.
    pub errors: u64,
    /// Half of all acquires took no longer.
    pub acq_p50_us: Option<f64>,
    /// 99 of 100 acquires took no longer.
    pub acq_p99_us: Option<f64>,
    /// Half of all hand-overs took no longer.
    pub ho_p50_us: Option<f64>,
    /// 99 of 100 hand-overs took no longer.
    pub ho_p99_us: Option<f64>,
    /// Jain's index of the clients' grants.
    pub jain: Option<f64>,
    /// CPU of all members for a thousand operations, seconds.
    pub server_cpu_s_per_kop: Option<f64>,
    /// Packets over loopback for each operation.
    pub lo_packets_per_op: Option<f64>,
}

impl Figures {
    /// Reads the last line of what a program of clients printed.
    ///
    /// # Errors
    ///
    /// What is wrong with it.
    pub fn read(printed: &str) -> Result<Self, String> {
        let line = printed.lines().last().ok_or("it printed nothing")?;
        serde_json::from_str(line).map_err(|error| format!("{error}: {line}"))
    }
}

/// One run of a cell.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// The lock store.
    pub peer: Peer,
    /// Where its members were.
    pub topology: Topology,
    /// What was measured.
    pub cell: Cell,
    /// In which round, from 1 on.
    pub round: u32,
    /// How many cores other work of the machine took meanwhile.
    pub other_cores: f64,
    /// What came of it.
    #[serde(flatten)]
    pub figures: Figures,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cell_is_read_as_it_is_written() {
        let cells: Result<Vec<Cell>, _> = CELLS.split(',').map(str::parse).collect();
        let written: Vec<String> = cells.unwrap().iter().map(ToString::to_string).collect();

        assert_eq!(written.join(","), CELLS);
        for wrong in ["W1:2", "W2:0", "W3:10001", "W4:10", "W3", "W3:", "W3:-1", ""] {
            let told = wrong.parse::<Cell>().unwrap_err();
            assert!(told.contains(&format!("'{wrong}'")), "{told}");
        }
    }

    #[test]
    fn the_last_line_is_read_and_what_a_store_does_not_measure_is_missing() {
        let printed =
            "a warning\n{\"ops_per_s\":12.5,\"errors\":0,\"acq_p50_us\":700,\"ts\":\"x\"}\n";
        let figures = Figures::read(printed).unwrap();

        assert_eq!((figures.ops_per_s, figures.acq_p50_us), (12.5, Some(700.0)));
        assert_eq!((figures.ho_p50_us, figures.server_cpu_s_per_kop), (None, None));
        assert_eq!(Figures::read(""), Err("it printed nothing".into()));
        assert!(Figures::read("panic").unwrap_err().ends_with(": panic"));
        assert!(Figures::read("{\"errors\":0}").unwrap_err().contains("ops_per_s"));
    }

    #[test]
    fn a_row_says_what_was_measured_where_and_beside_which_other_work() {
        let row = Row {
            peer: Peer::Etcd,
            topology: "0.25ms".parse().unwrap(),
            cell: "W3:10".parse().unwrap(),
            round: 2,
            other_cores: 0.05,
            figures: Figures { ops_per_s: 99.0, ..Figures::default() },
        };
        let line = serde_json::to_string(&row).unwrap();

        let start = "{\"peer\":\"etcd\",\"topology\":\"0.25ms\",\"cell\":\"W3:10\",\"round\":2,";
        assert!(line.starts_with(start), "{line}");
        assert!(line.contains("\"other_cores\":0.05,\"ops_per_s\":99.0"), "{line}");
    }
}
