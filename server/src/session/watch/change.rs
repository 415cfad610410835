//! A change of one lock: made once, where the log is applied, and encoded once, by the first watcher that
//! sends it.
//!
//! It is made on every node for every change, so that a watch can go on after a change of leader. So it shares
//! names and labels with the table, and the thread that applies the log neither copies nor encodes them; only a
//! value, which may be large, is encoded at once instead of being kept in two forms.

use std::sync::OnceLock;

use bytes::Bytes;
use holdfast_core::{
    Event, FencingToken, Identity, Item, Label, LockName, LockTable, LogIndex, LossCause, Mode,
    RequestId, SessionId, Value,
};
use holdfast_proto::v1::lock_change::What as WireWhat;
use holdfast_proto::v1::watch_event::Body;
use holdfast_proto::v1::{HoldLost, Holder, LockChange, ValueChanged, WaiterInfo, WatchEvent};
use prost::Message as _;

use super::super::answers::{lost_reason, mode_of, value_of};

/// What numbers and tags take in an encoded change, at most.
const NUMBERS_BYTES: usize = 96;

/// One change of one lock, as of its entry of the log: shared by all watchers that it is sent to.
#[derive(Debug)]
pub(super) struct Change {
    pub(super) name: LockName,
    pub(super) index: LogIndex,
    /// How many wait for the lock after all changes of this index.
    waiting: u64,
    what: What,
    encoded: OnceLock<Bytes>,
    bytes: u64,
}

/// What happened to the lock.
#[derive(Debug)]
enum What {
    Queued(Waiter),
    Left(Waiter),
    Granted(Hold),
    Released(Hold),
    Lost(Hold, LossCause),
    /// It is only in the encoded form.
    ValueChanged,
}

#[derive(Debug)]
struct Waiter {
    session: SessionId,
    request: RequestId,
    mode: Mode,
    names: usize,
    shown: Option<Shown>,
}

#[derive(Debug)]
struct Hold {
    session: SessionId,
    token: FencingToken,
    mode: Mode,
    shown: Option<Shown>,
}

/// What is shown of a session; nothing of one that has ended, of which nothing is kept.
#[derive(Debug)]
struct Shown {
    label: Label,
    identity: Identity,
    imported: bool,
}

impl Change {
    fn new(name: &LockName, index: LogIndex, waiting: u64, what: What) -> Self {
        // The text once where the table has forgotten it, and once encoded.
        let text = 2 * (name.as_str().len() + what.text_bytes());
        Self {
            name: name.clone(),
            index,
            waiting,
            what,
            encoded: OnceLock::new(),
            bytes: (size_of::<Self>() + NUMBERS_BYTES + text) as u64,
        }
    }

    fn of_value(name: &LockName, index: LogIndex, waiting: u64, value: Option<&Value>) -> Self {
        let mut change = Self::new(name, index, waiting, What::ValueChanged);
        let what = WireWhat::ValueChanged(ValueChanged { value: value.map(value_of) });
        let encoded = Bytes::from(change.event(what).encode_to_vec());
        change.bytes += encoded.len() as u64;
        change.encoded = encoded.into();
        change
    }

    /// The bytes that it takes at most, encoded or not.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Its event on the wire.
    pub(super) fn encoded(&self) -> Bytes {
        let encode = || {
            let event = self.what.on_the_wire().map(|what| self.event(what));
            Bytes::from(event.unwrap_or_default().encode_to_vec())
        };
        self.encoded.get_or_init(encode).clone()
    }

    fn event(&self, what: WireWhat) -> WatchEvent {
        let name = self.name.as_str().to_owned();
        let change = LockChange { name, waiting: self.waiting, what: Some(what) };
        WatchEvent { index: self.index.get(), body: Some(Body::Change(change)) }
    }
}

