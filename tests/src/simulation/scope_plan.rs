//! Scopes that fall back on Cassandra, as they are drawn for a simulated run: how their leaders keep them, who locks in them, and
//! what goes wrong that only they notice.

use std::time::Duration;

use holdfast_keyspace::authority::{Buckets, Durations};
use holdfast_server::authority::FallbackSettings;
use serde::{Deserialize, Serialize};

use super::fault::{CutOff, Fault, Kind, Shape, Way, Who};
use super::move_plan::MovesPlan;
use super::plan::{Strike, rate};
use super::scope_stage::FIRST as FIRST_CLIENT;
use super::work::WorkPlan;
use crate::draw::Draw;
use crate::sim::COORDINATORS;

/// What a seed is turned into for all of this.
const SCOPES_STREAM: u64 = 0x5343_4f50_4553;
/// The same for runs that consist of little else (`Schedule::Switches` and those below it).
const SWITCHES_STREAM: u64 = 0x5357_4954_4348;
/// Faults of such a run.
const SWITCHES_STRIKES: u64 = 22;
const MOVES_STRIKES: u64 = 16;
/// The longest hold of a client of such a run that holds most of the time, milliseconds.
const HOLDS_MOST_MS: u64 = 30_000;
/// So many clients of such a run have sessions of this TTL, milliseconds: they outlive a scope's way to Cassandra and back.
const LONG_SESSIONS: usize = 2;
const LONG_TTL_MS: u64 = 16_000;
/// Of so many runs one has scopes.
pub(super) const SCOPES_ONE_IN: u64 = 3;
/// W and V in seconds, as nodes of a run may have them.
const SETTINGS: [(u64, u64); 4] = [(4, 2), (6, 4), (9, 2), (9, 6)];
/// The same for other numbers of partitions, and the numbers there are.
const PARTITIONS_STREAM: u64 = 0x5041_5254_4954_494f;
const PARTITIONS: [u16; 4] = [1, 2, 16, 64];
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
    /// Over how many partitions a node spreads the leases of a scope: one of each setting. None: over as many as ever.
    #[serde(default)]
    pub partitions: Vec<u16>,
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
        let (moves, work) = (MovesPlan::draw(seed), WorkPlan::draw(seed));
        let plan = Self { moves, work, ..Self::any(&mut draw) };
        let strikes = plan.strikes(&mut draw, length_ms);
        Some((plan, strikes))
    }

    /// Scopes that neither move nor have work.
    fn any(draw: &mut Draw) -> Self {
        let setting = |draw: &mut Draw| {
            SETTINGS[usize::try_from(draw.below(SETTINGS.len() as u64)).unwrap_or(0)]
        };
        // In half of the runs all nodes have the same settings, as they should.
        let settings = (0..=2 * draw.below(2)).map(|_| setting(draw)).collect();
        let clients = (0..3 + draw.below(3)).map(|_| ScopeClientPlan::draw(draw)).collect();
        Self { settings, partitions: Vec::new(), clients, moves: None, work: None }
    }

    /// Adds other numbers of partitions to half of the runs, and what the processes of a scope that moves want besides its lock.
    pub(super) fn add_wishes(&mut self, seed: u64) {
        let mut draw = Draw::new(seed ^ PARTITIONS_STREAM);
        if draw.below(2) == 0 {
            let one =
                |_| PARTITIONS[usize::try_from(draw.below(PARTITIONS.len() as u64)).unwrap_or(0)];
            self.partitions = self.settings.iter().map(one).collect();
        }
        if let Some(moves) = &mut self.moves {
            moves.add_wishes(seed);
        }
    }

    /// Scopes that change their store again and again, with the faults that make them do so.
    pub(super) fn of_switches(seed: u64, length_ms: u64) -> (Self, Vec<Strike>) {
        let mut draw = Draw::new(seed ^ SWITCHES_STREAM);
        let mut plan = Self::any(&mut draw);
        for client in &mut plan.clients {
            // Longer than W, so that the scope's authority ends first.
            client.ttl_ms = 4_000 + draw.below(12_000);
        }
        // One holds most of the time, and gives a late answer time to come. The others wait for it, and watch the row meanwhile.
        if let Some(client) = plan.clients.first_mut() {
            client.hold_ms = HOLDS_MOST_MS;
        }
        for client in plan.clients.iter_mut().take(LONG_SESSIONS) {
            client.ttl_ms = LONG_TTL_MS;
        }
        let strikes =
            (0..SWITCHES_STRIKES).flat_map(|_| plan.switches_strikes(&mut draw, length_ms));
        let strikes = strikes.collect();
        (plan, strikes)
    }

    /// A scope that moves, or one that stays with its recipe beside a queue of work, and no other.
    pub(super) fn of_moves(seed: u64, length_ms: u64, stays: bool) -> (Self, Vec<Strike>) {
        let mut draw = Draw::new(seed ^ SWITCHES_STREAM);
        let moves = MovesPlan { stays, ..MovesPlan::of(seed) };
        let work = stays.then(|| WorkPlan::of(seed));
        let plan = Self { clients: Vec::new(), moves: Some(moves), work, ..Self::any(&mut draw) };
        let strikes = (0..MOVES_STRIKES).map(|_| plan.moves_strike(&mut draw, length_ms));
        let strikes = strikes.collect();
        (plan, strikes)
    }

    /// A fault that makes another node lead, or one of [`Kind::OF_SCOPES`]; or a leader that Cassandra does not answer beside another
    /// fault that matters most then: answers of the store are late at a client, outcomes in Cassandra are unknown when the leader is
    /// answered again, or a client hears nothing until the scope comes back.
    fn switches_strikes(&self, draw: &mut Draw, length_ms: u64) -> Vec<Strike> {
        let fault = match draw.below(20) {
            0..=1 => Fault::Transfer,
            2..=3 => Fault::Partition(Shape::LeaderAlone),
            4 => Fault::Partition(Shape::LeaderWithClients),
            5..=6 => Fault::Pause(Who::Leader),
            7 => Fault::Kill(Who::Leader),
            8 => Fault::Rates,
            9..=10 => {
                return self.beside_an_unanswered_leader(draw, length_ms, |draw, away| {
                    let at_ms = away.at_ms + draw.below(away.lasts_ms / 2);
                    let lasts_ms = 1_000 + draw.below(3_000);
                    let fault = Fault::HoldBack(Way::ToClient(FIRST_CLIENT));
                    Strike { at_ms, lasts_ms, fault }
                });
            }
            11..=12 => {
                return self.beside_an_unanswered_leader(draw, length_ms, |draw, away| {
                    let (answer_lost, request_lost) = (draw.below(300), draw.below(700));
                    let (late, unavailable) = (draw.below(150), 0);
                    let fault =
                        Fault::TablesUnsure { answer_lost, request_lost, late, unavailable };
                    let (lasts_ms, end_ms) =
                        (2_000 + draw.below(5_000), away.at_ms + away.lasts_ms);
                    let at_ms = (end_ms + 1_000).saturating_sub(draw.below(lasts_ms));
                    Strike { at_ms, lasts_ms, fault }
                });
            }
            13..=14 => {
                return self.beside_an_unanswered_leader(draw, length_ms, |draw, away| {
                    let at_ms = away.at_ms.saturating_sub(draw.below(2_000));
                    let lasts_ms = away.lasts_ms + 3_000 + draw.below(5_000);
                    let client = FIRST_CLIENT + draw.below(LONG_SESSIONS as u64);
                    Strike { at_ms, lasts_ms, fault: Fault::Silence(client) }
                });
            }
            _ => return vec![self.strike(draw, any_of_scopes, length_ms)],
        };
        let lasts_ms = 200 + draw.below(9_000);
        vec![Strike { at_ms: draw.below(length_ms - lasts_ms), lasts_ms, fault }]
    }

    /// The leader is cut off from Cassandra for about W, and what `other` makes of that.
    fn beside_an_unanswered_leader(
        &self,
        draw: &mut Draw,
        length_ms: u64,
        other: impl FnOnce(&mut Draw, &Strike) -> Strike,
    ) -> Vec<Strike> {
        // Of one of the settings: the leader comes back as others take its scopes over, or soon after.
        let setting = usize::try_from(draw.below(self.settings.len() as u64)).unwrap_or(0);
        let w_ms = self.settings.get(setting).map_or(0, |(w, _)| 1_000 * w);
        let lasts_ms = w_ms + draw.below(4_000);
        let at_ms = draw.below(length_ms - lasts_ms);
        let away = Strike { at_ms, lasts_ms, fault: Fault::TablesAway(CutOff::Leader) };
        vec![other(draw, &away), away]
    }

    /// A node that is away for a while, or a fault of Cassandra or of one of the clients.
    fn moves_strike(&self, draw: &mut Draw, length_ms: u64) -> Strike {
        if draw.below(8) == 0 {
            let (at_ms, lasts_ms) = (draw.below(length_ms - 10_000), draw.below(10_000));
            return Strike { at_ms, lasts_ms, fault: Fault::Kill(Who::Leader) };
        }
        let not_the_store = |draw: &mut Draw| match any_of_scopes(draw) {
            Kind::Outage | Kind::StoreAway => Kind::TablesUnsure,
            kind => kind,
        };
        let strike = self.strike(draw, not_the_store, length_ms);
        let Fault::PauseScopeClient(_) = strike.fault else { return strike };
        // Some pauses are longer than the TTL of a row, and none is longer than what the judge allows a call to overrun its limit.
        let lasts_ms = 500 + draw.below(9_300);
        Strike { at_ms: draw.below(length_ms - lasts_ms), lasts_ms, ..strike }
    }

    /// The clients that faults strike by their place.
    fn places(&self) -> u64 {
        let others = self.moves.as_ref().map_or(0, |moves| moves.clients.len())
            + self.work.as_ref().map_or(0, |work| work.rates.len());
        (if self.clients.is_empty() { others } else { self.clients.len() }) as u64
    }

    /// How the nodes keep scopes.
    pub(super) fn terms(&self) -> Vec<FallbackSettings> {
        let terms = |(place, (w, v)): (usize, &(u64, u64))| {
            let durations = Durations::new(Duration::from_secs(*w), Duration::from_secs(*v));
            FallbackSettings {
                durations: durations.expect("they fit"),
                drain_limit: Duration::from_millis(DRAIN_LIMIT_MS),
                switch_every: Duration::from_millis(SWITCH_EVERY_MS),
                buckets: match self.partitions.get(place) {
                    Some(number) => Buckets::new(*number),
                    None => Some(Buckets::default()),
                },
            }
        };
        self.settings.iter().enumerate().map(terms).collect()
    }

    /// The longest W, milliseconds.
    fn longest_w_ms(&self) -> u64 {
        self.settings.iter().map(|(w, _)| 1_000 * w).max().unwrap_or(0)
    }

    /// Once, at least, the native store is away for so long that somebody takes over.
    fn strikes(&self, draw: &mut Draw, length_ms: u64) -> Vec<Strike> {
        let away = if draw.below(2) == 0 { Kind::Outage } else { Kind::StoreAway };
        let more = (0..2 + draw.below(5)).map(|_| any_of_scopes(draw));
        let kinds: Vec<Kind> = std::iter::once(away).chain(more).collect();
        kinds.into_iter().map(|kind| self.strike(draw, |_| kind, length_ms)).collect()
    }

    fn strike(
        &self,
        draw: &mut Draw,
        kind: impl FnOnce(&mut Draw) -> Kind,
        length_ms: u64,
    ) -> Strike {
        let kind = kind(draw);
        let fault = self.fault(draw, kind);
        let lasts_ms = match kind {
            Kind::Outage | Kind::StoreAway => self.longest_w_ms() + 2_000 + draw.below(12_000),
            Kind::TablesAway if draw.below(2) == 0 => self.longest_w_ms() + draw.below(8_000),
            _ => 500 + draw.below(8_000),
        };
        let latest_ms = length_ms.saturating_sub(lasts_ms + 2_000).max(1);
        Strike { at_ms: draw.below(latest_ms), lasts_ms, fault }
    }

    fn fault(&self, draw: &mut Draw, kind: Kind) -> Fault {
        let client = |draw: &mut Draw| draw.below(self.places());
        match kind {
            Kind::Outage => Fault::Outage,
            Kind::StoreAway => Fault::StoreAway,
            Kind::TablesAway => Fault::TablesAway(match draw.below(6) {
                0 => CutOff::Everybody,
                1 => CutOff::Clients,
                2..=3 => CutOff::Client(draw.below(2 * self.places())),
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

fn any_of_scopes(draw: &mut Draw) -> Kind {
    let place = usize::try_from(draw.below(Kind::OF_SCOPES.len() as u64)).unwrap_or(0);
    Kind::OF_SCOPES[place]
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
