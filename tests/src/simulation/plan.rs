//! A simulated run as it is drawn from its seed, before anything runs.
//!
//! A plan is plain data, so that a failing run can be made shorter by leaving things out.

use std::collections::BTreeMap;
use std::time::Duration;

use clap::ValueEnum as _;
use serde::{Deserialize, Serialize};

use super::disaster::DisasterPlan;
use super::fault::{Damage, Fault, Kind, Shape, Way, Who};
use super::limits;
use super::schedule::Schedule;
use super::scope_plan::ScopesPlan;
use crate::draw::Draw;
use crate::traffic::{self, Mix};

/// The least length of a run. The faults that are drawn over its whole length begin at least 10 s
/// before its end, so the store is still used after the last of them.
const SHORTEST_MS: u64 = 60_000;
/// Largest rate of a clock above or below true time, parts per million. A client that is as slow
/// and a server that is as fast differ by less than the allowance of DESIGN §5.4, a tenth.
const RATE_WITHIN: u64 = 47_000;
/// The rate of a client beyond the allowance: it loses more than a tenth against every other clock.
const RATE_BEYOND: i32 = -250_000;
/// Combined with the seed, this begins the second stream of draws. Later additions draw from it, so
/// that everything else in an old seed's run stays as it was.
const LASTING_STREAM: u64 = 0x006c_6174_6572_6b69;
/// One run in so many has a fault of each kind of the second stream.
const LASTING_ONE_IN: u64 = 10;
/// One run in so many begins with a table of some pages, and one with a large one. A large one
/// takes ten times as long as a usual run, one of some pages twice as long.
const PAGES_ONE_IN: u64 = 24;
const LARGE_ONE_IN: u64 = 500;
/// Locks in a large table.
pub(super) const LARGE: u64 = 100_000;
/// Least number of entries between two snapshots of a large table: each snapshot is as large as the
/// table.
pub(super) const LARGE_SNAPSHOT_EVERY: u64 = 640;

/// The same for still later additions: limits of bytes and of time, pages, full leaders.
const LIMITS_STREAM: u64 = 0x6279_7465_735f_3332;
/// In one run of so many, the disk of a leader is nearly full at the end.
const FULL_LEADER_ONE_IN: u64 = 10;
/// In one of so many, a client takes no State for longer than its session may outlive that.
const DEAF_ONE_IN: u64 = 12;
/// In one of so many, the disk of a follower hangs for much of the run.
const HUNG_FOLLOWER_ONE_IN: u64 = 20;

/// The same for rules, and what operators do with them: in a third of the runs.
const RULES_STREAM: u64 = 0x7275_6c65_735f_3134;
const RULES_ONE_IN: u64 = 3;

/// The same for limits on what all streams of a node have together.
const NODE_TOTALS_STREAM: u64 = 0x6e6f_6465_746f_7461;

/// The same for what was added last: commands that leave work, few resumes in a second, and clients whose
/// keepalives go together.
const LATEST_STREAM: u64 = 0x776f_726b_7374_6570;
/// Mixed into the seed for the stream from which disasters are drawn.
const DISASTER_STREAM: u64 = 0x6469_7361_7374_6572;
/// The same for permits.
const VOCABULARY_STREAM: u64 = 0x7065_726d_6974_7331;
/// The same for what requests say besides their locks.
const TERMS_STREAM: u64 = 0x7465_726d_7331_3233;
/// The same for numbers of sequences, in a third of the runs, and for floors.
const NUMBERS_STREAM: u64 = 0x6e75_6d62_6572_7331;
const NUMBERS_ONE_IN: u64 = 3;
/// The same for bounds of holds, and what operators order for everybody: in half of the runs, and in a third.
const BOUNDS_STREAM: u64 = 0x626f_756e_6473_3136;
const ORDERS_ONE_IN: u64 = 3;
/// In one run of so many, the keepalives of clients go together, beside their streams.
const KEEPS_TOGETHER_ONE_IN: u64 = 3;

/// Combined with a seed for the faults of later kinds.
const LATER_STREAM: u64 = 0x4c41_5445_5231;

