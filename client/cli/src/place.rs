//! The address of a Cassandra cluster, the credentials for it, and the names of tables and columns
//! there, for deployments with other names than the defaults.

use std::fs;
use std::marker::PhantomData;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Arg, ArgMatches, Args, Command, FromArgMatches};
use holdfast::Error;
use holdfast_recipes::recipe::{Names, Naming, namings};
use holdfast_recipes::{Contact, Credentials, Layout, SerialScope};

use crate::failure::{Failure, OWN_ERROR};
use crate::tls;

/// The cluster, the keyspace, and who one is to it.
#[derive(Clone, Debug, Args)]
pub struct Reach {
    /// Nodes to begin with: host or host:port, several separated by commas.
    #[arg(long, env = "HOLDFAST_CONTACT_POINTS")]
    pub contact_points: String,
    /// The keyspace of the tables, by its exact name.
    #[arg(long, env = "HOLDFAST_KEYSPACE")]
    pub keyspace: String,
    /// The role to log in as; its password is read from --password-file, or else from `HOLDFAST_CASSANDRA_PASSWORD`.
    #[arg(long, env = "HOLDFAST_CASSANDRA_USER")]
    pub user: Option<String>,
    /// The file whose first line is the password of --user.
    #[arg(long, value_name = "FILE", global = true, env = "HOLDFAST_CASSANDRA_PASSWORD_FILE")]
    pub password_file: Option<PathBuf>,
    /// Speak TLS with nodes for which a CA in this file (PEM) vouches. Each node's certificate has to name the IP address under
    /// which the other nodes know it.
    #[arg(long, value_name = "FILE", global = true, env = "HOLDFAST_CASSANDRA_CA")]
    pub cassandra_ca: Option<PathBuf>,
    /// Show the nodes the certificate in this file (PEM).
    #[arg(long, value_name = "FILE", global = true, env = "HOLDFAST_CASSANDRA_CERT")]
    pub cassandra_cert: Option<PathBuf>,
    /// The key of --cassandra-cert (PEM).
    #[arg(long, value_name = "FILE", global = true, env = "HOLDFAST_CASSANDRA_KEY")]
    pub cassandra_key: Option<PathBuf>,
    /// The name that every node's certificate carries, where it is not the address.
    #[arg(long, value_name = "NAME", global = true, env = "HOLDFAST_CASSANDRA_SERVER_NAME")]
    pub cassandra_server_name: Option<String>,
    /// The datacenter whose nodes are asked, while one of them is up [default: all of them].
    #[arg(long, value_name = "NAME", global = true, env = "HOLDFAST_CASSANDRA_DATACENTER")]
    pub datacenter: Option<String>,
    /// Decide within --datacenter (`LOCAL_SERIAL`, `LOCAL_QUORUM`), through its nodes alone. Clients of another datacenter are not
    /// excluded: every client of these locks has to name the same one.
    #[arg(long, global = true)]
    pub local_serial: bool,
}

impl Reach {
    /// How the cluster is reached, within `limit`.
    ///
    /// # Errors
    ///
    /// Options that do not go together; a password that cannot be read.
    pub fn contact(&self, limit: Duration) -> Result<Contact, Failure> {
        let contact = Contact::new(&self.contact_points).login(self.credentials()?);
        let files = [&self.cassandra_ca, &self.cassandra_cert, &self.cassandra_key];
        let files = files.map(Option::as_ref);
        let tls = tls::to("cassandra-", files, self.cassandra_server_name.as_ref())?;
        Ok(contact.tls(tls).datacenter(self.datacenter.clone()).limit(limit))
    }

    /// Where locks are exclusive.
    ///
    /// # Errors
    ///
    /// `--local-serial` without a datacenter.
    pub fn serial(&self) -> Result<SerialScope, Failure> {
        match (&self.datacenter, self.local_serial) {
            (None, false) => Ok(SerialScope::Cluster),
            (Some(name), false) => Ok(SerialScope::Near(name.clone())),
            (Some(name), true) => Ok(SerialScope::Datacenter(name.clone())),
            (None, true) => Err(Failure::new(
                OWN_ERROR,
                "--local-serial decides within one datacenter: name it with --datacenter"
                    .to_owned(),
            )),
        }
    }

