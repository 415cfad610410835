//! The sources of settings, and their order of precedence.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use clap::parser::ValueSource;
use clap::{ArgMatches, Args};
use serde::{Deserialize, Serialize};

use super::{ClusterLayer, Config, ConfigError, FallbackLayer, NodeLayer};

/// The source of a setting's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// No source: the default.
    Default,
    /// The settings file.
    File,
    /// A variable `HOLDFAST_…`.
    Environment,
    /// A flag.
    Flag,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Default => "default",
            Self::File => "settings file",
            Self::Environment => "environment",
            Self::Flag => "command line",
        })
    }
}

/// What command line and environment say. They lie above the file.
#[derive(Clone, Debug, Default, Args)]
pub struct Overrides {
    #[command(flatten)]
    node: NodeLayer,
    #[command(flatten, next_help_heading = "Equal on all nodes of a cluster")]
    cluster: ClusterLayer,
    #[command(
        flatten,
        next_help_heading = "Scopes with fallback; equal on all nodes of a cluster"
    )]
    fallback: FallbackLayer,
    /// Retired: that it was given is in the matches, and its value counts no more.
    #[arg(long, env = "HOLDFAST_SNAPSHOT_EVERY", hide = true, value_name = "VALUE")]
    snapshot_every: Option<String>,
}

/// A setting of an earlier release that decides nothing any more. A node that has it starts all the
/// same, whatever its value, and warns.
struct Retired {
    key: &'static str,
    /// What decides now.
    instead: &'static str,
}

/// Of the settings of a node: keys at the top of the file, and a hidden flag and variable each.
static RETIRED: [Retired; 1] = [Retired {
    key: "snapshot_every",
    instead: "snapshots are made by the size of log and table (snapshot_log_bytes)",
}];

type Origins = BTreeMap<&'static str, Origin>;

/// Checked settings, and the source of each.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The settings.
    pub config: Config,
    origins: Origins,
}

impl Settings {
    /// Combines the sources: `overrides` as clap read them, with the `matches` they were read from, over
    /// the file at `file`, over the defaults; and checks the result.
    ///
    /// # Errors
    ///
    /// [`ConfigError`]: which setting cannot be used, and why.
    pub fn load(
        file: Option<&Path>,
        overrides: Overrides,
        matches: &ArgMatches,
    ) -> Result<Self, ConfigError> {
        let mut origins = Origins::new();
        let (node, cluster, fallback) = match file {
            Some(path) => read_file(path, &mut origins)?,
            None => Default::default(),
        };
        check_variables(std::env::vars_os().filter_map(|(name, _)| name.into_string().ok()))?;
        note_overrides(matches, &mut origins);
        let node = overrides.node.over(node).resolve();
        let cluster = overrides.cluster.over(cluster).resolve();
        let fallback = overrides.fallback.over(fallback).resolve();
        let origin = |key| origins.get(key).copied().unwrap_or(Origin::Default);
        let config = Config::check(node, cluster, fallback, &origin)?;
        Ok(Self { config, origins })
    }

    /// A sentence for each setting that was given and decides nothing any more.
    pub fn retired(&self) -> impl Iterator<Item = String> {
        RETIRED.iter().filter_map(|Retired { key, instead }| {
            let origin = self.origins.get(key)?;
            Some(format!("{key} ({origin}) decides nothing any more: {instead}"))
        })
    }

    /// One line: a setting, its value, the source.
    fn line(&self, key: &str, table: &toml::Table) -> String {
        let origin = self.origins.get(key).copied().unwrap_or(Origin::Default);
        let value = table.get(key).map(ToString::to_string).unwrap_or_default();
        // Whether members are named decides about the peer port; these are the default, so the line is
        // commented out.
        let unnamed = key == "members" && origin == Origin::Default;
        format!("{}{key} = {value}  # {origin}", if unnamed { "# " } else { "" })
    }
}

/// The effective settings as a file that gives the same settings, each with its source.
impl fmt::Display for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Config { node, cluster, fallback, .. } = &self.config;
        let tables = [table_of(node)?, table_of(cluster)?, table_of(fallback)?];
        for (place, table) in PLACES.iter().zip(&tables) {
            if !place.table.is_empty() {
                writeln!(f, "\n[{}]", place.table)?;
            }
            for key in place.keys {
                writeln!(f, "{}", self.line(key, table))?;
            }
        }
        Ok(())
    }
}

fn table_of<T: Serialize>(config: &T) -> Result<toml::Table, fmt::Error> {
    toml::Table::try_from(config).map_err(|_| fmt::Error)
}

/// Where settings stand in a file.
struct Place {
    /// The table's name; empty: at the top.
    table: &'static str,
    keys: &'static [&'static str],
    variables: &'static [&'static str],
}

