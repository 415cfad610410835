//! `holdfast freeze`, `thaw` and `freezes`: names of which nothing is granted.

use holdfast::Freeze;
use holdfast_cli::block_on;
use serde_json::{Value, json};

use crate::args::{ClusterLimit, Global};
use crate::failure::Failure;
use crate::show;

/// Freezes names, and says so.
pub(crate) fn set(
    global: &Global,
    prefix: &str,
    message: &str,
    limit: &ClusterLimit,
) -> Result<u8, Failure> {
    let admin = global.builder()?.admin(limit.timeout)?;
    block_on(admin.freeze(prefix, message))??;
    let text = format!("nothing of {} is granted until it is thawed", names(prefix));
    show::either(global.json, json!({ "frozen": prefix }), text);
    Ok(0)
}

/// Lifts a freeze, and says so.
pub(crate) fn lift(global: &Global, prefix: &str, limit: &ClusterLimit) -> Result<u8, Failure> {
    let admin = global.builder()?.admin(limit.timeout)?;
    block_on(admin.thaw(prefix))??;
    let text = format!("{} may be granted again, unless frozen by another prefix", names(prefix));
    show::either(global.json, json!({ "thawed": prefix }), text);
    Ok(0)
}

/// Lists the freezes: for programs one line for each.
pub(crate) fn list(global: &Global) -> Result<u8, Failure> {
    let admin = global.builder()?.admin(Global::connect_limit(None))?;
    let freezes = block_on(admin.freezes())??;
    if global.json {
        for freeze in &freezes {
            show::line(as_json(freeze));
        }
    } else if freezes.is_empty() {
        show::line("nothing is frozen");
    } else {
        show::line(show::table(&["NAMES", "BY", "FOR", "MESSAGE"], freezes.iter().map(row)));
    }
    Ok(0)
}

fn row(freeze: &Freeze) -> [String; 4] {
    let (by, message) = (show::escaped(&freeze.identity), show::escaped(&freeze.message));
    [names(&freeze.prefix), by, show::length(freeze.frozen), message]
}

/// For programs.
pub(crate) fn as_json(freeze: &Freeze) -> Value {
    json!({
        "prefix": freeze.prefix,
        "identity": freeze.identity,
        "frozen_ms": show::millis(freeze.frozen),
        "message": freeze.message,
    })
}

/// `frozen by cn:ops for 3 s: "the disk is full"`.
pub(crate) fn text(freeze: &Freeze) -> String {
    let by = match &*freeze.identity {
        "" => String::new(),
        by => format!(" by {}", show::escaped(by)),
    };
    let message = match &*freeze.message {
        "" => String::new(),
        message => format!(": \"{}\"", show::escaped(message)),
    };
    format!("frozen{by} for {}{message}", show::length(freeze.frozen))
}

/// The names of a freeze, for people.
pub(crate) fn names(prefix: &str) -> String {
    if prefix.is_empty() { "all names".into() } else { format!("{}…", show::escaped(prefix)) }
}
