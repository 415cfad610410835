//! What a watch reported between two breaks, processed in order.

use std::collections::{BTreeMap, BTreeSet};

use super::{Holds, at};
use crate::check::story::Hold;
use crate::history::{Happened, Holding, News, Shown};

/// One lock as the watch reported it.
#[derive(Clone, Default)]
pub(super) struct Lock<'a> {
    pub(super) holders: Vec<Holding>,
    pub(super) waiting: u64,
    pub(super) value: Option<&'a Shown>,
    changing: Option<Changing>,
}

/// How the number of waiters changes under one index.
#[derive(Clone, Copy)]
struct Changing {
    index: u64,
    before: u64,
    queued: u64,
    left: u64,
    granted: u64,
    told: u64,
}

/// What a watch reported between two breaks.
pub(super) struct Epoch<'a> {
    prefix: &'a str,
    known: &'a Holds<'a>,
    begun_ns: u64,
    pub(super) locks: BTreeMap<&'a str, Lock<'a>>,
    shown: BTreeSet<&'a str>,
    pub(super) synced: bool,
    index: u64,
    /// Grants reported after the state was complete: their index and names.
    grants: BTreeMap<u64, (u64, BTreeSet<&'a str>)>,
}

type Found = Vec<(u8, String)>;

impl<'a> Epoch<'a> {
    /// A watch that was asked for at this instant, before any report.
    pub(super) fn begin(prefix: &'a str, known: &'a Holds<'a>, begun_ns: u64) -> Self {
        Self {
            prefix,
            known,
            begun_ns,
            locks: BTreeMap::new(),
            shown: BTreeSet::new(),
            synced: false,
            index: 0,
            grants: BTreeMap::new(),
        }
    }

    pub(super) fn told(&mut self, at_ns: u64, news: &'a News, found: &mut Found) {
        match news {
            News::Lock { name, holders, waiting, value } => {
                if self.synced || !self.shown.insert(name) {
                    found.push((23, format!("{name} is shown again at {}", at(at_ns))));
                }
                let (holders, value) = (holders.clone(), value.as_ref());
                let lock = Lock { holders, waiting: *waiting, value, changing: None };
                self.locks.insert(name, lock);
            }
            News::Synced => self.is_synced(at_ns, found),
            News::Change { name, index, waiting, what } => {
                if *index < self.index {
                    let before = self.index;
                    found.push((23, format!("index {index} of {name} comes after {before}")));
                }
                self.index = (*index).max(self.index);
                self.changed(at_ns, (name, *index), *waiting, what, found);
            }
            // The caller begins another epoch.
            News::Restarted => {}
        }
    }

    /// I18: the state contains every hold that certainly held during all the time since the
    /// request.
    fn is_synced(&mut self, at_ns: u64, found: &mut Found) {
        if std::mem::replace(&mut self.synced, true) {
            found.push((23, format!("the state is complete twice, at {}", at(at_ns))));
        }
        for (name, holds) in self.known.range(self.prefix..) {
            if !name.starts_with(self.prefix) {
                break;
            }
            let held = holds
                .values()
                .filter(|hold| hold.from_ns < self.begun_ns && hold.safe_end_ns() > at_ns);
            for hold in held {
                let shown = self.locks.get(name).is_some_and(|lock| lock.has(hold.token));
                if !shown {
                    let (client, token) = (hold.client, hold.token);
                    let how = format!(
                        "the state complete at {} does not show that {client} holds {name} under \
                         {token}",
                        at(at_ns)
                    );
                    found.push((18, how));
                }
            }
        }
    }

    fn changed(
        &mut self,
        at_ns: u64,
        (name, index): (&'a str, u64),
        waiting: u64,
        what: &'a Happened,
        found: &mut Found,
    ) {
        let lock = self.locks.entry(name).or_default();
        lock.counts(name, index, waiting, what, found);
        match what {
            Happened::Queued | Happened::Left => {}
            Happened::Value(value) => lock.value = value.as_ref(),
            Happened::Granted(holder) => {
                lock.enters(name, *holder, found);
                if self.synced {
                    self.granted(name, index, holder.token, found);
                }
                self.is_as_told(name, *holder, found);
            }
            Happened::Released(holder) | Happened::Lost(holder) => {
                lock.leaves(name, holder.token, found);
                self.is_over(at_ns, name, holder.token, what, found);
            }
        }
    }

    fn granted(&mut self, name: &'a str, index: u64, token: u64, found: &mut Found) {
        let (first, names) = self.grants.entry(token).or_insert_with(|| (index, BTreeSet::new()));
        names.insert(name);
        if *first != index {
            let how = format!("{name} is granted under {token} at {index}, others at {first}");
            found.push((14, how));
        }
    }

    fn hold(&self, name: &str, token: u64) -> Option<&'a Hold> {
        self.known.get(name)?.get(&token).copied()
    }