impl What {
    fn text_bytes(&self) -> usize {
        let shown = match self {
            Self::Queued(waiter) | Self::Left(waiter) => &waiter.shown,
            Self::Granted(hold) | Self::Released(hold) | Self::Lost(hold, _) => &hold.shown,
            Self::ValueChanged => &None,
        };
        shown.as_ref().map_or(0, |it| it.label.as_str().len() + it.identity.as_str().len())
    }

    /// `None` for a value, which is only in the encoded form.
    fn on_the_wire(&self) -> Option<WireWhat> {
        Some(match self {
            Self::Queued(waiter) => WireWhat::Queued(waiter.on_the_wire()),
            Self::Left(waiter) => WireWhat::Left(waiter.on_the_wire()),
            Self::Granted(hold) => WireWhat::Granted(hold.on_the_wire()),
            Self::Released(hold) => WireWhat::Released(hold.on_the_wire()),
            Self::Lost(hold, cause) => WireWhat::Lost(HoldLost {
                holder: Some(hold.on_the_wire()),
                reason: lost_reason(*cause).into(),
            }),
            Self::ValueChanged => return None,
        })
    }
}

impl Waiter {
    fn on_the_wire(&self) -> WaiterInfo {
        let (label, identity, imported) = Shown::on_the_wire(self.shown.as_ref());
        WaiterInfo {
            session_id: self.session.get(),
            label,
            request_id: self.request.get(),
            waiting_ms: 0,
            mode: mode_of(self.mode).into(),
            permits: self.mode.permits(),
            names: u32::try_from(self.names).unwrap_or(u32::MAX),
            imported,
            identity,
            ..WaiterInfo::default()
        }
    }
}

impl Hold {
    fn on_the_wire(&self) -> Holder {
        let (label, identity, imported) = Shown::on_the_wire(self.shown.as_ref());
        Holder {
            session_id: self.session.get(),
            label,
            token: self.token.get(),
            held_ms: 0,
            mode: mode_of(self.mode).into(),
            permits: self.mode.permits(),
            imported,
            identity,
            ..Holder::default()
        }
    }
}

impl Shown {
    fn of(table: &LockTable, session: SessionId) -> Option<Self> {
        table.session(session).map(|found| Self {
            label: found.label.clone(),
            identity: found.caller.identity.clone(),
            imported: found.imported,
        })
    }

    /// Label, identity, whether it was imported.
    fn on_the_wire(shown: Option<&Self>) -> (String, String, bool) {
        let Some(Self { label, identity, imported }) = shown else { return Default::default() };
        let anonymous = identity.is_anonymous();
        let identity = if anonymous { String::new() } else { identity.to_string() };
        (label.as_str().to_owned(), identity, *imported)
    }
}

/// Makes a change; called only if it is wanted.
pub(super) type Make<'a> = &'a dyn Fn() -> Change;