/// All places, in the order of the file: those of a node, those that are equal on all nodes, and those for
/// scopes with fallback.
const PLACES: [Place; 3] = [
    Place { table: "", keys: NodeLayer::KEYS, variables: NodeLayer::VARIABLES },
    Place { table: "cluster", keys: ClusterLayer::KEYS, variables: ClusterLayer::VARIABLES },
    Place { table: "fallback", keys: FallbackLayer::KEYS, variables: FallbackLayer::VARIABLES },
];

/// The content of a file: the node's keys at the top, the others in tables of their own.
#[derive(Default, Deserialize)]
struct Tables {
    #[serde(default)]
    cluster: ClusterLayer,
    #[serde(default)]
    fallback: FallbackLayer,
}

type Layers = (NodeLayer, ClusterLayer, FallbackLayer);

/// Reads the file. Keys are checked against the list before values are, so that a misspelt key gets an
/// answer that names the right one. Each table is read from the text, not from the parsed table, so that
/// an error can name its line.
fn read_file(path: &Path, origins: &mut Origins) -> Result<Layers, ConfigError> {
    let text = std::fs::read_to_string(path)
        .map_err(|source| ConfigError::Unreadable { path: path.to_owned(), source })?;
    let malformed = |error| malformed(path, &text, &error);
    let mut table: toml::Table = toml::from_str(&text).map_err(malformed)?;
    for place in PLACES.iter().filter(|place| !place.table.is_empty()) {
        if let Some(toml::Value::Table(inner)) = table.remove(place.table) {
            note_keys(path, &inner, place.keys, origins)?;
        }
    }
    for Retired { key, .. } in &RETIRED {
        if table.remove(*key).is_some() {
            origins.insert(*key, Origin::File);
        }
    }
    note_keys(path, &table, NodeLayer::KEYS, origins)?;
    let node = toml::from_str(&text).map_err(malformed)?;
    let Tables { cluster, fallback } = toml::from_str(&text).map_err(malformed)?;
    Ok((node, cluster, fallback))
}

fn note_keys(
    path: &Path,
    table: &toml::Table,
    known: &'static [&'static str],
    origins: &mut Origins,
) -> Result<(), ConfigError> {
    for key in table.keys() {
        let Some(known) = known.iter().find(|known| *known == key) else {
            let nearest = nearest(key);
            return Err(ConfigError::UnknownKey {
                path: path.to_owned(),
                key: key.clone(),
                nearest,
            });
        };
        origins.insert(known, Origin::File);
    }
    Ok(())
}

/// The setting that the user may have meant, with the table it belongs to.
fn nearest(key: &str) -> Option<String> {
    PLACES
        .iter()
        .flat_map(|place| place.keys.iter().map(|known| (*known, place.table)))
        .map(|(known, table)| (strsim::damerau_levenshtein(key, known), known, table))
        .filter(|(distance, known, _)| *distance <= known.len() / 3)
        .min()
        .map(|(_, known, table)| match table {
            "" => format!("{known} at the top"),
            table => format!("{known} in [{table}]"),
        })
}

/// Refuses a variable whose name is nearly that of a setting. Other `HOLDFAST_…` variables are
/// left alone: the command line `holdfast` and orchestrators have theirs.
fn check_variables(names: impl Iterator<Item = String>) -> Result<(), ConfigError> {
    const TYPING_ERRORS: usize = 2;
    let known = || PLACES.iter().flat_map(|place| place.variables);
    for name in names.filter(|name| name.starts_with("HOLDFAST_")) {
        let near = |known: &&&str| strsim::damerau_levenshtein(&name, known) <= TYPING_ERRORS;
        match known().find(near) {
            Some(nearest) if !known().any(|known| *known == name) => {
                return Err(ConfigError::UnknownVariable { nearest, name });
            }
            _ => {}
        }
    }
    Ok(())
}

fn malformed(path: &Path, text: &str, error: &toml::de::Error) -> ConfigError {
    let at = error.span().map_or(0, |span| span.start);
    let before = text.get(..at).unwrap_or_default();
    let line = before.matches('\n').count();
    ConfigError::Malformed {
        path: path.to_owned(),
        line: line + 1,
        excerpt: text.lines().nth(line).unwrap_or_default().trim().to_owned(),
        problem: error.message().replace('\n', ", "),
    }
}

/// Records which values came from flags and which from the environment; clap knows.
fn note_overrides(matches: &ArgMatches, origins: &mut Origins) {
    let retired = RETIRED.iter().map(|retired| &retired.key);
    for key in PLACES.iter().flat_map(|place| place.keys).chain(retired) {
        match matches.value_source(key) {
            Some(ValueSource::CommandLine) => origins.insert(key, Origin::Flag),
            Some(ValueSource::EnvVariable) => origins.insert(key, Origin::Environment),
            _ => None,
        };
    }
}
