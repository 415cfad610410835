//! One lock: who holds it, who waits, why, and what happened.

use askama::Template;
use holdfast_proto::v1;

use super::locks::{FreezeRow, freeze_row, state, who_holds};
use super::{Main, Problem, encoded, session_href};
use crate::calls::Client;
use crate::chain::Chain;
use crate::past::{self, PastRow};
use crate::words::{self, count, length, who};

/// Entries of its past.
const PAST: u32 = 100;

/// How long before the last question an answer may still have something new, by clocks that differ.
const OVERLAP_MS: u64 = 30_000;

/// The past of a lock, as far as a live page has read it: what it asks for then is what happened since, because to look for a
/// lock in all that a node remembers takes a tenth of a second.
#[derive(Default)]
pub(crate) struct Known {
    page: v1::HistoryResponse,
    /// When it was asked for last; `None`: never.
    asked_ms: Option<u64>,
}

impl Known {
    /// What is remembered of a lock, the last [`PAST`] entries.
    async fn read(&mut self, client: &Client, name: &str) -> Result<&v1::HistoryResponse, Problem> {
        let now_ms = client.now_ms();
        let since_ms = self.asked_ms.map_or(0, |asked_ms| asked_ms.saturating_sub(OVERLAP_MS));
        let asked = v1::HistoryRequest {
            name: Some(name.to_owned()),
            limit: PAST,
            since_ms,
            ..v1::HistoryRequest::default()
        };
        let found = client.history(asked).await?;
        let last = self.page.entries.last().map_or(0, |entry| entry.index);
        let new = found.entries.into_iter().filter(|entry| entry.index > last);
        self.page.entries.extend(new);
        let surplus = self.page.entries.len().saturating_sub(PAST as usize);
        self.page.entries.drain(..surplus);
        self.asked_ms = Some(now_ms);
        Ok(&self.page)
    }
}

#[derive(Template)]
#[template(path = "lock.html")]
struct LockPage<'a> {
    name: &'a str,
    state: &'static str,
    tone: &'static str,
    facts: Vec<(&'static str, String)>,
    holders: Vec<HolderRow>,
    more_holders: String,
    queue: Vec<WaiterRow>,
    waiting: u64,
    more_waiters: String,
    value: Option<ValueBox>,
    chain: Option<Chain>,
    past: Result<Vec<PastRow>, String>,
    past_href: String,
    limit: String,
    is_frozen_as_named: bool,
    form_token: &'a str,
}

struct HolderRow {
    who: String,
    href: String,
    held_for: String,
    mode: String,
    token: u64,
    note: String,
    /// What is special about it.
    said: String,
}

struct WaiterRow {
    place: usize,
    who: String,
    href: String,
    waiting_for: String,
    mode: String,
    note: String,
    said: String,
}

struct ValueBox {
    text: String,
    bytes: usize,
    token: u64,
    is_suspect: bool,
}

pub(super) async fn page(
    client: &Client,
    name: &str,
    form_token: &str,
    known: &mut Known,
) -> Result<Main, Problem> {
    let inspected = client.inspect(v1::InspectRequest { name: name.to_owned() }).await?;
    let lock = inspected.lock.unwrap_or_default();
    // Whoever may read this lock may not read all others, which stand in a chain, or the past.
    let chain = client.explain(v1::ExplainRequest { name: name.to_owned() }).await.ok();
    let chain = chain.filter(|_| lock.waiting > 0);
    let past = known.read(client, name).await;
    let past = past.map(|page| past::rows_of_lock(page, name)).map_err(|problem| problem.why);
    let (state, tone) = state(&lock);
    let shown = |all: u64, shown: usize| {
        let hidden = all.saturating_sub(shown as u64);
        if hidden == 0 { String::new() } else { format!("and {} more", count(hidden)) }
    };
    let page = LockPage {
        name,
        state,
        tone,
        facts: facts(&lock),
        more_holders: shown(lock.held_by, lock.holders.len()),
        more_waiters: shown(lock.waiting, lock.queue.len()),
        holders: lock.holders.iter().map(holder_row).collect(),
        queue: lock.queue.iter().enumerate().map(waiter_row).collect(),
        waiting: lock.waiting,
        value: lock.value.as_ref().map(value_box),
        chain: chain.map(|explained| Chain::of(&explained)),
        past,
        past_href: format!("/history?name={}", encoded(name)),
        limit: lock.limit.as_ref().map(|limit| limit.permits.to_string()).unwrap_or_default(),
        is_frozen_as_named: lock.frozen.as_ref().is_some_and(|freeze| freeze.prefix == name),
        form_token,
    };
    Ok(Main::of(name, &page))
}