/// One whole simulated run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a thing of its own that a run has or has not"
)]
pub struct Plan {
    /// The seed that it was drawn from; random events within the run come from it too.
    pub seed: u64,
    /// How long the store is used after the first leader, milliseconds of true time.
    pub length_ms: u64,
    /// The number of nodes at the beginning.
    pub nodes: u64,
    /// Settings of the nodes.
    pub knobs: Knobs,
    /// The network without faults.
    pub air: Air,
    /// The disks without faults.
    pub disk: DiskPace,
    /// How much faster than true time each node's clock is, parts per million; nodes that come
    /// later begin again with the first rate.
    pub node_rates: Vec<i32>,
    /// The clients at the beginning.
    pub clients: Vec<ClientPlan>,
    /// How many names they share.
    pub names: u64,
    /// Whether there is a client that speaks frames itself, and does what the library never would.
    pub rogue: bool,
    /// Whether locks are imported from another store, and claimed.
    #[serde(default)]
    pub imports: bool,
    /// The faults, in order.
    pub strikes: Vec<Strike>,
    /// A schedule that once broke openraft, made to happen again and again besides the faults.
    #[serde(default)]
    pub schedule: Option<Schedule>,
    /// Limits of size that differ from the usual ones, by the store's names for them.
    #[serde(default)]
    pub limits: BTreeMap<String, u64>,
    /// Locks that are held from the beginning, besides those that the clients share.
    #[serde(default)]
    pub table: u64,
    /// Once all is healed the leader's disk is nearly full: another node has to lead.
    #[serde(default)]
    pub full_leader: bool,
    /// Scopes that fall back on Cassandra, and the clients that lock in them.
    #[serde(default)]
    pub scopes: Option<ScopesPlan>,
    /// The rules of who may do what are on, and operators use them.
    #[serde(default)]
    pub rules: bool,
    /// The keepalives of clients go together with those of others, beside their streams.
    #[serde(default)]
    pub keeps_together: bool,
    /// After the run all nodes are lost, and another cluster is restored.
    #[serde(default)]
    pub disaster: Option<DisasterPlan>,
    /// Some clients ask for permits as well.
    #[serde(default)]
    pub permits: bool,
    /// Some of their requests have a head start.
    #[serde(default)]
    pub head_starts: bool,
    /// Some more clients take numbers of sequences.
    #[serde(default)]
    pub numbers: bool,
    /// Some of their requests for any of several names need two of them.
    #[serde(default)]
    pub floors: bool,
    /// Some of their requests have bounds of the hold.
    #[serde(default)]
    pub bounds: bool,
    /// Operators freeze names and set limits, and some requests for permits name no limit.
    #[serde(default)]
    pub orders: bool,
}

/// Settings of the nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "as of the setting with the same name")]
pub struct Knobs {
    pub heartbeat_ms: u64,
    pub election_min_ms: u64,
    pub election_max_ms: u64,
    pub propose_deadline_ms: u64,
    /// Entries between two snapshots, about; from it follow the limits in bytes.
    pub snapshot_every: u64,
    pub log_kept: u64,
}

/// The properties of a link, in both directions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Air {
    /// Shortest delay of a message, microseconds.
    pub delay_min_us: u64,
    /// Longest delay.
    pub delay_max_us: u64,
    /// Out of a million messages, the number that are lost, or late by a retransmission.
    pub lost_per_million: u32,
    /// Out of a million calls, the number that arrive twice.
    pub twice_per_million: u32,
}

/// How long a disk takes to sync.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the two say it")]
pub struct DiskPace {
    pub sync_min_us: u64,
    pub sync_max_us: u64,
}

/// One client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClientPlan {
    /// Its lease.
    pub ttl_ms: u64,
    /// How much faster than true time its clock is, parts per million.
    pub rate: i32,
    /// The number of its tasks that ask for locks.
    pub workers: u64,
    /// Longest hold, milliseconds.
    pub hold_ms: u64,
    /// The limit of a waiting call, milliseconds.
    pub within_ms: u64,
    /// Whether it makes every kind of request, or asks for one lock at a time.
    pub everything: bool,
    /// Whether it watches the locks.
    pub watches: bool,
    /// Whether it uses unary calls only, without a stream and without our library.
    pub calls: bool,
}

/// One fault, with its beginning and its duration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Strike {
    /// Milliseconds after the first leader.
    pub at_ms: u64,
    /// Milliseconds until it is mended, if it lasts.
    pub lasts_ms: u64,
    /// The fault.
    pub fault: Fault,
}

/// The clocks of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Clocks {
    /// Their rates differ by up to the allowance.
    #[default]
    Within,
    /// One client's clock is slower than the allowance: the judge has to find the consequences.
    Beyond,
}

impl Plan {
    /// The word by which kept files name runs with everything that is drawn ([`Plan::kept_as`]).
    pub const NEWEST: &str = "wishes";

    /// The run of `seed`.
    pub fn draw(seed: u64, clocks: Clocks) -> Self {
        Self::without_wishes(seed, clocks).with_wishes()
    }

    /// The run as it was before processes of scopes wanted more than a lock.
    pub fn without_wishes(seed: u64, clocks: Clocks) -> Self {
        Self::without_bounds(seed, clocks).with_bounds()
    }

    /// The run as it was before requests had bounds of the hold.
    pub fn without_bounds(seed: u64, clocks: Clocks) -> Self {
        Self::without_numbers(seed, clocks).with_numbers()
    }

    /// The run as it was before runs had sequences.
    pub fn without_numbers(seed: u64, clocks: Clocks) -> Self {
        Self::without_terms(seed, clocks).with_terms()
    }

    /// The run as it was before requests had terms.
    pub fn without_terms(seed: u64, clocks: Clocks) -> Self {
        Self::without_vocabulary(seed, clocks).with_vocabulary()
    }

