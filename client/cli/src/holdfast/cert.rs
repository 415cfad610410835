//! `holdfast cert`: the certificates of a cluster, without openssl.

use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, Subcommand, value_parser};
use holdfast_runtime::Runtime;
use holdfast_tls::make::{self, Ca, MakeError, Pair, Term};
use holdfast_tls::{ClusterName, NodeName};
use serde_json::json;

use crate::args::Global;
use crate::failure::{Failure, OWN_ERROR};
use crate::show;

const DAY: Duration = Duration::from_hours(24);
/// Longest name in a certificate, bytes: X.520 allows a CN no more characters.
const LONGEST_NAME: usize = 64;

/// The subcommands.
#[derive(Debug, Subcommand)]
pub(crate) enum CertCommand {
    /// Make a CA, and its folder if it is missing: ca.pem, which every node and client gets, and ca.key, which
    /// signs their certificates and stays where they are made.
    Ca(CaArgs),
    /// Make a node's certificate, for its peers and its clients.
    ///
    /// Peers look at the cluster's name and the node's id, clients at the addresses. Writes node-ID.pem and
    /// node-ID.key, without --id node.pem and node.key.
    Node(NodeArgs),
    /// Make a client's certificate: NAME.pem and NAME.key. Its owner is the identity cn:NAME.
    Client(ClientArgs),
    /// Make all of a cluster that are missing: the CA, those of nodes, those of clients. Files that are there stay.
    ///
    /// For what starts a cluster by itself and may run again, as a compose file. The key of the CA is in the same folder:
    /// where nodes see that folder, whoever takes one over can make certificates.
    All(AllArgs),
}

/// Where certificates are, and how long they last.
#[derive(Debug, Args)]
pub(crate) struct CertFiles {
    /// The folder with ca.pem and ca.key, which gets the new files too.
    #[arg(long, value_name = "FOLDER", default_value = ".")]
    dir: PathBuf,
}

/// Of `cert ca`.
#[derive(Debug, Args)]
pub(crate) struct CaArgs {
    #[command(flatten)]
    files: CertFiles,
    /// The name of the CA, for people.
    #[arg(long, default_value = "Holdfast CA", value_parser = name)]
    name: String,
    /// How long it is valid, days.
    #[arg(long, default_value_t = 3_650, value_parser = value_parser!(u32).range(1..=36_500))]
    days: u32,
}

/// Of `cert node`.
#[derive(Debug, Args)]
pub(crate) struct NodeArgs {
    #[command(flatten)]
    files: CertFiles,
    /// The name of the cluster, as `cluster_name` in the settings of its nodes.
    #[arg(long, value_name = "NAME", default_value_t)]
    cluster: ClusterName,
    /// The one node that may use it [default: any node of the cluster].
    #[arg(long, value_parser = value_parser!(u64).range(1..))]
    id: Option<u64>,
    /// Where clients reach the node: DNS names or IP addresses, without ports; several separated by commas.
    #[arg(long, value_delimiter = ',', required = true, value_parser = address)]
    address: Vec<String>,
    /// How long it is valid, days.
    #[arg(long, default_value_t = 365, value_parser = value_parser!(u32).range(1..=36_500))]
    days: u32,
}

/// Of `cert client`.
#[derive(Debug, Args)]
pub(crate) struct ClientArgs {
    #[command(flatten)]
    files: CertFiles,
    /// The client.
    #[arg(value_parser = file_name)]
    name: String,
    /// How long it is valid, days.
    #[arg(long, default_value_t = 365, value_parser = value_parser!(u32).range(1..=36_500))]
    days: u32,
}

/// Of `cert all`.
#[derive(Debug, Args)]
pub(crate) struct AllArgs {
    #[command(flatten)]
    files: CertFiles,
    /// The name of the cluster, as `cluster_name` in the settings of its nodes.
    #[arg(long, value_name = "NAME", default_value_t)]
    cluster: ClusterName,
    /// A node: its id, and where clients reach it, without ports. Once for each node.
    #[arg(long = "node", value_name = "ID=ADDRESS,…", required = true, value_parser = node)]
    nodes: Vec<(u64, Vec<String>)>,
    /// A client. Once for each.
    #[arg(long = "client", value_name = "NAME", value_parser = file_name)]
    clients: Vec<String>,
    /// How long those of nodes and clients are valid, days; the CA ten times as long.
    #[arg(long, default_value_t = 365, value_parser = value_parser!(u32).range(1..=3_650))]
    days: u32,
}

pub(crate) fn run(global: &Global, command: &CertCommand) -> Result<u8, Failure> {
    match command {
        CertCommand::Ca(args) => make_ca(global, &args.files.dir, &args.name, args.days),
        CertCommand::Node(args) => {
            let name = NodeName { cluster: args.cluster.clone(), id: args.id };
            let made = args.files.ca()?.node(&name, &args.address, term(args.days));
            let stem = args.id.map_or_else(|| "node".to_owned(), |id| format!("node-{id}"));
            write(global, &args.files.dir, &stem, &made.map_err(failed)?, args.days)
        }
        CertCommand::Client(args) => {
            let made = args.files.ca()?.client(&args.name, term(args.days)).map_err(failed)?;
            write(global, &args.files.dir, &args.name, &made, args.days)
        }
        CertCommand::All(args) => make_all(global, args),
    }
}

