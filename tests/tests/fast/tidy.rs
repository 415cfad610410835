//! What the documents and the layering promise, checked: a path, a heading, a test or a section of the design
//! that they or the code name exists, each invariant has a row, crates and modules depend downwards only
//! (DESIGN §3), the sample settings are valid, the README shows the example that is compiled.

use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use holdfast_mutants::Mutant;
use holdfast_tests::cluster::binary;

type Result<T = ()> = std::result::Result<T, Box<dyn Error>>;

/// The documents with tables of findings and their deliberate bugs.
const FINDINGS: [&str; 2] = ["docs/reliability.md", "tests/README.md"];

/// The folder with the sections that `§n` cites.
const DESIGN: &str = "docs/design";

/// Settings of Cassandra that a document names.
const OF_CASSANDRA: [&str; 2] = ["default_time_to_live", "maximum_timestamp_fail_threshold"];

/// Of `tests/README.md`, the heading above what a change leaves out.
const FULL_RUNS: &str = "## What only `full` runs";

/// How the reason of an ignored test begins that is not ignored for its length.
const IGNORED: [&str; 2] = ["started by", "makes fixtures"];

/// The probes of `docs/invariants.md` that its head describes.
const LOOKS: [&str; 2] = ["step", "durability"];

/// Most bytes of `ARCHITECTURE.md`: a stranger reads it in twenty minutes.
const ARCHITECTURE_BYTES: usize = 25 * 1024;

/// Every package, by its folder.
const PACKAGES: [&str; 17] = [
    "proto",
    "proto/types",
    "runtime",
    "runtime/mutants",
    "keyspace",
    "server",
    "server/core",
    "server/replication",
    "server/history",
    "server/page",
    "server/settings",
    "client",
    "client/guard",
    "client/recipes",
    "client/cli",
    "migrate",
    "tests",
];

const NONE: [String; 0] = [];

fn root() -> PathBuf {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    package.parent().unwrap_or(package).to_path_buf()
}

pub(crate) fn read(path: impl AsRef<Path>) -> Result<String> {
    let path = root().join(path);
    fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()).into())
}

/// All files below `folder`, by their path from the root.
fn files(folder: &str) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    let mut folders = vec![root().join(folder)];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder)? {
            let path = entry?.path();
            let found = if path.is_dir() { &mut folders } else { &mut files };
            found.push(path);
        }
    }
    let from_root = |file: PathBuf| Ok(file.strip_prefix(root())?.to_path_buf());
    files.into_iter().map(from_root).collect()
}

/// All `.rs` files below `folder`: path from the root, and text.
pub(crate) fn rust_files(folder: &str) -> Result<Vec<(String, String)>> {
    let mut sources = Vec::new();
    for file in files(folder)? {
        if file.extension().is_some_and(|extension| extension == "rs") {
            sources.push((file.to_string_lossy().into_owned(), read(&file)?));
        }
    }
    sources.sort();
    Ok(sources)
}

/// Every text of ours that may cite the design or an invariant: path from the root, and text.
fn texts() -> Result<BTreeMap<String, String>> {
    let mut paths = Vec::new();
    for entry in fs::read_dir(root())? {
        let path = entry?.path();
        if path.is_file() {
            paths.push(path.strip_prefix(root())?.to_path_buf());
        }
    }
    for folder in PACKAGES.into_iter().chain(["docs", "deploy"]) {
        paths.extend(files(folder)?);
    }
    let ends = ["md", "proto", "rs", "toml"].map(OsStr::new);
    paths.retain(|path| path.extension().is_some_and(|end| ends.contains(&end)));
    let text = |path: PathBuf| Ok((path.to_string_lossy().into_owned(), read(&path)?));
    paths.into_iter().map(text).collect()
}

/// Every document: path from the root, and text.
fn documents() -> Result<BTreeMap<String, String>> {
    let mut documents = texts()?;
    documents.retain(|path, _| Path::new(path).extension() == Some(OsStr::new("md")));
    Ok(documents)
}

/// The names of all files, with and without what they end in.
fn file_names() -> Result<BTreeSet<String>> {
    let mut names = BTreeSet::new();
    for package in PACKAGES {
        for file in files(package)? {
            let parts = [file.file_name(), file.file_stem()].into_iter().flatten();
            names.extend(parts.map(|part| part.to_string_lossy().into_owned()));
        }
    }
    Ok(names)
}

