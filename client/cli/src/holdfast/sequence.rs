//! `holdfast sequence`: numbers that are given out once.

use std::num::NonZeroU32;

use holdfast::SequenceInfo;
use holdfast_cli::block_on;
use serde_json::json;

use crate::args::{ClusterLimit, Global, SequenceCommand};
use crate::failure::Failure;
use crate::show;

/// Does what was asked of a sequence, and prints it.
pub(crate) fn run(global: &Global, command: &SequenceCommand) -> Result<u8, Failure> {
    match command {
        SequenceCommand::Next { name, by, limit } => next(global, name, *by, limit),
        SequenceCommand::Begin { name, at, limit } => begin(global, name, *at, limit),
        SequenceCommand::List { prefix, limit } => list(global, prefix, limit),
    }
}

/// Takes numbers: for people and shells one on each line, for programs the first and the last. In JSON they are strings, as tokens are.
fn next(global: &Global, name: &str, by: NonZeroU32, limit: &ClusterLimit) -> Result<u8, Failure> {
    let numbers = global.builder()?.connect_timeout(limit.timeout).sequence(name)?;
    let numbers = block_on(numbers.take(by))??;
    if global.json {
        show::line(
            json!({ "name": name, "first": numbers.start().to_string(), "last": numbers.end().to_string() }),
        );
    } else {
        numbers.for_each(show::line);
    }
    Ok(0)
}

fn begin(global: &Global, name: &str, at: u64, limit: &ClusterLimit) -> Result<u8, Failure> {
    let admin = global.builder()?.admin(limit.timeout)?;
    block_on(admin.begin_sequence(name, at))??;
    let text = format!("the next number of {} is {at}", show::escaped(name));
    show::either(global.json, json!({ "name": name, "next": at.to_string() }), text);
    Ok(0)
}

/// Lists sequences: for programs one line for each.
fn list(global: &Global, prefix: &str, limit: &ClusterLimit) -> Result<u8, Failure> {
    let admin = global.builder()?.admin(limit.timeout)?;
    let sequences = block_on(admin.sequences(prefix))??;
    if global.json {
        for SequenceInfo { name, last, .. } in &sequences {
            show::line(json!({ "name": name, "last": last.to_string() }));
        }
    } else if sequences.is_empty() {
        show::line("there is no such sequence");
    } else {
        show::line(show::table(&["SEQUENCE", "LAST NUMBER"], sequences.iter().map(row)));
    }
    Ok(0)
}

fn row(sequence: &SequenceInfo) -> [String; 2] {
    [show::escaped(&sequence.name), sequence.last.to_string()]
}
