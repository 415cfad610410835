//! The locks of a request, and their modes.

#[cfg(test)]
mod fuzz;

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use holdfast_guard::check_lock_name;
use holdfast_proto::v1;
use holdfast_types::{HEAD_START_MAX_MS, Label, NAMES_MAX, TextError};

use crate::{Error, Mode, RefusalReason, Result};

/// One lock of a request for several. A plain name means exclusive.
///
/// ```no_run
/// # async fn example(client: holdfast::Client) -> holdfast::Result<()> {
/// use holdfast::LockItem;
///
/// let items = [LockItem::exclusive("accounts/7"), LockItem::shared("rates")];
/// let guard = client.lock_all(items).await?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LockItem {
    pub(crate) name: Arc<str>,
    pub(crate) mode: Mode,
}

impl LockItem {
    /// The lock `name` in exclusive mode.
    pub fn exclusive(name: impl Into<String>) -> Self {
        Self { name: name.into().into(), mode: Mode::Exclusive }
    }

    /// The lock `name` in shared mode.
    pub fn shared(name: impl Into<String>) -> Self {
        Self { name: name.into().into(), mode: Mode::Shared }
    }

    /// `count` of the permits of the lock `name`, which has `limit` of them; `None`: as many as were set for good. As of
    /// [`Semaphore`](crate::Semaphore), for a request that names other locks too.
    pub fn permits(name: impl Into<String>, count: u32, limit: impl Into<Option<u32>>) -> Self {
        // On the wire a limit of 0 is none. One that is given is too small for any number of permits.
        let (count, limit) = match limit.into() {
            Some(0) => (0, 0),
            limit => (count, limit.unwrap_or(0)),
        };
        Self { name: name.into().into(), mode: Mode::Permits { count, limit } }
    }

    /// The lock's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The requested mode.
    pub fn mode(&self) -> Mode {
        self.mode
    }
}

impl From<&str> for LockItem {
    fn from(name: &str) -> Self {
        Self::exclusive(name)
    }
}

impl From<String> for LockItem {
    fn from(name: String) -> Self {
        Self::exclusive(name)
    }
}

impl From<&String> for LockItem {
    fn from(name: &String) -> Self {
        Self::exclusive(name)
    }
}

/// How many of the items a request needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Need {
    /// All of them or none.
    All,
    /// Whichever are free, at least `min`; 0 means those that are free now.
    Any {
        /// The minimum, as the store counts it.
        min: u32,
    },
}

/// The request of an acquire.
#[derive(Clone, Debug)]
pub(crate) struct AcquireRequest {
    pub(crate) items: Vec<LockItem>,
    pub(crate) need: Need,
    /// How many of any of its locks it needs, if it says so.
    pub(crate) floor: Option<u32>,
    pub(crate) wait: bool,
    pub(crate) follow_place: bool,
    /// The owner whose import it takes over.
    pub(crate) claim_owner: Option<String>,
    /// The caller's place in a trace (W3C Trace Context); empty: none.
    pub(crate) traceparent: String,
    /// The scope with fallback that the caller knows of, whether the store does or not.
    pub(crate) scope: Option<String>,
    pub(crate) terms: Terms,
}

/// What a request says besides its locks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Terms {
    pub(crate) head_start_ms: u64,
    /// 0: nobody in particular.
    pub(crate) owner: u64,
    /// Empty: none.
    pub(crate) note: String,
    /// 0: not bound.
    pub(crate) max_hold_ms: u64,
    /// 0: not bound.
    pub(crate) hold_at_least_ms: u64,
}

impl AcquireRequest {
    pub(crate) fn new(items: Vec<LockItem>, need: Need, wait: bool) -> Self {
        Self {
            items,
            need,
            floor: None,
            wait,
            follow_place: false,
            claim_owner: None,
            traceparent: String::new(),
            scope: None,
            terms: Terms::default(),
        }
    }

    /// # Errors
    ///
    /// [`Error::Refused`] for a request that no server would accept.
    pub(crate) fn check(&self) -> Result<()> {
        check_number(self.items.len())?;
        self.check_floor()?;
        self.terms.check()?;
        let mut modes = BTreeMap::new();
        for item in &self.items {
            check_lock_name(&item.name)?;
            check_permits(item)?;
            if let Some(before) = modes.insert(&item.name, item.mode) {
                return Err(named_again(&item.name, before, item.mode));
            }
        }
        Ok(())
    }

    fn check_floor(&self) -> Result<()> {
        let (Some(floor), names) = (self.floor, self.items.len()) else { return Ok(()) };
        if self.need == Need::All {
            let message = "a request for all of its locks needs no number of them".to_owned();
            return Err(Error::invalid(message));
        }
        if floor == 0 || floor as usize > names {
            let message = format!("of {names} locks, a request needs 1 to {names}, not {floor}");
            return Err(Error::invalid(message));
        }
        Ok(())
    }

