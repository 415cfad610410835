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

/// Each sequence that was given to a store is one of its sequences from then on, also one that nobody draws from.
const NOT_GIVEN_HERE: &str = "the native store does not have it: it was given to another cluster, or this one is restored from a backup of before. Name \
                              that cluster, or begin it here above every number that was drawn (holdfast sequence begin), and repeat the command";

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
        if listed.is_empty() {
            return Ok(());
        }
        let mut last = self.native.sequences(self.scope).await?;
        if tell_of_those_elsewhere(&listed, &last, tell) {
            return Ok(());
        }
        // Before a row says that its numbers are there: a draw compares its cluster with this one.
        let own = self.native.cluster().await?;
        let tied = self.modes.tie_cluster(&own).await?;
        OtherTie::check(self.scope, "cluster", Some(&tied), &own)?;
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

    /// Brings all of them back to Cassandra, but those that the native store does not have: its last number is not known here.
    /// While it waits, nobody draws from those.
    ///
    /// # Errors
    ///
    /// [`SequencesError`]; some may be on their way back, and nobody draws from them until this is run again.
    pub async fn bring_back(
        &self,
        tell: &mut (dyn FnMut(Told<'_>) + Send),
    ) -> Result<(), SequencesError> {
        let not_here = || Moved::Stays { why: NOT_GIVEN_HERE.to_owned() };
        let mut returning = Vec::new();
        let listed = self.list().await?;
        let known = self.native.sequences(self.scope).await?;
        for (name, place) in listed {
            if let SequencePlace::Cassandra { .. } = place {
                tell(Told::Of(&name, &Moved::Already));
            } else if !known.contains_key(&name) {
                tell(Told::Of(&name, &not_here()));
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
            let Some(&last) = last.get(&name) else {
                tell(Told::Of(&name, &not_here()));
                continue;
            };
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

/// Whether a sequence was given to a store that is not this one: then it stays as it is, the scope is not tied, and the others stay too.
fn tell_of_those_elsewhere(
    listed: &[(String, SequencePlace)],
    last: &BTreeMap<String, u64>,
    tell: &mut (dyn FnMut(Told<'_>) + Send),
) -> bool {
    let is_elsewhere = |(name, place): &&(String, SequencePlace)| {
        *place == SequencePlace::Native && !last.contains_key(name)
    };
    let mut elsewhere = false;
    for (name, _) in listed.iter().filter(is_elsewhere) {
        elsewhere = true;
        tell(Told::Of(name, &Moved::Stays { why: NOT_GIVEN_HERE.to_owned() }));
    }
    elsewhere
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use holdfast_keyspace::model::Model;
    use holdfast_keyspace::statement::{Action, Ident, Statement, Value};
    use holdfast_recipes::{Cassandra, LeaseTable, ModesTable};
    use holdfast_runtime::simulated::Machine;

    use super::*;

    const NAME: &str = "orders/invoices";

    /// Native sequences of which none was drawn from; `false`: those of a cluster that knows none.
    struct Native(bool);

    impl NativeSequences for Native {
        async fn cluster(&self) -> Result<String, Fault> {
            Ok("c1".to_owned())
        }

        async fn sequences(&self, _: &str) -> Result<BTreeMap<String, u64>, Fault> {
            Ok(self.0.then(|| (NAME.to_owned(), 3)).into_iter().collect())
        }

        async fn begin_sequence(&self, _: &str, _: u64) -> Result<(), Fault> {
            Ok(())
        }
    }

    /// Sets the number in the row, as a client of an older version does.
    fn advance(model: &Model, from: Option<i64>, to: i64) {
        let next = |at: i64| vec![(Ident::new("next"), Some(Value::from(at)))];
        let key = vec![(Ident::new("name"), Value::from(NAME))];
        let action = match from {
            None => Action::InsertIfAbsent { cells: next(to), ttl_s: None },
            Some(from) => {
                let only_if = next(from);
                Action::UpdateIf { cells: next(to), ttl_s: None, only_if }
            }
        };
        model.apply(&Statement::new(Ident::new("sequences"), key, action));
    }

    /// The tables of a scope.
    fn tables(machine: &Machine) -> (Model, ScopeModes, Sequences) {
        let model = Model::new(machine);
        let cassandra = Cassandra::on(Arc::new(model.clone()), machine.world().runtime());
        let scope = ScopeModes::new(&cassandra, "orders/", ModesTable::default()).unwrap();
        (model, scope, Sequences::new(&cassandra, &LeaseTable::default()))
    }

    /// A cluster that was restored from a backup of before, or another one: the sequence would begin at 1 again.
    #[test]
    fn a_sequence_that_the_store_does_not_have_stays_where_it_is() {
        let machine = Machine::new(1);
        let (model, scope, rows) = tables(&machine);
        let runtime = machine.world().runtime();
        let (scope, rows) = (&scope, &rows);
        let given_to = |native| MovingSequences {
            scope: "orders/",
            modes: scope,
            rows,
            native,
            runtime: runtime.clone(),
        };
        advance(&model, None, 4);
        let mut moved = Vec::new();

        let (place, tied) = machine.run(async {
            given_to(&Native(true)).give(&mut |_| {}).await.unwrap();
            let restored = given_to(&Native(false));
            let mut note = |told: Told<'_>| {
                if let Told::Of(_, what) = told {
                    moved.push(what.clone());
                }
            };
            restored.bring_back(&mut note).await.unwrap();
            restored.give(&mut note).await.unwrap();
            (rows.place(NAME).await.unwrap(), scope.view().await.unwrap().cluster)
        });

        let stays = || Moved::Stays { why: NOT_GIVEN_HERE.to_owned() };
        assert_eq!(moved, [stays(), stays()]);
        assert_eq!(place, SequencePlace::Native);
        assert_eq!(tied.as_deref(), Some("c1"), "processes of another cluster draw nothing");
    }

    #[test]
    fn a_sequence_that_an_older_client_takes_on_its_way_back_is_told_to_stay() {
        let machine = Machine::new(1);
        let (model, scope, rows) = tables(&machine);
        let moving = MovingSequences {
            scope: "orders/",
            modes: &scope,
            rows: &rows,
            native: &Native(true),
            runtime: machine.world().runtime(),
        };
        advance(&model, None, 4);
        let (older, later) = (model.clone(), machine.world().runtime());
        let (mut given, mut first, mut second) = (Vec::new(), Vec::new(), Vec::new());
        let note = |told: Told<'_>, to: &mut Vec<Moved>| {
            if let Told::Of(_, moved) = told {
                to.push(moved.clone());
            }
        };

        machine.run(async {
            moving.give(&mut |told| note(told, &mut given)).await.unwrap();
            let draws = async move {
                later.sleep(Duration::from_secs(10)).await;
                advance(&older, Some(i64::MAX - 1), i64::MAX);
            };
            machine.world().runtime().spawn("older client", draws).detach();
            moving.bring_back(&mut |told| note(told, &mut first)).await.unwrap();
            moving.bring_back(&mut |told| note(told, &mut second)).await.unwrap();
        });

        assert_eq!(given, [Moved::There { next: 4 }]);
        assert_eq!(first, [Moved::Stays { why: TAKEN_ON_THE_WAY.to_owned() }]);
        assert_eq!(second, [Moved::There { next: 4 }]);
    }
}
