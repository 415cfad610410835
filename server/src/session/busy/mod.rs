//! The locks that matter most: the hottest, those with the longest queues, those held longest.
//!
//! Nothing of it is kept while nobody asks. While somebody does, the leader counts grants and comers by lock
//! ([`heat`]), and looks at all locks of the prefix in turn ([`survey`]), a page at a time with pauses, so that a table of a
//! million locks costs it less than a hundredth of a core. What is answered is read from the table as it is; only
//! which locks are candidates comes from the last look.

pub(crate) mod heat;
mod survey;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use holdfast_core::LockName;
use holdfast_runtime::Instant;

use self::heat::Rates;
use self::survey::Survey;
use super::Hub;
use super::registry::Registry;
use crate::consensus::Consensus;

/// Somebody who has not asked for so long has gone.
const ASKED_WITHIN: Duration = Duration::from_secs(30);
/// Prefixes that are looked at at the same time; of more, the one that nobody has asked for the longest makes room.
const SURVEYS_MAX: usize = 16;
/// Pages that a first question waits for: all of a small table.
const PAGES_AT_ONCE: usize = 4;
/// Pause between two pages.
const BETWEEN_PAGES: Duration = Duration::from_millis(150);
/// A look that is older is begun anew when somebody asks.
const FRESH_FOR: Duration = Duration::from_secs(1);

/// By which measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// Most grants and comers lately.
    Hottest,
    /// Most waiters.
    LongestQueue,
    /// Held by one holder for the longest time.
    LongestHeld,
}

/// What a look has found.
#[derive(Debug, Default)]
pub(crate) struct Busiest {
    /// Candidates, in no order: more than are asked for, and some that are not busy any more.
    pub(crate) names: Vec<LockName>,
    /// How often they were granted and asked for.
    pub(crate) rates: Rates,
    /// All locks of the prefix have been looked at since somebody began to ask.
    pub(crate) is_whole: bool,
}

/// The looks that are under way, by prefix.
#[derive(Debug, Default)]
pub(super) struct Surveys(Mutex<BTreeMap<String, Arc<Mutex<Survey>>>>);

impl Surveys {
    /// The look at a prefix, which somebody asks for now.
    fn of(&self, prefix: &str, now: Instant) -> Arc<Mutex<Survey>> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if !all.contains_key(prefix) && all.len() >= SURVEYS_MAX {
            let asked = |survey: &Arc<Mutex<Survey>>| lock(survey).asked;
            let oldest = all.iter().min_by_key(|(_, survey)| asked(survey));
            let oldest = oldest.map(|(prefix, _)| prefix.clone());
            oldest.map(|prefix| all.remove(&prefix));
        }
        let survey = all.entry(prefix.to_owned()).or_default();
        lock(survey).asked = Some(now);
        survey.clone()
    }
}

fn lock(survey: &Mutex<Survey>) -> std::sync::MutexGuard<'_, Survey> {
    survey.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Hub {
    /// The busiest locks of a prefix, as far as they were looked at. Cancel safe.
    pub(crate) async fn busiest(&self, prefix: &str, order: Order) -> Busiest {
        let runtime = self.runtime();
        let now = runtime.clock.now();
        let rates = self.registry.heat_asked(now);
        let survey = self.surveys.of(prefix, now);
        for _ in 0..PAGES_AT_ONCE {
            if !look(self.consensus.as_ref(), &survey, prefix, now) {
                break;
            }
            // What else the thread has to do comes first.
            runtime.sleep(Duration::ZERO).await;
        }
        let (names, is_whole, goes_on) = {
            let mut survey = lock(&survey);
            let names = survey.candidates(order);
            (names, survey.is_whole(), survey.is_left_unfinished())
        };
        if goes_on {
            let (consensus, clock) = (self.consensus.clone(), runtime.clone());
            let (survey, prefix) = (survey.clone(), prefix.to_owned());
            let rest = async move {
                loop {
                    clock.sleep(BETWEEN_PAGES).await;
                    let now = clock.clock.now();
                    if !look(consensus.as_ref(), &survey, &prefix, now) {
                        break;
                    }
                }
                lock(&survey).is_driven = false;
            };
            runtime.spawn("survey", rest).detach();
        }
        let names = match order {
            Order::Hottest => rates.names(prefix).chain(names).collect(),
            Order::LongestQueue | Order::LongestHeld => names,
        };
        Busiest { names, rates, is_whole }
    }
}

/// Looks at the next page; `false` if there is none, because all was looked at lately or nobody asks any more.
fn look(consensus: &dyn Consensus, survey: &Mutex<Survey>, prefix: &str, now: Instant) -> bool {
    let mut survey = lock(survey);
    if !survey.wants_more(now) {
        return false;
    }
    consensus.read(&mut |table, _| survey.go_on(table, prefix, now));
    survey.wants_more(now)
}

impl Registry {
    /// Somebody wants to know which locks are hot: they are counted for a while from now on.
    fn heat_asked(&self, now: Instant) -> Rates {
        let mut state = self.lock();
        state.heat.asked(now);
        state.heat.rates(now)
    }
}
