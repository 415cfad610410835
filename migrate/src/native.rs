//! The native store, over its own client, for imports and comparisons.

use std::collections::BTreeMap;
use std::time::Duration;

use holdfast::{
    Admin, Builder, Error, Holder, ImportGroup, ImportOutcome, LockInfo, Reader, SessionInfo,
    Waiter,
};
use holdfast_cli::hex;

use crate::import::{Fault, Importer};
use crate::sequences::NativeSequences;
use crate::verify::{NativeLock, NativeStore, Party};

/// How long a request may take, including changes of leader, before its outcome counts as unknown.
const LIMIT: Duration = Duration::from_secs(15);
/// Locks on a page of a listing: as many as a server lists.
const PAGE: u32 = 1_000;

/// The native store.
#[derive(Debug)]
pub struct Native {
    admin: Admin,
    reader: Reader,
}

impl Native {
    /// Uses the cluster that these client settings lead to.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidConfig`] if there is no endpoint in them, or one without a port.
    pub fn new(builder: &Builder) -> Result<Self, Error> {
        Ok(Self { admin: builder.admin(LIMIT)?, reader: builder.reader()? })
    }

    /// What is left of an imported session's lease at least; `None`: the session has ended.
    async fn left(&self, session: u64) -> Result<Option<Duration>, Fault> {
        let session = self.admin.session(session).await.map_err(|error| fault(&error))?;
        // A server before 0.4 does not tell, and lengthens no import.
        let left = |session: SessionInfo| {
            session.left.unwrap_or_else(|| session.ttl.saturating_sub(session.age))
        };
        Ok(session.map(left))
    }

    async fn id(&self) -> Result<String, Fault> {
        let status = self.reader.status().await.map_err(|error| fault(&error))?;
        Ok(hex(&status.cluster))
    }
}

impl NativeSequences for Native {
    async fn cluster(&self) -> Result<String, Fault> {
        self.id().await
    }

    async fn sequences(&self, prefix: &str) -> Result<BTreeMap<String, u64>, Fault> {
        let sequences = self.admin.sequences(prefix).await.map_err(|error| fault(&error))?;
        Ok(sequences.into_iter().map(|one| (one.name, one.last)).collect())
    }

    async fn begin_sequence(&self, name: &str, at: u64) -> Result<(), Fault> {
        self.admin.begin_sequence(name, at).await.map_err(|error| fault(&error))
    }
}

impl Importer for &Native {
    async fn cluster(&self) -> Result<String, Fault> {
        self.id().await
    }

    async fn import(&self, groups: &[ImportGroup]) -> Result<Vec<Vec<ImportOutcome>>, Fault> {
        self.admin.import(groups).await.map_err(|error| fault(&error))
    }
}

/// `names` continues after a page token of the server's, not after a name.
impl NativeStore for Native {
    async fn lock(&self, name: &str) -> Result<Option<NativeLock>, Fault> {
        let lock = self.reader.inspect(name).await.map_err(|error| fault(&error))?;
        let Some(mut lock) = lock.map(seen) else { return Ok(None) };
        for holder in lock.holders.iter_mut().filter(|holder| holder.is_imported) {
            holder.left = self.left(holder.session).await?;
        }
        Ok(Some(lock))
    }

    async fn names(
        &self,
        prefix: &str,
        after: Option<&str>,
    ) -> Result<(Vec<String>, Option<String>), Fault> {
        let page = self.reader.page(prefix, PAGE, after).await.map_err(|error| fault(&error))?;
        let used = page.locks.into_iter().filter(|lock| lock.held_by + lock.waiting > 0);
        Ok((used.map(|lock| lock.name).collect(), page.next))
    }
}

fn seen(lock: LockInfo) -> NativeLock {
    let holder = |Holder { session, label, token, note, is_imported, .. }| Party {
        session,
        label,
        token: token.get(),
        note,
        is_imported,
        left: None,
    };
    let waiter = |Waiter { session, label, note, is_imported, .. }| Party {
        session,
        label,
        note,
        is_imported,
        ..Party::default()
    };
    NativeLock {
        name: lock.name,
        holders: lock.holders.into_iter().map(holder).collect(),
        has_more: lock.waiting > u64::try_from(lock.queue.len()).unwrap_or(u64::MAX),
        line: lock.queue.into_iter().map(waiter).collect(),
        value: lock.value.map(|value| value.bytes.to_vec()),
    }
}

/// A server that refuses a request has not executed it; every other error leaves the outcome open.
fn fault(error: &Error) -> Fault {
    match error {
        Error::Refused { .. } if !error.may_retry() => Fault::Refused(error.to_string()),
        _ => Fault::Unknown(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use holdfast::RefusalReason;

    use super::*;

    fn refused(reason: RefusalReason) -> Error {
        Error::Refused { reason, message: "no".into(), limit: None, retry_after: None }
    }

    #[test]
    fn only_what_will_never_be_taken_ends_an_import() {
        for error in [
            refused(RefusalReason::Limit),
            refused(RefusalReason::DiskReserve),
            Error::OutcomeUnknown { what: "an import", waited: LIMIT },
        ] {
            assert!(matches!(fault(&error), Fault::Unknown(_)), "{error}");
        }
        let invalid = refused(RefusalReason::Invalid);
        assert!(matches!(fault(&invalid), Fault::Refused(_)), "{invalid}");
    }
}
