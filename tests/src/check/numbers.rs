//! I37: no number of a sequence is given out twice, and a call that began after another one had its answer gets larger numbers.
//! What a call without an answer was given is not known, and belongs to nobody.

use std::collections::BTreeMap;

use super::{Tally, Violation, at, violation};
use crate::history::{ClientId, Record, What};

/// The numbers that a call was given.
struct Block<'a> {
    client: ClientId,
    name: &'a str,
    called_ns: u64,
    answered_ns: u64,
    first: u64,
    last: u64,
}

pub(super) fn check(records: &[Record], tally: &mut Tally, violations: &mut Vec<Violation>) {
    let mut of_name: BTreeMap<&str, Vec<Block<'_>>> = BTreeMap::new();
    for block in blocks(records) {
        of_name.entry(block.name).or_default().push(block);
    }
    for blocks in of_name.values_mut() {
        tally.numbers += blocks.len();
        apart(blocks, violations);
        rising(blocks, violations);
    }
}

fn blocks(records: &[Record]) -> Vec<Block<'_>> {
    let mut under_way = BTreeMap::new();
    let mut blocks = Vec::new();
    for Record { at_ns, client, what } in records {
        match what {
            What::TakeNumbers { take, name, count } => {
                under_way.insert((client, take), (at_ns, name, count));
            }
            What::NumbersTaken { take, first } => {
                let Some((called_ns, name, count)) = under_way.remove(&(client, take)) else {
                    continue;
                };
                let Some(first) = *first else { continue };
                blocks.push(Block {
                    client: *client,
                    name,
                    called_ns: *called_ns,
                    answered_ns: *at_ns,
                    first,
                    last: first.saturating_add(u64::from(*count).saturating_sub(1)),
                });
            }
            _ => {}
        }
    }
    blocks
}

fn apart(blocks: &mut [Block<'_>], violations: &mut Vec<Violation>) {
    blocks.sort_by_key(|block| block.first);
    for pair in blocks.windows(2) {
        let [one, other] = pair else { continue };
        if other.first <= one.last {
            let message = format!(
                "{}: {} was given to {} at {} and to {} at {}",
                one.name,
                other.first,
                one.client,
                at(one.answered_ns),
                other.client,
                at(other.answered_ns)
            );
            violations.push(violation(37, message));
        }
    }
}

fn rising(blocks: &mut [Block<'_>], violations: &mut Vec<Violation>) {
    let mut answered: Vec<(u64, u64)> =
        blocks.iter().map(|block| (block.answered_ns, block.last)).collect();
    answered.sort_unstable();
    blocks.sort_by_key(|block| block.called_ns);
    let mut answered = answered.into_iter().peekable();
    let mut largest = 0;
    for block in blocks {
        while let Some((_, last)) = answered.next_if(|(at_ns, _)| *at_ns < block.called_ns) {
            largest = largest.max(last);
        }
        if block.first < largest {
            let message = format!(
                "{}: {} was given out before {} asked at {} and got {}",
                block.name,
                largest,
                block.client,
                at(block.called_ns),
                block.first
            );
            violations.push(violation(37, message));
        }
    }
}