/// A document without its fenced blocks.
fn prose(text: &str) -> String {
    let mut fenced = false;
    let mut prose = String::new();
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        } else if !fenced {
            prose.push_str(line);
            prose.push('\n');
        }
    }
    prose
}

/// The code spans of a document, outside of fenced blocks.
fn code_spans(text: &str) -> Vec<String> {
    prose(text).split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

/// Where `[text](target)` points to within the repository: a path, empty for the document itself, and a heading,
/// empty for none.
fn link_targets(text: &str) -> Vec<(&str, &str)> {
    text.split("](")
        .skip(1)
        .filter_map(|rest| rest.split(')').next())
        .filter(|target| !target.contains("://"))
        .map(|target| target.split_once('#').unwrap_or((target, "")))
        .collect()
}

/// What the headings of a document are linked by: words in lower case, joined by hyphens, without the marks
/// between them.
fn anchors(text: &str) -> BTreeSet<String> {
    let prose = prose(text);
    let headings = prose.lines().filter(|line| line.starts_with('#'));
    let words = headings.map(|line| line.trim_start_matches('#').trim().to_lowercase());
    let kept = |c: &char| c.is_alphanumeric() || "-_".contains(*c);
    words.map(|words| words.replace(' ', "-").chars().filter(kept).collect()).collect()
}

/// Whether a span is meant as a path of the repository: it begins with a folder of ours, or ends
/// as a file of ours does. `target/…` and `./…` are made by a run.
fn looks_like_a_path(span: &str) -> bool {
    let plain = span.chars().all(|c| c.is_ascii_alphanumeric() || "/._-".contains(c));
    let first = span.split('/').next().unwrap_or(span);
    let ends = [".rs", ".toml", ".md", ".proto", ".sh", ".service", ".txt", ".c"];
    let named = ends.iter().any(|end| span.len() > end.len() && span.ends_with(end));
    let below = first.len() < span.len() && root().join(first).is_dir();
    plain && (named || below) && !["", ".", "target"].contains(&first)
}

/// A path stands from the root or from beside the document. A name without a folder may be that
/// of any file, where the text around it says which.
#[test]
fn every_path_named_in_the_documents_exists() -> Result {
    let anywhere = file_names()?;
    let mut missing = Vec::new();
    for (document, text) in documents()? {
        let beside = root().join(&document).with_file_name("");
        let spans = code_spans(&text).into_iter().filter(|span| looks_like_a_path(span));
        let named = spans.filter(|span| !anywhere.contains(span));
        let linked = link_targets(&text).into_iter().map(|(path, _)| path.to_owned());
        let lost = named
            .chain(linked)
            .filter(|path| !root().join(path).exists() && !beside.join(path).exists());
        missing.extend(lost.map(|path| format!("{document}: {path}")));
    }
    assert_eq!(missing, NONE, "named, but not there");
    Ok(())
}

#[test]
fn every_heading_that_a_document_links_to_exists() -> Result {
    let mut missing = Vec::new();
    for (document, text) in documents()? {
        let links = link_targets(&text).into_iter().filter(|(_, heading)| !heading.is_empty());
        for (path, heading) in links {
            let file = root().join(&document);
            let file = if path.is_empty() { file } else { file.with_file_name(path) };
            if !anchors(&read(file)?).contains(heading) {
                missing.push(format!("{document}: {path}#{heading}"));
            }
        }
    }
    assert_eq!(missing, NONE, "linked, but no heading");
    Ok(())
}

/// A path in a comment stands from the root, from the package, or from beside the file. A name without a
/// folder may be that of any file.
#[test]
fn every_path_named_in_a_comment_exists() -> Result {
    let anywhere = file_names()?;
    let mut missing = Vec::new();
    for (file, text) in texts()? {
        if Path::new(&file).extension() != Some(OsStr::new("rs")) {
            continue;
        }
        let exists = |span: &str| {
            let mut folders = Path::new(&file).ancestors();
            anywhere.contains(span) || folders.any(|folder| root().join(folder).join(span).exists())
        };
        let comments = text.lines().filter(|line| line.trim_start().starts_with("//"));
        let named = comments
            .flat_map(|line| line.split('`').skip(1).step_by(2))
            .filter(|span| looks_like_a_path(span) && Path::new(span).extension().is_some());
        let lost = named.filter(|span| !exists(span)).map(|span| format!("{file}: {span}"));
        missing.extend(lost);
    }
    assert_eq!(missing, NONE, "named, but not there");
    Ok(())
}

/// A code span of four words or more, joined by underscores, is the name of a test, unless it is
/// that of a setting or a script.
fn looks_like_a_test(span: &str) -> bool {
    let snake = span.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_');
    // A metric's name begins with the product's, or is one that every process has.
    let metric = span.starts_with("holdfast_") || span.starts_with("process_");
    snake && !metric && span.split('_').filter(|word| !word.is_empty()).count() >= 4
}

/// The keys of the sample settings: `max_requests_per_session` is not a test.
fn setting_names() -> Result<BTreeSet<String>> {
    let sample = read("deploy/config/node.toml")?;
    let keys = sample.lines().filter_map(|line| line.split_once(" = "));
    Ok(keys.map(|(key, _)| key.trim_start_matches("# ").to_owned()).collect())
}

#[test]
fn every_test_named_in_the_documents_exists() -> Result {
    let mut sources = String::new();
    for package in PACKAGES {
        sources.extend(rust_files(package)?.into_iter().map(|(_, text)| text));
    }
    let others: BTreeSet<String> = setting_names()?.into_iter().chain(file_names()?).collect();
    // In quotes stands the name of a field that a program prints.
    let written = |name: &str| {
        [format!("fn {name}("), format!("\"{name}\"")].iter().any(|text| sources.contains(text))
    };
    let exists =
        |name: &str| written(name) || others.contains(name) || OF_CASSANDRA.contains(&name);
    let mut missing = Vec::new();
    for (document, text) in documents()? {
        let named = code_spans(&text).into_iter().filter(|span| looks_like_a_test(span));
        missing
            .extend(named.filter(|name| !exists(name)).map(|name| format!("{document}: {name}")));
    }
    assert_eq!(missing, NONE, "named, but not there");
    Ok(())
}

/// What a change leaves out is named, or its suite is, beside what it runs instead.
#[test]
fn every_test_of_a_full_run_alone_is_named_with_its_stand_in() -> Result {
    let readme = read("tests/README.md")?;
    let (_, rest) = readme.split_once(FULL_RUNS).ok_or("the table of full runs has no heading")?;
    let named = code_spans(rest.split("\n## ").next().unwrap_or(rest));
    let is_named = |file: &str, test: &str| {
        let suite = |span: &str| [format!("/{span}.rs"), format!("/{span}/")];
        named.iter().any(|span| span == test || suite(span).iter().any(|part| file.contains(part)))
    };
    let mut missing = BTreeSet::new();
    for package in PACKAGES {
        for (file, text) in rust_files(package)? {
            let ignored = text.split("#[ignore = \"").skip(1);
            let long = ignored.filter(|why| !IGNORED.iter().any(|other| why.starts_with(other)));
            let tests = long.filter_map(|rest| Some(rest.split_once("fn ")?.1.split_once('(')?.0));
            let lost = tests.filter(|test| !is_named(&file, test));
            missing.extend(lost.map(|test| format!("{file}: {test}")));
        }
    }
    assert_eq!(missing, BTreeSet::new(), "ignored, but not in the table of tests/README.md");
    Ok(())
}

/// A mutant without a kept run names the test that shows it, and the file of that test arms it.
#[test]
fn every_test_that_shows_a_mutant_exists_and_arms_it() -> Result {
    let kept = read("tests/tests/simulated/simulated_runs/mutants.txt")?;
    let lines = kept.lines().filter(|line| !line.starts_with('#'));
    let sources = PACKAGES.map(rust_files).into_iter().collect::<Result<Vec<_>>>()?;
    let mut missing = Vec::new();
    for (mutant, test) in lines.filter_map(|line| line.split_once(" test ")) {
        let declared = format!("fn {test}(");
        let armed = format!("Mutant::{:?}", mutant.parse::<Mutant>()?);
        let shows = |text: &String| text.contains(&declared) && text.contains(&armed);
        if !sources.iter().flatten().any(|(_, text)| shows(text)) {
            missing.push(format!("{mutant}: {test}"));
        }
    }
    assert_eq!(missing, NONE, "named, but not there, or armed by no test");
    Ok(())
}

/// The code spans in the column of deliberate bugs, of each table that has one.
fn deliberate_bugs(document: &str) -> Vec<String> {
    let mut column = None;
    let mut named = Vec::new();
    for line in document.lines() {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        if !line.starts_with('|') {
            column = None;
        } else if column.is_none() {
            column = cells.iter().position(|cell| *cell == "deliberate bug");
        } else if let Some(cell) = column.and_then(|column| cells.get(column)) {
            named.extend(code_spans(cell));
        }
    }
    named
}

#[test]
fn every_deliberate_bug_beside_a_finding_exists() -> Result {
    let mut missing = Vec::new();
    for document in FINDINGS {
        let named = deliberate_bugs(&read(document)?);
        assert!(!named.is_empty(), "{document} has no column of deliberate bugs");
        let lost = named.into_iter().filter(|name| name.parse::<Mutant>().is_err());
        missing.extend(lost.map(|name| format!("{document}: {name}")));
    }
    assert_eq!(missing, NONE, "named, but no mutant");
    Ok(())
}

/// The number of a section that `text` begins with, empty if there is none, and the rest.
fn section(text: &str) -> (&str, &str) {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let number = text[..end].trim_end_matches('.');
    (number, &text[number.len()..])
}

/// The sections of the design that `text` cites. On a line that names the thesis they are the thesis' own. Of a
/// range the ends count.
fn cited_sections(text: &str) -> BTreeSet<&str> {
    let lines = text.lines().filter(|line| !line.to_lowercase().contains("thesis"));
    let mut cited = BTreeSet::new();
    for citation in lines.flat_map(|line| line.split('§').skip(1)) {
        let (first, rest) = section(citation);
        let last = rest.strip_prefix('–').map_or("", |rest| section(rest).0);
        cited.extend([first, last].into_iter().filter(|number| !number.is_empty()));
    }
    cited
}

/// The sections that have a heading in [`DESIGN`].
fn design_sections() -> Result<BTreeSet<String>> {
    let mut sections = BTreeSet::new();
    for file in files(DESIGN)? {
        for line in read(&file)?.lines() {
            let heading = line.strip_prefix("# §").or_else(|| line.strip_prefix("## §"));
            sections.extend(heading.map(|heading| section(heading).0.to_owned()));
        }
    }
    Ok(sections)
}

/// The design that the project was started from is not in the repository. What of it the code cites is.
#[test]
fn every_cited_section_of_the_design_has_a_heading() -> Result {
    let sections = design_sections()?;
    let mut lost = Vec::new();
    for (path, text) in texts()? {
        let open = cited_sections(&text).into_iter().filter(|number| !sections.contains(*number));
        lost.extend(open.map(|number| format!("{path}: §{number}")));
    }
    assert_eq!(lost, NONE, "cited, but without a heading in {DESIGN}");
    Ok(())
}

/// The table of invariants: the number of each, and its cells behind that.
fn invariants() -> Result<BTreeMap<usize, Vec<String>>> {
    let mut rows: BTreeMap<usize, Vec<String>> = BTreeMap::new();
    for line in read("docs/invariants.md")?.lines() {
        let Some(row) = line.strip_prefix("| I").and_then(|row| row.strip_suffix('|')) else {
            continue;
        };
        let (number, cells) = row.split_once('|').ok_or_else(|| format!("no cells: {line}"))?;
        let cells = cells.split('|').map(|cell| cell.trim().to_owned()).collect();
        let twice = rows.insert(number.trim().parse::<usize>()?, cells).is_some();
        assert!(!twice, "I{number} has two rows");
    }
    Ok(rows)
}

/// An invariant keeps its number for ever, so the numbers have no gap, and none is cited that has no row.
#[test]
fn every_cited_invariant_has_one_row() -> Result {
    let rows = invariants()?;
    assert!(rows.keys().copied().eq(1..=rows.len()), "not one row for each: {:?}", rows.keys());
    let cited = |word: &str| word.strip_prefix('I')?.parse::<usize>().ok();
    let mut lost = Vec::new();
    for (path, text) in texts()? {
        let words = text.split(|c: char| !c.is_ascii_alphanumeric());
        let open: BTreeSet<_> =
            words.filter_map(cited).filter(|number| !rows.contains_key(number)).collect();
        lost.extend(open.into_iter().map(|number| format!("{path}: I{number}")));
    }
    assert_eq!(lost, NONE, "cited, but not in docs/invariants.md");
    Ok(())
}

/// That the tests and probes which a row names exist, the tests of all documents see to.
#[test]
fn every_invariant_names_its_code_its_tests_and_what_shows_it() -> Result {
    let anywhere = file_names()?;
    let is_there = |span: &String| root().join(span).exists();
    let is_test = |span: &String| looks_like_a_test(span) || looks_like_a_path(span);
    let is_probe = |span: &String| is_test(span) || anywhere.contains(span);
    for (number, cells) in invariants()? {
        let [_, upheld, guarded, shown] = cells.as_slice() else {
            return Err(format!("I{number} has {} cells behind its number", cells.len()).into());
        };
        let code = code_spans(upheld);
        let lost: Vec<_> = code.iter().filter(|span| !is_there(span)).cloned().collect();
        assert_eq!(lost, NONE, "I{number}: not paths from the root");
        assert!(!code.is_empty(), "I{number} names no code");
        assert!(code_spans(guarded).iter().any(is_test), "I{number} names no test");
        let looked_at = shown.split([',', ':']).any(|word| LOOKS.contains(&word.trim()));
        let reasoned = shown.strip_prefix("–: ").is_some_and(|reason| !reason.is_empty());
        let probed = code_spans(shown).iter().any(is_probe);
        assert!(probed || looked_at || reasoned, "I{number}: neither a probe nor a reason");
    }
    Ok(())
}

/// Those that it names are there: the tests of all documents see to it.
#[test]
fn every_feature_names_the_test_that_shows_it() -> Result {
    let text = read("docs/features.md")?;
    let table = text.split("\n## ").next().unwrap_or_default();
    let rows: Vec<&str> = table.lines().filter(|line| line.starts_with("| ")).skip(1).collect();
    for row in &rows {
        let shown = row.trim_end_matches([' ', '|']).rsplit('|').next().unwrap_or_default();
        assert!(
            code_spans(shown).iter().any(|span| looks_like_a_test(span)),
            "{row} names no test"
        );
    }
    assert!(rows.len() >= 12, "{} features", rows.len());
    Ok(())
}

/// What grows belongs into `docs/design`, `docs/decisions.md` or the documentation of a module.
#[test]
fn the_tour_of_the_architecture_stays_short() -> Result {
    let bytes = read("ARCHITECTURE.md")?.len();
    assert!(bytes < ARCHITECTURE_BYTES, "ARCHITECTURE.md has {bytes} bytes");
    Ok(())
}

/// What cargo says of each of our packages.
fn packages() -> Result<Vec<serde_json::Value>> {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--no-deps", "--offline", "--format-version", "1"])
        .current_dir(root())
        .output()?;
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout)?;
    let packages = metadata["packages"].as_array().ok_or("cargo metadata names no packages")?;
    Ok(packages.clone())
}

