//! What every answer that renews a lease says about scopes: each scope with its epoch and the rest of
//! the authority over it.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use holdfast_core::{ScopePrefix, ScopeState, ScopeView, Tenure};
use holdfast_proto::v1::ScopeAuthority;
use holdfast_runtime::Instant;
use tokio::sync::Notify;

use super::machine::Right;
use crate::lengths::millis;

/// The scopes as this node has applied them, and the authority that its authorities have.
///
/// # Invariants
///
/// - A scope is here from the entry on that set it. Clients learn of it from its first authority on:
///   before that no client takes it over, and its holds go on as they were.
/// - Authority counts only in the tenure in which the machine got it.
#[derive(Debug, Default)]
pub(crate) struct Board {
    scopes: Mutex<BTreeMap<ScopePrefix, Entry>>,
    /// A scope was set, removed, or changed.
    pub(crate) changed: Notify,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    state: ScopeState,
    authority: Option<(Tenure, Right)>,
}

impl Board {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<ScopePrefix, Entry>> {
        self.scopes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts over with the scopes of a whole state.
    pub(crate) fn restart<'a>(&self, scopes: impl Iterator<Item = ScopeView<'a>>) {
        let entry = |view: ScopeView<'_>| {
            (view.scope.clone(), Entry { state: view.state, authority: None })
        };
        *self.lock() = scopes.map(entry).collect();
        self.changed.notify_one();
    }

    /// An entry was applied that changed a scope; `None`: the scope was removed.
    pub(crate) fn applied(&self, scope: &ScopePrefix, now: Option<ScopeState>) {
        let mut scopes = self.lock();
        match now {
            Some(state) => {
                let entry = Entry { state, authority: None };
                scopes.entry(scope.clone()).or_insert(entry).state = state;
            }
            None => drop(scopes.remove(scope)),
        }
        drop(scopes);
        self.changed.notify_one();
    }

    /// Records the authority that the machine of that tenure has now.
    pub(super) fn publish(&self, scope: &ScopePrefix, tenure: Tenure, right: Option<Right>) {
        if let Some(entry) = self.lock().get_mut(scope) {
            entry.authority = right.map(|right| (tenure, right));
        }
    }

    /// What an answer sent now by the leader of that tenure says about scopes. `at` is the moment at
    /// which the answered request arrived, or a later one.
    pub(crate) fn answers(&self, tenure: Tenure, at: Instant) -> Vec<ScopeAuthority> {
        let answer = |(scope, entry): (&ScopePrefix, &Entry)| {
            let own = entry.authority.filter(|(of, _)| *of == tenure).map(|(_, right)| right);
            if own.is_none() && entry.state.fresh {
                return None;
            }
            let right = own.filter(|right| at < right.until);
            let epoch = right.map_or(entry.state.epoch, |right| right.epoch);
            let remaining = right.map(|right| right.until.saturating_since(at)).unwrap_or_default();
            Some(ScopeAuthority {
                scope: scope.as_str().to_owned(),
                epoch: epoch.into(),
                // Rounded down to whole milliseconds: never more than what remains.
                remaining_ms: millis(remaining),
            })
        };
        self.lock().iter().filter_map(answer).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn second(seconds: u64) -> Instant {
        Instant::from_origin(Duration::from_secs(seconds))
    }

    fn scope() -> ScopePrefix {
        ScopePrefix::parse("pay/").expect("a prefix")
    }

    fn board() -> Board {
        let board = Board::default();
        board.applied(&scope(), Some(ScopeState { epoch: 3, suspended: true, fresh: false }));
        board
    }

    fn told(board: &Board, tenure: u64, at: Instant) -> Vec<(String, u32, u64)> {
        let answers = board.answers(Tenure::new(tenure), at).into_iter();
        answers.map(|told| (told.scope, told.epoch, told.remaining_ms)).collect()
    }

    /// Answers list a scope without authority too: a client that does not learn of it would not cap its
    /// guards.
    #[test]
    fn every_scope_is_told_also_without_authority() {
        let board = board();
        assert_eq!(told(&board, 1, second(1)), [("pay/".to_owned(), 3, 0)]);
        board.applied(&scope(), None);
        assert_eq!(told(&board, 1, second(1)), []);
    }

    /// A client that holds a name of the scope would otherwise lose it for nothing.
    #[test]
    fn a_new_scope_is_told_from_its_first_authority_on() {
        let board = Board::default();
        board.applied(&scope(), Some(ScopeState { epoch: 3, suspended: true, fresh: true }));
        assert_eq!(told(&board, 1, second(1)), []);
        board.publish(&scope(), Tenure::new(1), Some(Right { epoch: 3, until: second(10) }));
        assert_eq!(told(&board, 1, second(4)), [("pay/".to_owned(), 3, 6_000)]);
        assert_eq!(told(&board, 1, second(10)), [("pay/".to_owned(), 3, 0)]);
    }

    #[test]
    fn what_remains_is_counted_from_the_receipt_in_the_epoch_of_the_authority() {
        let board = board();
        board.publish(&scope(), Tenure::new(1), Some(Right { epoch: 5, until: second(10) }));
        assert_eq!(told(&board, 1, second(4)), [("pay/".to_owned(), 5, 6_000)]);
        assert_eq!(told(&board, 1, second(10)), [("pay/".to_owned(), 3, 0)]);
    }

    #[test]
    fn authority_of_another_tenure_is_none() {
        let board = board();
        board.publish(&scope(), Tenure::new(1), Some(Right { epoch: 3, until: second(10) }));
        assert_eq!(told(&board, 2, second(4)), [("pay/".to_owned(), 3, 0)]);
        board.publish(&scope(), Tenure::new(1), None);
        assert_eq!(told(&board, 1, second(4)), [("pay/".to_owned(), 3, 0)]);
    }
}
