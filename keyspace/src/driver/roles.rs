//! Whether a role may still change tables, as every node knows it.

use std::time::Duration;

use scylla::client::session::Session;
use scylla::value::CqlValue;

use super::asked::{Asked, text};
use crate::statement::Ident;

/// Why a role does not count as stopped. Nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotRevoked {
    /// The cluster does not say what the role may do.
    #[error(
        "what role {role} may do cannot be looked up at {node}: {why}; log in as a superuser, or as a role that was granted {role}"
    )]
    NotTold {
        /// The role.
        role: String,
        /// The node.
        node: String,
        /// What it says.
        why: String,
    },
    /// No permission of a superuser can be revoked.
    #[error("role {role} has the superuser {superuser}, who may change everything")]
    Superuser {
        /// The role.
        role: String,
        /// It, or a role that it was granted.
        superuser: String,
    },
    /// It may change a table.
    #[error(
        "role {role} may change {on}, as node {node} knows it: REVOKE MODIFY ON {on} FROM {by}"
    )]
    MayChange {
        /// The role.
        role: String,
        /// The role of it that was granted the permission.
        by: String,
        /// What on.
        on: String,
        /// The node.
        node: String,
    },
    /// A node does not say for how long it goes by what it knew.
    #[error(
        "node {node} does not tell its permissions_validity ({why}); say it with --permissions-validity"
    )]
    NoValidity {
        /// The node.
        node: String,
        /// Why.
        why: String,
    },
}

/// Checks that a role may change none of these tables, and returns for how long a node may still let it, because nodes go by what they
/// knew for their `permissions_validity`: the longest of all nodes, unless `validity` says it.
///
/// Each node that is up is asked. It answers by what it reads then, and another one, or a later look, may read another replica of what roles
/// may do: that tables of `system_auth` are repaired is the operator's task.
///
/// # Errors
///
/// [`NotRevoked`].
pub async fn revoked(
    session: &Session,
    tables: &[(Ident, Ident)],
    role: &str,
    validity: Option<Duration>,
) -> Result<Duration, NotRevoked> {
    let state = session.get_cluster_state();
    let mut longest = validity.unwrap_or_default();
    for node in state.get_nodes_info().iter().filter(|node| node.is_connected()) {
        let asked = AskedOf { node: Asked { session, node }, role };
        asked.is_no_superuser().await?;
        for table in tables {
            asked.may_not_change(table).await?;
        }
        if validity.is_none() {
            longest = longest.max(asked.validity().await?);
        }
    }
    Ok(longest)
}

/// A node that is asked about a role.
struct AskedOf<'a> {
    node: Asked<'a>,
    role: &'a str,
}

impl AskedOf<'_> {
    fn not_told(&self, why: String) -> NotRevoked {
        NotRevoked::NotTold { role: self.role.to_owned(), node: self.node.name(), why }
    }

    /// Rows of: role, superuser, and more.
    async fn is_no_superuser(&self) -> Result<(), NotRevoked> {
        let asked = format!("LIST ROLES OF {}", Ident::new(self.role));
        for row in self.node.rows(asked).await.map_err(|why| self.not_told(why))? {
            if let [Some(CqlValue::Text(name)), Some(CqlValue::Boolean(true)), ..] =
                row.columns.as_slice()
            {
                let (role, superuser) = (self.role.to_owned(), name.clone());
                return Err(NotRevoked::Superuser { role, superuser });
            }
        }
        Ok(())
    }

    /// Rows of: role, user name, resource, permission. Those of roles that it was granted, and those on all that has the table in it, stand
    /// there too.
    async fn may_not_change(&self, (keyspace, table): &(Ident, Ident)) -> Result<(), NotRevoked> {
        let role = Ident::new(self.role);
        let asked = format!("LIST MODIFY PERMISSION ON TABLE {keyspace}.{table} OF {role}");
        let rows = self.node.rows(asked).await.map_err(|why| self.not_told(why))?;
        let Some(row) = rows.first() else { return Ok(()) };
        let told = |at: usize| text(row, at).unwrap_or_default().to_owned();
        let on = told(2).trim_matches(['<', '>']).to_owned();
        Err(NotRevoked::MayChange {
            role: self.role.to_owned(),
            by: told(0),
            on,
            node: self.node.name(),
        })
    }

    async fn validity(&self) -> Result<Duration, NotRevoked> {
        let unknown = |why: String| NotRevoked::NoValidity { node: self.node.name(), why };
        let names = ["permissions_validity", "permissions_validity_in_ms"];
        let settings = self.node.settings(&names).await.map_err(unknown)?;
        let values = settings.iter().map(|(_, value)| value.as_str());
        let mut known = values.filter_map(milliseconds);
        known.next().ok_or_else(|| unknown("it has no such setting".to_owned()))
    }
}

/// As settings have it: `2000ms`, `2s`, `1m`, or milliseconds without a unit.
fn milliseconds(value: &str) -> Option<Duration> {
    let digits = value.trim_end_matches(|last: char| last.is_ascii_alphabetic());
    let number: u64 = digits.parse().ok()?;
    let ms = match &value[digits.len()..] {
        "" | "ms" => number,
        "s" => number.checked_mul(1_000)?,
        "m" => number.checked_mul(60_000)?,
        "h" => number.checked_mul(3_600_000)?,
        "d" => number.checked_mul(86_400_000)?,
        _ => return None,
    };
    Some(Duration::from_millis(ms))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_setting_is_read_with_the_units_of_every_version() {
        let cases = [
            ("2000ms", Some(2_000)),
            ("2000", Some(2_000)),
            ("30s", Some(30_000)),
            ("2m", Some(120_000)),
            ("1h", Some(3_600_000)),
            ("1d", Some(86_400_000)),
            ("0ms", Some(0)),
            ("null", None),
            ("ms", None),
            ("", None),
            ("99999999999999999999", None),
            ("9999999999999999999h", None),
        ];
        for (text, ms) in cases {
            assert_eq!(milliseconds(text), ms.map(Duration::from_millis), "{text}");
        }
    }
}
