//! Locks in the order of their names, and what is shown of a lock in a row.

use askama::Template;
use holdfast_proto::v1;

use super::{Main, Problem, ROWS, encoded, lock_href, session_href};
use crate::calls::Client;
use crate::words::{count, length, who};

/// A lock in a table.
pub(super) struct LockRow {
    pub(super) name: String,
    pub(super) href: String,
    pub(super) held_by: String,
    pub(super) holder_href: String,
    pub(super) more: String,
    pub(super) held_for: String,
    pub(super) waiting: u64,
    pub(super) waits: String,
    pub(super) most: u64,
    pub(super) grants_rate: String,
    pub(super) waits_rate: String,
    pub(super) state: &'static str,
}

/// A freeze.
pub(super) struct FreezeRow {
    pub(super) names: String,
    pub(super) by: String,
    pub(super) held_for: String,
    pub(super) message: String,
}

#[derive(Template)]
#[template(path = "locks.html")]
struct LocksPage {
    prefix: String,
    locks: Vec<LockRow>,
    next: Option<String>,
    is_first: bool,
    /// Only the busiest locks have rates.
    has_rates: bool,
}

pub(super) async fn page(client: &Client, prefix: &str, after: &str) -> Result<Main, Problem> {
    let request = v1::ListRequest {
        prefix: prefix.to_owned(),
        page_size: Some(ROWS),
        page_token: after.to_owned(),
    };
    let found = client.list(request).await?;
    let most = found.locks.iter().map(|lock| lock.waiting).max().unwrap_or(0);
    let next = Some(&found.next_page_token).filter(|token| !token.is_empty());
    let next = next.map(|token| format!("/locks?prefix={}&after={token}", encoded(prefix)));
    let page = LocksPage {
        prefix: prefix.to_owned(),
        locks: found.locks.iter().map(|lock| lock_row(lock, most)).collect(),
        next,
        is_first: after.is_empty(),
        has_rates: false,
    };
    Ok(Main::of("Locks", &page))
}

pub(super) fn lock_row(lock: &v1::LockInfo, most: u64) -> LockRow {
    let first = lock.holders.first();
    let more = lock.held_by.saturating_sub(1);
    LockRow {
        name: lock.name.clone(),
        href: lock_href(&lock.name),
        held_by: first.map(who_holds).unwrap_or_default(),
        holder_href: first.map(|holder| session_href(holder.session_id)).unwrap_or_default(),
        more: if more == 0 { String::new() } else { format!("and {} more", count(more)) },
        held_for: first.map(|holder| length(holder.held_ms)).unwrap_or_default(),
        waiting: lock.waiting,
        waits: count(lock.waiting),
        most,
        grants_rate: String::new(),
        waits_rate: String::new(),
        state: state(lock).0,
    }
}

pub(super) fn who_holds(holder: &v1::Holder) -> String {
    who(&holder.label, &holder.identity, holder.imported, holder.session_id)
}

/// In one word, and its tone.
pub(super) fn state(lock: &v1::LockInfo) -> (&'static str, &'static str) {
    match lock {
        lock if lock.frozen.is_some() => ("frozen", "caution"),
        lock if lock.scope.as_ref().is_some_and(|scope| scope.suspended) => {
            ("suspended", "caution")
        }
        lock if lock.held_by > 0 => ("held", "good"),
        lock if lock.closed.is_some() => ("closed", "caution"),
        _ => ("free", "quiet"),
    }
}

pub(super) fn freeze_row(freeze: &v1::Freeze) -> FreezeRow {
    let all = freeze.prefix.is_empty();
    FreezeRow {
        names: if all { "all names".to_owned() } else { format!("{}…", freeze.prefix) },
        by: freeze.identity.clone(),
        held_for: length(freeze.frozen_ms),
        message: freeze.message.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::Shell;
    use super::*;
    use crate::calls::Who;

    #[test]
    fn whatever_is_in_a_name_is_text() {
        let name = "<script>alert(1)</script>\"'&";
        let lock = v1::LockInfo {
            name: name.to_owned(),
            held_by: 1,
            holders: vec![v1::Holder { label: name.to_owned(), ..v1::Holder::default() }],
            ..v1::LockInfo::default()
        };
        let page = LocksPage {
            prefix: name.to_owned(),
            locks: vec![lock_row(&lock, 0)],
            next: None,
            is_first: true,
            has_rates: false,
        };
        let main = Main::of(name, &page);
        assert!(!main.html.contains("<script"), "{}", main.html);
        let shell = Shell::bare(
            Who { identity: name.to_owned(), has_token: true, ..Who::default() },
            String::new(),
        );
        let all = shell.around(&main);
        assert!(!all.contains("alert(1)</script>") && !all.contains("<script>"), "{all}");
    }
}