fn make_ca(global: &Global, dir: &Path, name: &str, days: u32) -> Result<u8, Failure> {
    let made = make::ca(name, term(days)).map_err(failed)?;
    let new = DirBuilder::new().recursive(true).mode(0o700).create(dir);
    new.map_err(|error| Failure::own(&format!("{} cannot be made", dir.display()), error))?;
    write(global, dir, "ca", &made, days)
}

fn make_all(global: &Global, args: &AllArgs) -> Result<u8, Failure> {
    let dir = &args.files.dir;
    let is_missing = |stem: &str| !dir.join(format!("{stem}.pem")).exists();
    if is_missing("ca") {
        make_ca(global, dir, "Holdfast CA", args.days * 10)?;
    }
    for (id, address) in &args.nodes {
        let stem = format!("node-{id}");
        if is_missing(&stem) {
            let name = NodeName { cluster: args.cluster.clone(), id: Some(*id) };
            let made = args.files.ca()?.node(&name, address, term(args.days)).map_err(failed)?;
            write(global, dir, &stem, &made, args.days)?;
        }
    }
    for client in args.clients.iter().filter(|client| is_missing(client)) {
        let made = args.files.ca()?.client(client, term(args.days)).map_err(failed)?;
        write(global, dir, client, &made, args.days)?;
    }
    Ok(0)
}

impl CertFiles {
    /// The CA in the folder.
    fn ca(&self) -> Result<Ca, Failure> {
        let text = |file: &str| {
            let path = self.dir.join(file);
            let missing = |error: io::Error| {
                let folder = self.dir.display();
                let hint = "make a CA there with `holdfast cert ca`, or name its folder with --dir";
                Failure::new(OWN_ERROR, format!("{folder} has no {file} ({error}): {hint}"))
            };
            fs::read_to_string(path).map_err(missing)
        };
        Ca::read(&text("ca.pem")?, &text("ca.key")?).map_err(failed)
    }
}

fn term(days: u32) -> Term {
    let now = Runtime::system().clock.wall();
    Term { now, lasts: days * DAY }
}

fn failed(error: MakeError) -> Failure {
    Failure::own("no certificate was made", error)
}

/// Writes both files or none. Overwrites nothing: a key may be the only copy.
fn write(global: &Global, dir: &Path, stem: &str, made: &Pair, days: u32) -> Result<u8, Failure> {
    let file = |ending: &str| dir.join(format!("{stem}.{ending}"));
    let (cert, key) = (file("pem"), file("key"));
    if cert.exists() {
        return Err(there_already(&cert));
    }
    create(&key, 0o600, &made.key_pem)?;
    if let Err(failure) = create(&cert, 0o644, &made.cert_pem) {
        // The key alone is of no use, and would be in the way of the next attempt.
        let _ = fs::remove_file(&key);
        return Err(failure);
    }
    let (cert, key) = (cert.display().to_string(), key.display().to_string());
    show::line(if global.json {
        json!({ "cert": cert, "key": key, "days": days }).to_string()
    } else {
        format!("{cert} and {key}, valid for {days} days")
    });
    Ok(0)
}

fn create(path: &Path, mode: u32, text: &str) -> Result<(), Failure> {
    let mut options = OpenOptions::new();
    let opened = options.write(true).create_new(true).mode(mode).open(path);
    let written = opened.and_then(|mut file| {
        file.write_all(text.as_bytes())?;
        file.sync_all()
    });
    written.map_err(|error| match error.kind() {
        io::ErrorKind::AlreadyExists => there_already(path),
        _ => Failure::own(&format!("{} cannot be written", path.display()), error),
    })
}

fn there_already(path: &Path) -> Failure {
    let path = path.display();
    Failure::new(
        OWN_ERROR,
        format!("{path} is there already and stays as it is: move it away first"),
    )
}

fn name(text: &str) -> Result<String, String> {
    if (1..=LONGEST_NAME).contains(&text.len()) && !text.chars().any(char::is_control) {
        Ok(text.to_owned())
    } else {
        Err("a name has 1 to 64 bytes, and no control character".to_owned())
    }
}

/// A name that is also the beginning of names of files.
fn file_name(text: &str) -> Result<String, String> {
    if text.contains('/') || text.starts_with('.') || ["ca", "node"].contains(&text) {
        return Err(
            "the files have this name too: no `/`, no `.` in front, and not `ca` or `node`"
                .to_owned(),
        );
    }
    name(text)
}

/// A node's id and addresses.
fn node(text: &str) -> Result<(u64, Vec<String>), String> {
    let (id, addresses) = text.split_once('=').ok_or("write 1=node-1.example.com,10.0.0.1")?;
    let id = id.parse().ok().filter(|id| *id > 0).ok_or_else(|| format!("`{id}` is no node id"))?;
    Ok((id, addresses.split(',').map(address).collect::<Result<_, _>>()?))
}

