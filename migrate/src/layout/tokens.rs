//! `tokens("token", service_session_id)`, with LWT or without, and `token_times(service_session_id,
//! …, timestamp)` (Scylla article). Without LWT the session is part of the key, and a token that
//! several sessions want has a row for each.

use super::raw::Cell;

/// A row of a token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenRow {
    /// The session's id; `None`: the row has none.
    pub session: Option<Cell>,
    /// The session's heartbeat.
    pub heartbeat: Heartbeat,
}

/// The row of a session in `token_times`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heartbeat {
    /// The session has no row there.
    Missing,
    /// The session has a row.
    There {
        /// When the last heartbeat was written, as of [`Cell::written_us`].
        written_us: Option<i64>,
    },
}

impl TokenRow {
    /// Reads the cells of a row, in the order of [`Expected::columns`](super::Expected::columns); the scan adds the heartbeat later.
    pub(super) fn of(row: Vec<Option<Cell>>) -> Self {
        let session = row.into_iter().nth(1).flatten();
        Self { session, heartbeat: Heartbeat::Missing }
    }
}
