//! The settings of a node for sessions and their streams.

/// Settings of the session layer. Per node; nothing here decides a replicated outcome.
///
/// Those that [`NodeConfig`](crate::config::NodeConfig) or [`ClusterConfig`](crate::config::ClusterConfig)
/// has under the same name are documented there, with default and bounds. A stream or watch that passes a
/// limit ends with `RESOURCE_EXHAUSTED`; its session lives on, and State heals it after a resume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionSettings {
    /// Lease of a session that asks for none, milliseconds. Bounds:
    /// [`Limits::ttl_min_ms`](holdfast_core::Limits::ttl_min_ms) and `ttl_max_ms`: the core checks it like
    /// a lease that was asked for.
    pub ttl_default_ms: u64,
    /// What a lease is given beyond its TTL before the leader expires it, milliseconds.
    ///
    /// Default: 50. Minimum: 0. It absorbs scheduling delays and is no part of the argument that
    /// no expiry is early.
    ///
    /// Source: DESIGN §5.4.
    pub margin_ms: u64,
    /// Frames that may lie unsent in the outbox of one stream.
    ///
    /// Source: a client stalled for one second under 8 000 pushes a second; about 1 MiB.
    pub outbox_frames: usize,
    /// Bytes that may lie unsent in the outbox of one stream, and that a watch may be behind. A page of
    /// State lies beside it.
    ///
    /// Source: `outbox_frames` of a kibibyte each; of the largest frames two dozen.
    pub outbox_bytes: u64,
    /// Bytes that may lie unsent in the outboxes of all streams together; and as many again may be
    /// kept for all watches that are behind.
    ///
    /// Source: 32 full outboxes; with 100 000 streams, 2 KiB for each.
    pub outbox_bytes_total: u64,
    /// Bytes that may lie here of what clients send and no session takes yet: messages that have not
    /// arrived completely, and frames of streams that are not open. Beyond it a call or a stream that has
    /// more than 16 KiB of that is refused; one that has less goes on.
    ///
    /// Source: 64 of the largest messages; an Open has less than a kibibyte.
    pub arriving_bytes_total: u64,
    /// Frames a client may send on one stream, per second; as many may come at once.
    ///
    /// Source: about what one stream can do on a test machine of two cores.
    pub frames_per_second: u32,
    /// Streams that a session may be attached to, on this node.
    ///
    /// Source: as many as the cluster's `max_sessions`; measured, about 32 KiB each with a connection
    /// of its own.
    pub max_attached_streams: usize,
    /// Streams that have not been answered Opened yet.
    ///
    /// Source: every client of a busy node coming back at once after a change of leader, in a few
    /// rounds.
    pub max_unopened_streams: usize,
    /// Resumes that begin on this node in a second; others wait, or come back later.
    ///
    /// Source: a resume with a connection of its own takes about 100 µs of the thread that serves.
    pub resumes_per_second: u64,
    /// Watches open on this node.
    ///
    /// Source: about 1 000 watchers on each of a few prefixes, with room for as many that come
    /// back before their old connections are gone.
    pub max_watches: usize,
    /// Changes that a watch may be behind, besides those that the transport has taken over.
    ///
    /// Source: as `outbox_frames`; about 2 MiB, shared by all watchers that are behind on one prefix.
    pub watch_backlog: usize,
    /// Watches that are shown the state, or what they missed, at the same time; the others wait in line.
    ///
    /// Source: two for each core of a small machine; each reads one page at a time under the table's lock.
    pub watch_states: usize,
    /// Recent changes that are kept for watches that go on after a break; 0: none, every watch begins anew.
    ///
    /// Source: four seconds of as many changes as three members on a test machine make, twice as long as a
    /// dead leader is missed.
    pub watch_recent_changes: u64,
    /// Bytes of the recent changes that are kept.
    ///
    /// Source: `watch_recent_changes` of 256 bytes each; usual ones have as many, with their values more.
    pub watch_recent_bytes: u64,
    /// Calls that wait for a lock at this node at once (unary Acquire); one that finds its lock free needs
    /// a place only until it is answered.
    ///
    /// Source: each costs about what an idle stream does; clients that wait a lot have streams.
    pub max_waiting_calls: usize,
    /// Bytes with which a page of State is full.
    ///
    /// 262 144 (256 KiB) in every server: only simulations make it smaller. The largest entry, a set
    /// of 64 names with values, has 330 KB, so no page comes near 1 MiB.
    pub state_page_bytes: usize,
    /// Locks on a page of the state that a watch sends first.
    ///
    /// 256 in every server: only simulations make it smaller. It bounds how long the table is held
    /// for a page.
    pub watch_page_locks: usize,
    /// Prefixes of names by which metrics of locks are kept apart.
    ///
    /// Source: each is a series of three histograms and a gauge, about 50 lines of a scrape.
    pub metrics_prefixes: Vec<String>,
    /// A grant that waited longer has a line in the log, milliseconds; 0: none has.
    pub log_waits_over_ms: u64,
    /// A hold that lasted longer has a line in the log, milliseconds; 0: none has.
    pub log_holds_over_ms: u64,
    /// How long a stream may take to send its Open, milliseconds.
    ///
    /// Default: 5 000. Minimum: 100. Then it ends with `INVALID_ARGUMENT`.
    ///
    /// Source: a client that connects and sends nothing must not hold a stream (slow loris).
    pub open_within_ms: u64,
}

impl Default for SessionSettings {
    fn default() -> Self {
        Self {
            ttl_default_ms: 10_000,
            margin_ms: 50,
            outbox_frames: 8_192,
            outbox_bytes: 8 << 20,
            outbox_bytes_total: 256 << 20,
            arriving_bytes_total: 64 << 20,
            frames_per_second: 50_000,
            max_attached_streams: 100_000,
            max_unopened_streams: 8_192,
            resumes_per_second: 8_000,
            max_watches: 10_000,
            watch_backlog: 8_192,
            watch_states: 8,
            watch_recent_changes: 131_072,
            watch_recent_bytes: 32 << 20,
            max_waiting_calls: 10_000,
            state_page_bytes: 256 << 10,
            watch_page_locks: 256,
            metrics_prefixes: Vec::new(),
            log_waits_over_ms: 0,
            log_holds_over_ms: 0,
            open_within_ms: 5_000,
        }
    }
}
