//! Limits of size as settings of a simulated run, drawn so small that the run reaches them.
//!
//! A new limit is one line of [`LIMITS`]: the store's name for it, the range it is drawn from, and
//! where it is set. The totals then count in how many runs it was reached, and `--demand` asks for
//! one run in [`ONE_RUN_IN`].

use std::collections::BTreeMap;
use std::time::Duration;

use holdfast_server::raft::ReplicaConfig;
use holdfast_server::session::SessionSettings;

use super::plan::ClientPlan;
use crate::draw::Draw;

/// Out of so many runs, at least one has to reach each limit.
pub(super) const ONE_RUN_IN: u64 = 100;
/// The most limits that are drawn for one run.
const AT_ONCE: u64 = 3;

/// Each of [`NODE_TOTALS`] is drawn in one of so many runs that may have limits.
const NODE_TOTALS_ONE_IN: u64 = 25;

/// The limit on how long a disk may take for any step.
pub(super) const DISK_STALL: &str = "disk_stall_ms";
/// The limit on what lies unsent for all streams of a node together.
const OUTBOX_BYTES_TOTAL: &str = "outbox_bytes_total";
/// The limit of what one command does.
pub(super) const WORK_STEPS: &str = "work_steps";
/// The limit on how many sessions are resumed in a second.
const RESUMES: &str = "resumes_per_second";
/// The limit on how many streams of a node have a session.
const ATTACHED_STREAMS: &str = "max_attached_streams";

/// The settings of a run's nodes.
pub(super) struct Sizes<'a> {
    pub(super) replica: &'a mut ReplicaConfig,
    pub(super) sessions: &'a mut SessionSettings,
}

/// A limit of size.
struct Limit {
    /// The name that the store gives when the limit is reached.
    name: &'static str,
    /// Drawn between these two, both included.
    between: (u64, u64),
    /// Sets it. For a limit that the product fixes this does nothing, and some client exceeds it.
    set: fn(&mut Sizes<'_>, u64),
}

/// A limit on what all streams of a node have together.
struct NodeTotal {
    limit: Limit,
    /// So much more for each client of the run: no client has to wait for another one's place.
    for_each_client: u64,
    /// Never beside these: they are reached sooner.
    not_beside: &'static [&'static str],
}

fn count(value: u64) -> usize {
    usize::try_from(value).unwrap_or(usize::MAX)
}

/// Every limit that a run draws. Limits that would keep a client out for good are above the number
/// of clients: a client that waits for its turn has to get it.
const LIMITS: &[Limit] = &[
    Limit {
        name: "outbox_frames",
        between: (2, 5),
        set: |to, value| to.sessions.outbox_frames = count(value),
    },
    Limit {
        name: "frames_per_second",
        // Settings allow no less than 128: with less than its first message a client that resumes
        // makes no progress.
        between: (128, 140),
        set: |to, value| to.sessions.frames_per_second = u32::try_from(value).unwrap_or(u32::MAX),
    },
    Limit {
        name: "max_unopened_streams",
        between: (1, 1),
        set: |to, value| to.sessions.max_unopened_streams = count(value),
    },
    Limit {
        name: "max_watches",
        between: (1, 1),
        set: |to, value| to.sessions.max_watches = count(value),
    },
    Limit {
        name: "watch_backlog",
        between: (1, 3),
        set: |to, value| to.sessions.watch_backlog = count(value),
    },
    Limit {
        name: "max_waiting_calls",
        between: (1, 1),
        set: |to, value| to.sessions.max_waiting_calls = count(value),
    },
    Limit {
        name: "max_pending_commands",
        between: (2, 6),
        set: |to, value| to.replica.max_pending_commands = count(value),
    },
    Limit {
        name: "max_sessions",
        between: (6, 12),
        set: |to, value| to.replica.limits.max_sessions = value,
    },
    Limit {
        name: "max_requests_per_session",
        between: (1, 2),
        set: |to, value| to.replica.limits.max_requests_per_session = value,
    },
    Limit {
        name: "max_waiters_per_lock",
        between: (1, 2),
        set: |to, value| to.replica.limits.max_waiters_per_lock = value,
    },
    Limit {
        name: "max_value_bytes",
        between: (0, 200),
        set: |to, value| to.replica.limits.max_value_bytes = value,
    },
    Limit { name: "names_per_request", between: (64, 64), set: |_, _| () },
    Limit { name: "value_bytes", between: (4_096, 4_096), set: |_, _| () },
];

