//! `holdfast cassandra housekeeper`.

use std::time::Duration;

use clap::Args;
use holdfast::Error;
use holdfast_cli::place::failure;
use holdfast_recipes::{Housekeeper, Removed, Sweep};
use holdfast_runtime::Runtime;
use serde_json::json;

use super::Place;
use crate::args::{Global, duration};
use crate::failure::{Failure, NOT_REACHED};
use crate::{show, signals};

/// The limits of the housekeeper.
#[derive(Clone, Debug, Args)]
pub(super) struct HousekeeperArgs {
    /// How long a session may be without a heartbeat; a session that was promised longer has
    /// longer.
    #[arg(long, value_parser = duration, default_value = "180s")]
    grace: Duration,
    /// How often to read the tables, 500ms at least [default: a sixth of the grace].
    #[arg(long, value_parser = interval)]
    every: Option<Duration>,
    /// Read the tables, wait for the grace, remove dead sessions, and end.
    #[arg(long)]
    once: bool,
}

/// Each sweep reads both tables whole: without a pause between sweeps that would be a heavy load.
fn interval(text: &str) -> Result<Duration, String> {
    let every = duration(text)?;
    if every < Duration::from_millis(500) {
        return Err(format!("{text:?} is too often: each look reads both tables; 500ms at least"));
    }
    Ok(every)
}

/// Sweeps until a signal asks to end.
pub(super) fn run(global: &Global, place: &Place, args: &HousekeeperArgs) -> Result<u8, Failure> {
    signals::until_asked_to_end(keep(global, place, args))
}

async fn keep(global: &Global, place: &Place, args: &HousekeeperArgs) -> Result<(), Failure> {
    let cassandra = place.connect(Global::connect_limit(None)).await?;
    let tokens = place.layout().tokens;
    let mut housekeeper = Housekeeper::new(&cassandra, tokens, args.grace).map_err(failure)?;
    let runtime = Runtime::system();
    if args.once {
        tell(global, &housekeeper.sweep().await.map_err(failure)?);
        runtime.sleep(args.grace).await;
        let sweep = housekeeper.sweep().await.map_err(failure)?;
        tell(global, &sweep);
        return all_answered(&sweep);
    }
    loop {
        match housekeeper.sweep().await {
            Ok(sweep) => tell(global, &sweep),
            // The cluster comes back, and the sessions seen so far stay known.
            Err(error @ Error::Unreachable { .. }) => failure(error).print("holdfast", global.json),
            Err(error) => return Err(failure(error)),
        }
        runtime.sleep(args.every.unwrap_or(args.grace / 6)).await;
    }
}

fn all_answered(sweep: &Sweep) -> Result<(), Failure> {
    match sweep.unanswered {
        0 => Ok(()),
        rows => {
            let message = format!("{rows} rows were not answered for; run it once more");
            Err(Failure::new(NOT_REACHED, message))
        }
    }
}

/// Prints one line for each removal.
fn tell(global: &Global, sweep: &Sweep) {
    for removed in &sweep.removed {
        let (json, text) = match removed {
            Removed::Session { session } => (
                json!({ "removed": "session", "session": session }),
                format!("session {} removed", show::escaped(session)),
            ),
            Removed::Token { token, session } => (
                json!({ "removed": "token", "token": token, "session": session }),
                format!("token {} removed, of {}", show::escaped(token), show::escaped(session)),
            ),
        };
        show::either(global.json, json, text);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_look_follows_another_without_a_pause() {
        assert_eq!(interval("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(interval("1m"), Ok(Duration::from_mins(1)));
        assert!(interval("0").unwrap_err().contains("500ms at least"));
        assert!(interval("soon").is_err());
    }
}
