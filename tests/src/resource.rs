//! Resources outside of the store that refuse older tokens (DESIGN §5.7), kept in memory: what the
//! clients of one process write to, and the judge looks at (I1).

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use crate::scribe::Held;

/// The resources of one run, each guarded by the lock of the same name. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Resources(Arc<Mutex<BTreeMap<String, u64>>>);

impl Resources {
    /// A client writes to the resource `name` under what it holds, safe or not any more: the
    /// resource decides by the token alone. Says whether it accepted.
    pub fn write(&self, held: &Held, name: &str) -> bool {
        let mut largest = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let decision = decide(&mut largest, name, held.token());
        // Under the lock: the history has the decisions in their order.
        match decision {
            Ok(()) => held.accepted(name),
            Err(newest) => held.fenced_off(name, newest),
        }
        decision.is_ok()
    }
}

/// Refuses a token lower than the largest seen, and names that one.
fn decide(largest: &mut BTreeMap<String, u64>, name: &str, token: u64) -> Result<(), u64> {
    let newest = largest.entry(name.to_owned()).or_insert(token);
    *newest = token.max(*newest);
    if token < *newest { Err(*newest) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_below_the_largest_seen_is_refused() {
        let mut largest = BTreeMap::new();
        let mut decided = |name, token| decide(&mut largest, name, token);
        assert_eq!([decided("jobs", 5), decided("jobs", 5), decided("jobs", 7)], [Ok(()); 3]);
        assert_eq!((decided("jobs", 6), decided("stock", 6)), (Err(7), Ok(())));
    }
}
