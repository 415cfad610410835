//! Chaos on real processes: `holdfast-chaos --minutes 5`. The last line is
//! `N grants, M faults, V violations`; it ends with 0 only if there was none.
#![allow(clippy::print_stdout, reason = "a program for people")]

use std::panic::AssertUnwindSafe;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser as _;
use futures_util::FutureExt as _;
use holdfast_runtime::Runtime;
use holdfast_tests::chaos::{Options, Outcome, run};
use tempfile::TempDir;

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let options = Options::parse();
    let seed = options.seed.unwrap_or_else(fresh_seed);
    let (folder, temporary) = match folder(&options, seed) {
        Ok(folder) => folder,
        Err(error) => {
            eprintln!("holdfast-chaos: no folder for logs and histories: {error}");
            return ExitCode::FAILURE;
        }
    };
    say(&format!("seed {seed}, logs and histories in {}", folder.display()));
    let ran = AssertUnwindSafe(run(&options, seed, &folder, &say)).catch_unwind().await;
    let failed = if let Ok(outcome) = ran {
        tell(&outcome)
    } else {
        say("the run could not go on: see above");
        say("0 grants, 0 faults, 1 violations");
        true
    };
    if !failed {
        return ExitCode::SUCCESS;
    }
    let kept = temporary.map_or(folder, TempDir::keep);
    eprintln!("holdfast-chaos: seed {seed}; logs and histories are kept in {}", kept.display());
    ExitCode::FAILURE
}

/// Prints what came of it, and says whether anything was wrong.
fn tell(outcome: &Outcome) -> bool {
    let Outcome { figures, violations } = outcome;
    say(&figures.table(violations.len()));
    for violation in violations.iter().take(20) {
        say(&format!("  {violation}"));
    }
    let (grants, faults) = (figures.tally.grants, figures.faults());
    say(&format!("{grants} grants, {faults} faults, {} violations", violations.len()));
    !violations.is_empty()
}

fn say(line: &str) {
    println!("{line}");
}

fn fresh_seed() -> u64 {
    let mut bytes = [0; 8];
    Runtime::system().rng.fill(&mut bytes);
    // Few enough digits to be typed again.
    u64::from_le_bytes(bytes) % 1_000_000_000
}

fn folder(options: &Options, seed: u64) -> std::io::Result<(PathBuf, Option<TempDir>)> {
    if let Some(folder) = &options.keep {
        std::fs::create_dir_all(folder)?;
        let folder = std::fs::canonicalize(folder)?.join(format!("seed-{seed}"));
        // Two runs in one folder would be judged as one.
        std::fs::create_dir(&folder)?;
        return Ok((folder, None));
    }
    let temporary = tempfile::Builder::new().prefix("holdfast-chaos-").tempdir()?;
    Ok((temporary.path().to_path_buf(), Some(temporary)))
}
