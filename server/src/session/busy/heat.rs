//! How often locks are granted and asked for: counted where events are dispatched, while somebody asks.
//!
//! Two stretches of time are counted, the one that runs and the one before. There is room for [`NAMES_MAX`] names in each:
//! when it is full, the half that was counted least goes. So a lock that is hot stays, however many others come by once. At
//! a high rate only each [`SAMPLE`]th event is counted, so many times.

use std::collections::BTreeMap;
use std::time::Duration;

use holdfast_core::{Event, Item, LockName};
use holdfast_runtime::Instant;

use super::ASKED_WITHIN;

/// Names in a stretch.
const NAMES_MAX: usize = 2_048;
/// How long one stretch lasts.
const STRETCH: Duration = Duration::from_secs(5);
/// Above so many events in a stretch each [`SAMPLE`]th is counted.
const ALL_BELOW: u64 = 10_000;
const SAMPLE: u64 = 8;

/// How often something happened to a lock.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Rate {
    /// Grants a second.
    pub(crate) grants: f64,
    /// Requests that had to wait, a second.
    pub(crate) waits: f64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Count {
    grants: u64,
    waits: u64,
}

/// A stretch of time.
#[derive(Debug, Default)]
struct Stretch {
    events: u64,
    total: Count,
    counts: BTreeMap<LockName, Count>,
}

/// What is counted while somebody asks.
#[derive(Debug, Default)]
pub(in crate::session) struct Heat {
    /// Until when; `None`: nobody asks.
    until: Option<Instant>,
    began: Option<Instant>,
    running: Stretch,
    before: Stretch,
}

/// The rates of the locks that were counted, and of all together.
#[derive(Debug, Default)]
pub(crate) struct Rates {
    by_lock: BTreeMap<LockName, Rate>,
    total: Rate,
}

impl Heat {
    /// Whether events are to be counted: [`Heat::count`] is worth a call.
    pub(in crate::session) fn is_on(&self) -> bool {
        self.until.is_some()
    }

    /// Nothing is counted from here on: the tenure ends.
    pub(in crate::session) fn stop(&mut self) {
        *self = Self::default();
    }

    pub(super) fn asked(&mut self, now: Instant) {
        self.roll(now);
        self.began.get_or_insert(now);
        self.until = Some(now + ASKED_WITHIN);
    }

    /// Counts what happened, or notes that nobody asks any more.
    pub(in crate::session) fn count(&mut self, event: &Event, now: Instant) {
        let (items, count) = match event {
            Event::Granted { items, .. } => (items, Count { grants: 1, waits: 0 }),
            Event::Queued { items, .. } => (items, Count { grants: 0, waits: 1 }),
            _ => return,
        };
        if self.until.is_none_or(|until| until < now) {
            return self.stop();
        }
        self.roll(now);
        self.running.add(items, count);
    }

    /// Ends the stretch that runs, if it has lasted long enough.
    fn roll(&mut self, now: Instant) {
        let lasted = self.began.map_or(Duration::ZERO, |began| now.saturating_since(began));
        if lasted < STRETCH {
            return;
        }
        let ended = std::mem::take(&mut self.running);
        // Of two that passed without an event, the one before is empty too.
        self.before = if lasted < 2 * STRETCH { ended } else { Stretch::default() };
        self.began = Some(now);
    }

    pub(super) fn rates(&self, now: Instant) -> Rates {
        let running = self.began.map_or(Duration::ZERO, |began| now.saturating_since(began));
        let has_before = self.before.events > 0;
        let lasted = running + if has_before { STRETCH } else { Duration::ZERO };
        // A rate of the first moments says nothing.
        let seconds = lasted.as_secs_f64().max(0.5);
        let mut rates = Rates::default();
        for stretch in [&self.running, &self.before] {
            rates.total.add(stretch.total, seconds);
            for (name, count) in &stretch.counts {
                rates.by_lock.entry(name.clone()).or_default().add(*count, seconds);
            }
        }
        rates
    }
}

impl Rate {
    fn add(&mut self, count: Count, seconds: f64) {
        self.grants += number(count.grants) / seconds;
        self.waits += number(count.waits) / seconds;
    }
}

