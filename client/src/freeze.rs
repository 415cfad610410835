//! Freezes: prefixes of names of which nothing is granted (DESIGN §16).

use std::time::Duration;

use holdfast_proto::v1;

use crate::transport::operator::Services;
use crate::{Admin, Result};

/// Names of which nothing is granted at the moment.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Freeze {
    /// What they begin with; empty: all names.
    pub prefix: String,
    /// For those who wait. It may contain any characters but control and bidirectional-override ones.
    pub message: String,
    /// Who froze them, as of [`Holder::identity`](crate::Holder::identity).
    pub identity: String,
    /// For how long they are frozen, by the leader's wall clock.
    pub frozen: Duration,
}

impl Freeze {
    pub(crate) fn from_wire(freeze: v1::Freeze) -> Self {
        Self {
            prefix: freeze.prefix,
            message: freeze.message,
            identity: freeze.identity,
            frozen: Duration::from_millis(freeze.frozen_ms),
        }
    }
}

impl Admin {
    /// Grants nothing of the names that begin with `prefix`, all names if it is empty, until it is thawed. Holds stay: they are
    /// released and expire as before. Requests queue, and see `message`; a try is refused with
    /// [`RefusalReason::Frozen`](crate::RefusalReason::Frozen). Names in a scope with fallback are left out, because Cassandra would
    /// go on granting them. Repeating it is harmless; another message takes the place of the one before. Needs the verb
    /// `freeze` on the prefix.
    ///
    /// # Errors
    ///
    /// As of [`Admin`]; [`RefusalReason::Freeze`](crate::RefusalReason::Freeze) for a prefix in a scope,
    /// [`RefusalReason::Limit`](crate::RefusalReason::Limit) if 1,000 prefixes are frozen.
    pub async fn freeze(&self, prefix: &str, message: &str) -> Result<()> {
        let (prefix, message) = (prefix.to_owned(), message.to_owned());
        let request = v1::FreezeRequest { prefix, message };
        let freeze = |mut at: Services| {
            let request = request.clone();
            async move { at.locks.freeze(request).await }
        };
        self.ask("freezing names", true, freeze).await.map(drop)
    }

    /// Lifts the freeze of `prefix`, and grants to those who wait and are under no other. Needs the verb `freeze` on the
    /// prefix.
    ///
    /// # Errors
    ///
    /// As of [`Admin`]; [`RefusalReason::Freeze`](crate::RefusalReason::Freeze) if there is no freeze of exactly that prefix:
    /// also if a first copy of this call has lifted it.
    pub async fn thaw(&self, prefix: &str) -> Result<()> {
        let request = v1::ThawRequest { prefix: prefix.to_owned() };
        let thaw = |mut at: Services| {
            let request = request.clone();
            async move { at.locks.thaw(request).await }
        };
        self.ask("thawing names", true, thaw).await.map(drop)
    }

    /// Every freeze, in the order of their prefixes, as of one linearizable read. Needs the verb `read` on all names.
    ///
    /// # Errors
    ///
    /// As of [`Admin`].
    pub async fn freezes(&self) -> Result<Vec<Freeze>> {
        let list = |mut at: Services| async move {
            at.locks.list_freezes(v1::ListFreezesRequest {}).await
        };
        let listed = self.ask("listing freezes", true, list).await?;
        Ok(listed.freezes.into_iter().map(Freeze::from_wire).collect())
    }
}
