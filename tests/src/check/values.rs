//! I19, I18, I13: the value that comes with a grant is the one that the last holder left, a look
//! during a hold shows what its holder had set by then, and only a holder changes a value.
//!
//! Only an exclusive holder changes a value, and the exclusive grants of a name follow each other
//! by their tokens. So the check follows the value of a name from token to token, as the set of its
//! possible values: an acknowledged change leaves one possibility, a change of unknown outcome
//! both, and so does a hold of which it is not certain whether it ended cleanly. Names have no
//! value at the beginning of a run.

use std::collections::BTreeMap;

use super::bounds::may_be_too_long;
use super::story::{Client, Fate, Hold, Look, Over, ReleaseTold, Request, Seen, Story, Write};
use super::{Tally, Violation, at, violation};
use crate::history::{Change, LostCause, Shown};

/// The version of the commands by which a client gives back what it lost, and says so. Until every
/// member is known to know it, a leader proposes a plain release, which leaves the value as it was.
const RELEASE_LOST_VERSION: u16 = 5;

pub(super) fn check(story: &Story, tally: &mut Tally, violations: &mut Vec<Violation>) {
    for write in story.writes.iter().filter(|write| write.fate == Fate::Done) {
        if let Some(how) = not_by_its_holder(story, write) {
            let message = format!(
                "{}: its value was changed by {} under token {} at {}, which {how}",
                write.name,
                write.client,
                write.token,
                at(write.asked_ns)
            );
            violations.push(violation(13, message));
        }
    }
    let writes = Writes::of(story);
    let mut looks: BTreeMap<&str, Vec<(&Look, &Seen)>> = BTreeMap::new();
    for look in &story.reads {
        looks.entry(&look.name).or_default().extend(look.done.as_ref().map(|seen| (look, seen)));
    }
    let lost_unseen = lost_unseen_from(story);
    let imported = story.imported_names();
    for (name, mut holds) in story.holds_by_name() {
        // Its values came from the other store, and are judged with the import.
        if imported.contains(name) {
            continue;
        }
        holds.sort_by_key(|hold| hold.token);
        let lost_unseen_ns = lost_unseen.get(name).copied().unwrap_or(u64::MAX);
        let looks = looks.get(name).map_or(&[][..], Vec::as_slice);
        let mut value = Possible::nothing();
        for hold in holds {
            value.is_seen(hold, lost_unseen_ns <= hold.from_ns, tally, violations);
            // No client changes a value while others share the lock.
            let writes = if hold.shared { Vec::new() } else { writes.under(hold) };
            let (from_ns, until_ns) = (hold.from_ns, hold.safe_end_ns());
            let during = looks.partition_point(|(look, _)| look.called_ns < from_ns);
            let during = looks[during..].iter().take_while(|(look, _)| look.called_ns <= until_ns);
            for &(look, seen) in during.filter(|(_, seen)| seen.at_ns <= until_ns) {
                value.is_looked_at((look, seen), hold, &writes, tally, violations);
            }
            if !hold.shared {
                value.change(writes.iter().map(|write| (*write, write.fate)));
                value.end(story, hold);
            }
        }
    }
}

/// Why an acknowledged change was not its client's to make (I13).
fn not_by_its_holder(story: &Story, write: &Write) -> Option<&'static str> {
    let Some(hold) = story.hold(write.client, write.token, &write.name) else {
        return Some("it was never granted");
    };
    let released = matches!(
        hold.release_told,
        Some((told, ReleaseTold::Released)) if told < write.asked_ns
    );
    let over = matches!(hold.over, Some((told, Over::Told(_))) if told < write.asked_ns);
    if hold.shared {
        Some("it shared")
    } else if released {
        Some("it had given back")
    } else {
        over.then_some("it had lost")
    }
}

/// The changes that may have taken effect, by grant and name, in the order of the requests.
struct Writes<'a>(BTreeMap<(u64, &'a str), Vec<&'a Write>>);

