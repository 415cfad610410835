//! Holdfast beside other lock stores: `just bench-peers`. The tables are its last output, and go into the page
//! that `--write` names.
#![allow(clippy::print_stdout, reason = "a program for people")]

use std::fs;
use std::path::Path;
use std::process::ExitCode;

use clap::Parser as _;
use holdfast_tests::marks::put_between;
use holdfast_tests::peers::{Options, PROGRAM, heading, run};

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    match measure(&Options::parse()).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("{PROGRAM}: {why}");
            ExitCode::FAILURE
        }
    }
}

async fn measure(options: &Options) -> Result<(), String> {
    let page = options.write.as_deref();
    let kept = page.zip(options.is_a_part());
    if let Some((page, why)) = &kept {
        println!("{} stays as it is: {why}", page.display());
    }
    let measured = run(options, &|line| println!("{line}")).await?;
    let tables = heading(options, &arguments(), &measured) + &measured.tables();
    println!("\n{tables}");
    match page.filter(|_| kept.is_none()) {
        Some(page) => write(page, &tables),
        None => Ok(()),
    }
}

/// What the caller asked for, but for the files that it goes to.
fn arguments() -> Vec<String> {
    let mut all = std::env::args().skip(1);
    let mut kept = Vec::new();
    while let Some(argument) = all.next() {
        if ["--write", "--rows", "--home"].contains(&&*argument) {
            all.next();
        } else {
            kept.push(argument);
        }
    }
    kept
}

fn write(path: &Path, tables: &str) -> Result<(), String> {
    let failed = |error: std::io::Error| format!("{}: {error}", path.display());
    let page = fs::read_to_string(path).map_err(failed)?;
    let filled = put_between(&page, PROGRAM, tables);
    let filled = filled.ok_or_else(|| format!("{} has no marks of {PROGRAM}", path.display()))?;
    fs::write(path, filled).map_err(failed)
}
