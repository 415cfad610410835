//! The public Rust API as rustdoc sees it, one item a line, kept in `docs/api`: a change of the API
//! is a change of those files, which a reviewer sees.
//!
//! `cargo run -p holdfast-api` compares and fails if they differ; `cargo run -p holdfast-api -- --write`
//! writes them. It stands on rustdoc's JSON, whose format belongs to one version of Rust: with a new
//! toolchain comes a new `public-api`.

#![expect(clippy::print_stdout, reason = "it is a program for a terminal")]

use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// The libraries of which semver promises something (`CONTRIBUTING.md`), and what they show of others.
const LIBRARIES: [&str; 4] = ["holdfast", "holdfast_recipes", "holdfast_guard", "holdfast_types"];

fn main() -> Result<ExitCode> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let write = match arguments.as_slice() {
        [] => false,
        [one] if one == "--write" => true,
        _ => return Err("there is --write, and nothing else".into()),
    };
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    document(&root)?;
    let (target, mut changed) = (target(&root)?, false);
    for library in LIBRARIES {
        let now = listing(&target.join("doc").join(library).with_extension("json"))?;
        let kept = root.join("docs/api").join(library).with_extension("txt");
        if write {
            fs::write(&kept, now)?;
            continue;
        }
        let before = fs::read_to_string(&kept).unwrap_or_default();
        changed |= show_changes(library, &before, &now);
    }
    if changed {
        println!("the public API is not the one in docs/api: cargo run -p holdfast-api -- --write");
    }
    Ok(if changed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Fails on a warning about the documentation. All packages at once: then nothing is built with other features.
fn document(root: &Path) -> Result<()> {
    let done = cargo(root)
        .args(["doc", "--workspace", "--no-deps", "--locked", "--quiet"])
        .env("RUSTDOC", root.join("tests/api/rustdoc"))
        .env("RUSTDOCFLAGS", "-Zunstable-options --output-format json -D warnings")
        .status()?;
    if done.success() { Ok(()) } else { Err("rustdoc failed; see above".into()) }
}

fn target(root: &Path) -> Result<PathBuf> {
    let told = cargo(root).args(["metadata", "--no-deps", "--format-version", "1"]).output()?;
    let told: serde_json::Value = serde_json::from_slice(&told.stdout)?;
    Ok(told["target_directory"].as_str().ok_or("cargo names no target folder")?.into())
}

/// Without what `cargo run` says of this package: build scripts that look at it (`ring`'s) would run again, here and in
/// the next build, and everything above them with it.
fn cargo(root: &Path) -> Command {
    let mut cargo = Command::new(option_env!("CARGO").unwrap_or("cargo"));
    cargo.current_dir(root);
    let of_a_package =
        |name: &str| name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_");
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_str().is_some_and(of_a_package))
    {
        cargo.env_remove(name);
    }
    cargo
}

fn listing(json: &Path) -> Result<String> {
    let api = public_api::Builder::from_rustdoc_json(json)
        .omit_blanket_impls(true)
        .omit_auto_trait_impls(true)
        .build()?;
    Ok(api.items().flat_map(|item| [item.to_string(), "\n".to_owned()]).collect())
}

/// Prints what is new and what is gone; returns whether there is any of it.
fn show_changes(library: &str, before: &str, now: &str) -> bool {
    let only_in = |lines: &str, others: &str, sign| {
        let others: std::collections::BTreeSet<_> = others.lines().collect();
        let only = lines.lines().filter(|line| !others.contains(line));
        only.map(|line| println!("{library}: {sign} {line}")).count()
    };
    only_in(before, now, '-') + only_in(now, before, '+') > 0
}
