//! Frames that free something and that an overloaded server refused: sent again on the same stream,
//! later.
//!
//! A new stream would cost the server far more than the refused frame: a connection, a quorum round
//! and a State, after which the client sends the same frame again. So a release, a cancel, a clear
//! or confirm of a value, and a close that are refused for now wait here until the server has had a
//! pause. Nothing else changes: the guard is unsafe (DESIGN §5.6), the request keeps its phase and
//! its id, `done_below` does not pass it, and its caller waits until its own limit.
//!
//! One exception: a cancel that is refused because the table has no room to remember its id as spent
//! is confirmed at once. What takes that room may be requests that are over and have higher ids: while
//! `done_below` stands still they stay, and each refuses the cancel again, for ever (I31). Confirmed,
//! the id needs no room. An Acquire under it that arrives later lies below `done_below` and is refused,
//! whatever stream it was sent on; one that came first is live, and the cancel ends it, below
//! `done_below` too (I12).
//!
//! The client leaves the stream, and the next State shows the truth, when a server refuses a
//! release for any other reason than "not the holder"; when a server answers UNAVAILABLE, because
//! another one may lead; and when a server refuses more frames than the client sent.
//!
//! # Bounds
//!
//! At most [`REQUESTS_MAX`] intents wait here, each once, and all of them for one instant; pauses
//! are at most [`PAUSE_MAX`] and half of that.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use holdfast_proto::v1;
use holdfast_runtime::Instant;

use super::{Intent, Machine, REQUESTS_MAX, Reason, StreamEnd};
use crate::session::request::{Key, Phase};
use holdfast_guard::spread;

/// The first pause, if the server names none.
const PAUSE: Duration = Duration::from_millis(100);
/// The shortest pause, whatever the server names.
const PAUSE_MIN: Duration = Duration::from_millis(10);
/// The longest pause, before jitter: a caller waits for a release as long as its lease, 1 s at
/// least.
const PAUSE_MAX: Duration = Duration::from_secs(2);

#[derive(Debug, Default)]
pub(super) struct Retries {
    what: BTreeSet<Intent>,
    at: Option<Instant>,
    /// The pause that the server last named.
    asked: Option<Duration>,
    /// Rounds of retries since the server last did one of these operations.
    rounds: u32,
    /// Refused releases of a hold, where several are under way and the refusal does not name the
    /// one it means.
    unclear: BTreeMap<Key, usize>,
}

impl Retries {
    pub(super) fn at(&self) -> Option<Instant> {
        self.at
    }

    /// Records that the server did one of these operations: it has room again.
    pub(super) fn begin_anew(&mut self) {
        self.rounds = 0;
    }

    pub(super) fn has(&self, intent: Intent) -> bool {
        self.what.contains(&intent)
    }
}

/// Whether the server may accept the same frame a little later.
pub(super) fn is_for_now(refusal: &v1::Refusal) -> bool {
    let reason = refusal.reason();
    refusal.retry_after_ms.is_some() || matches!(reason, Reason::Limit | Reason::DiskReserve)
}

/// Whether the table has no room for one more request, not even for the id of a cancelled one.
pub(super) fn wants_room(refusal: &v1::Refusal) -> bool {
    matches!(refusal.limit.as_str(), "max_requests_per_session" | "max_table_bytes")
}

impl Machine {
    /// Schedules a retry, after the pause that the refusal names.
    pub(super) fn put_off(&mut self, intent: Intent, refusal: &v1::Refusal) -> Option<StreamEnd> {
        self.note_pause(refusal);
        self.put_off_until_then(intent)
    }

    fn note_pause(&mut self, refusal: &v1::Refusal) {
        self.retries.asked = refusal.retry_after_ms.map(Duration::from_millis);
        self.plan_retry();
    }

    fn plan_retry(&mut self) {
        if self.retries.at.is_some() {
            return;
        }
        let asked = self.retries.asked.unwrap_or(PAUSE).max(PAUSE_MIN);
        let grown = asked.saturating_mul(2_u32.saturating_pow(self.retries.rounds));
        let pause = spread(grown.min(PAUSE_MAX), &*self.rng);
        self.retries.at = Some(self.clock.now() + pause);
    }

    fn put_off_until_then(&mut self, intent: Intent) -> Option<StreamEnd> {
        self.plan_retry();
        self.retries.what.insert(intent);
        let too_many = self.retries.what.len() > REQUESTS_MAX;
        too_many.then(|| StreamEnd::failed("the server refused more than it was asked"))
    }

    pub(super) fn retry_what_is_due(&mut self) {
        if self.retries.at.is_none_or(|at| self.clock.now() < at) {
            return;
        }
        self.retries.at = None;
        let requests = &self.requests;
        self.retries.unclear.retain(|key, _| requests.get(*key).is_some());
        let due = std::mem::take(&mut self.retries.what);
        if !due.is_empty() {
            self.retries.rounds = self.retries.rounds.saturating_add(1);
        }
        self.to_send.extend(due);
    }

    /// Handles a refusal for now of one of the releases of a hold that are under way.
    pub(super) fn put_off_release(&mut self, key: Key, refusal: &v1::Refusal) -> Option<StreamEnd> {
        self.note_pause(refusal);
        *self.retries.unclear.entry(key).or_default() += 1;
        self.settle_refused(key)
    }

    /// Each copy of a release has one answer: when as many releases of a hold were refused as are
    /// under way, the refusals mean exactly these.
    pub(super) fn settle_refused(&mut self, key: Key) -> Option<StreamEnd> {
        let refused = *self.retries.unclear.get(&key)?;
        let under_way = self.releases_under_way(key);
        if under_way.len() > refused {
            return None;
        }
        self.retries.unclear.remove(&key);
        under_way.into_iter().find_map(|intent| {
            self.copy_did_nothing(intent);
            self.put_off_until_then(intent)
        })
    }

    fn releases_under_way(&self, key: Key) -> Vec<Intent> {
        let Some(request) = self.requests.get(key) else { return Vec::new() };
        let parts = request.parts.iter().filter(|part| part.sent > 0);
        let mut releases: Vec<_> = parts.map(|part| Intent::ReleaseNames(key, part.key)).collect();
        if matches!(&request.phase, Phase::GivingBack(giving) if giving.sent > 0) {
            releases.push(Intent::Release(key));
        }
        releases.retain(|release| !self.retries.has(*release));
        releases
    }

    /// Uncounts a copy that was refused: it explains no answer to a later one.
    fn copy_did_nothing(&mut self, intent: Intent) {
        let (Intent::Release(key) | Intent::ReleaseNames(key, _)) = intent else { return };
        let Some(request) = self.requests.get_mut(key) else { return };
        let sent = match intent {
            Intent::ReleaseNames(_, part) => {
                let part = request.parts.iter_mut().find(|one| one.key == part);
                part.map(|part| &mut part.sent)
            }
            _ => match &mut request.phase {
                Phase::GivingBack(giving) => Some(&mut giving.sent),
                _ => None,
            },
        };
        if let Some(sent) = sent {
            *sent = sent.saturating_sub(1);
        }
    }
}