    /// The run as it was before runs had permits.
    pub fn without_vocabulary(seed: u64, clocks: Clocks) -> Self {
        Self::without_disasters(seed, clocks).with_disaster()
    }

    /// The run as it was before runs had disasters.
    pub fn without_disasters(seed: u64, clocks: Clocks) -> Self {
        Self::without_latest(seed, clocks).with_latest()
    }

    /// The run as it was before runs had what was added last.
    pub fn without_latest(seed: u64, clocks: Clocks) -> Self {
        Self::without_node_totals(seed, clocks).with_node_totals()
    }

    /// The run as it was before runs had limits on what all streams of a node have together.
    pub fn without_node_totals(seed: u64, clocks: Clocks) -> Self {
        Self::without_rules(seed, clocks).with_rules()
    }

    /// The run as it was before runs had rules.
    pub fn without_rules(seed: u64, clocks: Clocks) -> Self {
        Self::without_scopes(seed, clocks).with_scopes()
    }

    /// The run of `seed` as kept files name it: `first` draws the first stream alone, `two` the first two, `three` all but scopes and rules,
    /// `all` all but rules, `rules` those too, `totals` what was there before limits of work, `latest` all but disasters, `disasters` all but permits, `vocabulary` all but terms, `terms` all but numbers, `numbers` all but bounds of holds, `bounds` all but wishes, `wishes` everything, and the name of a schedule its runs; never with a large table. What
    /// was added after a word draws nothing for it.
    pub fn kept_as(how: &str, seed: u64) -> Option<Self> {
        let plan = match how {
            "first" => Self::of_two_streams(seed, Clocks::Within).first_stream_alone(),
            "two" => Self::of_two_streams(seed, Clocks::Within),
            "three" => Self::without_scopes(seed, Clocks::Within),
            "all" => Self::without_rules(seed, Clocks::Within),
            "rules" => Self::without_node_totals(seed, Clocks::Within),
            "totals" => Self::without_latest(seed, Clocks::Within),
            "latest" => Self::without_disasters(seed, Clocks::Within),
            "disasters" => Self::without_vocabulary(seed, Clocks::Within),
            "vocabulary" => Self::without_terms(seed, Clocks::Within),
            "terms" => Self::without_numbers(seed, Clocks::Within),
            "numbers" => Self::without_bounds(seed, Clocks::Within),
            "bounds" => Self::without_wishes(seed, Clocks::Within),
            Self::NEWEST => Self::draw(seed, Clocks::Within),
            _ => return Some(Self::of(Schedule::from_str(how, false).ok()?, seed)),
        };
        Some(plan.without_a_large_table())
    }

    /// The run as it was before runs had scopes.
    pub fn without_scopes(seed: u64, clocks: Clocks) -> Self {
        Self::of_two_streams(seed, clocks).with_later_limits()
    }

    /// The run as it was before there was a third stream.
    pub fn of_two_streams(seed: u64, clocks: Clocks) -> Self {
        let mut draw = Draw::new(seed);
        let nodes = match draw.below(20) {
            0..=1 => 1,
            2..=16 => 3,
            _ => 5,
        };
        let length_ms = SHORTEST_MS + draw.below(15_000);
        let knobs = Knobs::draw(&mut draw);
        let air = Air::draw(&mut draw);
        let disk = DiskPace::draw(&mut draw);
        let node_rates = (0..nodes + 2).map(|_| rate(&mut draw)).collect();
        let mut clients: Vec<_> =
            (0..3 + draw.below(8)).map(|_| ClientPlan::draw(&mut draw)).collect();
        if let (Clocks::Beyond, Some(client)) = (clocks, clients.first_mut()) {
            client.rate = RATE_BEYOND;
        }
        let names = 1 + draw.below(8);
        let mut strikes = strikes(&mut draw, nodes, &clients, length_ms);
        strikes.extend(later_strikes(seed, &knobs, &clients, length_ms));
        strikes.sort_by_key(|strike| strike.at_ms);
        let rogue = draw.below(4) == 0;
        // The first client is the one whose clock may be beyond the allowance.
        for client in clients.iter_mut().skip(1) {
            client.calls = draw.below(6) == 0;
        }
        let imports = draw.below(4) == 0;
        let plan = Self {
            seed,
            length_ms,
            nodes,
            knobs,
            air,
            disk,
            node_rates,
            clients,
            names,
            rogue,
            imports,
            strikes,
            schedule: None,
            limits: BTreeMap::new(),
            table: 0,
            full_leader: false,
            scopes: None,
            rules: false,
            keeps_together: false,
            disaster: None,
            permits: false,
            head_starts: false,
            numbers: false,
            floors: false,
            bounds: false,
            orders: false,
        };
        plan.with_lasting()
    }

    /// Adds what the stream of scopes draws. Limits of size are for clients that know of them: no
    /// run has both.
    fn with_scopes(mut self) -> Self {
        if let Some((scopes, strikes)) = ScopesPlan::draw(self.seed, self.length_ms) {
            self.scopes = Some(scopes);
            self.limits.clear();
            self.strikes.extend(strikes);
            self.strikes.sort_by_key(|strike| strike.at_ms);
        }
        self
    }