/// What there is to say of a lock besides its holders and its queue.
fn facts(lock: &v1::LockInfo) -> Vec<(&'static str, String)> {
    let mut facts = Vec::new();
    if let Some(freeze) = &lock.frozen {
        let FreezeRow { names, by, held_for, message } = freeze_row(freeze);
        let by = if by.is_empty() { String::new() } else { format!(" by {by}") };
        let message = if message.is_empty() { String::new() } else { format!(": {message}") };
        facts.push(("frozen", format!("{names}{by} for {held_for}{message}")));
    }
    if let Some(closed) = &lock.closed {
        let (left, by) = (length(closed.left_ms), who(&closed.label, &closed.identity, false, 0));
        facts.push((
            "closed",
            format!("for {left} more: the hold of {by} was shorter than it was to be"),
        ));
    }
    if let Some(limit) = &lock.limit {
        let kept = if limit.for_good { "set for good" } else { "as its holders ask for it" };
        facts.push(("permits", format!("{} of {} held; {kept}", limit.used, limit.permits)));
    }
    if let Some(scope) = &lock.scope {
        let suspended = if scope.suspended { ", suspended: nothing is granted in it" } else { "" };
        facts.push(("scope", format!("{} in epoch {}{suspended}", scope.prefix, scope.epoch)));
    }
    facts
}

fn mode(mode: i32, permits: u32) -> String {
    match (mode, permits) {
        (_, 1) => "1 permit".to_owned(),
        (_, permits) if permits > 1 => format!("{permits} permits"),
        (mode, _) if mode == i32::from(v1::Mode::Shared) => "shared".to_owned(),
        _ => String::new(),
    }
}

fn holder_row(holder: &v1::Holder) -> HolderRow {
    let mut said = Vec::new();
    if holder.ending {
        said.push("has to give it up".to_owned());
    }
    if holder.max_hold_ms > 0 {
        said.push(format!("for {} at most", length(holder.max_hold_ms)));
    }
    if holder.hold_at_least_ms > 0 {
        said.push(format!("for {} at least", length(holder.hold_at_least_ms)));
    }
    HolderRow {
        who: who_holds(holder),
        href: session_href(holder.session_id),
        held_for: length(holder.held_ms),
        mode: mode(holder.mode, holder.permits),
        token: holder.token,
        note: holder.note.clone(),
        said: said.join(", "),
    }
}

fn waiter_row((place, waiter): (usize, &v1::WaiterInfo)) -> WaiterRow {
    let mut said = Vec::new();
    if waiter.names > 1 {
        said.push(format!("waits for {} locks", waiter.names));
    }
    if waiter.head_start_ms > 0 {
        said.push(format!("{} head start", length(waiter.head_start_ms)));
    }
    WaiterRow {
        place: place + 1,
        who: who(&waiter.label, &waiter.identity, waiter.imported, waiter.session_id),
        href: session_href(waiter.session_id),
        waiting_for: length(waiter.waiting_ms),
        mode: mode(waiter.mode, waiter.permits),
        note: waiter.note.clone(),
        said: said.join(", "),
    }
}

fn value_box(value: &v1::Value) -> ValueBox {
    ValueBox {
        text: words::value(&value.value),
        bytes: value.value.len(),
        token: value.token,
        is_suspect: value.suspect,
    }
}
