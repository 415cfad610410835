//! The past: what is asked of it, and its lines.

use std::collections::BTreeMap;

use holdfast_proto::v1;
use holdfast_proto::v1::history_entry::What;

use crate::views::{encoded, lock_href, session_href};
use crate::words::{Moment, length, moment, who};

/// What is asked of the past, as it stands in the address.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Asked {
    pub(crate) name: String,
    pub(crate) prefix: String,
    pub(crate) session: String,
    /// Hours back; empty: everything.
    pub(crate) hours: String,
    pub(crate) page: String,
}

/// A line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PastRow {
    /// `None`: from before what is remembered, or a gap.
    pub(crate) when: Option<Moment>,
    /// The lock, or what else it is about, with its page if it has one.
    pub(crate) what: String,
    pub(crate) href: String,
    pub(crate) who: String,
    pub(crate) who_href: String,
    pub(crate) how: String,
    pub(crate) note: String,
    pub(crate) tone: &'static str,
}

impl Asked {
    pub(crate) fn of(take: &mut impl FnMut(&str) -> String) -> Self {
        Self {
            name: take("name").trim().to_owned(),
            prefix: take("prefix").trim().to_owned(),
            session: take("session").trim().to_owned(),
            hours: take("hours").trim().to_owned(),
            page: take("page"),
        }
    }

    /// The call, when it is `now_ms`.
    ///
    /// # Errors
    ///
    /// What is wrong with it.
    pub(crate) fn request(&self, limit: u32, now_ms: u64) -> Result<v1::HistoryRequest, String> {
        let number = |what: &str, text: &str| match text {
            "" => Ok(None),
            text => text.parse::<u64>().map(Some).map_err(|_| format!("{text:?} is no {what}")),
        };
        let hours = number("number of hours", &self.hours)?;
        let since_ms = hours.map(|hours| now_ms.saturating_sub(hours.saturating_mul(3_600_000)));
        Ok(v1::HistoryRequest {
            name: Some(self.name.clone()).filter(|name| !name.is_empty()),
            prefix: self.prefix.clone(),
            session_id: number("session", &self.session)?,
            since_ms: since_ms.unwrap_or_default(),
            until_ms: 0,
            limit,
            page_token: self.page.clone(),
        })
    }

    /// The address of what comes before.
    pub(crate) fn earlier(&self, token: &str) -> Option<String> {
        let Self { name, prefix, session, hours, .. } = self;
        (!token.is_empty()).then(|| {
            let (name, prefix) = (encoded(name), encoded(prefix));
            let (session, hours) = (encoded(session), encoded(hours));
            format!(
                "/history?name={name}&prefix={prefix}&session={session}&hours={hours}&page={}",
                encoded(token)
            )
        })
    }
}

/// The lines of a page, the oldest first. A hold is one line, at its grant.
pub(crate) fn rows(page: &v1::HistoryResponse) -> Vec<PastRow> {
    lines(page).into_iter().map(|line| line.row).collect()
}

/// The lines of one lock, the newest first, without its name.
pub(crate) fn rows_of_lock(page: &v1::HistoryResponse, name: &str) -> Vec<PastRow> {
    let own = |mut row: PastRow| {
        if row.what == name {
            row.what.clear();
        }
        row
    };
    lines(page).into_iter().rev().map(|line| own(line.row)).collect()
}

struct Line {
    row: PastRow,
    granted_ms: Option<u64>,
    mode: String,
}

fn lines(page: &v1::HistoryResponse) -> Vec<Line> {
    let mut lines: Vec<Line> = Vec::new();
    // By grant and lock, where its line is.
    let mut open: BTreeMap<(u64, &str), usize> = BTreeMap::new();
    for entry in &page.entries {
        match &entry.what {
            Some(What::Held(hold)) => {
                for lock in &hold.locks {
                    open.insert((hold.token, &lock.name), lines.len());
                    lines.push(held(entry.at_ms, hold, lock));
                }
            }
            Some(What::Closed(closed)) => {
                for lock in &closed.locks {
                    let at = open.get(&(closed.token, lock.name.as_str()));
                    if let Some(line) = at.and_then(|at| lines.get_mut(*at)) {
                        line.row.note = format!("told to give it up: {}", closed.reason);
                    }
                }
            }
            Some(What::Over(over)) => {
                for lock in &over.locks {
                    let at = open.remove(&(over.token, lock.name.as_str()));
                    match at.and_then(|at| lines.get_mut(at)) {
                        Some(line) => ended(line, entry.at_ms, over.reason()),
                        None => lines.push(ended_only(entry.at_ms, over, lock)),
                    }
                }
            }
            Some(other) => lines.extend(said(entry.at_ms, other)),
            None => {}
        }
    }
    lines
}

fn held(at_ms: u64, hold: &v1::HistoryHold, lock: &v1::HistoryLock) -> Line {
    let mode = match lock.permits {
        0 if lock.mode() == v1::Mode::Shared => ", shared".to_owned(),
        0 => String::new(),
        1 => ", 1 permit".to_owned(),
        more => format!(", {more} permits"),
    };
    let row = PastRow {
        when: Some(moment(at_ms)),
        what: lock.name.clone(),
        href: lock_href(&lock.name),
        who: who(&hold.label, &hold.identity, hold.imported, hold.session_id),
        who_href: session_href(hold.session_id),
        how: format!("holds it since then{mode}, token {}", hold.token),
        note: hold.note.clone(),
        tone: "good",
    };
    Line { row, granted_ms: Some(at_ms), mode }
}