    /// Adds what the stream of rules draws.
    fn with_rules(mut self) -> Self {
        let mut draw = Draw::new(self.seed ^ RULES_STREAM);
        self.rules = draw.below(RULES_ONE_IN) == 0;
        if self.rules {
            let within_ms = self.length_ms - 10_000;
            let strikes = (0..6 + draw.below(12)).map(|_| {
                let fault = match pick(&mut draw, &Kind::OF_OPERATORS) {
                    Kind::EndSession => Fault::EndSession(draw.below(1_000)),
                    Kind::Forbid => Fault::Forbid(draw.below(1_000)),
                    _ => Fault::TakeLock(draw.below(1_000)),
                };
                let (at_ms, lasts_ms) = (draw.below(within_ms), 500 + draw.below(6_000));
                Strike { at_ms, lasts_ms, fault }
            });
            self.strikes.extend(strikes);
            self.strikes.sort_by_key(|strike| strike.at_ms);
        }
        self
    }

    /// Adds the limits on what all streams of a node have together, where a run may have limits.
    fn with_node_totals(mut self) -> Self {
        let mut draw = Draw::new(self.seed ^ NODE_TOTALS_STREAM);
        let clients = self.clients.len() as u64;
        if self.scopes.is_none() && self.table == 0 {
            let totals = limits::draw_node_totals(&mut draw, clients, &self.limits);
            self.limits.extend(totals);
        }
        self
    }

    /// Adds what was added last. No small limits with a large table: its commands would have to leave work
    /// thousands of times, and its sessions would be long in coming back.
    fn with_latest(mut self) -> Self {
        let mut draw = Draw::new(self.seed ^ LATEST_STREAM);
        self.keeps_together = draw.below(KEEPS_TOGETHER_ONE_IN) == 0;
        if self.table == 0 {
            self.limits.extend(limits::draw_latest(&mut draw));
        }
        self
    }

    /// Adds a disaster to some runs, but not where a table takes its time already.
    fn with_disaster(mut self) -> Self {
        let mut draw = Draw::new(self.seed ^ DISASTER_STREAM);
        let drawn = DisasterPlan::draw(&mut draw, self.length_ms);
        self.disaster = drawn.filter(|_| self.table == 0);
        self
    }

    /// Adds what requests say besides their locks (DESIGN §16) to half of the runs.
    fn with_terms(mut self) -> Self {
        let mut draw = Draw::new(self.seed ^ TERMS_STREAM);
        self.head_starts = draw.below(2) == 0;
        self
    }

    /// Adds clients that take numbers, and requests with a floor.
    fn with_numbers(mut self) -> Self {
        let mut draw = Draw::new(self.seed ^ NUMBERS_STREAM);
        self.numbers = draw.below(NUMBERS_ONE_IN) == 0;
        self.floors = draw.below(2) == 0;
        self
    }

    /// Adds bounds of holds to half of the runs, and orders of operators to some.
    fn with_bounds(mut self) -> Self {
        let mut draw = Draw::new(self.seed ^ BOUNDS_STREAM);
        self.bounds = draw.below(2) == 0;
        self.orders = draw.below(ORDERS_ONE_IN) == 0;
        if self.orders {
            let within_ms = self.length_ms - 10_000;
            let strikes = (0..6 + draw.below(8)).map(|_| {
                let fault = match pick(&mut draw, &Kind::ORDERS) {
                    Kind::Freeze => Fault::Freeze(draw.below(1_000)),
                    _ => Fault::SetLimit(draw.below(1_000)),
                };
                let (at_ms, lasts_ms) = (draw.below(within_ms), 100 + draw.below(5_000));
                Strike { at_ms, lasts_ms, fault }
            });
            self.strikes.extend(strikes);
            self.strikes.sort_by_key(|strike| strike.at_ms);
        }
        self
    }

    /// Adds what processes of scopes want besides locks, and other numbers of partitions.
    fn with_wishes(mut self) -> Self {
        if let Some(scopes) = &mut self.scopes {
            scopes.add_wishes(self.seed);
        }
        self
    }

    /// Adds requests for permits (DESIGN §16) to half of the runs.
    fn with_vocabulary(mut self) -> Self {
        let mut draw = Draw::new(self.seed ^ VOCABULARY_STREAM);
        self.permits = draw.below(2) == 0;
        self
    }

    /// Adds what the second stream of the seed draws.
    fn with_lasting(mut self) -> Self {
        let mut draw = Draw::new(self.seed ^ LASTING_STREAM);
        self.strikes.extend(lasting_strikes(&mut draw, &self));
        self.strikes.sort_by_key(|strike| strike.at_ms);
        self.limits = limits::draw(&mut draw);
        self.table = match (draw.below(LARGE_ONE_IN), draw.below(PAGES_ONE_IN)) {
            (0, _) => LARGE,
            (_, 0) => 3_000 + draw.below(3_000),
            _ => 0,
        };
        if self.table > 0 {
            // The clients that hold the table ask for more than such limits allow.
            self.limits.clear();
        }
        self
    }