    /// The mode of the hold is the one that its client received.
    fn is_as_told(&self, name: &str, holder: Holding, found: &mut Found) {
        if self.hold(name, holder.token).is_some_and(|hold| hold.shared != holder.shared) {
            let token = holder.token;
            found.push((23, format!("{name} is granted under {token} in another mode than told")));
        }
    }

    /// No hold ends while its client is certain of it. A hold of which the client learned only
    /// after its end may never have been certain.
    fn is_over(&self, at_ns: u64, name: &str, token: u64, what: &Happened, found: &mut Found) {
        let Some(hold) = self.hold(name, token) else { return };
        if hold.was_safe() && hold.safe_end_ns() > at_ns {
            let invariant = if matches!(what, Happened::Lost(_)) { 6 } else { 13 };
            let (client, until) = (hold.client, at(hold.safe_end_ns()));
            let how = format!(
                "{name} under {token} is told to be over at {}, and {client} is safe until {until}",
                at(at_ns)
            );
            found.push((invariant, how));
        }
    }

    /// The watch broke here, or its client stopped it: its reports must be complete between the
    /// first and the last grant.
    pub(super) fn ends(&self, found: &mut Found) {
        let (Some((&first, _)), Some((&last, _))) =
            (self.grants.first_key_value(), self.grants.last_key_value())
        else {
            return;
        };
        // The changes of the last index may be incomplete.
        let whole = |token: u64| first < token && token < last;
        for (name, holds) in self.known.range(self.prefix..) {
            if !name.starts_with(self.prefix) {
                break;
            }
            let between = holds.range(first..=last).filter(|(token, _)| whole(**token));
            for (token, hold) in between {
                match self.grants.get(token) {
                    None => {
                        let client = hold.client;
                        let how =
                            format!("the grant of {name} to {client} under {token} is left out");
                        found.push((23, how));
                    }
                    Some((index, names)) if !names.contains(name) && *index < self.index => {
                        let how = format!("the grant under {token} is told without {name}");
                        found.push((14, how));
                    }
                    Some(_) => {}
                }
            }
        }
        self.are_known(found);
    }

    /// A grant that a client received has no names besides those that the client received.
    fn are_known(&self, found: &mut Found) {
        let mut told: BTreeMap<u64, BTreeSet<&str>> = BTreeMap::new();
        for (name, holds) in self.known {
            for token in holds.keys().filter(|token| self.grants.contains_key(token)) {
                told.entry(*token).or_default().insert(name);
            }
        }
        for (token, names) in told {
            let more = self.grants.get(&token).and_then(|(_, seen)| seen.difference(&names).next());
            if let Some(name) = more {
                found.push((
                    23,
                    format!("{name} is granted under {token}, which its client was not told"),
                ));
            }
        }
    }
}

impl Changing {
    /// Called when all changes of the index have been reported.
    fn adds_up(self, name: &str) -> Option<(u8, String)> {
        let Self { index, before, queued, left, granted, told } = self;
        let most = (before + queued).checked_sub(left);
        let fits = most.is_some_and(|most| told <= most && told + granted >= most);
        let how = || {
            format!(
                "{told} wait for {name} after index {index}, and before {before}: {queued} came, \
                 {left} left, {granted} were granted it"
            )
        };
        (!fits).then(|| (23, how()))
    }
}

impl Lock<'_> {
    fn has(&self, token: u64) -> bool {
        self.holders.iter().any(|holder| holder.token == token)
    }

    fn enters(&mut self, name: &str, holder: Holding, found: &mut Found) {
        let token = holder.token;
        if self.has(token) {
            found.push((23, format!("{name} is granted twice under {token}")));
            return;
        }
        let fits = self.holders.iter().all(|other| other.shared && holder.shared);
        if !fits {
            let others = &self.holders;
            found.push((2, format!("{name} is granted under {token} beside {others:?}")));
        }
        self.holders.push(holder);
    }

    fn leaves(&mut self, name: &str, token: u64, found: &mut Found) {
        if !self.has(token) {
            found.push((23, format!("{name} is over for {token}, which did not hold it")));
        }
        self.holders.retain(|holder| holder.token != token);
    }

    /// The number of waiters after an index is the number before it, plus those who came, minus
    /// those who left. A request that is granted a lock may have waited for it, or not.
    fn counts(&mut self, name: &str, index: u64, waiting: u64, what: &Happened, found: &mut Found) {
        let before = self.waiting;
        let fresh = Changing { index, before, queued: 0, left: 0, granted: 0, told: waiting };
        let mut changing = match self.changing.take() {
            Some(changing) if changing.index == index => changing,
            earlier => {
                found.extend(earlier.and_then(|earlier| earlier.adds_up(name)));
                fresh
            }
        };
        if changing.told != waiting {
            let told = changing.told;
            found.push((23, format!("{told} and {waiting} wait for {name} after index {index}")));
        }
        match what {
            Happened::Queued => changing.queued += 1,
            Happened::Left => changing.left += 1,
            Happened::Granted(_) => changing.granted += 1,
            _ => {}
        }
        self.waiting = waiting;
        self.changing = Some(changing);
    }
}
