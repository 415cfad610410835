//! Imports of the holds and waits of another store.

use std::time::Duration;

use holdfast_proto::v1;
use holdfast_proto::v1::import_fate::Fate as WireFate;
use holdfast_proto::v1::import_row::Has as WireHas;
use holdfast_types::IMPORT_ROWS_MAX;

use crate::transport::operator::Services;
use crate::{Admin, Error, FencingToken, RefusalReason, Result, wire};

/// Most bytes of names and values that a server takes in one group.
const GROUP_BYTES_MAX: usize = 32 << 10;
/// Groups in one call: half of what a server takes.
const CALL_GROUPS: usize = 500;
/// Bytes of names and values in one call: half of what a server's messages may hold.
const CALL_BYTES: usize = 512 << 10;

/// What one owner holds and waits for in another store, with leases of the same remaining length.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImportGroup {
    /// The owner's name in the other store: 1 to 256 bytes without control or
    /// bidirectional-override characters.
    pub owner: String,
    /// The rest of its leases: 1 ms to 366 days, in whole milliseconds (fractions are cut off).
    pub remaining: Duration,
    /// Its rows, in the order of the import.
    pub rows: Vec<ImportRow>,
}

/// An owner's hold of one lock, or its place in the queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImportRow {
    /// The lock.
    pub name: String,
    /// Hold or place.
    pub has: ImportedState,
}

/// An owner's state at a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ImportedState {
    /// It holds the lock.
    Hold {
        /// With this value, at most 4 KiB. `None`: the lock keeps the value that it has in this
        /// store.
        value: Option<Vec<u8>>,
    },
    /// It waits, behind the requests that came in before.
    Place,
}

/// The outcome of a row.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ImportOutcome {
    /// The row holds the lock, and its owner can claim it.
    Held {
        /// The token of the hold; a claim gets a new one.
        token: FencingToken,
    },
    /// It waits for the lock.
    Queued {
        /// How many requests stand before it; 0 is next.
        place: u64,
    },
    /// An earlier import of the row still runs. Nothing changed.
    Known,
    /// The row did not come in: another session holds the lock in this store or waits for it, or a
    /// limit is reached.
    Refused {
        /// Why, for programs.
        reason: RefusalReason,
        /// The store's message.
        message: String,
    },
}

impl Admin {
    /// Imports the holds and waits of another store (DESIGN §10).
    ///
    /// Each owner's rows become a session of their own, which no client renews. The owner claims each
    /// lock ([`Client::claim`](crate::Client::claim)); rows that are not claimed expire when they would
    /// have expired in the other store. A row that is sent again while an earlier import of it runs
    /// changes nothing (I25), so the caller repeats a call that failed, for whatever reason.
    ///
    /// No row comes in beside another session: the store refuses a holder if another session has the
    /// lock, and a waiter if the lock has no holder, because then the holder it waits for has not come
    /// in. So the holder of a lock comes first, then its waiters, in their order.
    ///
    /// ```no_run
    /// # async fn example() -> holdfast::Result<()> {
    /// use std::time::Duration;
    ///
    /// use holdfast::{ImportedState, ImportGroup, ImportRow};
    ///
    /// let builder = holdfast::Client::builder().endpoints(["10.0.0.1:7420", "10.0.0.2:7420"]);
    /// let admin = builder.admin(Duration::from_secs(30))?;
    /// let row = ImportRow { name: "jobs/7".into(), has: ImportedState::Hold { value: None } };
    /// let remaining = Duration::from_secs(90);
    /// let group = ImportGroup { owner: "billing-3".into(), remaining, rows: vec![row] };
    /// let outcomes = admin.import(&[group]).await?;
    /// println!("{:?}", outcomes[0][0]);
    /// # Ok(()) }
    /// ```
    ///
    /// Imports groups in their order and returns the outcome of each row. Sends as many calls as it
    /// needs, one after the other.
    ///
    /// Dropping the future does not undo the calls that were sent.
    ///
    /// # Errors
    ///
    /// [`Error::Refused`]: something in one of the groups makes no sense; groups before it may have
    /// come in. [`Error::Unreachable`], [`Error::OutcomeUnknown`]: some may have come in. After
    /// each, the caller may import the same groups again.
    pub async fn import(&self, groups: &[ImportGroup]) -> Result<Vec<Vec<ImportOutcome>>> {
        let mut fates: Vec<Vec<ImportOutcome>> = groups.iter().map(|_| Vec::new()).collect();
        for call in calls_of(groups) {
            let request = v1::ImportRequest { groups: call.iter().map(Piece::to_wire).collect() };
            let import = |mut at: Services| {
                let request = request.clone();
                async move { at.locks.import(request).await }
            };
            let answer = self.ask("an import", true, import).await?;
            if answer.groups.len() != call.len() {
                return Err(odd_answer());
            }
            for (piece, imported) in call.iter().zip(answer.groups) {
                let told = imported.rows.into_iter().map(fate).collect::<Result<Vec<_>>>()?;
                if told.len() != piece.rows.len() {
                    return Err(odd_answer());
                }
                fates.get_mut(piece.group).ok_or_else(odd_answer)?.extend(told);
            }
        }
        Ok(fates)
    }
}