    /// Adds what the third stream of the seed draws.
    fn with_later_limits(mut self) -> Self {
        let mut draw = Draw::new(self.seed ^ LIMITS_STREAM);
        self.full_leader = draw.below(FULL_LEADER_ONE_IN) == 0;
        self.limits.extend(limits::draw_later(&mut draw, self.table > 0));
        let deaf = (draw.below(DEAF_ONE_IN) == 0, self.deaf_for_long(&mut draw));
        let hung = (draw.below(HUNG_FOLLOWER_ONE_IN) == 0, hung_follower(&mut draw));
        let chosen =
            [deaf, hung].into_iter().filter_map(|(chosen, strike)| chosen.then_some(strike));
        self.strikes.extend(chosen);
        self.strikes.sort_by_key(|strike| strike.at_ms);
        self
    }

    /// A client whose decoder takes next to nothing, for three times its lease and more.
    fn deaf_for_long(&self, draw: &mut Draw) -> Strike {
        let number = draw.below(self.clients.len() as u64);
        let place = usize::try_from(number).unwrap_or(0);
        let ttl_ms = self.clients.get(place).map_or(0, |client| client.ttl_ms);
        let (at_ms, bytes) = (draw.below(self.length_ms / 2), 20 + draw.below(20));
        let lasts_ms = 3 * ttl_ms + 5_000 + draw.below(8_000);
        Strike { at_ms, lasts_ms, fault: Fault::DecodeLimit(number, bytes) }
    }

    /// The run as it was before there was a second stream.
    #[must_use]
    pub fn first_stream_alone(mut self) -> Self {
        self.strikes.retain(|strike| strike.fault.kind().is_of_the_first_stream());
        self.limits.clear();
        self.table = 0;
        self.full_leader = false;
        self.scopes = None;
        self.rules = false;
        self.disaster = None;
        self.permits = false;
        self.head_starts = false;
        self.numbers = false;
        self.floors = false;
        self.bounds = false;
        self.orders = false;
        self
    }

    /// The same run without the table, if that is a large one.
    #[must_use]
    pub fn without_a_large_table(mut self) -> Self {
        if self.table >= LARGE {
            self.table = 0;
        }
        self
    }

    /// How long it is.
    pub const fn length(&self) -> Duration {
        Duration::from_millis(self.length_ms)
    }

    /// The traffic of client `number`.
    pub fn traffic(&self, number: u64, client: &ClientPlan) -> traffic::Plan {
        traffic::Plan {
            clients: 1,
            first: number,
            names: self.names,
            ttl: Duration::from_millis(client.ttl_ms),
            hold: Duration::from_millis(client.hold_ms),
            within: Duration::from_millis(client.within_ms),
            seed: self.seed ^ (number << 32),
            mix: if client.everything { Mix::Everything } else { Mix::Exclusive },
            permits: self.permits,
            head_starts: self.head_starts,
            floors: self.floors,
            bounds: self.bounds,
            kept_limits: self.orders,
            resources: None,
        }
    }
}

impl Knobs {
    fn draw(draw: &mut Draw) -> Self {
        let election_min_ms = 400 + draw.below(800);
        let election_max_ms = election_min_ms + election_min_ms / 3 + draw.below(800);
        Self {
            heartbeat_ms: (60 + draw.below(120)).min(election_min_ms / 4),
            election_min_ms,
            election_max_ms,
            propose_deadline_ms: election_max_ms + 1_000 + draw.below(3_000),
            // Small, so that snapshots and purges happen within a minute.
            snapshot_every: 20 << draw.below(6),
            log_kept: draw.below(100),
        }
    }
}

impl Air {
    fn draw(draw: &mut Draw) -> Self {
        let delay_min_us = 50 + draw.below(1_000);
        let delay_max_us = delay_min_us + 100 + draw.below(10_000);
        let lost_per_million = if draw.below(2) == 0 { 0 } else { small(draw, 3_000) };
        let twice_per_million = if draw.below(2) == 0 { 0 } else { small(draw, 5_000) };
        Self { delay_min_us, delay_max_us, lost_per_million, twice_per_million }
    }
}

impl DiskPace {
    fn draw(draw: &mut Draw) -> Self {
        let sync_min_us = 50 + draw.below(1_000);
        Self { sync_min_us, sync_max_us: sync_min_us + 100 + draw.below(20_000) }
    }
}

impl ClientPlan {
    /// A client that claims what was imported from another store.
    pub(super) const fn of_claims() -> Self {
        Self {
            ttl_ms: 4_000,
            rate: 0,
            workers: 1,
            hold_ms: 400,
            within_ms: 12_000,
            everything: false,
            watches: false,
            calls: true,
        }
    }