/// Limits that were added later, each in one run of so many, drawn from a stream of their own.
const LATER: &[(u64, Limit)] = &[
    (
        6,
        Limit {
            name: "max_table_bytes",
            between: (6_000, 16_000),
            set: |to, value| to.replica.max_table_bytes = value,
        },
    ),
    (
        6,
        Limit {
            name: "outbox_bytes",
            between: (1_500, 5_000),
            set: |to, value| to.sessions.outbox_bytes = value,
        },
    ),
    (
        8,
        Limit {
            name: "max_pending_bytes",
            between: (300, 2_000),
            set: |to, value| to.replica.max_pending_bytes = count(value),
        },
    ),
    (
        6,
        Limit {
            name: "max_log_bytes",
            between: (8_192, 49_152),
            set: |to, value| to.replica.max_log_bytes = value,
        },
    ),
    // Longer than a slow or crawling disk takes for a commit.
    (
        2,
        Limit {
            name: DISK_STALL,
            between: (6_000, 10_000),
            set: |to, value| to.replica.disk_stall_ms = value,
        },
    ),
    (
        4,
        Limit {
            name: "state_page_bytes",
            between: (1, 150),
            set: |to, value| to.sessions.state_page_bytes = count(value),
        },
    ),
    (
        6,
        Limit {
            name: "watch_page_locks",
            between: (1, 3),
            set: |to, value| to.sessions.watch_page_locks = count(value),
        },
    ),
];

/// Limits on what all streams of a node have together, drawn from a stream of their own. The client
/// that speaks frames itself exceeds those on sessions, and watches that break exceed the last.
const NODE_TOTALS: &[NodeTotal] = &[
    NodeTotal {
        limit: Limit {
            name: OUTBOX_BYTES_TOTAL,
            // More than some States take, and less than the answers to one message of nonsense.
            between: (6_000, 11_000),
            set: |to, value| to.sessions.outbox_bytes_total = value,
        },
        for_each_client: 0,
        not_beside: &["outbox_frames", "outbox_bytes"],
    },
    NodeTotal {
        limit: Limit {
            name: ATTACHED_STREAMS,
            between: (2, 5),
            set: |to, value| to.sessions.max_attached_streams = count(value),
        },
        for_each_client: 1,
        not_beside: &["max_sessions"],
    },
    // The changes that a node keeps for all watches together: fewer than one that breaks misses.
    NodeTotal {
        limit: Limit {
            name: "watch_recent_changes",
            between: (1, 12),
            set: |to, value| to.sessions.watch_recent_changes = value,
        },
        for_each_client: 0,
        not_beside: &[],
    },
];

/// Limits that were added last, each in one run of so many, drawn from a stream of their own.
const LATEST: &[(u64, Limit)] = &[
    // So little that releases, ends of sessions and raised epochs leave work for later commands.
    (
        5,
        Limit {
            name: WORK_STEPS,
            between: (1, 40),
            set: |to, value| to.replica.work_steps = value,
        },
    ),
    // So few that a new leader sends most clients away at first.
    (
        6,
        Limit {
            name: RESUMES,
            between: (10, 25),
            set: |to, value| to.sessions.resumes_per_second = value,
        },
    ),
];

/// Draws each of [`NODE_TOTALS`] by itself, for a run with so many clients and these limits.
pub(super) fn draw_node_totals(
    draw: &mut Draw,
    clients: u64,
    beside: &BTreeMap<String, u64>,
) -> BTreeMap<String, u64> {
    let mut drawn = BTreeMap::new();
    for NodeTotal { limit, for_each_client, not_beside } in NODE_TOTALS {
        // Drawn whether it is used or not, so that one limit does not move the others.
        let (least, most) = limit.between;
        let (chosen, value) = (draw.below(NODE_TOTALS_ONE_IN) == 0, draw.between(least, most));
        if chosen && !not_beside.iter().any(|name| beside.contains_key(*name)) {
            drawn.insert(limit.name.to_owned(), value + for_each_client * clients);
        }
    }
    drawn
}

/// Draws each of [`LATEST`] by itself.
pub(super) fn draw_latest(draw: &mut Draw) -> BTreeMap<String, u64> {
    drawn_of(LATEST, draw).map(|(limit, value)| (limit.name.to_owned(), value)).collect()
}

/// Whether this limit is one of [`NODE_TOTALS`], or of [`LATEST`].
pub(super) fn is_added_last(name: &str) -> bool {
    NODE_TOTALS.iter().any(|total| total.limit.name == name)
        || LATEST.iter().any(|(_, limit)| limit.name == name)
}

/// Those of a list that a run has. Each is drawn whether it is used or not, so that one limit does not
/// move the others.
fn drawn_of(
    limits: &'static [(u64, Limit)],
    draw: &mut Draw,
) -> impl Iterator<Item = (&'static Limit, u64)> {
    limits.iter().filter_map(|(one_in, limit)| {
        let (least, most) = limit.between;
        let (chosen, value) = (draw.below(*one_in) == 0, draw.between(least, most));
        chosen.then_some((limit, value))
    })
}

