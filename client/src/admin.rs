//! What operators do, of which no session is needed.

use std::fmt;

use crate::operator::Operator;

/// Members, scopes, imports, and sessions of others: [`Builder::admin`](crate::Builder::admin) makes
/// one. It needs no session.
///
/// It finds the leader from any endpoint, and again after a change of leader. Every change names its
/// result ("node 4 is a voter"), so a repeated call is harmless, and the client retries a call
/// without an answer within the limit.
///
/// ```no_run
/// # async fn example() -> holdfast::Result<()> {
/// use std::time::Duration;
///
/// let builder = holdfast::Client::builder().endpoints(["10.0.0.1:7420", "10.0.0.2:7420"]);
/// let admin = builder.admin(Duration::from_secs(15))?;
/// // Node 4 was started with --join.
/// admin.add_learner(4, "10.0.0.4:7420", "10.0.0.4:7421").await?;
/// let lags = |status: holdfast::ClusterStatus| {
///     status.members.iter().any(|member| member.node == 4 && member.lag > 100)
/// };
/// while lags(admin.cluster().await?) {
///     tokio::time::sleep(Duration::from_secs(1)).await;
/// }
/// admin.promote(4).await?;
/// # Ok(()) }
/// ```
///
/// # Errors
///
/// Of every call: [`Error::Refused`](crate::Error::Refused), nothing was changed and the message
/// says what to do; [`Error::Unreachable`](crate::Error::Unreachable), no leader answered within
/// the limit and nothing was changed; [`Error::OutcomeUnknown`](crate::Error::OutcomeUnknown), the
/// change may still take effect.
#[derive(Clone)]
pub struct Admin {
    pub(crate) operator: Operator,
}

impl Admin {
    pub(crate) fn new(operator: Operator) -> Self {
        Self { operator }
    }
}

impl fmt::Debug for Admin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Admin").field("operator", &self.operator).finish()
    }
}