fn ended(line: &mut Line, at_ms: u64, reason: v1::LostReason) {
    let lasted = line.granted_ms.map_or(0, |granted_ms| at_ms.saturating_sub(granted_ms));
    let (how, tone) = end(reason);
    line.row.how = format!("held for {}{}, {how}", length(lasted), line.mode);
    line.row.tone = tone;
}

/// The end of a hold whose grant is not remembered.
fn ended_only(at_ms: u64, over: &v1::HistoryEnd, lock: &v1::HistoryLock) -> Line {
    let (how, tone) = end(over.reason());
    let row = PastRow {
        when: Some(moment(at_ms)),
        what: lock.name.clone(),
        href: lock_href(&lock.name),
        who: format!("session {}", over.session_id),
        who_href: session_href(over.session_id),
        how: format!("held since before that, {how}"),
        note: String::new(),
        tone,
    };
    Line { row, granted_ms: None, mode: String::new() }
}

fn end(reason: v1::LostReason) -> (&'static str, &'static str) {
    match reason {
        v1::LostReason::Unspecified => ("then released", "quiet"),
        v1::LostReason::SessionClosed => ("until its session was closed", "quiet"),
        v1::LostReason::SessionExpired => ("then lost: the session expired", "wrong"),
        v1::LostReason::EpochRaised => ("then lost: the epoch of its scope was raised", "wrong"),
        v1::LostReason::Revoked => ("then lost: the session was ended by an operator", "wrong"),
        v1::LostReason::Forced => ("then taken away", "wrong"),
    }
}

/// What is about no hold.
fn said(at_ms: u64, what: &What) -> Option<Line> {
    let line = |row| Some(Line { row, granted_ms: None, mode: String::new() });
    let when = Some(moment(at_ms));
    match what {
        What::Act(act) => line(PastRow {
            when,
            what: act.on.clone(),
            who: act.identity.clone(),
            how: format!("{}: {}", act.verb, act.detail),
            tone: "caution",
            ..PastRow::default()
        }),
        What::Elected(elected) => line(PastRow {
            when,
            what: "cluster".to_owned(),
            how: format!("a leader was elected, tenure {}", elected.tenure),
            tone: "caution",
            ..PastRow::default()
        }),
        What::Members(members) => {
            let ids = |ids: &[u64]| ids.iter().map(u64::to_string).collect::<Vec<_>>().join(", ");
            let learners = match members.learners.as_slice() {
                [] => String::new(),
                learners => format!("; without a vote {}", ids(learners)),
            };
            line(PastRow {
                when,
                what: "cluster".to_owned(),
                how: format!("its members are {}{learners}", ids(&members.voters)),
                tone: "caution",
                ..PastRow::default()
            })
        }
        What::Gap(gap) => line(PastRow {
            how: format!("not known here: entries {} to {} of the log", gap.after + 1, gap.through),
            tone: "wrong",
            ..PastRow::default()
        }),
        What::Held(_) | What::Over(_) | What::Closed(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn locks(name: &str) -> Vec<v1::HistoryLock> {
        vec![v1::HistoryLock { name: name.to_owned(), ..v1::HistoryLock::default() }]
    }

    fn entry(at_ms: u64, what: What) -> v1::HistoryEntry {
        v1::HistoryEntry { index: at_ms, at_ms, what: Some(what) }
    }

    #[test]
    fn a_hold_is_one_line_with_its_end() {
        let held = v1::HistoryHold {
            token: 5,
            locks: locks("a"),
            label: "w7".into(),
            ..v1::HistoryHold::default()
        };
        let over = v1::HistoryEnd {
            token: 5,
            locks: locks("a"),
            reason: v1::LostReason::SessionExpired.into(),
            ..v1::HistoryEnd::default()
        };
        let before = v1::HistoryEnd {
            token: 4,
            session_id: 9,
            locks: locks("a"),
            ..v1::HistoryEnd::default()
        };
        let page = v1::HistoryResponse {
            entries: vec![
                entry(1_000, What::Over(before)),
                entry(2_000, What::Held(held)),
                entry(9_000, What::Over(over)),
                entry(9_500, What::Gap(v1::HistoryGap { after: 9_500, through: 9_900 })),
            ],
            ..v1::HistoryResponse::default()
        };
        let told: Vec<_> = rows(&page).into_iter().map(|row| (row.who, row.how)).collect();
        assert_eq!(
            told[0],
            ("session 9".to_owned(), "held since before that, then released".to_owned())
        );
        assert_eq!(
            told[1],
            ("w7".to_owned(), "held for 7 s, then lost: the session expired".to_owned())
        );
        assert_eq!(told[2].1, "not known here: entries 9501 to 9900 of the log");
    }

    #[test]
    fn what_is_asked_is_checked() {
        let asked = |session: &str, hours: &str| {
            let asked = Asked { session: session.into(), hours: hours.into(), ..Asked::default() };
            let request = asked.request(10, 10_000_000);
            request.map(|request| (request.session_id, request.since_ms))
        };
        assert_eq!(asked("7", ""), Ok((Some(7), 0)));
        assert_eq!(asked("", "2"), Ok((None, 2_800_000)));
        assert!(asked("seven", "").is_err() && asked("", "-1").is_err());
    }
}