    /// The names, for errors.
    pub(crate) fn names(&self) -> Vec<String> {
        self.each_name().map(str::to_owned).collect()
    }

    /// Each of the names.
    pub(crate) fn each_name(&self) -> impl Iterator<Item = &str> + Clone {
        self.items.iter().map(LockItem::name)
    }

    /// The items that a grant of `names` gives. For [`Need::All`] these are all items: a grant is
    /// always whole.
    pub(crate) fn granted(&self, names: &[Bytes]) -> Vec<LockItem> {
        let is_granted = |item: &&LockItem| match self.need {
            Need::All => true,
            Need::Any { .. } => names.iter().any(|name| name == item.name.as_bytes()),
        };
        self.items.iter().filter(is_granted).cloned().collect()
    }

    /// The frame of the request.
    pub(crate) fn to_wire(&self, request_id: u64) -> v1::Acquire {
        let item = |item: &LockItem| v1::Item {
            name: Bytes::copy_from_slice(item.name.as_bytes()),
            mode: crate::wire::mode_to(item.mode).into(),
            permits: item.mode.permits(),
            limit: match item.mode {
                Mode::Permits { limit, .. } => limit,
                Mode::Exclusive | Mode::Shared => 0,
            },
        };
        let any = match self.need {
            Need::All => None,
            Need::Any { min } => Some(v1::AnyOf { min: self.floor.unwrap_or(min) }),
        };
        let items: Vec<v1::Item> = self.items.iter().map(item).collect();
        let Terms { head_start_ms, owner, ref note, max_hold_ms, hold_at_least_ms } = self.terms;
        // A server that does not know what is said finds no items, and refuses the request.
        let says = self.terms != Terms::default();
        let (items, on) = if says {
            let note = note.clone();
            let on =
                v1::AcquireOn { items, head_start_ms, owner, note, max_hold_ms, hold_at_least_ms };
            (Vec::new(), Some(on))
        } else {
            (items, None)
        };
        v1::Acquire {
            request_id,
            items,
            on,
            wait: self.wait,
            follow_place: self.follow_place,
            any,
            claim_owner: self.claim_owner.clone(),
            traceparent: self.traceparent.clone(),
        }
    }
}

impl Terms {
    /// The rest is the store's to know.
    fn check(&self) -> Result<()> {
        if self.head_start_ms > HEAD_START_MAX_MS {
            let message = format!(
                "a head start of {} ms is longer than the {HEAD_START_MAX_MS} ms allowed",
                self.head_start_ms
            );
            return Err(past_limit("head_start_ms", message));
        }
        let Self { max_hold_ms, hold_at_least_ms, .. } = *self;
        if max_hold_ms > 0 && max_hold_ms < hold_at_least_ms {
            let message = format!(
                "max_hold ({max_hold_ms} ms) is shorter than hold_at_least ({hold_at_least_ms} ms)"
            );
            return Err(Error::invalid(message));
        }
        let unusable =
            |error: TextError| Error::invalid(format!("the note is not usable: {error}"));
        Label::parse(&self.note).map(drop).map_err(unusable)
    }
}

fn check_number(items: usize) -> Result<()> {
    if items == 0 {
        return Err(Error::invalid("a request names at least one lock".into()));
    }
    if items > NAMES_MAX {
        let message = format!("{items} names are more than the {NAMES_MAX} allowed in one request");
        return Err(past_limit("names_per_request", message));
    }
    Ok(())
}

/// The rest is the store's to know.
fn check_permits(item: &LockItem) -> Result<()> {
    let Mode::Permits { count, limit } = item.mode else { return Ok(()) };
    let name = item.name.escape_debug();
    let refused = |message: String| Err(crate::wire::refused(RefusalReason::Permits, message));
    if count == 0 {
        return refused(format!("permits of {name} are at least one, and so is their limit"));
    }
    if limit != 0 && count > limit {
        return refused(format!(
            "{count} permits of {name} cannot be granted: its limit is {limit}"
        ));
    }
    Ok(())
}

fn named_again(name: &str, before: Mode, now: Mode) -> Error {
    let name = name.escape_debug();
    Error::invalid(if before == now {
        format!("{name} is named twice in one request")
    } else {
        format!("{name} is asked for both {before} and {now}; ask for it once")
    })
}

/// The error for a request past a limit that is the same for all clients.
pub(crate) fn past_limit(limit: &str, message: String) -> Error {
    let limit = Some(limit.to_owned());
    Error::Refused { reason: RefusalReason::Limit, message, limit, retry_after: None }
}