/// What each package uses, but for what only its tests use.
fn uses_by_package() -> Result<BTreeMap<String, BTreeSet<String>>> {
    let text = |value: &serde_json::Value| value.as_str().unwrap_or_default().to_owned();
    let uses = |package: &serde_json::Value| {
        let dependencies = package["dependencies"].as_array().into_iter().flatten();
        dependencies.filter(|used| used["kind"] != "dev").map(|used| text(&used["name"])).collect()
    };
    Ok(packages()?.iter().map(|package| (text(&package["name"]), uses(package))).collect())
}

#[test]
fn packages_depend_downwards_only() -> Result {
    let below = BTreeMap::from([
        ("holdfast-mutants", ""),
        ("holdfast-proto", ""),
        ("holdfast-tls", ""),
        ("holdfast-types", ""),
        ("holdfast-core", "mutants types"),
        ("holdfast-runtime", "proto"),
        ("holdfast-fuzz", ""),
        ("holdfast-model", ""),
        ("holdfast-api", ""),
        ("holdfast-keyspace", "mutants runtime tls"),
        ("holdfast-replication", "core mutants proto runtime"),
        ("holdfast-history", "core mutants replication runtime"),
        ("holdfast-settings", "keyspace core replication tls"),
        ("holdfast-page", "proto runtime"),
        (
            "holdfast-server",
            "keyspace core history mutants page proto replication runtime settings tls",
        ),
        ("holdfast-guard", "mutants runtime types"),
        ("holdfast-client", "guard mutants proto runtime tls types"),
        ("holdfast-recipes", "keyspace client guard mutants proto runtime tls"),
        ("holdfast-cli", "client core recipes runtime tls"),
        ("holdfast-migrate", "keyspace cli client mutants recipes runtime types"),
        ("holdfast-tests", "keyspace client core migrate mutants proto recipes runtime server"),
    ]);
    for (package, uses) in uses_by_package()? {
        let below = below
            .get(package.as_str())
            .ok_or_else(|| format!("{package} has no place in the house yet: give it one here"))?;
        for used in uses.iter().filter_map(|name| name.strip_prefix("holdfast-")) {
            assert!(below.split(' ').any(|name| name == used), "{package} must not use {used}");
        }
    }
    Ok(())
}

