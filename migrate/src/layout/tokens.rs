//! `tokens("token", service_session_id)`, with LWT or without, and `token_times(service_session_id,
//! …, timestamp)` (Scylla article). Without LWT the session is part of the key, and a token that
//! several sessions want has a row for each.

use super::raw::Cell;
use super::table::{Column, Expected, NAME, Role, Type};

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

pub(super) fn expected(table: &str, [token, session]: &[String; 2]) -> Expected {
    let columns = vec![
        Column::new(token, Role::Partition, NAME),
        Column::new(session, Role::ClusteringOrRegular, NAME).with_detail(),
    ];
    Expected { table: table.to_owned(), columns }
}

pub(super) fn beats(table: &str, [session, beat]: &[String; 2]) -> Expected {
    let columns = vec![
        Column::new(session, Role::Partition, NAME),
        Column::new(beat, Role::Regular, &[Type::Time, Type::Number]).with_detail(),
    ];
    Expected { table: table.to_owned(), columns }
}

impl TokenRow {
    /// Reads the cells of a row, in the order of [`expected`]; the scan adds the heartbeat later.
    pub(super) fn of(row: Vec<Option<Cell>>) -> Self {
        let session = row.into_iter().nth(1).flatten();
        Self { session, heartbeat: Heartbeat::Missing }
    }
}
