//! What proves that a session belongs to the caller: its id and its secret.

use holdfast_core::{LockTable, SessionId};
use holdfast_proto::v1::{Refusal, RefusalReason};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use super::refusals;

/// Length of a session's secret, bytes.
pub(super) const SECRET_BYTES: usize = 16;

/// A session's secret. The log holds only its hash.
pub(super) type Secret = [u8; SECRET_BYTES];

/// A session and the secret that was shown for it; not yet compared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Key {
    pub(super) session: SessionId,
    pub(super) secret: Secret,
}

impl Key {
    /// Reads a key from the wire.
    ///
    /// # Errors
    ///
    /// A refusal, if the secret has a length that no secret has.
    pub(super) fn read(session_id: u64, secret: &[u8]) -> Result<Self, Refusal> {
        let read = Secret::try_from(secret).map_err(|_| {
            let found = secret.len();
            let message = format!("the secret has {found} bytes; it must have {SECRET_BYTES}");
            refusals::refusal(RefusalReason::Invalid, message)
        })?;
        Ok(Self { session: SessionId::new(session_id), secret: read })
    }

    /// The session's TTL, if it is open and the secret is its own. Takes equally long for every secret.
    pub(super) fn ttl_if_own(&self, table: &LockTable) -> Option<u64> {
        let view = table.session(self.session)?;
        let own: bool = view.secret_hash.ct_eq(&hash_of(&self.secret)).into();
        own.then_some(view.ttl_ms)
    }

    /// One answer for a session that never was, has ended, or belongs to another client.
    pub(super) fn unknown_session(&self) -> Refusal {
        let message = format!(
            "session {} is not open, or this is not its secret; open a new session",
            self.session
        );
        refusals::refusal(RefusalReason::SessionUnknown, message)
    }
}

/// The form in which the log keeps a secret.
pub(super) fn hash_of(secret: &Secret) -> [u8; 32] {
    Sha256::digest(secret).into()
}
