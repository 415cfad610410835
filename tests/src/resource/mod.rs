//! Resources outside the store that refuse older tokens (DESIGN §5.7): holders write to them, and
//! the judge checks their decisions (I1). Kept in memory; [`Served`] is the same for clients of
//! other processes.

mod served;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

pub use served::{Served, Written, write_to};

use crate::history::{ClientId, Recorder, What};

/// The resources of one run, each guarded by the lock of the same name. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Resources {
    recorder: Recorder,
    largest: Arc<Mutex<BTreeMap<String, u64>>>,
}

impl Resources {
    /// Resources without writes. They record their decisions in the history, in the client's name,
    /// at the instant of the decision.
    pub fn new(recorder: Recorder) -> Self {
        Self { recorder, largest: Arc::default() }
    }

    /// A client writes to the resource `name` under `token`, whether its hold is safe or not: the
    /// resource decides by the token alone.
    ///
    /// # Errors
    ///
    /// The larger token because of which the write is refused.
    pub fn write(&self, client: ClientId, name: &str, token: u64) -> Result<(), u64> {
        let mut largest = self.largest.lock().unwrap_or_else(PoisonError::into_inner);
        let newest = largest.entry(name.to_owned()).or_default();
        let (name, newest_seen) = (name.to_owned(), *newest);
        // Under the mutex: the history has the decisions in their order.
        if token < newest_seen {
            self.recorder.write(client, What::Fenced { token, name, newest: newest_seen });
            return Err(newest_seen);
        }
        *newest = token;
        self.recorder.write(client, What::Accepted { token, name });
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use holdfast_runtime::Runtime;

    use super::*;

    #[test]
    fn a_token_below_the_largest_seen_is_refused_name_by_name_and_all_is_written_down() {
        let recorder = Recorder::in_memory(Runtime::system().clock);
        let resources = Resources::new(recorder.clone());
        let write = |name, token| resources.write(ClientId(3), name, token);

        assert_eq!([write("a", 5), write("a", 5), write("a", 7)], [Ok(()); 3]);
        assert_eq!((write("a", 6), write("b", 6)), (Err(7), Ok(())));
        let written: Vec<What> = recorder.take().into_iter().map(|record| record.what).collect();
        let accepted = |name: &str, token| What::Accepted { token, name: name.into() };
        let fenced = What::Fenced { token: 6, name: "a".into(), newest: 7 };
        let expected =
            [accepted("a", 5), accepted("a", 5), accepted("a", 7), fenced, accepted("b", 6)];
        assert_eq!(written, expected);
    }
}
