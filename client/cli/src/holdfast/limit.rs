//! `holdfast limit`: up to how many permits of a lock are held at a time.

use holdfast_cli::block_on;
use serde_json::json;

use crate::args::{Global, LimitArgs, PermitsOrNone};
use crate::failure::Failure;
use crate::show;

/// Sets the limit, and says so.
pub(crate) fn set(global: &Global, args: &LimitArgs) -> Result<u8, Failure> {
    let LimitArgs { name, permits: PermitsOrNone(permits), limit } = args;
    let admin = global.builder()?.admin(limit.timeout)?;
    block_on(admin.set_limit(name, *permits))??;
    let shown = show::escaped(name);
    let text = match permits {
        Some(1) => format!("of {shown}, one permit is held at a time"),
        Some(permits) => format!("of {shown}, up to {permits} permits are held at a time"),
        None => format!("{shown} has no limit that was set for good"),
    };
    show::either(global.json, json!({ "name": name, "limit": permits }), text);
    Ok(0)
}