/// No runtime, network, disk or randomness can reach the core, because nothing that has them is
/// linked into it (I8, I16).
#[test]
fn the_core_links_only_what_is_pure() -> Result {
    let pure = ["borsh", "crc32fast", "holdfast-mutants", "holdfast-types", "sha2", "thiserror"];
    let pure = BTreeSet::from(pure.map(str::to_owned));
    let packages = uses_by_package()?;
    let uses = packages.get("holdfast-core").ok_or("there is no holdfast-core")?;
    assert_eq!(uses.difference(&pure).cloned().collect::<Vec<_>>(), NONE);
    let types = packages.get("holdfast-types").ok_or("there is no holdfast-types")?;
    assert_eq!(types.difference(&pure).cloned().collect::<Vec<_>>(), NONE);
    Ok(())
}

/// Each deliberate bug of the list stands in the product.
#[test]
fn every_deliberate_bug_stands_at_a_line_of_the_product() -> Result {
    let mut product = String::new();
    for folder in [
        "server/src",
        "server/core/src",
        "server/replication/src",
        "server/history/src",
        "client/src",
        "client/guard/src",
        "client/recipes/src",
        "keyspace/src",
        "migrate/src",
    ] {
        for (_, text) in rust_files(folder)? {
            // Not `code`: a module may declare its tests above its code. Tests arm mutants, and ask for none.
            product.extend(text.lines().filter(|line| !line.trim_start().starts_with("//")));
        }
    }
    let stands = |mutant: &&Mutant| product.contains(&format!("mutant!({mutant:?})"));
    assert_eq!(
        Mutant::ALL.iter().filter(|mutant| !stands(mutant)).collect::<Vec<_>>(),
        [] as [&Mutant; 0]
    );
    Ok(())
}