    /// The role with its password, if there is one.
    fn credentials(&self) -> Result<Option<Credentials>, Failure> {
        let wrong = |message: String| Failure::new(OWN_ERROR, message);
        let Some(user) = self.user.clone() else {
            return match &self.password_file {
                None => Ok(None),
                Some(_) => Err(wrong("--password-file needs --user: whose password is it?".into())),
            };
        };
        let password = match &self.password_file {
            None => std::env::var("HOLDFAST_CASSANDRA_PASSWORD").unwrap_or_default(),
            Some(file) => {
                let text = fs::read_to_string(file).map_err(|error| {
                    wrong(format!("--password-file {}: {error}", file.display()))
                })?;
                text.lines().next().unwrap_or_default().to_owned()
            }
        };
        Ok(Some(Credentials { user, password }))
    }
}

/// Converts an error as for a Holdfast server, with another message when Cassandra cannot be
/// reached.
pub fn failure(error: Error) -> Failure {
    if let Error::Unreachable { endpoints, waited, last, .. } = &error {
        return Failure::unanswered("no answer from Cassandra", endpoints, *waited, last, "");
    }
    error.into()
}

/// The names that a command line takes.
pub trait Taken {
    /// The names, in the order of the help.
    fn namings() -> Vec<Naming>;
}

/// An option for each of the names of `T`. Names are as the server has them, capitals and all: they are quoted, never
/// spliced.
#[derive(Clone, Debug)]
pub struct NameArgs<T> {
    /// The names that were chosen.
    pub names: Names,
    taken: PhantomData<T>,
}

/// All names.
#[derive(Clone, Debug)]
pub struct All;

impl Taken for All {
    fn namings() -> Vec<Naming> {
        namings()
    }
}

impl NameArgs<All> {
    /// The tables of the recipes under these names.
    pub fn layout(&self) -> Layout {
        Layout::of(&self.names)
    }
}

impl<T: Taken> Args for NameArgs<T> {
    fn augment_args(command: Command) -> Command {
        command.args(T::namings().iter().map(option))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

/// Takes as many values as there are names.
fn option(naming: &Naming) -> Arg {
    Arg::new(naming.option)
        .long(naming.option)
        .help(naming.help)
        .help_heading("Names of tables and columns")
        .num_args(naming.names.len())
        .value_names(naming.names.iter().map(|(of, _, _)| *of))
        .default_values(naming.names.iter().map(|(_, default, _)| *default))
}

impl<T: Taken> FromArgMatches for NameArgs<T> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut chosen = Self { names: Names::default(), taken: PhantomData };
        chosen.update_from_arg_matches(matches)?;
        Ok(chosen)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        for naming in T::namings() {
            let names = matches.get_many::<String>(naming.option).into_iter().flatten().cloned();
            self.names.choose(&naming, names);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;
    use holdfast_recipes::{Schema, TimeTable};

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        names: NameArgs<All>,
    }

    #[test]
    fn without_a_word_the_names_are_those_of_the_seeds() {
        let line = Line::try_parse_from(["line"]).unwrap();
        let usual = Schema::new("k").statements();
        assert_eq!(Schema::new("k").named(line.names.layout()).statements(), usual);
    }

    /// Also before a subcommand: exactly three values.
    #[test]
    fn three_columns_are_named_at_once() {
        let line = ["line", "--queue-columns", "a", "b", "C d", "--optimistic-columns", "e", "f"];
        let layout = Line::try_parse_from(line).unwrap().names.layout();
        let made = Schema::new("k").named(layout).statements();
        let main =
            "\"lock_main\" (\"a\" text, \"b\" text, \"C d\" text, PRIMARY KEY (\"a\", \"b\"))";
        assert!(made[3].contains(main), "{made:?}");
        let tokens = "\"optimistic_tokens\" (\"e\" text, \"f\" text, PRIMARY KEY (\"e\", \"f\"))";
        assert!(made.iter().any(|made| made.contains(tokens)), "{made:?}");
    }

    #[test]
    fn the_cell_of_the_time_is_named_with_its_table() {
        let line =
            ["line", "--time-table", "t", "--time-columns", "n", "v", "--time-cell", "Another"];
        let layout = Line::try_parse_from(line).unwrap().names.layout();
        let made = Schema::new("k").named(layout.clone()).statements();
        let time = "\"t\" (\"n\" text PRIMARY KEY, \"v\" bigint)";
        assert!(made.iter().any(|made| made.contains(time)), "{made:?}");
        let named = TimeTable::named("t", "n", "v").with_cell("Another");
        assert_eq!(layout.time, named);
    }
}
