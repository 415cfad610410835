//! Keeps a watch going: finds the leader, and starts again when the watch breaks.

use std::collections::VecDeque;
use std::time::Duration;

use futures_util::StreamExt;
use holdfast_mutants::mutant;
use holdfast_proto::v1;
use holdfast_runtime::{Instant, TransportError, Watched};

use super::WatchEvent;
use crate::endpoints::{NoAnswer, Route};
use crate::reader::{ATTEMPT_LIMIT, Reader};
use crate::{Result, wire};

/// The longest delay between two rounds of attempts.
const DELAY_MAX: Duration = Duration::from_secs(1);
/// A watch that ran shorter than this counts as a failed attempt for the delays.
const LIFE_MIN: Duration = Duration::from_secs(1);

/// A watch across restarts: one stream after the other.
pub(super) struct WatchStream {
    reader: Reader,
    prefix: String,
    route: Route,
    line: Option<Line>,
    told: VecDeque<WatchEvent>,
    pause: Option<Duration>,
    limit: LookLimit,
    /// Events came since the last break; they are valid until `Restarted`.
    counts: bool,
    last: String,
    over: bool,
}

struct Line {
    endpoint: String,
    began: Instant,
    watched: Watched,
}

/// How long the watch looks for a server.
#[derive(Clone, Copy)]
enum LookLimit {
    /// Before the first poll.
    NotBegun,
    /// Until then.
    Until(Instant),
    /// For ever: events have come.
    None,
}

impl WatchStream {
    pub(super) fn new(reader: Reader, prefix: String) -> Self {
        let route = Route::new(reader.servers.endpoints.to_vec(), DELAY_MAX);
        Self {
            reader,
            prefix,
            route,
            line: None,
            told: VecDeque::new(),
            pause: None,
            limit: LookLimit::NotBegun,
            counts: false,
            last: "nobody answered yet".to_owned(),
            over: false,
        }
    }

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
                self.limit = LookLimit::None;
                Ok(())
            }
            Some(Err(error)) => self.broke(error),
            None => self.broke(TransportError::Unavailable {
                message: "the server ended the watch".to_owned(),
                leader: None,
            }),
        }
    }

    fn broke(&mut self, error: TransportError) -> Result<()> {
        let line = self.line.take();
        if std::mem::take(&mut self.counts) && !mutant!(WatchRestartUntold) {
            self.told.push_back(WatchEvent::Restarted);
        }
        let mut at_the_same = None;
        if let Some(Line { endpoint, began, .. }) = line {
            let lived = self.reader.servers.runtime.clock.now().saturating_since(began);
            if lived >= LIFE_MIN {
                self.route.succeeded();
            }
            at_the_same = Some(endpoint);
        }
        // Only the leader cuts a slow reader.
        let served_us = error == TransportError::TooSlow;
        self.failed(error, at_the_same.filter(|_| served_us))
    }

    /// Tries one server, within the rest of the time limit.
    async fn connect(&mut self) -> Result<()> {
        let runtime = self.reader.servers.runtime.clone();
        let left = self.time_left()?;
        if let Some(pause) = self.pause.take() {
            runtime.sleep(left.map_or(pause, |left| pause.min(left))).await;
        }
        let left = self.time_left()?;
        let limit = left.map_or(ATTEMPT_LIMIT, |left| left.min(ATTEMPT_LIMIT));
        let endpoint = self.route.next();
        let request = v1::WatchRequest { prefix: self.prefix.clone() };
        let asked = self.reader.transport.watch(&endpoint, request);
        match runtime.timeout(limit, asked).await {
            Ok(Ok(watched)) => {
                let began = runtime.clock.now();
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

    /// How long the watch still looks for a server; `None`: for ever.
    fn time_left(&mut self) -> Result<Option<Duration>> {
        let now = self.reader.servers.runtime.clock.now();
        let until = match self.limit {
            LookLimit::None => return Ok(None),
            LookLimit::Until(until) => until,
            LookLimit::NotBegun => now + self.reader.servers.limit,
        };
        self.limit = LookLimit::Until(until);
        if now < until {
            return Ok(Some(until.saturating_since(now)));
        }
        Err(self.reader.servers.unreachable(self.last.clone()))
    }

    /// Handles the end of an attempt or of its stream; `next` is the endpoint to try then, if
    /// known.
    fn failed(&mut self, error: TransportError, next: Option<String>) -> Result<()> {
        let next = match NoAnswer::from(error) {
            NoAnswer::Refused { reason, message } => {
                return Err(wire::refused(wire::refusal_reason(reason), message));
            }
            NoAnswer::Elsewhere { why, leader, .. } => {
                self.last = why;
                leader.or(next)
            }
        };
        tracing::debug!(prefix = self.prefix, why = self.last, "a watch is over");
        self.pause = self.route.failed(next, &*self.reader.servers.runtime.rng);
        Ok(())
    }
}