/// Builds the programs as they are shipped, each with all that it can have.
fn build_the_release() -> Result {
    let with = "holdfast-server/fallback,holdfast-cli/cassandra,holdfast-migrate/cassandra";
    let packages = ["-p", "holdfast-server", "-p", "holdfast-cli", "-p", "holdfast-migrate"];
    let built = Command::new(env!("CARGO"))
        .args(["build", "--release", "--locked", "--bins", "--features", with])
        .args(packages)
        .current_dir(root())
        .status()?;
    assert!(built.success(), "the release does not build");
    Ok(())
}

/// A program as text: names are ASCII, which stays as it is.
fn text_of(program: &Path) -> Result<String> {
    Ok(String::from_utf8_lossy(&fs::read(program)?).into_owned())
}

/// Neither a deliberate bug, by its name or by the switch, nor the simulated machine is in a release.
#[test]
#[ignore = "long: builds the programs as they are shipped"]
fn no_release_has_a_deliberate_bug_or_a_simulated_machine_in_it() -> Result {
    // Parts of symbols, as both ways of mangling have them: the variable that says which bug is armed, and the module of the machine.
    const SWITCH: &str = "16holdfast_mutants5ARMED";
    const MACHINE: &str = "16holdfast_runtime9simulated";
    build_the_release()?;
    let names = Mutant::ALL.iter().copied().map(Mutant::name);
    let marks: Vec<&str> = names.chain([SWITCH, MACHINE]).collect();
    // What no program has could not be found in a release either.
    let tested = text_of(&binary("holdfast-mutants"))?;
    let absent: Vec<&str> = marks.iter().copied().filter(|mark| !tested.contains(mark)).collect();
    assert_eq!(absent, Vec::<&str>::new(), "in no program of the tests");
    for program in ["holdfastd", "holdfast", "holdfast-migrate"] {
        let shipped = text_of(&binary(program).with_file_name("../release").join(program))?;
        let found: Vec<&str> =
            marks.iter().copied().filter(|mark| shipped.contains(mark)).collect();
        assert_eq!(found, Vec::<&str>::new(), "in {program} as it is shipped");
    }
    Ok(())
}

