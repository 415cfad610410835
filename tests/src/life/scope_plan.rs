//! Scopes that fall back on Cassandra, as they are drawn for a simulated run: how their leaders keep them, who locks in them, and
//! what goes wrong that only they notice.

use std::time::Duration;

use holdfast_cassandra::authority::Durations;
use holdfast_server::authority::Terms;
use serde::{Deserialize, Serialize};

use super::fault::{CutOff, Fault, Kind};
use super::move_plan::MovesPlan;
use super::plan::{Strike, rate};
use super::work::WorkPlan;
use crate::draw::Draw;
use crate::sim::COORDINATORS;

/// What a seed is turned into for all of this.
const SCOPES_STREAM: u64 = 0x5343_4f50_4553;
/// Of so many runs one has scopes.
pub(super) const SCOPES_ONE_IN: u64 = 3;
/// W and V in seconds, as nodes of a run may have them.
const SETTINGS: [(u64, u64); 4] = [(4, 2), (6, 4), (9, 2), (9, 6)];
/// How far the wall clock of a coordinator is ahead at most, milliseconds: less than what leases in Cassandra allow for.
const SKEW_MAX_MS: u64 = 2_000;
/// How long nobody may change a scope's store at least, and how long a drain takes at most, milliseconds.
const SWITCH_EVERY_MS: u64 = 3_000;
const DRAIN_LIMIT_MS: u64 = 1_000;

/// Scopes with fallback in a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScopesPlan {
    /// W and V, seconds: what the nodes' settings say, one after the other. Each process of a node has the next ones.
    pub settings: Vec<(u64, u64)>,
    /// The clients that lock in the scopes.
    pub clients: Vec<ScopeClientPlan>,
    /// A scope beside them that moves through all modes.
    #[serde(default)]
    pub moves: Option<MovesPlan>,
    /// A queue of work in the same Cassandra.
    #[serde(default)]
    pub work: Option<WorkPlan>,
}

/// A client that locks in the scopes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScopeClientPlan {
    /// Its lease in the native store.
    pub ttl_ms: u64,
    /// How much faster than true time its clock is, parts of a million.
    pub rate: i32,
    /// Longest hold, milliseconds.
    pub hold_ms: u64,
    /// The limit of a waiting call, milliseconds.
    pub within_ms: u64,
    /// Whether it falls back on Cassandra. The others know the native store alone.
    pub falls_back: bool,
}

impl ScopesPlan {
    /// What `seed` draws: scopes in one run of three, and what goes wrong in them during the first `length_ms`.
    pub(super) fn draw(seed: u64, length_ms: u64) -> Option<(Self, Vec<Strike>)> {
        let mut draw = Draw::new(seed ^ SCOPES_STREAM);
        if draw.below(SCOPES_ONE_IN) != 0 {
            return None;
        }
        let setting = |draw: &mut Draw| {
            SETTINGS[usize::try_from(draw.below(SETTINGS.len() as u64)).unwrap_or(0)]
        };
        // In half of the runs all nodes have the same settings, as they should.
        let settings = (0..=2 * draw.below(2)).map(|_| setting(&mut draw)).collect();
        let clients = (0..3 + draw.below(3)).map(|_| ScopeClientPlan::draw(&mut draw)).collect();
        let plan =
            Self { settings, clients, moves: MovesPlan::draw(seed), work: WorkPlan::draw(seed) };
        let strikes = plan.strikes(&mut draw, length_ms);
        Some((plan, strikes))
    }

    /// How the nodes keep scopes.
    pub(super) fn terms(&self) -> Vec<Terms> {
        let terms = |(w, v): &(u64, u64)| {
            let durations = Durations::new(Duration::from_secs(*w), Duration::from_secs(*v));
            Terms {
                durations: durations.expect("they fit"),
                drain_limit: Duration::from_millis(DRAIN_LIMIT_MS),
                switch_every: Duration::from_millis(SWITCH_EVERY_MS),
            }
        };
        self.settings.iter().map(terms).collect()
    }

    /// The longest W, milliseconds.
    fn longest_w_ms(&self) -> u64 {
        self.settings.iter().map(|(w, _)| 1_000 * w).max().unwrap_or(0)
    }

    /// Once, at least, the native store is away for so long that somebody takes over.
    fn strikes(&self, draw: &mut Draw, length_ms: u64) -> Vec<Strike> {
        let away = if draw.below(2) == 0 { Kind::Outage } else { Kind::StoreAway };
        let more = (0..2 + draw.below(5)).map(|_| {
            let place = usize::try_from(draw.below(Kind::OF_SCOPES.len() as u64)).unwrap_or(0);
            Kind::OF_SCOPES[place]
        });
        let kinds: Vec<Kind> = std::iter::once(away).chain(more).collect();
        let strike = |kind: Kind| {
            let fault = self.fault(draw, kind);
            let lasts_ms = match kind {
                Kind::Outage | Kind::StoreAway => self.longest_w_ms() + 2_000 + draw.below(12_000),
                Kind::TablesAway if draw.below(2) == 0 => self.longest_w_ms() + draw.below(8_000),
                _ => 500 + draw.below(8_000),
            };
            let latest_ms = length_ms.saturating_sub(lasts_ms + 2_000).max(1);
            Strike { at_ms: draw.below(latest_ms), lasts_ms, fault }
        };
        kinds.into_iter().map(strike).collect()
    }

    fn fault(&self, draw: &mut Draw, kind: Kind) -> Fault {
        let client = |draw: &mut Draw| draw.below(self.clients.len() as u64);
        match kind {
            Kind::Outage => Fault::Outage,
            Kind::StoreAway => Fault::StoreAway,
            Kind::TablesAway => Fault::TablesAway(match draw.below(6) {
                0 => CutOff::Everybody,
                1 => CutOff::Clients,
                2..=3 => CutOff::Client(draw.below(2 * self.clients.len() as u64)),
                _ => CutOff::Leader,
            }),
            Kind::TablesUnsure => Fault::TablesUnsure {
                answer_lost: draw.below(200),
                request_lost: draw.below(100),
                late: draw.below(150),
                unavailable: draw.below(100),
            },
            Kind::SlowTables => Fault::SlowTables(draw.below(600)),
            Kind::TablesClock => {
                let coordinator = draw.below(COORDINATORS as u64);
                Fault::TablesClock(coordinator, draw.below(SKEW_MAX_MS))
            }
            Kind::PauseScopeClient => Fault::PauseScopeClient(client(draw)),
            _ => Fault::KillScopeClient(client(draw)),
        }
    }
}

impl ScopeClientPlan {
    /// Three of four fall back. Some hold for longer than what a switch of the store leaves them.
    fn draw(draw: &mut Draw) -> Self {
        let hold_ms = 20 + draw.below(1_000);
        Self {
            ttl_ms: 2_000 + draw.below(3_000),
            rate: rate(draw),
            hold_ms: if draw.below(4) == 0 { 20_000 } else { hold_ms },
            within_ms: 2_000 + draw.below(20_000),
            falls_back: draw.below(4) != 0,
        }
    }
}
