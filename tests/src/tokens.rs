//! The fencing tokens of lockers: they rise for every lock, over everything that happens in a run.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::BoxFuture;
use holdfast::FencingToken;
use holdfast_recipes::{RemoteGuard, RemoteLocker, Wait};
use holdfast_runtime::Runtime;

/// How long an awaited event may take: many times what it should, for a slow machine.
const COMES_WITHIN: Duration = Duration::from_mins(1);

/// The tokens of a run. One that does not rise fails the test.
#[derive(Clone, Default, Debug)]
pub struct Tokens(Arc<Mutex<Seen>>);

#[derive(Default, Debug)]
struct Seen {
    /// The last one of each lock.
    last: BTreeMap<String, FencingToken>,
    /// How many there were in each epoch.
    by_epoch: BTreeMap<u64, usize>,
}

impl Tokens {
    /// The same locker, with its tokens checked. Guards without a token are ignored.
    pub fn of(&self, locker: Arc<dyn RemoteLocker>) -> Arc<dyn RemoteLocker> {
        Arc::new(Fenced { locker, tokens: self.clone() })
    }

    fn note(&self, lock_id: &str, token: FencingToken) {
        let mut seen = self.0.lock().unwrap();
        let before = seen.last.insert(lock_id.to_owned(), token);
        assert!(before < Some(token), "{lock_id}: {token} after {before:?}");
        *seen.by_epoch.entry(token.get() >> 48).or_default() += 1;
    }

    /// How many locks had a token so far.
    pub fn locks(&self) -> usize {
        self.0.lock().unwrap().last.len()
    }

    /// The epoch of the last token of this lock.
    pub fn last_epoch(&self, lock_id: &str) -> u64 {
        self.0.lock().unwrap().last[lock_id].get() >> 48
    }

    /// How many grants there were in each epoch so far.
    pub fn by_epoch(&self) -> BTreeMap<u64, usize> {
        self.0.lock().unwrap().by_epoch.clone()
    }

    /// How many grants there were so far.
    pub fn count(&self) -> usize {
        self.by_epoch().values().sum()
    }

    /// Waits until so many locks were granted in an epoch above `epoch`; returns that epoch.
    pub async fn above(&self, epoch: u64, number: usize) -> u64 {
        let what = format!("{number} grants above epoch {epoch}");
        self.comes(&what, |by_epoch| {
            let later = by_epoch.iter().find(|(of, count)| **of > epoch && **count >= number);
            later.map(|(later, _)| *later)
        })
        .await
    }

    /// Waits until so many more locks were granted, in whatever epoch.
    pub async fn more(&self, number: usize) {
        let enough = self.count() + number;
        let is_so = |by_epoch: &BTreeMap<u64, usize>| {
            (by_epoch.values().sum::<usize>() >= enough).then_some(())
        };
        self.comes(&format!("{number} more grants"), is_so).await;
    }

    async fn comes<T>(&self, what: &str, look: impl Fn(&BTreeMap<u64, usize>) -> Option<T>) -> T {
        let seen = async {
            loop {
                if let Some(found) = look(&self.by_epoch()) {
                    return found;
                }
                Runtime::system().sleep(Duration::from_millis(20)).await;
            }
        };
        let within = Runtime::system().timeout(COMES_WITHIN, seen).await;
        within.unwrap_or_else(|_| panic!("there are no {what}: {:?}", self.by_epoch()))
    }
}

/// A locker whose tokens are checked.
struct Fenced {
    locker: Arc<dyn RemoteLocker>,
    tokens: Tokens,
}

impl RemoteLocker for Fenced {
    fn acquire<'a>(
        &'a self,
        lock_id: &'a str,
        wait: Wait,
    ) -> BoxFuture<'a, holdfast::Result<RemoteGuard>> {
        Box::pin(async move {
            let guard = self.locker.acquire(lock_id, wait).await?;
            if let Some(token) = guard.token() {
                self.tokens.note(lock_id, token);
            }
            Ok(guard)
        })
    }
}
