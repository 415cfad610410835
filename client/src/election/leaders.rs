//! Observing an election.

use std::collections::VecDeque;
use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use futures_util::{Stream, StreamExt as _};

use super::Leader;
use crate::{ChangeKind, Holder, LockInfo, Result, Value, Watch, WatchEvent};

/// The leaders of an election, one after the other: [`Election::observe`](super::Election::observe).
///
/// First comes the present state, then whatever changes, in the order of the store's log and as soon as the store pushes
/// it. An observer that has not read [`LeaderEvent::Leads`] of the next leader knows of one leader at most, the one before;
/// it may be out of date by the time that a push takes, or longer while its connection is broken. A caller that needs certainty
/// compares tokens.
///
/// It goes on for as long as it is polled, over broken connections and changes of the servers' leader, and ends only after
/// an error, as a [`Watch`] does.
pub struct Leaders {
    watch: Watch,
    seen: Seen,
}

/// What an observer of an election is told.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LeaderEvent {
    /// This candidate leads and proclaims this; or the leader proclaims something new.
    Leads(Leader),
    /// Nobody leads: the leader has resigned or was lost, and the next one has proclaimed nothing yet.
    Nobody,
    /// The servers do not keep everything that happened while the connection was broken: leaders may have come and gone
    /// of which nothing is told. The state follows.
    Missed,
}

/// The election's lock as it was reported.
#[derive(Debug)]
struct Seen {
    election: String,
    holder: Option<Holder>,
    value: Option<Value>,
    /// The state of the lock is complete: what is known may be told.
    synced: bool,
    /// What was told last.
    told: Told,
    /// The watch began anew after something was told.
    anew: bool,
    events: VecDeque<LeaderEvent>,
}

/// What was told last.
#[derive(Debug, PartialEq, Eq)]
enum Told {
    Nothing,
    Nobody,
    Leads(Leader),
}

impl Leaders {
    pub(super) fn new(watch: Watch, election: String) -> Self {
        Self { watch, seen: Seen::new(election) }
    }

    /// The next event; `None` only after an error. Cancel safe: dropping the future loses no event.
    ///
    /// # Errors
    ///
    /// Those of a [`Watch`]; it is over then.
    pub async fn next(&mut self) -> Option<Result<LeaderEvent>> {
        futures_util::StreamExt::next(self).await
    }
}

impl Stream for Leaders {
    type Item = Result<LeaderEvent>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            if let Some(event) = self.seen.events.pop_front() {
                return Poll::Ready(Some(Ok(event)));
            }
            match ready!(self.watch.poll_next_unpin(context)) {
                Some(Ok(event)) => self.seen.see(event),
                Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                None => return Poll::Ready(None),
            }
        }
    }
}

impl fmt::Debug for Leaders {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Leaders").field("election", &self.seen.election).finish_non_exhaustive()
    }
}

impl Seen {
    fn new(election: String) -> Self {
        Self {
            election,
            holder: None,
            value: None,
            synced: false,
            told: Told::Nothing,
            anew: false,
            events: VecDeque::new(),
        }
    }

    fn see(&mut self, event: WatchEvent) {
        match event {
            WatchEvent::Lock(lock) if lock.name == self.election => self.is(lock),
            WatchEvent::Change(change) if change.name == self.election => self.changes(change.what),
            WatchEvent::Synced => self.synced = true,
            WatchEvent::Restarted => {
                self.anew = self.told != Told::Nothing;
                (self.holder, self.value, self.synced) = (None, None, false);
            }
            // Locks whose names begin with that of the election; and what is known stays what was true last.
            _ => return,
        }
        self.tell();
    }

    fn is(&mut self, lock: LockInfo) {
        self.holder = lock.holders.into_iter().next();
        self.value = lock.value;
    }

    fn changes(&mut self, what: ChangeKind) {
        match what {
            ChangeKind::Granted(holder) => self.holder = Some(holder),
            ChangeKind::Released(holder) | ChangeKind::Lost(holder, _) => {
                let is_it = |held: &Holder| held.token == holder.token;
                if self.holder.as_ref().is_some_and(is_it) {
                    self.holder = None;
                }
            }
            ChangeKind::ValueChanged(value) => self.value = value,
            ChangeKind::Queued(_) | ChangeKind::Left(_) => {}
        }
    }