/// A part of a group that fits a server's limits for one group.
struct Piece<'a> {
    group: usize,
    of: &'a ImportGroup,
    rows: &'a [ImportRow],
}

impl Piece<'_> {
    fn bytes(&self) -> usize {
        self.rows.iter().map(bytes_of).sum()
    }

    fn to_wire(&self) -> v1::ImportGroup {
        let remaining_ms = u64::try_from(self.of.remaining.as_millis()).unwrap_or(u64::MAX);
        let rows = self.rows.iter().map(row_to_wire).collect();
        v1::ImportGroup { owner: self.of.owner.clone(), remaining_ms, rows }
    }
}

/// The groups in pieces, and the pieces in calls, in their order.
fn calls_of(groups: &[ImportGroup]) -> Vec<Vec<Piece<'_>>> {
    let mut calls: Vec<Vec<Piece<'_>>> = Vec::new();
    let mut room = 0;
    for piece in groups.iter().enumerate().flat_map(|(number, group)| pieces_of(number, group)) {
        let bytes = piece.bytes();
        match calls.last_mut() {
            Some(call) if call.len() < CALL_GROUPS && bytes <= room => call.push(piece),
            Some(_) | None => {
                calls.push(vec![piece]);
                room = CALL_BYTES;
            }
        }
        room = room.saturating_sub(bytes);
    }
    calls
}

fn pieces_of(group: usize, of: &ImportGroup) -> Vec<Piece<'_>> {
    let mut pieces = Vec::new();
    let mut rest = &of.rows[..];
    while !rest.is_empty() {
        let (rows, others) = rest.split_at(fitting(rest));
        pieces.push(Piece { group, of, rows });
        rest = others;
    }
    pieces
}

/// How many of these rows, at least one, go into a group.
fn fitting(rows: &[ImportRow]) -> usize {
    let mut bytes = 0;
    let fits = |row: &&ImportRow| {
        bytes += bytes_of(row);
        bytes <= GROUP_BYTES_MAX
    };
    rows.iter().take(IMPORT_ROWS_MAX).take_while(fits).count().max(1)
}

fn bytes_of(row: &ImportRow) -> usize {
    let value = match &row.has {
        ImportedState::Hold { value: Some(value) } => value.len(),
        ImportedState::Hold { value: None } | ImportedState::Place => 0,
    };
    row.name.len() + value
}

fn row_to_wire(row: &ImportRow) -> v1::ImportRow {
    let has = match &row.has {
        ImportedState::Hold { value } => {
            WireHas::Hold(v1::ImportHold { value: value.clone().map(Into::into) })
        }
        ImportedState::Place => WireHas::Place(v1::ImportPlace {}),
    };
    v1::ImportRow { name: row.name.clone().into_bytes().into(), has: Some(has) }
}

fn fate(fate: v1::ImportFate) -> Result<ImportOutcome> {
    Ok(match fate.fate {
        Some(WireFate::Held(token)) => ImportOutcome::Held { token: FencingToken::from_raw(token) },
        Some(WireFate::Queued(place)) => ImportOutcome::Queued { place },
        Some(WireFate::Known(_)) => ImportOutcome::Known,
        Some(WireFate::Refused(refusal)) => {
            let reason = wire::refusal_reason(refusal.reason());
            ImportOutcome::Refused { reason, message: refusal.message }
        }
        None => return Err(odd_answer()),
    })
}

fn odd_answer() -> Error {
    let message = "the server's answer to an import is not one; is it of another release?";
    wire::refused(RefusalReason::Protocol, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(rows: usize, value: usize) -> ImportGroup {
        let row = |number| ImportRow {
            name: format!("jobs/{number:04}"),
            has: ImportedState::Hold { value: Some(vec![7; value]) },
        };
        let rows = (0..rows).map(row).collect();
        ImportGroup { owner: "old/1".into(), remaining: Duration::from_secs(9), rows }
    }

    /// Each row once and in order, in pieces and calls that a server takes.
    #[test]
    fn groups_are_sent_in_as_many_calls_as_they_need() {
        for groups in [
            vec![group(1, 0); 1_200],
            vec![group(1_000, 0)],
            vec![group(100, 4_096), group(0, 0), group(3, 4_096)],
        ] {
            let mut sent: Vec<Vec<ImportRow>> = groups.iter().map(|_| Vec::new()).collect();
            for call in calls_of(&groups) {
                let bytes: usize = call.iter().map(Piece::bytes).sum();
                assert!(call.len() <= CALL_GROUPS && bytes <= CALL_BYTES, "{} {bytes}", call.len());
                for piece in call {
                    assert!((1..=IMPORT_ROWS_MAX).contains(&piece.rows.len()));
                    assert!(piece.bytes() <= GROUP_BYTES_MAX, "{}", piece.bytes());
                    sent[piece.group].extend_from_slice(piece.rows);
                }
            }
            let asked: Vec<_> = groups.into_iter().map(|group| group.rows).collect();
            assert_eq!(sent, asked);
        }
    }
}
