//! The lock stores: what each of them is, and how its members and clients are started.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::fs;
use std::io;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::ValueEnum;
use serde::Serialize;

use super::cell::Cell;
use crate::cluster::binary;

/// The TTL of sessions, as in all workloads.
const TTL_SECONDS: u32 = 10;

/// A program of `tests/peers` prints this once its member serves.
pub(super) const READY: &str = "READY";

/// What Hazelcast asks for, so that it runs on a Java with modules.
const OPEN_MODULES: [&str; 12] = [
    "--add-modules",
    "java.se",
    "--add-exports",
    "java.base/jdk.internal.ref=ALL-UNNAMED",
    "--add-opens",
    "java.base/java.lang=ALL-UNNAMED",
    "--add-opens",
    "java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-opens",
    "java.management/sun.management=ALL-UNNAMED",
    "--add-opens",
    "jdk.management/com.sun.management.internal=ALL-UNNAMED",
];

/// A lock store that is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Peer {
    /// This project's own.
    Holdfast,
    /// etcd with the mutex of its client library.
    Etcd,
    /// `ZooKeeper` with the mutex of Curator.
    Zookeeper,
    /// hiqlite with its `dlock`.
    Hiqlite,
    /// The CP subsystem of Hazelcast with its `FencedLock`.
    Hazelcast,
}

/// What a reader of the table has to know about a store.
#[derive(Clone, Copy, Debug)]
pub struct Facts {
    /// Its name.
    pub name: &'static str,
    /// Its version, and that of the library that has the lock.
    pub version: &'static str,
    /// Its lock.
    pub lock: &'static str,
    /// What is certain once it has answered.
    pub durability: &'static str,
}

/// How to see that a member serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Readiness {
    /// It prints [`READY`].
    Line,
    /// It answers the word `srvr` at its port for clients with its mode.
    Srvr,
}

