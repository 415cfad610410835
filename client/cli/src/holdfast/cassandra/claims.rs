//! `holdfast cassandra ls` and `show`.

use clap::Args;
use comfy_table::Row;
use holdfast_cli::block_on;
use holdfast_cli::place::failure;
use holdfast_recipes::{Claim, ClaimState, ClaimedLock, Recipe};
use serde_json::{Value, json};

use super::Place;
use crate::args::Global;
use crate::failure::Failure;
use crate::show;

/// Which locks.
#[derive(Clone, Debug, Args)]
pub(super) struct LsArgs {
    /// The recipe: lease, queue, tokens-lwt, bakery, shadow or tokens-optimistic.
    recipe: Recipe,
    /// What the names begin with [default: all names].
    #[arg(default_value = "", hide_default_value = true)]
    prefix: String,
}

/// Which lock.
#[derive(Clone, Debug, Args)]
pub(super) struct ShowArgs {
    /// The recipe, as of ls.
    recipe: Recipe,
    /// The lock.
    name: String,
}

/// Lists the locks with their holders.
pub(super) fn ls(global: &Global, place: &Place, args: &LsArgs) -> Result<u8, Failure> {
    let locks = block_on(async {
        let cassandra = place.connect(Global::connect_limit(None)).await?;
        let layout = place.layout();
        args.recipe.claimed(&cassandra, &layout, &args.prefix).await.map_err(failure)
    })??;
    if global.json {
        for lock in &locks {
            show::line(as_json(lock));
        }
    } else if locks.is_empty() {
        show::line("no lock is held or waited for");
    } else {
        show::line(show::table(&["LOCK", "HOLDER", "LEFT", "OTHERS"], locks.iter().map(row)));
    }
    Ok(0)
}

/// Shows one lock with everybody who wants it.
pub(super) fn show(global: &Global, place: &Place, args: &ShowArgs) -> Result<u8, Failure> {
    let lock = block_on(async {
        let cassandra = place.connect(Global::connect_limit(None)).await?;
        let layout = place.layout();
        args.recipe.claims_of(&cassandra, &layout, &args.name).await.map_err(failure)
    })??;
    if global.json {
        show::line(as_json(&lock));
    } else if lock.claims.is_empty() {
        show::line(format_args!("{} is neither held nor waited for", show::escaped(&lock.lock)));
    } else {
        let row = |claim: &Claim| {
            vec![
                claim.state.as_str().to_owned(),
                show::escaped(&claim.name),
                left(claim),
                since(claim),
            ]
        };
        show::line(show::table(&["", "CLIENT", "LEFT", "SINCE"], lock.claims.iter().map(row)));
    }
    Ok(0)
}

fn row(lock: &ClaimedLock) -> Row {
    let holder = lock.claims.first().filter(|claim| claim.state == ClaimState::Holds);
    let others = lock.claims.len() - usize::from(holder.is_some());
    let others = match (others, lock.claims.last().map(|claim| claim.state)) {
        (0, _) | (_, None) => String::new(),
        (others, Some(ClaimState::Tries)) => format!("{others} trying"),
        (others, Some(_)) => format!("{others} waiting"),
    };
    let name = holder.map_or_else(|| "-".to_owned(), |holder| show::escaped(&holder.name));
    vec![show::escaped(&lock.lock), name, holder.map(left).unwrap_or_default(), others].into()
}

fn left(claim: &Claim) -> String {
    claim.left.map(show::length).unwrap_or_default()
}

fn since(claim: &Claim) -> String {
    let since = claim.since_ms.and_then(|since| u64::try_from(since).ok());
    since.map(show::time_of_day).unwrap_or_default()
}

fn as_json(lock: &ClaimedLock) -> Value {
    let claim = |claim: &Claim| {
        let since = claim.since_ms.and_then(|since| u64::try_from(since).ok());
        json!({
            "client": claim.name,
            "owner": claim.owner,
            "state": claim.state.as_str(),
            "left_ms": claim.left.map(show::millis),
            "since": since.and_then(show::instant),
        })
    };
    json!({ "lock": lock.lock, "claims": lock.claims.iter().map(claim).collect::<Vec<_>>() })
}
