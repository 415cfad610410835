//! Moves sequences between the table `sequences` and the native store, whatever the stage of a scope is.
//!
//! The row of a sequence says where its numbers come from, and every draw through a `Locker` reads it; what that promises, and why, is in
//! `client/recipes/src/lease/sequence.rs`. Ending a move at any point and beginning again is harmless.

use std::collections::BTreeMap;
use std::future::Future;

use holdfast::Error;
use holdfast_recipes::{ScopeModes, SequencePlace, Sequences};
use holdfast_runtime::Runtime;

use crate::import::{Fault, OtherTie};

/// An older client knows numbers only: it drew the one that marks the way back, which gives the sequence away again.
const TAKEN_ON_THE_WAY: &str =
    "a client of an older version drew from it on its way back; repeat the command";

/// The sequences of the native store.
pub trait NativeSequences {
    /// The cluster's id: unique to the cluster, and never changed.
    fn cluster(&self) -> impl Future<Output = Result<String, Fault>>;

    /// The last numbers that the sequences below a prefix have given out, by a linearizable read.
    fn sequences(&self, prefix: &str)
    -> impl Future<Output = Result<BTreeMap<String, u64>, Fault>>;

    /// Has the next number of a sequence be `at`, or refuses because that one was given out: also after the answer to an earlier copy was lost.
    fn begin_sequence(&self, name: &str, at: u64) -> impl Future<Output = Result<(), Fault>>;
}

/// What became of a sequence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Moved {
    /// Its next number comes from there.
    There {
        /// No number below this is drawn there.
        next: i64,
    },
    /// It was there already.
    Already,
    /// It stays where it was.
    Stays {
        /// Why.
        why: String,
    },
}

/// What a move reports while it runs.
#[derive(Debug)]
pub enum Told<'a> {
    /// What became of a sequence.
    Of(&'a str, &'a Moved),
    /// So many are on their way back; for [`Sequences::RETURNING_FOR`] nobody draws from them.
    Returning(usize),
}

/// Why a move ended early. The same call goes on from there.
#[derive(Debug, thiserror::Error)]
pub enum SequencesError {
    /// The scope's processes draw from another cluster.
    #[error(transparent)]
    OtherTie(#[from] OtherTie),
    /// Cassandra did not answer, or refuses.
    #[error(transparent)]
    Cassandra(#[from] Error),
    /// The native store did not answer, or refuses.
    #[error("the native store: {0}")]
    Native(#[from] Fault),
    /// A sequence that is on its way back is to be given away.
    #[error(
        "the sequence \"{}\" is on its way back to Cassandra: holdfast-migrate sequences --to cassandra ends that",
        .name.escape_debug()
    )]
    Returning {
        /// Its name.
        name: String,
    },
}

/// The sequences of a scope, and where they move.
#[derive(Debug)]
pub struct MovingSequences<'a, N> {
    /// What their names begin with.
    pub scope: &'a str,
    /// Its modes.
    pub modes: &'a ScopeModes,
    /// Their rows.
    pub rows: &'a Sequences,
    /// The native store.
    pub native: &'a N,
    /// Time.
    pub runtime: Runtime,
}

impl<N: NativeSequences> MovingSequences<'_, N> {
    /// The sequences, and where they are. Changes nothing.
    ///
    /// # Errors
    ///
    /// [`SequencesError`].
    pub async fn list(&self) -> Result<Vec<(String, SequencePlace)>, SequencesError> {
        let view = self.modes.view().await?;
        if view.cluster.is_some() {
            let own = self.native.cluster().await?;
            OtherTie::check(self.scope, "cluster", view.cluster.as_deref(), &own)?;
        }
        Ok(self.rows.list(self.scope).await?)
    }

    /// Gives all of them to the native store.
    ///
    /// # Errors
    ///
    /// [`SequencesError`]; those that were told of are there.
    pub async fn give(
        &self,
        tell: &mut (dyn FnMut(Told<'_>) + Send),
    ) -> Result<(), SequencesError> {
        let listed = self.list().await?;
        let mut last = self.native.sequences(self.scope).await?;
        for (name, _) in listed {
            let moved = self.give_one(&name, &mut last).await?;
            tell(Told::Of(&name, &moved));
        }
        Ok(())
    }

    /// `last` are the last native numbers as they were read.
    async fn give_one(
        &self,
        name: &str,
        last: &mut BTreeMap<String, u64>,
    ) -> Result<Moved, SequencesError> {
        loop {
            let next = match self.rows.place(name).await? {
                SequencePlace::Native => return Ok(Moved::Already),
                SequencePlace::Cassandra { next } => next,
                _ => return Err(SequencesError::Returning { name: name.to_owned() }),
            };
            let Ok(begins) = u64::try_from(next) else {
                let why =
                    format!("its next number is {next}, which the native store does not know");
                return Ok(Moved::Stays { why });
            };
            // One that was never drawn from there has to be begun too: the store may keep none of this name.
            let is_beyond = |last: &BTreeMap<String, u64>| {
                last.get(name).is_some_and(|last| *last >= begins.saturating_sub(1))
            };
            if !is_beyond(last) {
                match self.native.begin_sequence(name, begins).await {
                    Ok(()) => {}
                    Err(Fault::Unknown(why)) => return Err(Fault::Unknown(why).into()),
                    // Numbers were drawn there since, or it has no sequences of this name.
                    Err(Fault::Refused(why)) => {
                        *last = self.native.sequences(self.scope).await?;
                        if !is_beyond(last) {
                            return Ok(Moved::Stays { why });
                        }
                    }
                }
            }
            if self.rows.give(name, next).await? {
                return Ok(Moved::There { next });
            }
            // Somebody has drawn from it meanwhile: it begins higher.
        }
    }

    /// Brings all of them back to Cassandra. While it waits, nobody draws from those.
    ///
    /// # Errors
    ///
    /// [`SequencesError`]; some may be on their way back, and nobody draws from them until this is run again.
    pub async fn bring_back(
        &self,
        tell: &mut (dyn FnMut(Told<'_>) + Send),
    ) -> Result<(), SequencesError> {
        let mut returning = Vec::new();
        for (name, place) in self.list().await? {
            if let SequencePlace::Cassandra { .. } = place {
                tell(Told::Of(&name, &Moved::Already));
            } else {
                self.rows.begin_return(&name).await?;
                returning.push(name);
            }
        }
        if returning.is_empty() {
            return Ok(());
        }
        tell(Told::Returning(returning.len()));
        self.runtime.sleep(Sequences::RETURNING_FOR).await;
        let last = self.native.sequences(self.scope).await?;
        for name in returning {
            let last = last.get(&name).copied().unwrap_or(0);
            let next = i64::try_from(last).ok().and_then(|last| last.checked_add(1));
            let ended = match next {
                Some(next) if self.rows.end_return(&name, next).await? => Moved::There { next },
                Some(_) => match self.rows.place(&name).await? {
                    SequencePlace::Cassandra { .. } => Moved::Already,
                    _ => Moved::Stays { why: TAKEN_ON_THE_WAY.to_owned() },
                },
                None => Moved::Stays {
                    why: format!("its last number is {last}, too large for the table"),
                },
            };
            tell(Told::Of(&name, &ended));
        }
        Ok(())
    }
}