/// How much longer a leader may keep the session of a client that is gone, because it expects as many as
/// a run has to come back (DESIGN §5.3).
pub(super) fn longer_leases(drawn: &BTreeMap<String, u64>) -> Duration {
    if drawn.contains_key(RESUMES) { Duration::from_secs(5) } else { Duration::ZERO }
}

/// Draws each of [`LATER`] by itself. With a large table only those that do not bound how much a
/// run may have.
pub(super) fn draw_later(draw: &mut Draw, beside_a_table: bool) -> BTreeMap<String, u64> {
    let drawn = drawn_of(LATER, draw);
    let kept = drawn.filter(|(limit, _)| !beside_a_table || limit.name == DISK_STALL);
    kept.map(|(limit, value)| (limit.name.to_owned(), value)).collect()
}

fn all() -> impl Iterator<Item = &'static Limit> {
    let later = LATER.iter().map(|(_, limit)| limit);
    let totals = NODE_TOTALS.iter().map(|total| &total.limit);
    let latest = LATEST.iter().map(|(_, limit)| limit);
    LIMITS.iter().chain(later).chain(totals).chain(latest)
}

/// Up to three limits for half of the runs, by name.
pub(super) fn draw(draw: &mut Draw) -> BTreeMap<String, u64> {
    let mut drawn = BTreeMap::new();
    if draw.below(2) == 0 {
        return drawn;
    }
    for _ in 0..=draw.below(AT_ONCE) {
        let place = usize::try_from(draw.below(LIMITS.len() as u64)).unwrap_or(0);
        let Some(limit) = LIMITS.get(place) else { continue };
        let (least, most) = limit.between;
        drawn.insert(limit.name.to_owned(), draw.between(least, most));
    }
    drawn
}

/// Sets the limits of a run.
pub(super) fn set(drawn: &BTreeMap<String, u64>, to: &mut Sizes<'_>) {
    for limit in all() {
        if let Some(value) = drawn.get(limit.name) {
            (limit.set)(to, *value);
        }
    }
}

/// The plan of a client: where watches or waiting calls are limited, the first clients watch, or
/// call.
pub(super) fn sized(
    drawn: &BTreeMap<String, u64>,
    place: usize,
    mut client: ClientPlan,
) -> ClientPlan {
    const FIRST: usize = 3;
    let limited = |name: &str| place < FIRST && drawn.contains_key(name);
    let watched = [
        "max_watches",
        "watch_backlog",
        "outbox_bytes",
        OUTBOX_BYTES_TOTAL,
        "watch_page_locks",
        "watch_recent_changes",
    ];
    client.watches |= watched.iter().any(|name| limited(name));
    // The client with place 0 may have the clock beyond the allowance, and has to use the library.
    client.calls |= place > 0 && limited("max_waiting_calls");
    client
}

/// Whether few messages to watchers are under way at a time, so that they receive the events over a
/// while.
pub(super) fn tells_slowly(drawn: &BTreeMap<String, u64>) -> bool {
    let slow = ["watch_backlog", "outbox_bytes", OUTBOX_BYTES_TOTAL, "watch_page_locks"];
    slow.iter().any(|name| drawn.contains_key(*name))
}

/// The same for clients with a session.
pub(super) fn answers_slowly(drawn: &BTreeMap<String, u64>) -> bool {
    ["outbox_bytes", OUTBOX_BYTES_TOTAL].iter().any(|name| drawn.contains_key(*name))
}

/// Whether a client has to exceed a fixed limit of the product.
pub(super) fn goes_beyond(drawn: &BTreeMap<String, u64>) -> bool {
    ["names_per_request", "value_bytes"].iter().any(|name| drawn.contains_key(*name))
}

/// More frames in a second than a stream may have, where that is limited; only a flood has so many.
pub(super) fn flood(drawn: &BTreeMap<String, u64>) -> Option<u64> {
    drawn.get("frames_per_second").map(|most| most + 1)
}

/// Whether a client has to get more answers at once than all streams of a node may leave unsent.
pub(super) fn gets_much(drawn: &BTreeMap<String, u64>) -> bool {
    drawn.contains_key(OUTBOX_BYTES_TOTAL)
}

/// More streams than may have a session on a node, where that is limited.
pub(super) fn crowd(drawn: &BTreeMap<String, u64>) -> Option<u64> {
    drawn.get(ATTACHED_STREAMS).map(|most| most + 1)
}

/// Whether a client has to speak frames itself: the library exceeds none of these limits.
pub(super) fn needs_frames(drawn: &BTreeMap<String, u64>) -> bool {
    let exceeded = [flood(drawn), crowd(drawn)].iter().any(Option::is_some);
    exceeded || goes_beyond(drawn) || gets_much(drawn)
}

/// The names of all limits.
pub(super) fn names() -> impl Iterator<Item = &'static str> {
    all().map(|limit| limit.name)
}
