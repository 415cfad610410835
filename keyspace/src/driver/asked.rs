//! One node that is asked, and no other.

use std::sync::Arc;

use scylla::client::execution_profile::ExecutionProfile;
use scylla::client::session::Session;
use scylla::cluster::Node;
use scylla::policies::load_balancing::{NodeIdentifier, SingleTargetLoadBalancingPolicy};
use scylla::statement::Statement;
use scylla::value::{CqlValue, Row};

/// A node, and the session that asks it.
#[derive(Clone, Copy)]
pub(super) struct Asked<'a> {
    pub(super) session: &'a Session,
    pub(super) node: &'a Arc<Node>,
}

impl Asked<'_> {
    /// The rows that it answers with; why it does not, in words.
    pub(super) async fn rows(&self, text: impl Into<String>) -> Result<Vec<Row>, String> {
        let target = NodeIdentifier::Node(Arc::clone(self.node));
        let policy = SingleTargetLoadBalancingPolicy::new(target, None);
        let profile = ExecutionProfile::builder().load_balancing_policy(policy).build();
        let mut statement = Statement::new(text);
        statement.set_execution_profile_handle(Some(profile.into_handle()));
        let answer = self.session.query_unpaged(statement, ()).await;
        let answer = answer.map_err(|error| error.to_string())?;
        let Ok(rows) = answer.into_rows_result() else { return Ok(Vec::new()) };
        let rows = rows.rows::<Row>().map_err(|error| error.to_string())?;
        rows.collect::<Result<_, _>>().map_err(|error| error.to_string())
    }

    /// The settings of these names that it goes by, as its own version writes them. Cassandra tells them since 4.0.
    pub(super) async fn settings(&self, names: &[&str]) -> Result<Vec<(String, String)>, String> {
        let names: Vec<String> = names.iter().map(|name| format!("'{name}'")).collect();
        let asked = format!(
            "SELECT name, value FROM system_views.settings WHERE name IN ({})",
            names.join(", ")
        );
        let rows = self.rows(asked).await?;
        let setting = |row: &Row| Some((text(row, 0)?.to_owned(), text(row, 1)?.to_owned()));
        Ok(rows.iter().filter_map(setting).collect())
    }

    pub(super) fn name(&self) -> String {
        self.node.address.to_string()
    }
}

/// The text in a column of a row; `None` for null and for other types.
pub(super) fn text(row: &Row, at: usize) -> Option<&str> {
    match row.columns.get(at)?.as_ref()? {
        CqlValue::Text(text) | CqlValue::Ascii(text) => Some(text),
        _ => None,
    }
}
