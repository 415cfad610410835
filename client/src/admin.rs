//! What operators do, of which no session is needed.

use std::fmt;
use std::time::Duration;

use crate::endpoints::{Asked, Servers};
use crate::transport::Dials;
use crate::transport::operator::{self, Said, Services};
use crate::{Error, Result};

/// The longest one server may take before the client tries the next. A server ends every call
/// itself, within its `propose_deadline_ms` (5 s unless it is set otherwise).
const ATTEMPT_LIMIT: Duration = Duration::from_secs(8);

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
    pub(crate) servers: Servers,
    pub(crate) dials: Dials,
}

impl Admin {
    /// Makes a call at the leader, and repeats it until the outcome is known. `changes` is false for a
    /// read; `what` names the call in errors.
    ///
    /// # Errors
    ///
    /// As of [`Admin`].
    pub(crate) async fn ask<T, F>(
        &self,
        what: &'static str,
        changes: bool,
        call: impl Fn(Services) -> F,
    ) -> Result<T>
    where
        F: Future<Output = Said<T>>,
    {
        let mut asked = Asked::default();
        let call = |endpoint: &str| {
            let dials = self.dials.clone();
            // Four clients with their connection are large, and a caller's future holds this one.
            Box::pin(operator::ask(dials, endpoint.to_owned(), &call))
        };
        match self.servers.ask(ATTEMPT_LIMIT, &mut asked, call).await {
            Err(Error::Unreachable { waited, .. }) if changes && asked.may_be_done => {
                Err(Error::OutcomeUnknown { what, waited })
            }
            answer => answer,
        }
    }
}

impl fmt::Debug for Admin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Admin").field("endpoints", &self.servers.endpoints).finish_non_exhaustive()
    }
}