/// The code of a file: lines that are not comments, up to its tests.
fn code(text: &str) -> impl Iterator<Item = &str> {
    text.lines()
        .take_while(|line| !line.starts_with("#[cfg(test)]"))
        .filter(|line| !line.trim_start().starts_with("//"))
}

/// Whether a line names the crate: `use name`, or `name::` that is not the end of another path.
fn names_crate(line: &str, name: &str) -> bool {
    let in_a_name = |c: char| c.is_alphanumeric() || c == '_' || c == '"';
    line.match_indices(name).any(|(at, _)| {
        let (before, after) = (&line[..at], &line[at + name.len()..]);
        let first = !before.strip_suffix("::").unwrap_or(before).ends_with(in_a_name);
        let imported = before.trim_start() == "use " && !after.starts_with(in_a_name);
        first && (imported || after.starts_with("::"))
    })
}

/// Files below `folder` whose code names the crate, but for those below one of `homes`.
fn strangers(folder: &str, name: &str, homes: &[&str]) -> Result<Vec<String>> {
    Ok(rust_files(folder)?
        .into_iter()
        .filter(|(path, _)| !homes.iter().any(|home| path.starts_with(home)))
        .filter(|(_, text)| code(text).any(|line| names_crate(line, name)))
        .map(|(path, _)| path)
        .collect())
}

