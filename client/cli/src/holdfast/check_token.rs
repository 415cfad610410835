//! `holdfast check-token`.

use serde_json::json;

use crate::args::{CheckTokenArgs, Global};
use crate::failure::Failure;
use crate::{runtime, show};

/// The token is not that of a current grant of the lock.
const NOT_CURRENT: u8 = 1;

pub(crate) fn run(global: &Global, args: &CheckTokenArgs) -> Result<u8, Failure> {
    let reader = global.builder().reader()?;
    let current = runtime::block_on(reader.check_token(&args.name, args.token))??;
    if global.json {
        show::line(json!({
            "name": args.name,
            "token": args.token.to_string(),
            "current": current,
        }));
    } else {
        let name = show::escaped(&args.name);
        let is = if current { "is" } else { "is not" };
        show::line(format!("{name} {is} held under token {}", args.token));
    }
    Ok(if current { 0 } else { NOT_CURRENT })
}
