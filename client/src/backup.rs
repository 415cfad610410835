//! Backups of a cluster, for operators.

use std::fmt;

use holdfast_proto::v1;

use crate::transport::operator::{Chunks, Services};
use crate::wire::refused;
use crate::{Admin, RefusalReason, Result};

/// A backup on its way here; [`Admin::backup`] begins it.
///
/// Its bytes are one file, which counts only if [`BackupStream::chunk`] has returned `None`. `holdfast backup
/// verify` checks such a file, and `holdfastd restore` begins a new cluster with it.
pub struct BackupStream {
    chunks: Chunks,
    bytes: u64,
}

impl BackupStream {
    /// The next bytes of the file, at most 64 KiB; `None` at its end. Cancel safe.
    ///
    /// # Errors
    ///
    /// [`Error::Refused`](crate::Error::Refused): the stream broke off, as it does when the leader changes or
    /// this client took nothing for a minute. What came before is of no use; take the backup again.
    pub async fn chunk(&mut self) -> Result<Option<Vec<u8>>> {
        match self.chunks.next().await {
            Ok(chunk) => {
                self.bytes += chunk.as_ref().map_or(0, |chunk| chunk.len() as u64);
                Ok(chunk)
            }
            Err(why) => {
                let bytes = self.bytes;
                let message =
                    format!("the backup broke off after {bytes} bytes ({why}); take it again");
                Err(refused(RefusalReason::Unavailable, message))
            }
        }
    }
}

impl fmt::Debug for BackupStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BackupStream").field("bytes", &self.bytes).finish_non_exhaustive()
    }
}

impl Admin {
    /// Begins a backup of the lock table: of everything that was acknowledged before this call. It needs the
    /// verb `backup`, and contains every value, and the hash of every token.
    ///
    /// # Errors
    ///
    /// As of [`Admin`].
    pub async fn backup(&self) -> Result<BackupStream> {
        let begin = |mut at: Services| async move { at.cluster.backup(v1::BackupRequest {}).await };
        let stream = self.ask("a backup", false, begin).await?;
        Ok(BackupStream { chunks: Chunks::new(stream), bytes: 0 })
    }
}