impl Peer {
    /// All of them, ours first.
    pub fn all() -> &'static [Self] {
        Self::value_variants()
    }

    /// What a reader has to know.
    pub fn facts(self) -> Facts {
        let (name, version, lock, durability) = match self {
            Self::Holdfast => (
                "**Holdfast**",
                env!("CARGO_PKG_VERSION"),
                "`Client::lock`",
                "synced on a majority; it has no other mode",
            ),
            Self::Etcd => {
                ("etcd", "3.7.3", "`concurrency.Mutex`", "synced on a majority, as by default")
            }
            Self::Zookeeper => (
                "ZooKeeper",
                "3.9.5, Curator 5.9.0",
                "`InterProcessMutex`",
                "synced on a majority, as by default",
            ),
            Self::Hiqlite => (
                "hiqlite",
                "0.15.3",
                "`dlock`",
                "synced on a majority (`immediate`; its default is each 200 ms); a release is sent \
                 and not waited for",
            ),
            Self::Hazelcast => (
                "Hazelcast",
                "5.3.8",
                "`FencedLock`",
                "**in memory only**: the open edition stores nothing",
            ),
        };
        Facts { name, version, lock, durability }
    }

    /// Its name on a command line.
    pub fn word(self) -> String {
        self.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
    }

    /// Whether what `tests/peers/install` builds is in the folder `home`, and Java is there if it needs it.
    ///
    /// # Errors
    ///
    /// What is missing.
    pub fn is_installed(self, home: &Path) -> Result<(), String> {
        let file = |path: PathBuf| {
            let install = format!("tests/peers/install {}", self.word());
            let missing = format!("{} is missing: {install}", path.display());
            if path.exists() { Ok(()) } else { Err(missing) }
        };
        match self {
            Self::Holdfast => Ok(()),
            Self::Etcd | Self::Hiqlite => file(home.join(self.word())),
            Self::Zookeeper | Self::Hazelcast => {
                file(home.join("java/classes/Measure.class"))?;
                let path = std::env::var_os("PATH").unwrap_or_default();
                let has_java = std::env::split_paths(&path).any(|dir| dir.join("java").exists());
                if has_java { Ok(()) } else { Err("java is missing".into()) }
            }
        }
    }

    /// The port of a member for clients.
    pub(super) fn port(self, member: u16) -> u16 {
        match self {
            Self::Holdfast => 7420,
            Self::Etcd => 23_790 + 2 * member,
            Self::Zookeeper => 2181 + member,
            Self::Hiqlite => 8101 + member,
            Self::Hazelcast => 5701 + member,
        }
    }

    pub(super) fn readiness(self) -> Readiness {
        if self == Self::Zookeeper { Readiness::Srvr } else { Readiness::Line }
    }

    /// Starts a member of a cluster at these addresses with its data in `folder`, once it is spawned. Not for
    /// our own, whose members the harness starts.
    ///
    /// # Errors
    ///
    /// Its settings cannot be written.
    pub(super) fn member(
        self,
        home: &Path,
        member: u16,
        addresses: &[Ipv4Addr],
        folder: &Path,
    ) -> io::Result<Command> {
        let (id, list) = (member.to_string(), joined(addresses));
        if matches!(self, Self::Etcd | Self::Hiqlite | Self::Holdfast) {
            let mut command = Command::new(home.join(self.word()));
            command.args(["member", "-id", &id, "-addresses", &list, "-dir"]).arg(folder);
            return Ok(command);
        }
        let mut command = java(home, "-Xmx512m");
        if self == Self::Hazelcast {
            command.args(["HazelcastMember", &id, &list, &TTL_SECONDS.to_string()]);
        } else {
            let settings = folder.join("settings");
            fs::write(&settings, zookeeper_settings(member, addresses, folder))?;
            fs::write(folder.join("myid"), (member + 1).to_string())?;
            command.arg("org.apache.zookeeper.server.quorum.QuorumPeerMain").arg(settings);
        }
        Ok(command)
    }

    /// Runs the clients of a cell, once it is spawned: they print a line of figures.
    pub(super) fn clients(
        self,
        home: &Path,
        endpoints: &str,
        cell: Cell,
        seconds: u32,
        members: &str,
    ) -> Command {
        let (clients, seconds) = (cell.clients.to_string(), seconds.to_string());
        let workload = format!("{:?}", cell.workload);
        if self == Self::Holdfast {
            let mut command = Command::new(binary("holdfast"));
            command.args(["--endpoints", endpoints, "bench", "--json", "--workload", &workload]);
            command.args(["--clients", &clients, "--secs", &seconds, "--server-pids", members]);
            return command;
        }
        let mut command = match self {
            Self::Zookeeper | Self::Hazelcast => {
                let mut command = java(home, "-Xmx1g");
                command.args(["Measure", "-peer", &self.word()]);
                command
            }
            _ => Command::new(home.join(self.word())),
        };
        command.args(["-endpoints", endpoints, "-workload", &workload, "-n", &clients]);
        command.args(["-secs", &seconds, "-ttl", &TTL_SECONDS.to_string(), "-pids", members]);
        command
    }
}

fn joined(addresses: &[Ipv4Addr]) -> String {
    addresses.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
}

fn java(home: &Path, heap: &str) -> Command {
    let mut classes = OsString::from(home.join("java/jars/*"));
    classes.push(":");
    classes.push(home.join("java/classes"));
    let mut command = Command::new("java");
    command.arg(heap).args(OPEN_MODULES).arg("-Dzookeeper.maxCnxns=0").arg("-cp").arg(classes);
    command
}