    /// Tells what is new.
    fn tell(&mut self) {
        if !self.synced {
            return;
        }
        let leader = Leader::of(self.holder.as_ref(), self.value.as_ref());
        let told = match &self.told {
            Told::Leads(leader) => Some(leader),
            Told::Nothing | Told::Nobody => None,
        };
        // Tokens rise: a leader that was told, and leads, has led all the while.
        let leads_still = told.zip(leader.as_ref());
        let leads_still =
            leads_still.filter(|(told, leads)| told.holder.token == leads.holder.token);
        let says_the_same = leads_still.is_some_and(|(told, leads)| told.value == leads.value);
        if std::mem::take(&mut self.anew) && leads_still.is_none() {
            self.told = Told::Nothing;
            self.events.push_back(LeaderEvent::Missed);
        }
        if says_the_same || leader.is_none() && self.told == Told::Nobody {
            return;
        }
        self.events.push_back(leader.clone().map_or(LeaderEvent::Nobody, LeaderEvent::Leads));
        self.told = leader.map_or(Told::Nobody, Told::Leads);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{FencingToken, LockChange, LostReason};

    fn holder(token: u64) -> Holder {
        let mut holder = Holder::named(format!("candidate {token}"));
        holder.token = FencingToken::from_raw(token);
        holder
    }

    fn value(token: u64, text: &str, is_suspect: bool) -> Value {
        let token = FencingToken::from_raw(token);
        Value { bytes: text.to_owned().into(), token, is_suspect }
    }

    fn change(name: &str, what: ChangeKind) -> WatchEvent {
        WatchEvent::Change(LockChange { name: name.to_owned(), what, waiting: 0, index: 1 })
    }

    fn granted(token: u64) -> WatchEvent {
        change("e", ChangeKind::Granted(holder(token)))
    }

    fn proclaims(token: u64, text: &str) -> WatchEvent {
        change("e", ChangeKind::ValueChanged(Some(value(token, text, false))))
    }

    fn lock(token: u64, text: &str) -> WatchEvent {
        WatchEvent::Lock(LockInfo {
            name: "e".to_owned(),
            holders: vec![holder(token)],
            value: Some(value(token, text, false)),
            ..LockInfo::default()
        })
    }

    /// What is told of these, as text.
    fn told(events: impl IntoIterator<Item = WatchEvent>) -> Vec<String> {
        let mut seen = Seen::new("e".to_owned());
        events.into_iter().for_each(|event| seen.see(event));
        let text = |event| match event {
            LeaderEvent::Leads(Leader { value, holder }) => {
                format!("{} {}", holder.token.get(), String::from_utf8_lossy(&value))
            }
            other => format!("{other:?}"),
        };
        seen.events.drain(..).map(text).collect()
    }

    #[test]
    fn each_leader_is_told_once_and_nobody_in_between() {
        let released = change("e", ChangeKind::Released(holder(1)));
        let lost = change("e", ChangeKind::Lost(holder(2), LostReason::SessionExpired));
        let suspect = change("e", ChangeKind::ValueChanged(Some(value(2, "b2", true))));
        let events = [
            lock(1, "a"),
            WatchEvent::Synced,
            proclaims(1, "a"),
            released,
            granted(2),
            proclaims(2, "b"),
            proclaims(2, "b2"),
            suspect,
            lost,
            granted(3),
            proclaims(3, "c"),
        ];
        assert_eq!(told(events), ["1 a", "Nobody", "2 b", "2 b2", "Nobody", "3 c"]);
    }

    /// The value that it finds is that of a leader before it.
    #[test]
    fn a_holder_that_has_proclaimed_nothing_does_not_lead() {
        let unset = WatchEvent::Lock(LockInfo {
            name: "e".to_owned(),
            holders: vec![holder(7)],
            value: Some(value(6, "old", true)),
            ..LockInfo::default()
        });
        assert_eq!(told([unset, WatchEvent::Synced, proclaims(7, "new")]), ["Nobody", "7 new"]);
    }

    #[test]
    fn before_the_state_is_complete_and_of_other_locks_nothing_is_told() {
        let other = change("e2", ChangeKind::Granted(holder(9)));
        let mut shared = holder(4);
        shared.mode = crate::Mode::Shared;
        let events = [lock(1, "a"), proclaims(1, "b"), other];
        assert_eq!(told(events), <[&str; 0]>::default());
        assert_eq!(told([WatchEvent::Synced]), ["Nobody"]);
        let readers = [change("e", ChangeKind::Granted(shared)), proclaims(4, "x")];
        assert_eq!(told([WatchEvent::Synced].into_iter().chain(readers)), ["Nobody"]);
    }

    #[test]
    fn a_watch_that_begins_anew_tells_of_a_gap_only_if_the_leader_is_another() {
        let [restarted, synced] = [WatchEvent::Restarted, WatchEvent::Synced];
        let again = |state: Option<WatchEvent>| {
            let before = [lock(1, "a"), synced.clone(), restarted.clone()].into_iter();
            told(before.chain(state).chain([synced.clone()]))
        };
        assert_eq!(again(Some(lock(1, "a"))), ["1 a"]);
        assert_eq!(again(Some(lock(1, "a2"))), ["1 a", "1 a2"]);
        assert_eq!(again(Some(lock(5, "z"))), ["1 a", "Missed", "5 z"]);
        assert_eq!(again(None), ["1 a", "Missed", "Nobody"]);
        // Before anything was told nothing can be missed.
        assert_eq!(told([restarted, lock(5, "z"), synced]), ["5 z"]);
    }
}
