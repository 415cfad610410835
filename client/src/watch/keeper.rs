//! Keeps a watch going: finds who leads, and begins anew when it breaks.

use std::collections::VecDeque;
use std::time::Duration;

use futures_util::StreamExt;
use holdfast_mutants::mutant;
use holdfast_proto::v1;
use holdfast_seams::{Moment, TransportError, Watched};

use super::WatchEvent;
use crate::endpoints::Route;
use crate::reader::{self, ATTEMPT_LIMIT, Reader};
use crate::{Error, Result};

/// The longest delay between two rounds of attempts.
const DELAY_MAX: Duration = Duration::from_secs(1);
/// A watch that lived shorter than this counts as a failed attempt when it comes to delays.
const LIFE_MIN: Duration = Duration::from_secs(1);

/// One watch after the other.
pub(super) struct Keeper {
    reader: Reader,
    prefix: String,
    route: Route,
    /// The watch that runs.
    line: Option<Line>,
    /// What it told and nobody has taken yet.
    told: VecDeque<WatchEvent>,
    /// Before the next attempt.
    pause: Option<Duration>,
    patience: Patience,
    /// Something was told since the last break, and counts until `Restarted`.
    counts: bool,
    /// What the last attempt said.
    last: String,
    over: bool,
}

/// A watch at one server.
struct Line {
    endpoint: String,
    began: Moment,
    watched: Watched,
}

/// How long servers are looked for.
#[derive(Clone, Copy)]
enum Patience {
    /// Nobody has polled yet.
    NotBegun,
    /// Until then.
    Until(Moment),
    /// For ever: something was told.
    Endless,
}

impl Keeper {
    pub(super) fn new(reader: Reader, prefix: String) -> Self {
        let route = Route::new(reader.endpoints().to_vec(), DELAY_MAX);
        Self {
            reader,
            prefix,
            route,
            line: None,
            told: VecDeque::new(),
            pause: None,
            patience: Patience::NotBegun,
            counts: false,
            last: "nobody answered yet".to_owned(),
            over: false,
        }
    }

    /// The next event; `None` after an error.
    pub(super) async fn next(&mut self) -> Option<Result<WatchEvent>> {
        while !self.over {
            if let Some(event) = self.told.pop_front() {
                return Some(Ok(event));
            }
            let step = match &mut self.line {
                Some(line) => {
                    let heard = line.watched.next().await;
                    self.take_in(heard)
                }
                None => self.connect().await,
            };
            if let Err(error) = step {
                self.over = true;
                return Some(Err(error));
            }
        }
        None
    }

    fn take_in(&mut self, heard: Option<Result<v1::WatchResponse, TransportError>>) -> Result<()> {
        match heard {
            Some(Ok(response)) => {
                self.told.extend(response.events.into_iter().filter_map(WatchEvent::from_wire));
                self.counts |= !self.told.is_empty();
                self.patience = Patience::Endless;
                Ok(())
            }
            Some(Err(error)) => self.broke(error),
            None => self.broke(TransportError::Unavailable {
                message: "the server ended the watch".to_owned(),
                leader: None,
            }),
        }
    }

    /// The watch that ran is over.
    fn broke(&mut self, error: TransportError) -> Result<()> {
        let line = self.line.take();
        if std::mem::take(&mut self.counts) && !mutant!(WatchRestartUntold) {
            self.told.push_back(WatchEvent::Restarted);
        }
        let mut at_the_same = None;
        if let Some(Line { endpoint, began, .. }) = line {
            let lived = self.reader.seams().clock.now().saturating_since(began);
            if lived >= LIFE_MIN {
                self.route.succeeded();
            }
            at_the_same = Some(endpoint);
        }
        // Whoever cut a slow reader leads.
        let served_us = error == TransportError::TooSlow;
        self.failed(error, at_the_same.filter(|_| served_us))
    }

    /// Tries one server, within what is left of our patience.
    async fn connect(&mut self) -> Result<()> {
        let seams = self.reader.seams().clone();
        let left = self.patience_left()?;
        if let Some(pause) = self.pause.take() {
            seams.sleep(left.map_or(pause, |left| pause.min(left))).await;
        }
        let left = self.patience_left()?;
        let limit = left.map_or(ATTEMPT_LIMIT, |left| left.min(ATTEMPT_LIMIT));
        let endpoint = self.route.next();
        let request = v1::WatchRequest { prefix: self.prefix.clone() };
        let asked = self.reader.transport().watch(&endpoint, request);
        match seams.timeout(limit, asked).await {
            Ok(Ok(watched)) => {
                let began = seams.clock.now();
                self.line = Some(Line { endpoint, began, watched });
                Ok(())
            }
            Ok(Err(error)) => self.failed(error, None),
            Err(_) => {
                let detail = "no answer".to_owned();
                self.failed(TransportError::Unreachable { endpoint, detail }, None)
            }
        }
    }

    /// How long servers are still looked for; `None`: for ever.
    fn patience_left(&mut self) -> Result<Option<Duration>> {
        let now = self.reader.seams().clock.now();
        let until = match self.patience {
            Patience::Endless => return Ok(None),
            Patience::Until(until) => until,
            Patience::NotBegun => now + self.reader.limit(),
        };
        self.patience = Patience::Until(until);
        if now < until {
            return Ok(Some(until.saturating_since(now)));
        }
        Err(Error::Unreachable {
            endpoints: self.reader.endpoints().to_vec(),
            waited: self.reader.limit(),
            last: self.last.clone(),
        })
    }

    /// An attempt, or what it led to, is over; `next` is whom to try then, if that is known.
    fn failed(&mut self, error: TransportError, next: Option<String>) -> Result<()> {
        let next = match error {
            TransportError::Refused { message } => return Err(reader::refused(message)),
            TransportError::Unavailable { message, leader } => {
                self.last = message;
                leader
            }
            other => {
                self.last = other.to_string();
                next
            }
        };
        tracing::debug!(prefix = self.prefix, why = self.last, "a watch is over");
        self.pause = self.route.failed(next, &*self.reader.seams().rng);
        Ok(())
    }
}