/// A host without a port: with one, no client would find the name it has dialled.
fn address(text: &str) -> Result<String, String> {
    let allowed =
        |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'*');
    let is_ip = text.parse::<std::net::IpAddr>().is_ok();
    if is_ip || (1..=253).contains(&text.len()) && text.bytes().all(allowed) {
        Ok(text.to_owned())
    } else {
        Err("a DNS name or an IP address, without a port".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use clap::Parser;
    use tempfile::TempDir;

    use super::*;
    use crate::args::{Cli, Command};

    /// `holdfast cert` with these arguments, in a folder.
    fn cert(folder: &TempDir, arguments: &[&str]) -> Result<u8, String> {
        let dir = folder.path().to_str().unwrap();
        let line = ["holdfast", "cert"].into_iter().chain(arguments.iter().copied());
        let cli =
            Cli::try_parse_from(line.chain(["--dir", dir])).map_err(|error| error.to_string())?;
        match &cli.command {
            Command::Cert(command) => run(&cli.global, command).map_err(|failure| failure.message),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_ca_signs_nodes_and_clients_whose_keys_only_their_owner_can_read() {
        let folder = TempDir::new().unwrap();
        for arguments in [
            &["ca"][..],
            &["node", "--cluster", "shop", "--id", "1", "--address", "127.0.0.1,db.example.com"],
            &["node", "--cluster", "shop", "--address", "::1"],
            &["client", "app"],
        ] {
            assert_eq!(cert(&folder, arguments), Ok(0), "{arguments:?}");
        }
        for stem in ["ca", "node-1", "node", "app"] {
            for (ending, mode) in [("pem", 0o644), ("key", 0o600)] {
                let found = fs::metadata(folder.path().join(format!("{stem}.{ending}"))).unwrap();
                assert_eq!(found.permissions().mode() & 0o777 & !mode, 0, "{stem}.{ending}");
            }
        }
    }

    #[test]
    fn nothing_is_overwritten_and_nothing_is_left_half_made() {
        let folder = TempDir::new().unwrap();
        cert(&folder, &["ca"]).unwrap();
        let made = fs::read(folder.path().join("ca.key")).unwrap();
        assert!(cert(&folder, &["ca"]).unwrap_err().contains("is there already"));
        assert_eq!(fs::read(folder.path().join("ca.key")).unwrap(), made);

        fs::write(folder.path().join("app.pem"), "mine").unwrap();
        assert!(cert(&folder, &["client", "app"]).unwrap_err().contains("is there already"));
        assert!(!folder.path().join("app.key").exists());
    }

    #[test]
    fn all_that_are_missing_are_made_and_the_others_stay() {
        let folder = TempDir::new().unwrap();
        let read = |file: &str| fs::read(folder.path().join(file));
        let all = ["all", "--node", "1=node-1,127.0.0.1", "--node", "2=node-2", "--client", "ops"];
        assert_eq!(cert(&folder, &all), Ok(0));
        let files = ["ca.pem", "node-1.pem", "node-2.key", "ops.pem"];
        let made = files.map(|file| read(file).unwrap());
        fs::remove_file(folder.path().join("ops.pem")).unwrap();
        fs::remove_file(folder.path().join("ops.key")).unwrap();

        assert_eq!(cert(&folder, &all), Ok(0));

        let now = files.map(|file| read(file).unwrap());
        assert_eq!(now[..3], made[..3]);
        assert!(now[3] != made[3], "it was made anew");
        for (node, says) in
            [("node-1", "write 1="), ("0=a", "no node id"), ("1=a:7420", "without a port")]
        {
            assert!(cert(&folder, &["all", "--node", node]).unwrap_err().contains(says), "{node}");
        }
    }

    #[test]
    fn what_makes_no_certificate_is_said() {
        let folder = TempDir::new().unwrap();
        assert!(cert(&folder, &["client", "app"]).unwrap_err().contains("has no ca.pem"));
        cert(&folder, &["ca"]).unwrap();
        let node = |more: &[&str]| cert(&folder, &[&["node"][..], more].concat()).unwrap_err();
        for (said, says) in [
            (node(&["--cluster", "Shop", "--address", "a"]), "no name of a cluster"),
            (node(&["--cluster", "shop", "--address", "127.0.0.1:7420"]), "without a port"),
            (node(&["--cluster", "shop"]), "--address"),
            (node(&["--cluster", "shop", "--id", "0", "--address", "a"]), "--id"),
            (cert(&folder, &["client", "../app"]).unwrap_err(), "the files have this name too"),
            (cert(&folder, &["client", "ca"]).unwrap_err(), "the files have this name too"),
            (cert(&folder, &["client", "a\nb"]).unwrap_err(), "no control character"),
            (cert(&folder, &["client", "app", "--days", "0"]).unwrap_err(), "--days"),
        ] {
            assert!(said.contains(says), "{said}");
        }
        fs::write(folder.path().join("ca.key"), "broken").unwrap();
        assert!(cert(&folder, &["client", "app"]).unwrap_err().contains("the CA cannot be used"));
    }
}