fn zookeeper_settings(member: u16, addresses: &[Ipv4Addr], folder: &Path) -> String {
    let port = Peer::Zookeeper.port(member);
    let mut text = format!(
        "tickTime=1000\ninitLimit=10\nsyncLimit=5\nadmin.enableServer=false\nmaxClientCnxns=0\n\
         4lw.commands.whitelist=srvr\ndataDir={}\nclientPort={port}\nclientPortAddress={}\n",
        folder.display(),
        addresses[usize::from(member)],
    );
    for (other, address) in (0..).zip(addresses) {
        let ports = (2881 + other, 3881 + other);
        // Infallible: a String takes whatever is written to it.
        let _ = writeln!(text, "server.{}={address}:{}:{}", other + 1, ports.0, ports.1);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const ADDRESSES: [Ipv4Addr; 3] =
        [Ipv4Addr::new(10, 77, 0, 1), Ipv4Addr::new(10, 77, 0, 2), Ipv4Addr::new(10, 77, 0, 3)];

    fn words(command: &Command) -> String {
        let words = command.get_args().map(|word| word.to_string_lossy().into_owned());
        words.collect::<Vec<_>>().join(" ")
    }

    /// The table names the versions that `tests/peers/install` builds.
    #[test]
    fn a_version_is_that_of_the_files_it_is_built_from() {
        let version = |peer: Peer| peer.facts().version;
        let go = include_str!("../../peers/etcd/go.mod");
        let pom = include_str!("../../peers/java/pom.xml");
        let of_maven = |artifact: &str| {
            let rest = pom.split_once(&format!("<artifactId>{artifact}</artifactId>")).unwrap().1;
            rest.split_once("<version>").unwrap().1.split_once('<').unwrap().0
        };

        for module in ["client/v3", "server/v3"] {
            assert!(go.contains(&format!("etcd/{module} v{}\n", version(Peer::Etcd))), "{module}");
        }
        let curator = of_maven("curator-recipes");
        let zookeeper = format!("{}, Curator {curator}", of_maven("zookeeper"));
        assert_eq!(version(Peer::Zookeeper), zookeeper);
        assert_eq!(version(Peer::Hazelcast), of_maven("hazelcast"));
        let cargo = include_str!("../../peers/hiqlite/Cargo.toml");
        assert!(cargo.contains(&format!("\"={}\"", version(Peer::Hiqlite))));
    }

    #[test]
    fn what_is_not_installed_is_named_with_the_command_that_installs_it() {
        let home = tempfile::tempdir().unwrap();
        for peer in Peer::all() {
            let found = peer.is_installed(home.path());
            if *peer == Peer::Holdfast {
                assert_eq!(found, Ok(()));
                continue;
            }
            let told = found.unwrap_err();
            assert!(told.contains("is missing: tests/peers/install "), "{told}");
            assert!(told.ends_with(&peer.word()), "{told}");
        }
        fs::write(home.path().join("etcd"), "").unwrap();
        assert_eq!(Peer::Etcd.is_installed(home.path()), Ok(()));
    }

    #[test]
    fn a_member_listens_at_its_own_address_and_knows_the_others() {
        let home = Path::new("/h");
        let folder = tempfile::tempdir().unwrap();
        let member = |peer: Peer| peer.member(home, 1, &ADDRESSES, folder.path()).unwrap();

        let etcd = member(Peer::Etcd);
        assert_eq!(etcd.get_program(), "/h/etcd");
        let list = "-addresses 10.77.0.1,10.77.0.2,10.77.0.3";
        assert!(words(&etcd).starts_with(&format!("member -id 1 {list} -dir /")));
        let hazelcast = words(&member(Peer::Hazelcast));
        assert!(hazelcast.ends_with("HazelcastMember 1 10.77.0.1,10.77.0.2,10.77.0.3 10"));
        member(Peer::Zookeeper);
        let settings = fs::read_to_string(folder.path().join("settings")).unwrap();
        assert!(settings.contains("clientPort=2182\nclientPortAddress=10.77.0.2\n"), "{settings}");
        assert!(settings.contains("\nserver.3=10.77.0.3:2883:3883\n"), "{settings}");
        assert_eq!(fs::read_to_string(folder.path().join("myid")).unwrap(), "2");
    }

    #[test]
    fn clients_of_every_store_do_the_same() {
        let cell = "W3:10".parse().unwrap();
        let clients = |peer: Peer| words(&peer.clients(Path::new("/h"), "a:1,b:1", cell, 5, "7,8"));

        let asked = "-endpoints a:1,b:1 -workload W3 -n 10 -secs 5 -ttl 10 -pids 7,8";
        assert_eq!(clients(Peer::Etcd), asked);
        assert_eq!(clients(Peer::Hiqlite), asked);
        assert!(clients(Peer::Zookeeper).ends_with(&format!("Measure -peer zookeeper {asked}")));
        assert!(clients(Peer::Hazelcast).ends_with(&format!("Measure -peer hazelcast {asked}")));
    }
}
