//! Imports by operators from another store: read, proposed group by group, answered row by row.

use std::collections::{BTreeSet, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::{StreamExt, TryStreamExt, stream};
use holdfast_core::{
    Answer, Caller, Command, Deed, Fate, Has, IMPORT_ROWS_MAX, IMPORT_TTL_MAX_MS, ImportRow, Label,
    LockName, SessionId, VALUE_BYTES_MAX,
};
use holdfast_proto::v1::import_fate::Fate as WireFate;
use holdfast_proto::v1::import_row::Has as WireHas;
use holdfast_proto::v1::{
    self, ImportFate, ImportGroup, ImportKnown, ImportRequest, ImportResponse, ImportedGroup,
    Refusal, RefusalReason,
};
use tokio::sync::oneshot;

use super::error::CallError;
use super::frames::{read_name, read_owner};
use super::{Hub, refusals};
use crate::consensus::{Committed, propose_when_known};
use crate::error::ProposeError;

/// Most groups of one call; a call with more is refused.
const GROUPS_MAX: usize = 1_000;
/// Most bytes of a group's names and values; a group with more is refused. About half of what an
/// entry of the log may hold.
const GROUP_BYTES_MAX: usize = 32 << 10;
/// Groups on their way at once. Far below what the proposer accepts, so that an import always leaves
/// room for clients.
const IN_FLIGHT: usize = 256;
/// How often a row is imported anew whose import ends just then, and the pause before each: an end that was proposed is in the log soon.
const LENGTHENED_AFTER: u32 = 20;
const ENDS_WITHIN: Duration = Duration::from_millis(50);
type Pending = oneshot::Receiver<Result<Committed, ProposeError>>;

impl Hub {
    /// Imports groups in their order. The whole call is read before the first is proposed.
    ///
    /// Dropping the future leaves what was proposed alone. Repeating the call is harmless (I25).
    ///
    /// # Errors
    ///
    /// [`CallError`]: refused, nothing was imported; or unavailable, some groups may be in. No group is
    /// in after one that is not: each is proposed after those before it, in the same tenure.
    pub(crate) async fn import(
        &self,
        asked: &ImportRequest,
        caller: &Caller,
    ) -> Result<ImportResponse, CallError> {
        let commands = read_groups(&asked.groups, caller)?;
        let groups = self.import_in_order(commands).await?;
        let gate = AtomicBool::new(true);
        let mut renewing = Vec::with_capacity(groups.len());
        for (asked, outcome) in asked.groups.iter().zip(groups) {
            renewing.push(self.lengthen(asked, outcome, (caller, &gate)));
        }
        let groups = stream::iter(renewing).buffered(IN_FLIGHT).try_collect().await?;
        Ok(ImportResponse { groups })
    }

    async fn import_in_order(
        &self,
        commands: Vec<(Command, usize)>,
    ) -> Result<Vec<ImportedGroup>, CallError> {
        let tenure = self.serving()?;
        let mut groups = Vec::with_capacity(commands.len());
        let mut pending = VecDeque::new();
        let mut commands = commands.into_iter();
        let Some((first, rows)) = commands.next() else { return Ok(groups) };
        // The first group goes alone: if it cannot be proposed yet, no other can.
        let committed = propose_when_known(&*self.consensus, self.runtime(), first).await;
        groups.push(self.imported(committed, rows)?);
        for (command, rows) in commands {
            if pending.len() >= IN_FLIGHT {
                groups.extend(self.next_outcome(&mut pending).await?);
            }
            // A group proposed in a later tenure could overtake groups that were lost with this one.
            self.still_serving(tenure)?;
            pending.push_back((self.submit_import(command), rows));
        }
        while let Some(group) = self.next_outcome(&mut pending).await? {
            groups.push(group);
        }
        Ok(groups)
    }

    /// A row that is known was renewed in the other store since it was imported, as far as anybody here can tell: its import
    /// lasts at least as long as it remains there now (B13). One whose import ends meanwhile is imported anew.
    async fn lengthen(
        &self,
        asked: &ImportGroup,
        mut outcome: ImportedGroup,
        (caller, gate): (&Caller, &AtomicBool),
    ) -> Result<ImportedGroup, CallError> {
        for _ in 0..LENGTHENED_AFTER {
            let known = |(row, fate): (&v1::ImportRow, &ImportFate)| {
                matches!(fate.fate, Some(WireFate::Known(_))).then(|| row.clone())
            };
            let known: Vec<_> = asked.rows.iter().zip(&outcome.rows).filter_map(known).collect();
            if known.is_empty() || self.last_longer(asked, &known, (caller, gate)).await? {
                return Ok(outcome);
            }
            self.runtime().sleep(ENDS_WITHIN).await;
            let again = ImportGroup { rows: known, ..asked.clone() };
            let (command, rows) = read_group(&again, caller)?;
            let committed = propose_when_known(&*self.consensus, self.runtime(), command).await;
            let mut fates = self.imported(committed, rows)?.rows.into_iter();
            let is_known = |fate: &&mut ImportFate| matches!(fate.fate, Some(WireFate::Known(_)));
            for (before, fate) in outcome.rows.iter_mut().filter(is_known).zip(&mut fates) {
                *before = fate;
            }
        }
        let message =
            format!("import for {}: what is there ends, and has not for a while", asked.owner);
        let refusal = refusals::refusal(RefusalReason::Unavailable, message);
        Err(CallError::Unavailable { refusal, leader: self.leader() })
    }

    /// Lengthens the imports of these rows; `false` if one of them is over, or about to be. By a command only if a later leader would begin
    /// with less than remains there; where a member is not known to know it (I29), which the first of a call finds out for all (`gate`),
    /// such an import ends as before.
    async fn last_longer(
        &self,
        asked: &ImportGroup,
        rows: &[v1::ImportRow],
        (caller, gate): (&Caller, &AtomicBool),
    ) -> Result<bool, CallError> {
        let owner = read_owner(&asked.owner)?;
        let locks = rows.iter().map(|row| read_name(&row.name)).collect::<Result<Vec<_>, _>>()?;
        if self.lengthen_here(&owner, &locks, asked.remaining_ms) || !gate.load(Ordering::Relaxed) {
            return Ok(true);
        }
        let deed = Deed::LengthenImports { owner, ttl_ms: asked.remaining_ms, locks };
        let committed = propose_when_known(&*self.consensus, self.runtime(), deed.by(caller)).await;
        let committed = match committed {
            // A member is down that has not said what it knows, or is of an older release: the row lasts as long as it did.
            Err(ProposeError::VersionNotKnown { .. }) => {
                gate.store(false, Ordering::Relaxed);
                return Ok(true);
            }
            committed => committed.map_err(|error| self.not_applied(&error))?,
        };
        match committed.outcome {
            Ok(Answer::ImportsLengthened { imports }) => {
                let lasts = |session: Option<SessionId>| {
                    session.is_some_and(|session| self.registry.lasts(session))
                };
                Ok(imports.into_iter().all(lasts))
            }
            Ok(_) => Err(refusals::odd_answer().into()),
            Err(rejection) => Err(refusals::of_rejection(&rejection).into()),
        }
    }

    /// Lengthens the leases of these imports on this leader, if that is enough: a later leader begins with the lease of the import, and not
    /// before this call began, because the import that this call proposed is committed before its tenure.
    fn lengthen_here(&self, owner: &Label, locks: &[LockName], ttl_ms: u64) -> bool {
        let (mut sessions, mut enough) = (BTreeSet::new(), true);
        self.consensus.read(&mut |table, _index| {
            for lock in locks {
                match table.import_lease(lock, owner) {
                    Some((session, lease_ms)) if lease_ms >= ttl_ms => _ = sessions.insert(session),
                    _ => enough = false,
                }
            }
        });
        enough && sessions.into_iter().all(|session| self.registry.lengthen(session, ttl_ms))
    }

    fn submit_import(&self, command: Command) -> Pending {
        let (tell, told) = oneshot::channel();
        let done = move |result| {
            // The caller may have gone; the command stands all the same.
            let _ = tell.send(result);
        };
        self.consensus.submit(command, Box::new(done));
        told
    }

    async fn next_outcome(
        &self,
        pending: &mut VecDeque<(Pending, usize)>,
    ) -> Result<Option<ImportedGroup>, CallError> {
        let Some((told, rows)) = pending.pop_front() else { return Ok(None) };
        let result = told.await.unwrap_or(Err(ProposeError::ShuttingDown));
        self.imported(result, rows).map(Some)
    }

    fn imported(
        &self,
        result: Result<Committed, ProposeError>,
        rows: usize,
    ) -> Result<ImportedGroup, CallError> {
        let group = self.group_of(result, rows)?;
        for row in &group.rows {
            if let Some(WireFate::Refused(refusal)) = &row.fate {
                self.registry.metrics.refusals.note(refusal.reason());
            }
        }
        Ok(group)
    }

    fn group_of(
        &self,
        result: Result<Committed, ProposeError>,
        rows: usize,
    ) -> Result<ImportedGroup, CallError> {
        let committed = result.map_err(|error| self.not_applied(&error))?;
        match committed.outcome {
            Ok(Answer::Imported { fates, .. }) => {
                Ok(ImportedGroup { rows: fates.iter().map(fate).collect() })
            }
            Ok(_) => Err(refusals::odd_answer().into()),
            // The whole group was rejected, as a rule because of a limit.
            Err(rejection) => {
                let refused = WireFate::Refused(refusals::of_rejection(&rejection));
                Ok(ImportedGroup { rows: vec![ImportFate { fate: Some(refused) }; rows] })
            }
        }
    }
}

/// The commands, each with its number of rows.
fn read_groups(groups: &[ImportGroup], caller: &Caller) -> Result<Vec<(Command, usize)>, Refusal> {
    if groups.len() > GROUPS_MAX {
        let found = groups.len();
        let message = format!("{found} groups are more than the {GROUPS_MAX} allowed in one call");
        return Err(refusals::limit("groups_per_import", message));
    }
    groups.iter().map(|group| read_group(group, caller)).collect()
}

fn read_group(group: &ImportGroup, caller: &Caller) -> Result<(Command, usize), Refusal> {
    let owner = read_owner(&group.owner)?;
    let about = |refusal: Refusal| named(&group.owner, refusal);
    let ttl_ms = group.remaining_ms;
    if !(1..=IMPORT_TTL_MAX_MS).contains(&ttl_ms) {
        let message = format!("{ttl_ms} ms remaining is outside 1 to {IMPORT_TTL_MAX_MS} ms");
        return Err(about(refusals::refusal(RefusalReason::TtlOutOfRange, message)));
    }
    let rows = group.rows.len();
    if !(1..=IMPORT_ROWS_MAX).contains(&rows) {
        let message = format!("{rows} rows in a group; it has 1 to {IMPORT_ROWS_MAX}");
        return Err(about(refusals::limit("rows_per_group", message)));
    }
    let read = group.rows.iter().map(read_row).collect::<Result<Vec<_>, _>>().map_err(about)?;
    let bytes: usize = read.iter().map(bytes_of).sum();
    if bytes > GROUP_BYTES_MAX {
        let message =
            format!("the names and values of a group take {bytes} bytes, over {GROUP_BYTES_MAX}");
        return Err(about(refusals::limit("group_bytes", message)));
    }
    Ok((Deed::Import { owner, ttl_ms, rows: read }.by(caller), rows))
}

/// Adds to the refusal which group it is about.
fn named(owner: &str, refusal: Refusal) -> Refusal {
    Refusal { message: format!("import for {owner}: {}", refusal.message), ..refusal }
}

fn read_row(row: &v1::ImportRow) -> Result<ImportRow, Refusal> {
    let lock = read_name(&row.name)?;
    let has = match &row.has {
        Some(WireHas::Hold(hold)) => Has::Hold(read_value(&lock, hold.value.as_deref())?),
        Some(WireHas::Place(_)) => Has::Place,
        None => {
            let message = format!("the row of {lock} says neither that it is held nor waited for");
            return Err(refusals::refusal(RefusalReason::Invalid, message));
        }
    };
    Ok(ImportRow { lock, has })
}

fn read_value(lock: &LockName, value: Option<&[u8]>) -> Result<Option<Vec<u8>>, Refusal> {
    match value {
        Some(value) if value.len() > VALUE_BYTES_MAX => {
            let len = value.len();
            let message = format!("the value of {lock} has {len} bytes, over {VALUE_BYTES_MAX}");
            Err(refusals::limit("value_bytes", message))
        }
        value => Ok(value.map(<[u8]>::to_vec)),
    }
}

fn bytes_of(row: &ImportRow) -> usize {
    let value = match &row.has {
        Has::Hold(Some(value)) => value.len(),
        Has::Hold(None) | Has::Place => 0,
    };
    row.lock.as_str().len() + value
}

fn fate(fate: &Fate) -> ImportFate {
    let fate = match fate {
        Fate::Held { token } => WireFate::Held(token.get()),
        Fate::Queued { place } => WireFate::Queued(*place),
        Fate::Known => WireFate::Known(ImportKnown {}),
        Fate::Refused(rejection) => WireFate::Refused(refusals::of_rejection(rejection)),
    };
    ImportFate { fate: Some(fate) }
}
