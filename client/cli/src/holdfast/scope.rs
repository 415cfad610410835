//! `holdfast scope`.

use std::time::Duration;

use comfy_table::{Table, presets};
use holdfast::{ScopeStatus, Scopes};
use serde_json::{Value, json};

use crate::args::{Global, ScopeCommand};
use crate::failure::Failure;
use crate::{runtime, show};

pub(crate) fn run(global: &Global, command: &ScopeCommand) -> Result<u8, Failure> {
    let limit = match command {
        ScopeCommand::Set(args) => args.limit.timeout,
        ScopeCommand::Remove(args) => args.limit.timeout,
        ScopeCommand::List(limit) => limit.timeout,
    };
    let admin = global.builder().admin(limit)?;
    let done = runtime::block_on(async {
        match command {
            ScopeCommand::Set(args) => {
                let epoch = admin.set_scope(&args.prefix).await?;
                Ok(if global.json {
                    json!({ "scope": args.prefix, "is": "set", "epoch": epoch }).to_string()
                } else {
                    let prefix = show::escaped(&args.prefix);
                    format!("{prefix} is a scope with fallback, in epoch {epoch}")
                })
            }
            ScopeCommand::Remove(args) => {
                admin.remove_scope(&args.prefix).await?;
                Ok(if global.json {
                    json!({ "scope": args.prefix, "is": "removed" }).to_string()
                } else {
                    format!("{} is no scope any more", show::escaped(&args.prefix))
                })
            }
            ScopeCommand::List(_) => {
                let scopes = admin.scopes().await?;
                Ok(if global.json { as_json(&scopes) } else { as_text(&scopes) })
            }
        }
    })?;
    show::line(done.map_err(|error: holdfast::Error| Failure::from(error))?);
    Ok(0)
}

fn as_json(scopes: &Scopes) -> String {
    let scope = |scope: &ScopeStatus| -> Value {
        json!({
            "scope": scope.prefix,
            "epoch": scope.epoch,
            "suspended": scope.suspended,
            "mode": scope.row.as_ref().map(|(mode, _)| mode),
            "row_epoch": scope.row.as_ref().map(|(_, epoch)| epoch),
            "take_over_ms": scope.take_over.map(millis),
            "hold_ms": scope.hold.map(millis),
            "authority_ms": scope.authority.map(millis),
            "beat_age_ms": scope.beat_age.map(millis),
            "switches": scope.switches,
            "refused_switches": scope.refused_switches,
            "trouble": scope.trouble,
        })
    };
    let all: Vec<Value> = scopes.scopes.iter().map(scope).collect();
    json!({ "scopes": all, "has_fallback": scopes.has_fallback }).to_string()
}

fn as_text(scopes: &Scopes) -> String {
    if scopes.scopes.is_empty() {
        let can = if scopes.has_fallback {
            "set one with holdfast scope set PREFIX --fallback"
        } else {
            "the leader does not know where a fallback would be (setting [fallback])"
        };
        return format!("there is no scope with fallback; {can}");
    }
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    let header = ["SCOPE", "EPOCH", "GRANTS", "ROW", "W", "V", "AUTHORITY", "BEAT", "SWITCHES"];
    table.set_header(header);
    for scope in &scopes.scopes {
        table.add_row(row(scope));
    }
    let troubles = scopes.scopes.iter().filter_map(|scope| {
        let trouble = scope.trouble.as_ref()?;
        Some(format!("\n{}: {trouble}", show::escaped(&scope.prefix)))
    });
    format!("{}{}", table.trim_fmt(), troubles.collect::<String>())
}

fn row(scope: &ScopeStatus) -> [String; 9] {
    let length = |length: Option<Duration>| length.map_or_else(|| "-".to_owned(), show::length);
    [
        show::escaped(&scope.prefix),
        scope.epoch.to_string(),
        if scope.suspended { "suspended" } else { "yes" }.to_owned(),
        scope.row.as_ref().map_or_else(
            || "unknown".to_owned(),
            |(mode, epoch)| format!("{} in {epoch}", show::escaped(mode)),
        ),
        length(scope.take_over),
        length(scope.hold),
        length(scope.authority),
        length(scope.beat_age),
        scope.switches.to_string(),
    ]
}

fn millis(length: Duration) -> u64 {
    u64::try_from(length.as_millis()).unwrap_or(u64::MAX)
}