#[test]
fn only_the_raft_module_names_openraft() -> Result {
    assert_eq!(strangers("server/src", "openraft", &[])?, NONE);
    let home = ["server/replication/src/raft"];
    assert_eq!(strangers("server/replication/src", "openraft", &home)?, NONE);
    Ok(())
}

#[test]
fn only_the_storage_module_names_sled() -> Result {
    assert_eq!(strangers("server/src", "sled", &[])?, NONE);
    let home = ["server/replication/src/storage"];
    assert_eq!(strangers("server/replication/src", "sled", &home)?, NONE);
    Ok(())
}

/// The recipes reach their tables through `keyspace` alone, so that a model can stand behind it.
#[test]
fn only_the_driver_module_names_scylla() -> Result {
    let opening = ["client/recipes/src/opening", "client/recipes/src/schema"];
    assert_eq!(strangers("keyspace/src", "scylla", &["keyspace/src/driver"])?, NONE);
    assert_eq!(strangers("client/recipes/src", "scylla", &opening)?, NONE);
    assert_eq!(strangers("server/src", "scylla", &[])?, NONE);
    assert_eq!(strangers("migrate/src", "scylla", &["migrate/src/scan"])?, NONE);
    Ok(())
}

/// Sessions run on the runtime alone, so that a simulator can stand behind them.
#[test]
fn session_code_names_no_transport() -> Result {
    let edges = ["client/src/transport"];
    assert_eq!(strangers("server/src/session", "tonic", &[])?, NONE);
    assert_eq!(strangers("client/src", "tonic", &edges)?, NONE);
    assert_eq!(strangers("client/recipes/src", "tonic", &["client/recipes/src/clock/grpc"])?, NONE);
    Ok(())
}

/// An unbiased `select!` polls its branches in random order, so that a run cannot be repeated.
/// Clippy cannot forbid it: it sees through `holdfast_runtime::select!`, which is biased.
#[test]
fn every_select_is_biased() -> Result {
    let random = ["tokio::select!", "tokio::select;", "futures_util::select!"];
    let mut found = Vec::new();
    for package in PACKAGES {
        for (path, text) in rust_files(package)?.into_iter().filter(|(path, _)| path != file!()) {
            let text = text.replace("__tokio::select!", "");
            let named = code(&text).any(|line| random.iter().any(|name| line.contains(name)));
            found.extend(named.then_some(path));
        }
    }
    assert_eq!(found, NONE, "write holdfast_runtime::select!");
    Ok(())
}

