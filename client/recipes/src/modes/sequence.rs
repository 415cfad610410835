//! Sequences of a scope that moves.

use std::fmt;
use std::num::NonZeroU32;
use std::ops::Range;

use holdfast_mutants::mutant;
use holdfast_runtime::Instant;

use super::locker::Locker;
use crate::database::Fault;
use crate::lease::{Drawn, PAUSE_MAX, SequencePlace, UNDER_WAY_MAX, moved};
use crate::{Error, Result, check_lock_name};
use holdfast_guard::Backoff;

/// A sequence, wherever it is: [`Locker::sequence`]. Cheap to clone.
///
/// Its numbers come from Cassandra until `holdfast-migrate sequences` has given it to the native store, and from there until it was brought
/// back, whichever the mode of this process. No number is drawn twice, whoever moves it meanwhile, as long as every process draws through a
/// [`Locker`], or from Cassandra.
#[derive(Clone)]
pub struct LockerSequence {
    locker: Locker,
    name: String,
}

impl Locker {
    /// The sequence `name`, which begins at 1. It sends nothing.
    ///
    /// # Errors
    ///
    /// [`Error::Refused`] if the name is not in this locker's scope, or is no valid name.
    pub fn sequence(&self, name: &str) -> Result<LockerSequence> {
        check_lock_name(name)?;
        self.inner.check_scope("sequence", name)?;
        Ok(LockerSequence { locker: self.clone(), name: name.to_owned() })
    }
}

impl LockerSequence {
    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Draws `count` numbers, of the native store 65,536 at most, which no other draw returns, all above those that were drawn before this call
    /// began. It goes on during outages of Cassandra. A draw without an answer, and a dropped future, leave numbers out.
    ///
    /// In the native store a draw costs two reads at SERIAL besides. Once nobody has to go back, draw from the native client alone.
    ///
    /// # Errors
    ///
    /// No number was returned, and some may be lost. [`Error::Refused`] if the numbers are used up, or the sequence is in the native store and
    /// this locker has no native client; the errors of [`holdfast::Sequence::take`].
    pub async fn draw(&self, count: NonZeroU32) -> Result<Range<i64>> {
        let inner = &self.locker.inner;
        let runtime = inner.base.runtime();
        let mut pauses = Backoff::new(PAUSE_MAX);
        loop {
            let asked = inner.base.now();
            match inner.sequences.draw(&self.name, count.get()).await {
                Ok(Drawn::Numbers(drawn)) => return Ok(drawn),
                Ok(Drawn::ElseWhere(SequencePlace::Native)) => {
                    if let Some(drawn) = self.draw_natively(count, asked).await? {
                        return Ok(drawn);
                    }
                }
                Ok(Drawn::ElseWhere(_) | Drawn::Nothing)
                | Err(Fault::Unknown(_) | Fault::NotDone(_)) => {}
                Err(Fault::Refused(message)) => return Err(Error::invalid(message)),
            }
            runtime.sleep(pauses.next(&*runtime.rng)).await;
        }
    }

    /// `asked` is before the first look at the row. `None`: the sequence may have been on its way back meanwhile, and the numbers do not count.
    async fn draw_natively(&self, count: NonZeroU32, asked: Instant) -> Result<Option<Range<i64>>> {
        let inner = &self.locker.inner;
        let Some(native) = &inner.native else { return Err(moved(&self.name)) };
        // Before numbers are taken, which another cluster would begin at 1, and none while it is not known which one this is.
        match inner.check_given(&**native, &self.name).await {
            Ok(true) => {}
            Ok(false) | Err(Error::Unreachable { .. }) => return Ok(None),
            Err(error) => return Err(error),
        }
        let taken = native.take_numbers(&self.name, count).await?;
        // The client may have come to another one since.
        match inner.check_given(&**native, &self.name).await {
            Ok(true) => {}
            Ok(false) | Err(Error::Unreachable { .. }) => return Ok(None),
            Err(error) => return Err(error),
        }
        let still = inner.sequences.place(&self.name).await;
        let in_time = inner.base.now().saturating_since(asked) < UNDER_WAY_MAX;
        let counts =
            (in_time && still == Ok(SequencePlace::Native)) || mutant!(NumbersUnderWayCount);
        let end = i64::try_from(*taken.end()).ok().and_then(|last| last.checked_add(1));
        let range = i64::try_from(*taken.start()).ok().zip(end).map(|(first, end)| first..end);
        if range.is_none() {
            let name = self.name.escape_debug();
            return Err(Error::invalid(format!("the sequence {name} is used up")));
        }
        Ok(range.filter(|_| counts))
    }
}

impl fmt::Debug for LockerSequence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockerSequence").field("name", &self.name).finish_non_exhaustive()
    }
}
