//! `holdfast auth quota`: how much an identity may have.

use clap::{Args, Subcommand};
use holdfast::{Admin, IdentityUsage, Quota, Quotas};
use serde_json::{Value, json};

use crate::show;

/// The word for every identity. None is called so: each begins with its kind.
const ALL: &str = "all";
/// As text and in what is set: no limit, whatever the quota of all says.
const NONE: &str = "none";
const UNLIMITED: u64 = u64::MAX;

/// The subcommands.
#[derive(Debug, Subcommand)]
pub(crate) enum QuotaCommand {
    /// Set how much an identity may have, in place of all that was said before.
    ///
    /// Nothing that it has ends because of a quota; what would be more is refused. Quotas count with the rules
    /// on and off.
    Set {
        /// token:NAME, uri:NAME, dns:NAME, cn:NAME, uid:NUMBER or anonymous; or `all`: every identity, each by
        /// itself, where its own quota says nothing.
        identity: String,
        #[command(flatten)]
        quota: QuotaArgs,
    },
    /// Remove the quota of an identity, or of `all`.
    Remove {
        /// As of `set`.
        identity: String,
    },
    /// Every quota, and what each identity has.
    List,
}

/// The quantities, each as a number, or `none`: no limit, whatever the quota of `all` says.
#[derive(Debug, Args)]
#[group(required = true, multiple = true)]
pub(crate) struct QuotaArgs {
    /// Open sessions: a number or `none`, as all of these.
    #[arg(long, value_parser = limit)]
    sessions: Option<u64>,
    /// Locks that it holds or waits for, each once for each request.
    #[arg(long, value_parser = limit)]
    holds: Option<u64>,
    /// Requests that wait.
    #[arg(long, value_parser = limit)]
    waits: Option<u64>,
    /// Bytes of the values that it has set, each with its lock's name and 256 bytes more.
    #[arg(long, value_parser = limit)]
    value_bytes: Option<u64>,
    /// Connections to one node.
    #[arg(long, value_parser = limit)]
    connections: Option<u64>,
}

fn limit(text: &str) -> Result<u64, String> {
    if text == NONE {
        return Ok(UNLIMITED);
    }
    text.parse().map_err(|_| format!("write a whole number, or `{NONE}` for no limit"))
}

/// What a subcommand has to say, for programs and for people.
pub(crate) async fn run(
    admin: &Admin,
    command: &QuotaCommand,
) -> Result<(Value, String), holdfast::Error> {
    match command {
        QuotaCommand::Set { identity, quota } => {
            let QuotaArgs { sessions, holds, waits, value_bytes, connections } = *quota;
            let quota = Quota { sessions, holds, waits, value_bytes, connections };
            admin.set_quota(whose(identity), quota).await?;
            let text = format!("{} may have {}", show::escaped(identity), said(quota));
            Ok((json!({ "identity": identity, "quota": json_of(quota) }), text))
        }
        QuotaCommand::Remove { identity } => {
            admin.set_quota(whose(identity), Quota::default()).await?;
            let text = format!("{} has no quota any more", show::escaped(identity));
            Ok((json!({ "identity": identity, "is": "removed" }), text))
        }
        QuotaCommand::List => Ok(list(&admin.quotas().await?)),
    }
}

fn whose(identity: &str) -> Option<&str> {
    (identity != ALL).then_some(identity)
}

/// The quantities in the order in which they are shown.
fn columns(quota: Quota) -> [(&'static str, Option<u64>); 5] {
    let Quota { sessions, holds, waits, value_bytes, connections } = quota;
    [
        ("sessions", sessions),
        ("holds", holds),
        ("waits", waits),
        ("value bytes", value_bytes),
        ("connections", connections),
    ]
}

fn number(limit: u64) -> String {
    if limit == UNLIMITED { NONE.to_owned() } else { limit.to_string() }
}

fn said(quota: Quota) -> String {
    let said = columns(quota).into_iter().filter_map(|(name, limit)| match limit? {
        UNLIMITED => Some(format!("any number of {name}")),
        limit => Some(format!("{limit} {name}")),
    });
    said.collect::<Vec<_>>().join(", ")
}

fn json_of(quota: Quota) -> Value {
    let all = columns(quota).into_iter().filter_map(|(name, limit)| {
        let limit = limit?;
        let limit = if limit == UNLIMITED { json!(NONE) } else { json!(limit) };
        Some((name.replace(' ', "_"), limit))
    });
    Value::Object(all.collect())
}

fn list(quotas: &Quotas) -> (Value, String) {
    let Quotas { of_all, identities, left_out, .. } = quotas;
    let json = json!({
        "of_all": json_of(*of_all),
        "identities": identities.iter().map(|IdentityUsage { identity, quota, has, .. }| {
            json!({ "identity": identity, "quota": quota.map(json_of), "has": json_of(*has) })
        }).collect::<Vec<_>>(),
        "left_out": left_out,
    });
    let limit = |limit: Option<u64>| limit.map_or_else(|| "-".to_owned(), number);
    let first = std::iter::once(ALL.to_owned());
    let all = first.chain(columns(*of_all).map(|(_, most)| limit(most))).collect();
    let row = |IdentityUsage { identity, quota, has, .. }: &IdentityUsage| -> Vec<String> {
        let counts = quota.unwrap_or_default().over(*of_all);
        let cells = columns(*has).into_iter().zip(columns(counts));
        let cells = cells.map(|((_, has), (_, most))| match most {
            None | Some(UNLIMITED) => has.unwrap_or(0).to_string(),
            Some(most) => format!("{} of {most}", has.unwrap_or(0)),
        });
        std::iter::once(show::escaped(identity)).chain(cells).collect()
    };
    let rows = std::iter::once(all).chain(identities.iter().map(row));
    let titles = ["IDENTITY", "SESSIONS", "HOLDS", "WAITS", "VALUE BYTES", "CONNECTIONS"];
    let table = show::table(&titles, rows);
    let more = if *left_out > 0 { format!("\nand {left_out} more") } else { String::new() };
    (json, format!("{table}{more}"))
}
