//! `holdfast cassandra clock`.

use std::path::Path;
use std::time::Duration;

use clap::Args;
use holdfast::{Error, Result as Answered};
use holdfast_cli::place::failure;
use holdfast_cli::tls::TlsArgs;
use holdfast_recipes::{TimeOptions, TimePort, TimeReplica, TimeUpdate};
use holdfast_runtime::select;

use super::Place;
use crate::args::{Global, duration};
use crate::failure::{Failure, OWN_ERROR};
use crate::{show, signals};

/// The address of a replica, and how it keeps the time.
#[derive(Clone, Debug, Args)]
pub(super) struct ClockArgs {
    /// The address for `holdfast.v1.TimeService`: host:port; port 0 is any free port.
    #[arg(long, value_name = "HOST:PORT")]
    listen: String,
    /// How often to update the cell, 10ms to 1m: calls between two updates may get the same time.
    #[arg(long, value_parser = interval, default_value = "500ms")]
    interval: Duration,
    /// How far this machine's clock may be ahead of a Cassandra node's; a time beyond that is not
    /// written to the cell.
    #[arg(long, value_parser = duration, default_value = "60s")]
    max_ahead: Duration,
}

fn interval(text: &str) -> Result<Duration, String> {
    let interval = duration(text)?;
    let (least, most) = (TimeOptions::INTERVAL_MIN, TimeOptions::INTERVAL_MAX);
    if (least..=most).contains(&interval) {
        return Ok(interval);
    }
    Err(format!("{text:?} is not between {least:?} and {most:?}"))
}

/// Serves the time until a signal asks to end.
pub(super) fn run(global: &Global, place: &Place, args: &ClockArgs) -> Result<u8, Failure> {
    signals::until_asked_to_end(keep(global, place, args))
}

async fn keep(global: &Global, place: &Place, args: &ClockArgs) -> Result<(), Failure> {
    let port = secured(TimePort::listen(&args.listen).await?, &global.tls)?;
    let cassandra = place.connect(Global::connect_limit(None)).await?;
    let options = TimeOptions::default().interval(args.interval).max_ahead(args.max_ahead);
    let replica = TimeReplica::new(&cassandra, place.layout().time, options).map_err(failure)?;
    let mut said = Said::default();
    let mut tell = |updated: &Answered<TimeUpdate>| match updated {
        Ok(update) => said.news(update).iter().for_each(|news| news.print(global)),
        // A refusal ends the replica and is reported there; after other errors the next update may
        // succeed.
        Err(Error::Refused { .. }) => {}
        Err(_) if said.is_silent => {}
        Err(error) => {
            said.is_silent = true;
            failure(error.clone()).print("holdfast", global.json);
        }
    };
    let first = replica.update().await;
    tell(&first);
    if let Err(refused @ Error::Refused { .. }) = first {
        return Err(failure(refused));
    }
    let address = port.address().to_string();
    let json = serde_json::json!({ "listening": address });
    show::either(global.json, json, format_args!("listening on {address}"));
    select! {
        error = replica.keep(&mut tell) => Err(failure(error)),
        served = replica.answer_at(port) => Ok(served?),
    }
}

/// The port as the options for TLS and tokens say: here they are the servers'.
fn secured(mut port: TimePort, tls: &TlsArgs) -> Result<TimePort, Failure> {
    match (tls.own()?, tls.ca()) {
        (Some((cert, key)), clients) => port = port.tls(cert, key, clients.map(Path::to_owned))?,
        (None, Some(_)) => {
            let message = "--ca needs --cert and --key here: with them the time service speaks TLS";
            return Err(Failure::new(OWN_ERROR, message));
        }
        (None, None) => {}
    }
    match tls.token()? {
        Some(token) => Ok(port.token(&token)?),
        None => Ok(port),
    }
}

/// The news that were printed: each once, and again when it has passed and comes back.
#[derive(Debug, Default)]
struct Said {
    is_ahead: bool,
    is_disbelieved: bool,
    is_silent: bool,
}

/// News for the operator.
#[derive(Debug, PartialEq, Eq)]
enum News {
    /// The time is ahead of this machine's clock.
    Ahead(Duration),
    /// This machine's clock is further ahead than it may be.
    Disbelieved(Duration),
}

impl Said {
    /// A smaller difference between two clocks is not reported.
    const AHEAD_MIN: Duration = Duration::from_secs(1);

    fn news(&mut self, update: &TimeUpdate) -> Vec<News> {
        self.is_silent = false;
        let ahead = update.ahead();
        let mut news = Vec::new();
        if ahead > Self::AHEAD_MIN && !self.is_ahead {
            self.is_ahead = true;
            news.push(News::Ahead(ahead));
        }
        // Not as soon as it is less: a clock that is behind by just that much would be reported
        // again and again.
        self.is_ahead &= ahead > Self::AHEAD_MIN / 2;
        // Only once: with one node whose clock is wrong, it comes and goes with the node that
        // answers.
        if !update.disbelieved.is_zero() && !self.is_disbelieved {
            self.is_disbelieved = true;
            news.push(News::Disbelieved(update.disbelieved));
        }
        news
    }
}

impl News {
    fn print(&self, global: &Global) {
        let line = match self {
            Self::Ahead(by) if global.json => {
                serde_json::json!({ "ahead_ms": show::millis(*by) }).to_string()
            }
            Self::Disbelieved(by) if global.json => {
                serde_json::json!({ "disbelieved_ms": show::millis(*by) }).to_string()
            }
            Self::Ahead(by) => format!(
                "the time is {:.1} s ahead of this machine's clock: that of another replica is, or was, ahead",
                by.as_secs_f64()
            ),
            Self::Disbelieved(by) => format!(
                "this machine's clock is not believed: it is {:.1} s further ahead of a Cassandra node's than \
                 --max-ahead allows; look at both clocks",
                by.as_secs_f64()
            ),
        };
        show::line(line);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn update(ahead_ms: u64, disbelieved_ms: u64) -> TimeUpdate {
        let local_us = 1_000_000_000;
        TimeUpdate {
            time_us: Some(local_us + ahead_ms * 1_000),
            local_us,
            disbelieved: Duration::from_millis(disbelieved_ms),
        }
    }

    #[test]
    fn what_is_so_is_said_once_and_again_when_it_comes_back() {
        let mut said = Said::default();
        let ahead = |ms| vec![News::Ahead(Duration::from_millis(ms))];
        assert_eq!(said.news(&update(900, 0)), []);
        assert_eq!(said.news(&update(1_001, 0)), ahead(1_001));
        assert_eq!(said.news(&update(5_000, 0)), []);
        assert_eq!(said.news(&update(700, 0)), []);
        assert_eq!(said.news(&update(1_200, 0)), [], "it hangs about there");
        assert_eq!(said.news(&update(400, 0)), []);
        assert_eq!(said.news(&update(1_200, 7)), {
            let mut both = ahead(1_200);
            both.push(News::Disbelieved(Duration::from_millis(7)));
            both
        });
        assert_eq!(said.news(&update(1_200, 7)), []);
    }

    #[test]
    fn an_interval_is_refused_out_of_bounds() {
        assert_eq!(interval("10ms"), Ok(Duration::from_millis(10)));
        assert_eq!(interval("1m"), Ok(Duration::from_mins(1)));
        for wrong in ["9ms", "0", "2m", "often"] {
            assert!(interval(wrong).is_err(), "{wrong}");
        }
    }
}