impl<'a> Writes<'a> {
    fn of(story: &'a Story) -> Self {
        let mut by_grant: BTreeMap<(u64, &str), Vec<&Write>> = BTreeMap::new();
        for write in story.writes.iter().filter(|write| write.fate != Fate::Refused) {
            by_grant.entry((write.token, &write.name)).or_default().push(write);
        }
        Self(by_grant)
    }

    fn under(&self, hold: &Hold) -> Vec<&'a Write> {
        let writes = self.0.get(&(hold.token, hold.name.as_str())).map_or(&[][..], Vec::as_slice);
        writes.iter().filter(|write| write.client == hold.client).copied().collect()
    }
}

/// From when on an exclusive request for a name may have been granted and lost without its client
/// learning of it. Such a hold changes no value, but its end may have made one suspect.
fn lost_unseen_from(story: &Story) -> BTreeMap<&str, u64> {
    let mut first: BTreeMap<&str, u64> = BTreeMap::new();
    for request in story.requests.iter().filter(|request| may_be_held_unseen(request)) {
        let client = story.clients.get(&request.client);
        let expires = |client: &Client| client.may_expire_from_ns(request.called_ns);
        let expires_ns = client.map_or(Some(0), expires);
        let taken_ns = story.facts.taken_from_ns(request.client);
        let is_bound = request.items.values().any(|asked| asked.max_hold_ms > 0);
        let too_long_ns = is_bound.then_some(request.called_ns);
        let ends_ns = expires_ns.into_iter().chain(taken_ns).chain(too_long_ns).min();
        let Some(ends_ns) = ends_ns else { continue };
        let from_ns = ends_ns.max(request.called_ns.saturating_add(1));
        for (name, _) in request.items.iter().filter(|(_, asked)| !asked.shared) {
            let kept = first.entry(name).or_insert(from_ns);
            *kept = from_ns.min(*kept);
        }
    }
    first
}

fn may_be_held_unseen(request: &Request) -> bool {
    request.granted.is_none() && !request.is_certainly_ungranted()
}

/// A value as the store keeps it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Left {
    value: String,
    token: u64,
    suspect: bool,
}

impl Left {
    fn shown(shown: &Shown) -> Self {
        let Shown { value, token, suspect, .. } = shown.clone();
        Self { value, token, suspect }
    }
}

/// The possible values of a name; `None`: it has none.
#[derive(Clone)]
struct Possible(Vec<Option<Left>>);

impl Possible {
    fn nothing() -> Self {
        Self(vec![None])
    }

    fn add(&mut self, states: Vec<Option<Left>>) {
        for state in states {
            if !self.0.contains(&state) {
                self.0.push(state);
            }
        }
    }

    /// A grant showed the value: from here on it is the only possibility.
    fn is_seen(
        &mut self,
        hold: &Hold,
        lost_unseen: bool,
        tally: &mut Tally,
        violations: &mut Vec<Violation>,
    ) {
        let shown = hold.value.as_ref().map(Left::shown);
        let is = |possible: &Option<Left>| match (possible, &shown) {
            (Some(possible), Some(shown)) if lost_unseen => {
                (&possible.value, possible.token) == (&shown.value, shown.token)
            }
            (possible, shown) => possible == shown,
        };
        if !self.0.iter().any(is) {
            let message = format!(
                "{}: token {} of {} came at {} with {shown:?}, and it was {:?}",
                hold.name,
                hold.token,
                hold.client,
                at(hold.from_ns),
                self.0
            );
            violations.push(violation(19, message));
        }
        if self.0.len() == 1 && shown.is_some() {
            tally.values_seen += 1;
        }
        if shown.as_ref().is_some_and(|shown| shown.suspect) {
            tally.suspects += 1;
        }
        self.0 = vec![shown];
    }

