//! `holdfast inspect --why`: who holds a lock, what they wait for themselves, and so on.

use holdfast::{CycleStep, ExplainedHolder, ExplainedLock, ExplainedWait, Explanation};
use holdfast_cli::block_on;
use serde_json::{Value, json};

use crate::args::Global;
use crate::failure::Failure;
use crate::show::{self, Tone, escaped};

pub(crate) fn run(global: &Global, name: &str) -> Result<u8, Failure> {
    let reader = global.builder()?.reader()?;
    let explained = block_on(reader.explain(name))??;
    if global.json {
        show::line(json_of(&explained));
    } else {
        text_of(name, &explained).into_iter().for_each(show::line);
    }
    Ok(0)
}

fn text_of(name: &str, explained: &Explanation) -> Vec<String> {
    if explained.locks.is_empty() {
        return vec![format!("nobody holds {}, and nobody waits for it", escaped(name))];
    }
    let mut lines: Vec<String> = explained.locks.iter().flat_map(lock_lines).collect();
    if !explained.is_whole {
        lines.push("… and more than is shown".into());
    }
    lines.push(String::new());
    lines.extend(verdict(explained));
    lines
}

fn lock_lines(lock: &ExplainedLock) -> Vec<String> {
    let name = escaped(&lock.name);
    let behind = match lock.waiting {
        0 => String::new(),
        1 => "; one request waits".into(),
        waiting => format!("; {waiting} requests wait"),
    };
    let mut lines: Vec<String> =
        lock.holders.iter().flat_map(|held| holder_lines(&name, held)).collect();
    let more = lock.held_by.saturating_sub(lock.holders.len() as u64);
    if more > 0 {
        lines.push(format!("{name} is held by {more} more"));
    }
    match &lock.kept_for {
        Some(wait) if wait.names.len() > 1 => {
            let others = wait.names.iter().filter(|other| **other != lock.name);
            let others: Vec<_> = others.map(|other| escaped(other)).collect();
            let label = escaped(&wait.label);
            lines.push(format!("{name} is kept for {label}, which waits for {} as well", others.join(", ")));
        }
        Some(_) => lines.push(format!("{name} is free, and nothing is granted here now: its scope is suspended, or the cluster was restored")),
        None => {}
    }
    if let Some(first) = lines.first_mut() {
        first.push_str(&behind);
    }
    lines
}

fn holder_lines(name: &str, held: &ExplainedHolder) -> Vec<String> {
    let holder = &held.holder;
    let label = show::label(&holder.label, &holder.identity, holder.is_imported);
    let (length, token) = (show::length(holder.held), holder.token);
    let ending = if holder.is_ending { ", is ending" } else { "" };
    let mut lines = vec![format!("{name} is held by {label} for {length} (token {token}{ending})")];
    if held.may_wait_for_more {
        lines.push("  which may wait for more than is shown".into());
    }
    lines.extend(held.waits.iter().map(|wait| {
        let names: Vec<_> = wait.names.iter().map(|name| escaped(name)).collect();
        format!("  which waits for {} for {}", names.join(", "), show::length(wait.waiting))
    }));
    lines
}

/// What it comes to, and what helps.
fn verdict(explained: &Explanation) -> Vec<String> {
    if let Some(cycle) = explained.cycle() {
        let steps: Vec<_> = cycle.iter().map(step).collect();
        let first = cycle.first().map(|step| escaped(step.lock)).unwrap_or_default();
        return vec![
            Tone::Wrong
                .of(format_args!("They wait for each other: {} → {first}", steps.join(" → "))),
            format!(
                "None of them goes on by itself: holdfast release --force {first} --reason … ends one hold."
            ),
        ];
    }
    explained.culprits().map(|(lock, holder)| culprit(explained, lock, &holder.label)).collect()
}

fn culprit(explained: &Explanation, lock: &str, label: &str) -> String {
    let asked = explained.locks.first().filter(|asked| asked.name != lock);
    let (lock, label) = (escaped(lock), escaped(label));
    let who = match asked {
        None => format!("{label} holds {lock} and waits for nothing"),
        Some(asked) => format!(
            "In the end {} waits for {label}, which holds {lock} and waits for nothing",
            escaped(&asked.name)
        ),
    };
    format!("{who}; if it hangs: holdfast release --force {lock} --reason …")
}

fn step(step: &CycleStep<'_>) -> String {
    format!("{} (held by {})", escaped(step.lock), escaped(step.label))
}

fn json_of(explained: &Explanation) -> Value {
    let cycle = explained.cycle().map(|cycle| {
        let step = |step: &CycleStep<'_>| json!({ "lock": step.lock, "session": step.session.to_string(), "label": step.label });
        cycle.iter().map(step).collect::<Vec<_>>()
    });
    json!({
        "locks": explained.locks.iter().map(lock_json).collect::<Vec<_>>(),
        "whole": explained.is_whole,
        "cycle": cycle,
    })
}

fn lock_json(lock: &ExplainedLock) -> Value {
    let held = |held: &ExplainedHolder| {
        let waits: Vec<_> = held.waits.iter().map(wait_json).collect();
        json!({
            "holder": show::holder(&held.holder),
            "waits": waits,
            "may_wait_for_more": held.may_wait_for_more,
        })
    };
    json!({
        "name": lock.name,
        "held_by": lock.held_by,
        "waiting": lock.waiting,
        "holders": lock.holders.iter().map(held).collect::<Vec<_>>(),
        "kept_for": lock.kept_for.as_ref().map(wait_json),
    })
}

fn wait_json(wait: &ExplainedWait) -> Value {
    json!({
        "session": wait.session.to_string(),
        "label": wait.label,
        "names": wait.names,
        "waiting_ms": show::millis(wait.waiting),
    })
}