/// Clippy reads only the nearest `clippy.toml`, so the core's has to repeat what the workspace
/// forbids. Not what is in tokio: that is not linked into the core, and clippy complains of paths
/// it cannot find.
#[test]
fn what_the_workspace_forbids_is_forbidden_in_the_core() -> Result {
    let core = read("server/core/clippy.toml")?;
    let workspace = read("clippy.toml")?;
    let paths =
        workspace.lines().filter_map(|line| line.split("path = ").nth(1)?.split(',').next());
    let reachable = paths.filter(|path| !path.contains("tokio::"));
    let open: Vec<&str> = reachable.filter(|path| !core.contains(path)).collect();
    assert_eq!(open, Vec::<&str>::new(), "forbid them in server/core/clippy.toml too");
    Ok(())
}

/// `tests/run` chooses by the name of a test target, across all packages.
#[test]
fn no_two_test_targets_share_a_name() -> Result {
    let mut owners = BTreeMap::new();
    for package in PACKAGES {
        let Ok(folder) = fs::read_dir(root().join(package).join("tests")) else { continue };
        for entry in folder {
            let path = entry?.path();
            let is_target =
                path.join("main.rs").exists() || path.extension().is_some_and(|end| end == "rs");
            let Some(name) = path.file_stem().filter(|_| is_target) else { continue };
            let other = owners.insert(name.to_owned(), package);
            assert_eq!(other, None, "{package} has a test {} too", name.display());
        }
    }
    Ok(())
}

/// The first fenced block of this language.
fn block<'a>(text: &'a str, language: &str) -> Result<&'a str> {
    let fence = format!("```{language}\n");
    let (_, rest) = text.split_once(&fence).ok_or_else(|| format!("no {language} block"))?;
    let (block, _) = rest.split_once("```").ok_or_else(|| format!("an open {language} block"))?;
    Ok(block)
}

/// A source file without the comments and attributes it opens with.
fn without_front_matter(text: &str) -> String {
    let front = |line: &&str| line.starts_with("//!") || line.starts_with("#!") || line.is_empty();
    text.lines().skip_while(front).flat_map(|line| [line, "\n"]).collect()
}

#[test]
fn the_readme_shows_the_example_that_is_compiled() -> Result {
    let compiled = read("client/examples/readme.rs")?;
    assert_eq!(block(&read("README.md")?, "rust")?, without_front_matter(&compiled));
    Ok(())
}

/// What `holdfastd check-config` says about a file, without where each value came from.
fn effective_settings(file: Option<&str>) -> Result<String> {
    let file = file.map(|name| root().join("deploy/config").join(name));
    let output = Command::new(binary("holdfastd")).arg("check-config").args(&file).output()?;
    if !output.status.success() {
        return Err(format!("{file:?}: {}", String::from_utf8_lossy(&output.stderr)).into());
    }
    let said = String::from_utf8(output.stdout)?;
    let values = said.lines().map(|line| line.split("  # ").next().unwrap_or(line));
    Ok(values.flat_map(|value| [value, "\n"]).collect())
}

#[test]
fn the_sample_settings_are_valid() -> Result {
    for sample in ["node.toml", "cluster-1.toml", "cluster-2.toml", "cluster-3.toml"] {
        effective_settings(Some(sample))?;
    }
    Ok(())
}

#[test]
fn the_sample_of_one_node_has_every_setting_with_its_default() -> Result {
    let defaults = effective_settings(None)?;
    assert_eq!(effective_settings(Some("node.toml"))?, defaults);
    let sample = setting_names()?;
    // One that is printed as a comment is said by nobody, and is a setting all the same.
    let key = |line: &str| Some(line.trim_start_matches("# ").split_once(" = ")?.0.to_owned());
    let keys = defaults.lines().filter_map(key);
    assert_eq!(keys.filter(|key| !sample.contains(key)).collect::<Vec<_>>(), NONE);
    Ok(())
}