/// Calls `tell` with each lock that `event` changed, in the order of their names: an event of a request
/// is one change for each of its names. `table` is the state as of `index`, after all changes of this
/// entry of the log.
pub(super) fn each_change(
    event: &Event,
    index: LogIndex,
    table: &LockTable,
    tell: &mut dyn FnMut(&LockName, Make<'_>),
) {
    let waiting = |lock: &LockName| table.lock(lock).map_or(0, |lock| lock.waiting);
    let mut each = |items: &[Item], what: &dyn Fn(Mode) -> What| {
        for Item { lock, mode } in items {
            tell(lock, &|| Change::new(lock, index, waiting(lock), what(*mode)));
        }
    };
    let waiter = |session: &SessionId, request: &RequestId, items: &[Item], mode| Waiter {
        session: *session,
        request: *request,
        mode,
        names: items.len(),
        shown: Shown::of(table, *session),
    };
    let hold = |session: &SessionId, token: &FencingToken, mode| Hold {
        session: *session,
        token: *token,
        mode,
        shown: Shown::of(table, *session),
    };
    match event {
        Event::Queued { session, request, items, .. } => {
            each(items, &|mode| What::Queued(waiter(session, request, items, mode)));
        }
        Event::Left { session, request, items } => {
            each(items, &|mode| What::Left(waiter(session, request, items, mode)));
        }
        Event::Granted { session, items, token, .. } => {
            each(items, &|mode| What::Granted(hold(session, token, mode)));
        }
        Event::Released { session, items, token, .. } => {
            each(items, &|mode| What::Released(hold(session, token, mode)));
        }
        Event::Lost { session, items, token, cause, .. } => {
            each(items, &|mode| What::Lost(hold(session, token, mode), *cause));
        }
        Event::ValueChanged { lock, value } => {
            tell(lock, &|| Change::of_value(lock, index, waiting(lock), value.as_ref()));
        }
        // No request comes into or out of a lock.
        Event::SessionOpened { .. }
        | Event::SessionEnded { .. }
        | Event::Denied { .. }
        | Event::Contended { .. }
        | Event::ScopeChanged { .. }
        | Event::FreezeChanged { .. }
        | Event::RulesChanged
        | Event::SessionRevoked { .. }
        | Event::HoldClosed { .. }
        | Event::LockClosed { .. }
        | Event::LockOpened { .. }
        | Event::ImportLengthened { .. } => {}
    }
}

/// Changes for tests of this folder.
#[cfg(test)]
pub(super) mod made {
    use std::sync::Arc;

    use super::*;

    /// The release of a lock at an index.
    pub(crate) fn change(index: u64, name: &str) -> Arc<Change> {
        let name = LockName::parse(name).expect("it is a name");
        let (session, token) = (SessionId::new(1), FencingToken::from_raw(1));
        let hold = Hold { session, token, mode: Mode::Exclusive, shown: None };
        Arc::new(Change::new(&name, LogIndex::new(index), 0, What::Released(hold)))
    }
}

#[cfg(test)]
mod tests {
    use super::made::change;
    use super::*;

    #[test]
    fn it_is_encoded_once_whoever_sends_it() {
        let change = change(7, "jobs");
        let (first, second) = (change.encoded(), change.encoded());

        assert_eq!(first.as_ptr(), second.as_ptr(), "both are the same bytes");
        let event = WatchEvent::decode(first).expect("it is an event");
        let Some(Body::Change(LockChange { name, what: Some(what), .. })) = event.body else {
            panic!("no change: {event:?}")
        };
        assert_eq!((event.index, name.as_str()), (7, "jobs"));
        assert!(matches!(what, WireWhat::Released(holder) if holder.token == 1), "its holder");
    }

    /// The longest texts and largest numbers: what is counted covers what is kept.
    #[test]
    fn its_bytes_are_counted_before_it_is_encoded() {
        let name = LockName::parse(&"n".repeat(512)).expect("it is a name");
        let shown = Shown {
            label: Label::parse(&"l".repeat(256)).expect("it is a label"),
            identity: Identity::parse(&format!("cn:{}", "i".repeat(200))).expect("it is one"),
            imported: true,
        };
        let (session, token) = (SessionId::new(u64::MAX), FencingToken::from_raw(u64::MAX));
        let hold = Hold { session, token, mode: Mode::Shared, shown: Some(shown) };
        let lost = What::Lost(hold, LossCause::Forced);
        let change = Change::new(&name, LogIndex::new(u64::MAX), u64::MAX, lost);
        let value =
            Value { bytes: vec![7; 4 << 10].into(), set_by: token, suspect: true, owner: None };
        let of_value = Change::of_value(&name, LogIndex::new(u64::MAX), u64::MAX, Some(&value));

        for change in [change, of_value] {
            let counted = change.bytes();
            let kept = (size_of::<Change>() + change.encoded().len()) as u64;
            assert!((kept..kept + 2_048).contains(&counted), "{counted} counted, {kept} kept");
        }
    }
}