#[expect(clippy::cast_precision_loss, reason = "a rate for people")]
fn number(count: u64) -> f64 {
    count as f64
}

impl Stretch {
    fn add(&mut self, items: &[Item], count: Count) {
        self.events += 1;
        self.total.grants += count.grants;
        self.total.waits += count.waits;
        let times = if self.events < ALL_BELOW { 1 } else { SAMPLE };
        if !self.events.is_multiple_of(times) {
            return;
        }
        for item in items {
            if self.counts.len() >= NAMES_MAX && !self.counts.contains_key(&item.lock) {
                self.make_room();
            }
            let sum = self.counts.entry(item.lock.clone()).or_default();
            sum.grants += times * count.grants;
            sum.waits += times * count.waits;
        }
    }

    /// Forgets the half that was counted least.
    fn make_room(&mut self) {
        let mut all: Vec<_> = std::mem::take(&mut self.counts).into_iter().collect();
        all.sort_by_key(|(_, count)| std::cmp::Reverse(count.grants + count.waits));
        all.truncate(NAMES_MAX / 2);
        self.counts = all.into_iter().collect();
    }
}

impl Rates {
    pub(crate) fn of(&self, name: &LockName) -> Rate {
        self.by_lock.get(name).copied().unwrap_or_default()
    }

    /// Of all locks together, each request once.
    pub(crate) fn total(&self) -> Rate {
        self.total
    }

    /// The locks of a prefix that were counted.
    pub(super) fn names(&self, prefix: &str) -> impl Iterator<Item = LockName> {
        self.by_lock.keys().filter(move |name| name.as_str().starts_with(prefix)).cloned()
    }
}

#[cfg(test)]
mod tests {
    use holdfast_core::{FencingToken, RequestId, SessionId};

    use super::*;

    fn granted(name: &str) -> Event {
        Event::Granted {
            session: SessionId::new(1),
            request: RequestId::new(1),
            token: FencingToken::from_raw(1),
            items: Item::exclusive(LockName::parse(name).unwrap()).into(),
            values: Vec::new(),
        }
    }

    fn at(seconds: f64) -> Instant {
        Instant::from_origin(Duration::from_secs(1_000) + Duration::from_secs_f64(seconds))
    }

    fn rate(heat: &Heat, name: &str, now: Instant) -> f64 {
        heat.rates(now).of(&LockName::parse(name).unwrap()).grants
    }

    #[test]
    fn nothing_is_counted_unless_somebody_asks_and_soon_after_nobody_does() {
        let mut heat = Heat::default();
        assert!(!heat.is_on());
        heat.asked(at(0.0));
        heat.count(&granted("a"), at(1.0));
        assert!((rate(&heat, "a", at(1.0)) - 1.0).abs() < 0.01);
        heat.count(&granted("a"), at(31.0));
        assert!(!heat.is_on());
    }

    #[test]
    fn a_rate_is_that_of_the_last_seconds() {
        let mut heat = Heat::default();
        heat.asked(at(0.0));
        for tenth in 0..200_u32 {
            let now = at(f64::from(tenth) / 10.0);
            heat.asked(now);
            let name = if tenth < 100 { "early" } else { "late" };
            heat.count(&granted(name), now);
        }
        assert!((rate(&heat, "late", at(20.0)) - 10.0).abs() < 1.5, "{heat:?}");
        assert!(rate(&heat, "early", at(20.0)).abs() < 0.01);
        heat.asked(at(29.9));
        heat.asked(at(45.0));
        assert!(rate(&heat, "late", at(45.0)).abs() < 0.01, "nothing happened since");
    }

    #[test]
    fn a_hot_lock_stays_among_very_many_that_come_by_once() {
        let mut heat = Heat::default();
        heat.asked(at(0.0));
        for nth in 0..40_000 {
            heat.count(&granted(&format!("once-{nth}")), at(1.0));
            if nth % 10 == 0 {
                heat.count(&granted("hot"), at(1.0));
            }
        }
        assert!(heat.running.counts.len() <= NAMES_MAX);
        let hot = rate(&heat, "hot", at(4.0));
        assert!((500.0..1_500.0).contains(&hot), "{hot} a second of 1,000");
    }
}
