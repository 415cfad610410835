//! The settings of a node for the port for clients.

/// Settings of the port for clients. Per node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RpcSettings {
    /// Largest message a client may send, bytes.
    ///
    /// Default: 1 048 576 (1 MiB). Minimum: 65 536. A frame has about 1 KiB at most, and a message
    /// may carry many: a client that re-sends a thousand requests after a resume fits.
    pub max_message_bytes: usize,
    /// Bytes that incomplete messages of all clients together may take.
    ///
    /// Default: 67 108 864 (64 MiB). Minimum: `max_message_bytes`. Beyond it a call that has sent more
    /// than 16 KiB of a message is refused; one that has sent less goes on.
    pub arriving_bytes_total: u64,
    /// Streams and calls open at once on one connection.
    ///
    /// Default: 1 024. Minimum: 1. Past it a client's call waits at the client; one stream carries
    /// a session with all its requests, so more are needed only by proxies.
    ///
    /// Source: DESIGN §6; tonic sets no limit by itself.
    pub max_streams_per_connection: u32,
    /// Bytes that may lie unread on one stream.
    ///
    /// Default: 1 048 576 (1 MiB). Maximum: 2³¹ − 1.
    pub stream_window_bytes: u32,
    /// Bytes that may lie unread on one connection.
    ///
    /// Default: 16 777 216 (16 MiB). Minimum: 4 MiB. Maximum: 2³¹ − 1. h2 ends a connection on
    /// which small frames worth half of it lie unread.
    ///
    /// Source: DESIGN §6, traps of h2.
    pub connection_window_bytes: u32,
    /// Largest header list of a request, bytes.
    ///
    /// Default: 16 384. Minimum: 4 096.
    pub max_header_bytes: u32,
    /// How often an idle connection is checked, milliseconds.
    ///
    /// Default: 5 000. Minimum: 100. A dead connection costs memory only: leases decide.
    pub keepalive_interval_ms: u64,
    /// How long the answer may take before the connection is closed, milliseconds.
    ///
    /// Default: 5 000. Minimum: 100.
    pub keepalive_timeout_ms: u64,
}

impl Default for RpcSettings {
    fn default() -> Self {
        Self {
            max_message_bytes: 1 << 20,
            arriving_bytes_total: 64 << 20,
            max_streams_per_connection: 1_024,
            stream_window_bytes: 1 << 20,
            connection_window_bytes: 16 << 20,
            max_header_bytes: 16_384,
            keepalive_interval_ms: 5_000,
            keepalive_timeout_ms: 5_000,
        }
    }
}
