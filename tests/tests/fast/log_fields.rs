//! The fields of log lines: those in the source are those in `docs/log.md`, and none has a name that every line has.

use std::collections::{BTreeMap, BTreeSet};

use super::tidy::{read, rust_files};

type Result<T = (), E = Box<dyn std::error::Error>> = std::result::Result<T, E>;

const DOCUMENT: &str = "docs/log.md";
/// The packages that holdfastd is made of and that log.
const LOGGING: [&str; 5] = ["server", "server/replication", "keyspace", "runtime", "proto/tls"];
const MACROS: [&str; 5] = ["error!(", "warn!(", "info!(", "debug!(", "trace!("];
/// Those that every line has.
const OF_ALL: [&str; 4] = ["timestamp", "level", "target", "message"];

/// The arguments of a macro that begins behind its parenthesis, up to the message.
fn fields_before_the_message(text: &str) -> Vec<&str> {
    let (mut depth, mut begin, mut fields) = (0_usize, 0, Vec::new());
    for (at, letter) in text.char_indices() {
        match letter {
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' if depth > 0 => depth -= 1,
            // The message, or the end of a line without one.
            '"' if depth == 0 => break,
            ')' => {
                fields.push(text.get(begin..at).unwrap_or_default());
                break;
            }
            ',' if depth == 0 => {
                fields.push(text.get(begin..at).unwrap_or_default());
                begin = at + 1;
            }
            _ => {}
        }
    }
    fields.into_iter().map(str::trim).filter(|field| !field.is_empty()).collect()
}

/// `a = b.c()`, `%a`, `?a` and `a` are the field `a`.
fn name_of(field: &str) -> &str {
    let name = field.split('=').next().unwrap_or(field).trim();
    name.trim_start_matches(['%', '?'])
}

/// The fields of all lines in a file.
fn fields_in(text: &str) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for one in MACROS {
        let marked = format!("tracing::{one}");
        for (at, _) in text.match_indices(&marked) {
            let rest = text.get(at + marked.len()..).unwrap_or_default();
            names
                .extend(fields_before_the_message(rest).into_iter().map(|f| name_of(f).to_owned()));
        }
    }
    names
}

/// The first cells of the rows of all tables in a document.
fn documented(text: &str) -> BTreeSet<String> {
    let rows = text.lines().filter_map(|line| line.strip_prefix("| `")?.split_once('`'));
    rows.map(|(name, _)| name.to_owned()).collect()
}

#[test]
fn every_field_of_a_log_line_is_in_its_document() -> Result {
    let mut used: BTreeMap<String, String> = BTreeMap::new();
    for folder in LOGGING {
        for (path, text) in rust_files(&format!("{folder}/src"))? {
            if path.ends_with("tests.rs") || path.contains("/tests/") {
                continue;
            }
            let names = fields_in(&text);
            used.extend(names.into_iter().map(|name| (name, path.clone())));
        }
    }
    let documented = documented(&read(DOCUMENT)?);
    let told: BTreeSet<&str> = documented.iter().map(String::as_str).collect();
    for (name, path) in &used {
        assert!(!OF_ALL.contains(&name.as_str()), "{path} uses {name}, which every line has");
        assert!(told.contains(name.as_str()), "{path} uses {name}, which {DOCUMENT} does not have");
    }
    let unused: Vec<_> = told
        .into_iter()
        .filter(|name| !used.contains_key(*name) && !OF_ALL.contains(name))
        .collect();
    assert!(unused.is_empty(), "{DOCUMENT} has {unused:?}, which no line has");
    assert!(used.len() > 20, "{used:?}");
    Ok(())
}

#[test]
fn fields_are_found_in_every_form() {
    let text = r#"
        tracing::warn!(%error, "x {a}"); tracing::info!("only, a message");
        tracing::info!(port = name.port(1, 2), last = %failed, ?why, "{count} of {b}", c);
        tracing::debug!(%error);
    "#;
    let fields: Vec<_> = fields_in(text).into_iter().collect();
    assert_eq!(fields, ["error", "last", "port", "why"]);
}
