//! Keeps a watch going: finds the leader, and goes on where the watch broke, or starts again.
//!
//! # Going on
//!
//! A server says with its events up to which index they are complete. A watch that breaks asks for what comes after
//! the last such index, but only if nothing of a later entry was reported: otherwise a part of that entry would be
//! reported twice. A server before 0.2 ignores that and begins with the state, so the answer counts only if it says
//! that the watch goes on.

use std::collections::VecDeque;
use std::time::Duration;

use futures_util::StreamExt;
use holdfast_mutants::mutant;
use holdfast_proto::v1;
use holdfast_runtime::{Instant, TransportError, Watched};

use super::WatchEvent;
use crate::endpoints::{NoAnswer, Over, Route, Tried};
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
    /// What was reported since the last `Restarted`.
    reported: Reported,
    tried: Tried,
    over: bool,
}

struct Line {
    endpoint: String,
    began: Instant,
    watched: Watched,
    /// It was asked to go on, and has not answered yet.
    goes_on: bool,
}

/// What a watch has reported, and how far it has come.
#[derive(Default)]
struct Reported {
    any: bool,
    /// Up to where it is complete, as of the server.
    complete: Option<v1::WatchResume>,
    /// The index of the last event.
    last: u64,
    /// The cluster, once a server has named it.
    cluster_id: bytes::Bytes,
    /// The watch broke, and has neither gone on nor begun anew.
    is_interrupted: bool,
}

impl Reported {
    /// Where the watch can go on: nothing was reported of an entry that is not complete.
    fn end(&self) -> Option<&v1::WatchResume> {
        self.complete.as_ref().filter(|complete| complete.after_index >= self.last)
    }

    fn add(&mut self, response: &v1::WatchResponse, last: Option<u64>) {
        if !response.cluster_id.is_empty() {
            self.cluster_id = response.cluster_id.clone();
        }
        self.last = last.unwrap_or(self.last);
        if response.complete_index > 0 && !self.cluster_id.is_empty() {
            let cluster_id = self.cluster_id.clone();
            let after_index = response.complete_index;
            self.complete = Some(v1::WatchResume { after_index, cluster_id });
        }
    }
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
            reported: Reported::default(),
            tried: Tried::default(),
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
            Some(Ok(response)) => self.arrived(&response),
            Some(Err(error)) => self.broke(error),
            None => self.broke(TransportError::Unavailable {
                message: "the server ended the watch".to_owned(),
                leader: None,
            }),
        }
    }

    fn arrived(&mut self, response: &v1::WatchResponse) -> Result<()> {
        if let Some(line) = self.line.as_mut().filter(|line| line.goes_on) {
            line.goes_on = false;
            if !response.resumed {
                // It does not know how. The state that it sends was asked for before `Restarted` is reported.
                let endpoint = line.endpoint.clone();
                self.start_again(endpoint);
                return Ok(());
            }
            self.reported.is_interrupted = false;
            self.told.push_back(WatchEvent::Resumed);
        }
        let Ok(events) = response.events() else {
            let endpoint = self.line.as_ref().map(|line| line.endpoint.clone());
            let detail = "an event cannot be decoded".to_owned();
            let endpoint = endpoint.unwrap_or_default();
            return self.broke(TransportError::Unreachable { endpoint, detail });
        };
        self.reported.add(response, events.last().map(|event| event.index));
        self.told.extend(events.into_iter().filter_map(WatchEvent::from_wire));
        self.reported.any |= !self.told.is_empty();
        self.limit = LookLimit::None;
        Ok(())
    }

    fn broke(&mut self, error: TransportError) -> Result<()> {
        if error == TransportError::Compacted {
            let endpoint = self.line.take().map(|line| line.endpoint);
            self.cannot_go_on(endpoint.unwrap_or_default());
            return Ok(());
        }
        if self.reported.end().is_none() {
            self.restarted();
        } else if !std::mem::replace(&mut self.reported.is_interrupted, true) {
            self.told.push_back(WatchEvent::Interrupted);
        }
        let mut at_the_same = None;
        if let Some(Line { endpoint, began, .. }) = self.line.take() {
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

    /// All that was reported is out of date, and nothing is known to go on from.
    fn restarted(&mut self) {
        let reported = std::mem::take(&mut self.reported);
        if reported.any && !mutant!(WatchRestartUntold) {
            self.told.push_back(WatchEvent::Restarted);
        }
    }

    /// The changes since the watch broke are not all kept any more.
    fn cannot_go_on(&mut self, endpoint: String) {
        self.told.push_back(WatchEvent::Compacted);
        self.start_again(endpoint);
    }

    /// Begins with the state, at the same server, which leads.
    fn start_again(&mut self, endpoint: String) {
        self.line = None;
        self.restarted();
        self.pause = self.route.failed(Over::Named(endpoint), &*self.reader.servers.runtime.rng);
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
        let resume = self.reported.end().cloned();
        let goes_on = resume.is_some();
        let request = v1::WatchRequest { prefix: self.prefix.clone(), resume };
        let asked = self.reader.transport.watch(&endpoint, request);
        match runtime.timeout(limit, asked).await {
            Ok(Ok(watched)) => {
                let began = runtime.clock.now();
                self.line = Some(Line { endpoint, began, watched, goes_on });
                Ok(())
            }
            Ok(Err(TransportError::Compacted)) => {
                self.cannot_go_on(endpoint);
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
        Err(self.reader.servers.unreachable(&self.tried))
    }

    /// Handles the end of an attempt or of its stream; `next` is the endpoint to try then, if
    /// known.
    fn failed(&mut self, error: TransportError, next: Option<String>) -> Result<()> {
        let next = match NoAnswer::from(error) {
            NoAnswer::Refused { reason, message } => {
                return Err(wire::refused(wire::refusal_reason(reason), message));
            }
            NoAnswer::Elsewhere { why, next: over, .. } => {
                self.tried.note(why, over.is_answer());
                next.map_or(over, Over::Named)
            }
        };
        tracing::debug!(prefix = self.prefix, why = self.tried.last(), "a watch is over");
        self.pause = self.route.failed(next, &*self.reader.servers.runtime.rng);
        Ok(())
    }
}