    /// Leases are short, so that some run out within a minute.
    fn draw(draw: &mut Draw) -> Self {
        let ttl_ms = 1_000 + draw.below(3_000);
        let hold_ms = 20 + draw.below(800);
        Self {
            ttl_ms,
            rate: rate(draw),
            workers: 1 + draw.below(2),
            // More clients that hold on for longer than a lease would leave little to the others.
            hold_ms: if draw.below(16) == 0 { 2 * ttl_ms } else { hold_ms },
            within_ms: 2_000 + draw.below(20_000),
            everything: draw.below(3) != 0,
            watches: draw.below(6) == 0,
            calls: false,
        }
    }
}

fn small(draw: &mut Draw, below: u64) -> u32 {
    u32::try_from(draw.below(below)).unwrap_or(0)
}

pub(super) fn rate(draw: &mut Draw) -> i32 {
    let offset = draw.below(2 * RATE_WITHIN + 1);
    i32::try_from(offset).unwrap_or(0) - i32::try_from(RATE_WITHIN).unwrap_or(0)
}

/// None to two faults of the kinds that were added later: each kind as often as one of the others.
fn later_strikes(seed: u64, knobs: &Knobs, clients: &[ClientPlan], length_ms: u64) -> Vec<Strike> {
    let mut draw = Draw::new(seed ^ LATER_STREAM);
    let (_, later) = Kind::ALL.split_at(Kind::ALL.len() - Kind::LATER);
    (0..draw.below(3))
        .map(|_| {
            let kind = pick(&mut draw, later);
            let fault = fault(&mut draw, kind, clients.len() as u64);
            let at_ms = draw.below(length_ms - 10_000);
            Strike { at_ms, lasts_ms: later_lasts_ms(&mut draw, fault, knobs, clients), fault }
        })
        .collect()
}

/// Often longer than an election; a partial partition also longer than any lease.
fn later_lasts_ms(draw: &mut Draw, fault: Fault, knobs: &Knobs, clients: &[ClientPlan]) -> u64 {
    let longest_ttl_ms = clients.iter().map(|client| client.ttl_ms).max().unwrap_or(0);
    match fault {
        Fault::PartialPartition => {
            knobs.election_max_ms + longest_ttl_ms + 1_000 + draw.below(4_000)
        }
        Fault::Retransmission(_) => 1_500 + draw.below(7_000),
        _ if draw.below(3) == 0 => 50 + draw.below(1_500),
        _ => knobs.election_min_ms + draw.below(6_000),
    }
}

/// Six to fourteen faults. Some runs see one kind over and over.
fn strikes(draw: &mut Draw, nodes: u64, clients: &[ClientPlan], length_ms: u64) -> Vec<Strike> {
    let count = 6 + draw.below(9);
    let (kinds, _) = Kind::ALL.split_at(Kind::ALL.len() - Kind::LATER);
    let favourite = (draw.below(4) == 0).then(|| pick(draw, kinds));
    let last_ms = length_ms - 10_000;
    let mut strikes: Vec<_> = (0..count)
        .map(|_| {
            let kind = favourite.filter(|_| draw.below(2) == 0);
            let kind = kind.unwrap_or_else(|| pick(draw, kinds));
            let fault = fault(draw, kind, clients.len() as u64);
            let at_ms = draw.below(last_ms);
            Strike { at_ms, lasts_ms: lasts_ms(draw, fault, clients), fault }
        })
        .filter(|strike| nodes > 1 || !strike.fault.kind().changes_members())
        .collect();
    strikes.sort_by_key(|strike| strike.at_ms);
    strikes
}

/// How long a fault lasts. One that cuts a client off lasts about as long as its lease in half of
/// the cases: then its return is of interest.
fn lasts_ms(draw: &mut Draw, fault: Fault, clients: &[ClientPlan]) -> u64 {
    let longest_ms = if draw.below(3) == 0 { 9_000 } else { 2_500 };
    let any_ms = 50 + draw.below(longest_ms);
    match fault {
        Fault::Silence(number) | Fault::DeafClient(number) if draw.below(2) == 0 => {
            let place = usize::try_from(number).unwrap_or(0);
            let ttl_ms = clients.get(place).map_or(any_ms, |client| client.ttl_ms);
            ttl_ms / 2 + draw.below(ttl_ms)
        }
        // Longer than an election and the leases that the next leader begins with.
        Fault::Partition(Shape::LeaderWithClients) => 3_000 + draw.below(7_000),
        _ => any_ms,
    }
}

/// A fault so long that the log grows beyond its limit.
fn hung_follower(draw: &mut Draw) -> Strike {
    let (at_ms, lasts_ms) = (draw.below(20_000), 30_000 + draw.below(20_000));
    Strike { at_ms, lasts_ms, fault: Fault::HungDisk(Who::Follower) }
}

