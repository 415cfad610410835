//! Counts the leases in Cassandra that a drain has to wait for.

use std::sync::Arc;

use holdfast_keyspace::authority::BUCKETS;
use holdfast_keyspace::database::{Fault, Tables};
use holdfast_keyspace::statement::{Action, Ident, Statement, Value};

/// The leases of one scope in the table `fallback_leases`.
pub(super) struct Leases {
    tables: Arc<Tables>,
    scope: String,
}

impl Leases {
    pub(super) fn new(tables: Arc<Tables>, scope: &str) -> Self {
        Self { tables, scope: scope.to_owned() }
    }

    /// The number of leases, each counted at some instant during the call. While no client enters, 0
    /// means that none is left.
    ///
    /// # Errors
    ///
    /// [`Fault`]: there may be some.
    pub(super) async fn count(&self) -> Result<u64, Fault> {
        let mut held = 0;
        for bucket in 0..BUCKETS {
            let key = vec![
                (Ident::new("scope"), Value::from(self.scope.as_str())),
                (Ident::new("bucket"), Value::from(bucket)),
            ];
            let action =
                Action::AllSerial { columns: vec![Ident::new("name"), Ident::new("owner")] };
            let all = Statement::new(Ident::new("fallback_leases"), key, action);
            let rows = self.tables.read_all(all.partitioned_by(2).decided_everywhere()).await?;
            held +=
                rows.iter().filter(|row| row.text(&Ident::new("owner")).is_some()).count() as u64;
        }
        Ok(held)
    }
}
