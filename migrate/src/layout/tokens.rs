//! `tokens("token", service_session_id)`, with LWT or without, and `token_times(service_session_id, …,
//! timestamp)` (Scylla seed). Without LWT the session is a part of the key, and a token that several
//! want has a row for each.

use super::raw::Cell;
use super::table::{Column, Expected, NAME, Role, Type};

/// A session that has a token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenRow {
    /// Its id; `None`: the token's row has none.
    pub session: Option<Cell>,
    /// Whether the session beats.
    pub heartbeat: Heartbeat,
}

/// What `token_times` says of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heartbeat {
    /// It has no row there.
    Missing,
    /// It has one.
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
    /// Of the cells of [`expected`]; the heartbeat is filled in by who knows it.
    pub(super) fn of(row: Vec<Option<Cell>>) -> Self {
        let session = row.into_iter().nth(1).flatten();
        Self { session, heartbeat: Heartbeat::Missing }
    }
}