/// One fault of each kind of the second stream in one run of [`LASTING_ONE_IN`].
fn lasting_strikes(draw: &mut Draw, plan: &Plan) -> Vec<Strike> {
    let first_half = plan.length_ms / 2;
    let longest_ttl_ms = plan.clients.iter().map(|client| client.ttl_ms).max().unwrap_or(0);
    let mut strikes = Vec::new();
    for kind in Kind::LASTING {
        // Drawn whether they are used or not, so that one kind does not move the others.
        let (chosen, at_ms) = (draw.below(LASTING_ONE_IN) == 0, draw.below(first_half));
        let fault = fault(draw, kind, plan.clients.len() as u64);
        let lasts_ms = match kind {
            // In half of the cases for minutes.
            Kind::HungDisk if draw.below(2) == 0 => 60_000 + draw.below(60_000),
            Kind::HungDisk => 3_000 + draw.below(17_000),
            Kind::NoDescriptors => 2_000 + draw.below(10_000),
            Kind::LongPause | Kind::LongPauseClient => longest_ttl_ms + 500 + draw.below(4_000),
            Kind::DecodeLimit | Kind::NeverReads => longest_ttl_ms + draw.below(8_000),
            _ => 10_000 + draw.below(20_000),
        };
        if chosen && (plan.nodes > 1 || kind != Kind::SlowSnapshots) {
            strikes.push(Strike { at_ms, lasts_ms, fault });
        }
    }
    strikes
}

fn factor(draw: &mut Draw) -> u32 {
    if draw.below(2) == 0 { 10 } else { 100 }
}

fn pick<T: Copy>(draw: &mut Draw, from: &[T]) -> T {
    let chosen = usize::try_from(draw.below(from.len() as u64)).unwrap_or(0);
    from[chosen]
}

fn who(draw: &mut Draw) -> Who {
    match draw.below(4) {
        0..=1 => Who::Leader,
        2 => Who::Follower,
        _ => Who::Node(draw.below(5)),
    }
}

fn way(draw: &mut Draw, clients: u64) -> Way {
    match draw.below(6) {
        0 => Way::ToLeader,
        1 => Way::FromLeader,
        2..=3 => Way::LeaderBothWays,
        4 => Way::ToClient(draw.below(clients)),
        _ => Way::FromClient(draw.below(clients)),
    }
}

fn fault(draw: &mut Draw, kind: Kind, clients: u64) -> Fault {
    let shapes = [
        Shape::LeaderAlone,
        Shape::LeaderInMinority,
        Shape::LeaderWithClients,
        Shape::LeaderWithClients,
        Shape::LeaderWithClients,
        Shape::FollowerAlone,
        Shape::Ring,
        Shape::Bridge,
        Shape::Shattered,
    ];
    match kind {
        Kind::Kill => Fault::Kill(who(draw)),
        Kind::Crash => Fault::Crash(who(draw)),
        Kind::PowerCut => Fault::PowerCut,
        Kind::Stop => Fault::Stop(who(draw)),
        Kind::Pause => Fault::Pause(who(draw)),
        Kind::PauseClient => Fault::PauseClient(draw.below(clients)),
        Kind::KillClient => Fault::KillClient(draw.below(clients)),
        Kind::Partition => Fault::Partition(pick(draw, &shapes)),
        Kind::OneWay => Fault::Partition(pick(draw, &[Shape::LeaderMute, Shape::LeaderDeaf])),
        Kind::Loss => Fault::Loss,
        Kind::Delay => Fault::Delay,
        Kind::Duplication => Fault::Duplication,
        Kind::SlowLinks => Fault::SlowLinks,
        Kind::Break => Fault::Break(who(draw)),
        Kind::Silence => Fault::Silence(draw.below(clients)),
        Kind::DeafClient => Fault::DeafClient(draw.below(clients)),
        Kind::SlowDisk => Fault::SlowDisk(who(draw)),
        Kind::StuckDisk => Fault::StuckDisk(who(draw)),
        Kind::FullDisk => Fault::FullDisk(who(draw)),
        Kind::FlippedBit => Fault::Damage(who(draw), Damage::FlippedBit),
        Kind::CutFile => Fault::Damage(who(draw), Damage::CutFile),
        Kind::OldFile => Fault::Damage(who(draw), Damage::OldFile),
        Kind::Wipe => Fault::Wipe(who(draw)),
        Kind::Rates => Fault::Rates,
        Kind::WallStep => Fault::WallStep(who(draw)),
        Kind::Grow => Fault::Grow,
        Kind::Shrink => Fault::Shrink(who(draw)),
        Kind::Transfer => Fault::Transfer,
        Kind::HoldBack => Fault::HoldBack(way(draw, clients)),
        Kind::Retransmission => Fault::Retransmission(who(draw)),
        Kind::PartialPartition => Fault::PartialPartition,
        lasting => lasting_fault(draw, lasting, clients),
    }
}