    /// A look during a hold: it shows what the holder had made of the value by then. A change in
    /// flight during the look may come before it or after it.
    fn is_looked_at(
        &self,
        (look, seen): (&Look, &Seen),
        hold: &Hold,
        writes: &[&Write],
        tally: &mut Tally,
        violations: &mut Vec<Violation>,
    ) {
        let shown = seen.value.as_ref().map(Left::shown);
        let mut then = self.clone();
        let asked = writes.iter().filter(|write| write.asked_ns < seen.at_ns);
        then.change(asked.map(|write| {
            let told = write.told_ns.is_some_and(|told| told <= look.called_ns);
            (*write, if told { write.fate } else { Fate::Unknown })
        }));
        if !then.0.contains(&shown) {
            let message = format!(
                "{}: a look from {} to {} showed the value {shown:?}, and under token {} it was {:?}",
                hold.name,
                at(look.called_ns),
                at(seen.at_ns),
                hold.token,
                then.0
            );
            violations.push(violation(18, message));
        }
        tally.values_seen += usize::from(then.0.len() == 1 && shown.is_some());
    }

    /// What the holder did to the value. A change of unknown outcome may also have taken effect
    /// after later changes: a copy of it may have been in flight.
    fn change<'a>(&mut self, writes: impl Iterator<Item = (&'a Write, Fate)> + Clone) {
        for (write, fate) in writes.clone() {
            let changed = self.after(write);
            match fate {
                Fate::Done => self.0 = changed,
                Fate::Unknown | Fate::Refused => self.add(changed),
            }
        }
        for (write, _) in writes.filter(|(_, fate)| *fate == Fate::Unknown) {
            self.add(self.after(write));
        }
    }

    fn after(&self, write: &Write) -> Vec<Option<Left>> {
        let one = |state: &Option<Left>| match &write.change {
            Change::Set(value) => {
                Some(Left { value: value.clone(), token: write.token, suspect: false })
            }
            Change::Clear => None,
            Change::Confirm => state.clone().map(|left| Left { suspect: false, ..left }),
        };
        let mut states: Vec<Option<Left>> = self.0.iter().map(one).collect();
        states.dedup();
        states
    }

    /// The hold is over: the value that it left is suspect unless the holder released the lock.
    fn end(&mut self, story: &Story, hold: &Hold) {
        let doubt = |state: &Option<Left>| state.clone().map(|left| Left { suspect: true, ..left });
        let suspect: Vec<Option<Left>> = self.0.iter().map(doubt).collect();
        match ending(story, hold) {
            Ending::Clean => {}
            Ending::Unclean => self.0 = suspect,
            Ending::Unknown => self.add(suspect),
        }
    }
}

enum Ending {
    /// By release, cancel or close.
    Clean,
    /// By the end of its lease, or because its client lost it before that.
    Unclean,
    /// By one of the two.
    Unknown,
}

/// How a hold ended that is known to be over because a later one of the same name was granted.
fn ending(story: &Story, hold: &Hold) -> Ending {
    let client = story.clients.get(&hold.client);
    let killed = client.is_some_and(|client| client.killed_ns.is_some());
    match hold.over {
        Some((_, Over::GivenUp)) => {
            let released = matches!(hold.release_told, Some((_, ReleaseTold::Released)));
            let lives =
                client.is_some_and(|client| client.may_expire_from_ns(hold.from_ns).is_none());
            // An operator may have ended the hold just before the release came.
            let told_ns = hold.release_told.map_or(u64::MAX, |(told_ns, _)| told_ns);
            let taken = story.facts.took_from(hold.client, told_ns)
                || may_be_too_long(story, hold, told_ns);
            if (released || lives) && !taken { Ending::Clean } else { Ending::Unknown }
        }
        Some((_, Over::Told(LostCause::Expired | LostCause::TakenAway | LostCause::TooLong))) => {
            Ending::Unclean
        }
        // The client gives a hold back that it lost, and says so: no release by its holder.
        Some((at_ns, Over::Told(LostCause::Deadline)))
            if story.facts.all_knew(RELEASE_LOST_VERSION, at_ns) =>
        {
            Ending::Unclean
        }
        Some((_, Over::Told(LostCause::Closed))) => Ending::Clean,
        None if killed => Ending::Unclean,
        Some((_, Over::Told(LostCause::Gone | LostCause::Deadline) | Over::Lapsed)) | None => {
            Ending::Unknown
        }
    }
}