/// A fault of a kind that lasts.
fn lasting_fault(draw: &mut Draw, kind: Kind, clients: u64) -> Fault {
    match kind {
        Kind::CrawlingDisk => Fault::CrawlingDisk(who(draw), factor(draw)),
        Kind::HungDisk => Fault::HungDisk(who(draw)),
        Kind::SlowNode => Fault::SlowNode(who(draw), factor(draw)),
        Kind::SlowSnapshots => Fault::SlowSnapshots(100 + draw.below(900)),
        Kind::NoDescriptors => Fault::NoDescriptors(who(draw)),
        Kind::DecodeLimit => Fault::DecodeLimit(draw.below(clients), 20 + draw.below(100)),
        Kind::NeverReads => Fault::NeverReads(draw.below(clients)),
        Kind::LongPause => Fault::LongPause(who(draw)),
        _ => Fault::LongPauseClient(draw.below(clients)),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn the_same_seed_draws_the_same_run_and_another_one_another() {
        let plan = Plan::draw(7, Clocks::Within);

        assert_eq!(Plan::draw(7, Clocks::Within), plan);
        assert_ne!(Plan::draw(8, Clocks::Within), plan);
        let text = serde_json::to_string(&plan).unwrap();
        assert_eq!(serde_json::from_str::<Plan>(&text).unwrap(), plan);
    }

    /// Otherwise the long run would never see a thousand of each.
    #[test]
    fn every_kind_of_fault_is_drawn_about_as_often_as_the_others() {
        let mut counts: BTreeMap<Kind, u64> = BTreeMap::new();
        for seed in 0..2_000 {
            for strike in Plan::draw(seed, Clocks::Within).strikes {
                *counts.entry(strike.fault.kind()).or_default() += 1;
            }
        }

        let drawn = |kind| counts.get(&kind).copied().unwrap_or(0);
        for kind in Kind::ALL {
            assert!(drawn(kind) > 400, "{kind}: {} in 2,000 runs", drawn(kind));
        }
        for kind in Kind::every().skip(Kind::ALL.len()) {
            assert!(drawn(kind) > 150, "{kind}: {} in 2,000 runs", drawn(kind));
        }
    }

    /// Later draws move no earlier ones.
    #[test]
    fn a_run_without_the_second_stream_has_the_first_kinds_alone() {
        let plan = Plan::draw(7, Clocks::Within).first_stream_alone();

        assert!(plan.strikes.iter().all(|strike| strike.fault.kind().is_of_the_first_stream()));
        assert!(plan.strikes.is_sorted_by_key(|strike| strike.at_ms));
        assert!(plan.limits.is_empty() && plan.table == 0 && !plan.full_leader);
    }

    /// Otherwise figures of runs with and without them could not be compared.
    #[test]
    fn limits_that_were_added_last_change_nothing_else_in_a_plan() {
        for seed in 0..500 {
            let without = Plan::without_node_totals(seed, Clocks::Within);
            let mut rest = Plan::draw(seed, Clocks::Within);
            rest.limits.retain(|name, _| !limits::is_added_last(name));
            rest.keeps_together = false;
            rest.disaster = None;
            rest.permits = false;
            rest.head_starts = false;
            rest.numbers = false;
            rest.floors = false;
            rest.bounds = false;
            rest.orders = false;
            rest.strikes.retain(|strike| !Kind::ORDERS.contains(&strike.fault.kind()));
            if let Some(scopes) = &mut rest.scopes {
                scopes.partitions.clear();
                if let Some(moves) = &mut scopes.moves {
                    (moves.wishes, moves.numbers) = (false, false);
                }
            }

            assert_eq!(rest, without, "seed {seed}");
            assert!(without.limits.keys().all(|name| !limits::is_added_last(name)));
        }
    }

    /// Otherwise not one run in a hundred could reach it. Nearly every run that draws a total of a node
    /// reaches it.
    #[test]
    fn each_limit_is_drawn_often_enough_to_be_reached_in_one_run_of_a_hundred() {
        let mut counts: BTreeMap<String, u64> = BTreeMap::new();
        for seed in 0..2_000 {
            for name in Plan::draw(seed, Clocks::Within).limits.into_keys() {
                *counts.entry(name).or_default() += 1;
            }
        }

        for name in limits::names() {
            let count = counts.get(name).copied().unwrap_or(0);
            let least = if limits::is_added_last(name) { 30 } else { 66 };
            assert!(count > least, "{name}: {count} in 2,000 runs");
        }
    }

    /// DESIGN §5.4: both errors together.
    #[test]
    fn no_two_clocks_of_a_run_differ_by_more_than_the_allowance() {
        for seed in 0..500 {
            let plan = Plan::draw(seed, Clocks::Within);
            let rates =
                plan.node_rates.iter().chain(plan.clients.iter().map(|client| &client.rate));
            let rates: Vec<i64> = rates.map(|rate| 1_000_000 + i64::from(*rate)).collect();
            let (slowest, fastest) = (rates.iter().min().unwrap(), rates.iter().max().unwrap());

            assert!((fastest - slowest) * 10 <= *fastest, "{slowest} and {fastest}");
        }
    }
}
