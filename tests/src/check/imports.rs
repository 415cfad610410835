//! I25: an imported row is exactly one hold, or one place in its queue, with its owner, its value
//! and what remained of its lease; importing it again changes nothing.
//!
//! An imported row gets a session of its own, which belongs to no client of the history; it shows
//! in the answers that other clients get. Until the row has run out, counted by the fastest clock
//! from the moment when the import was requested, no other request is granted its lock before its
//! owner has claimed it. Its owner's claim is granted, once, with the row's value. Imported waiters
//! are granted in the order that they had in the other store.

use std::collections::BTreeMap;

use super::story::{Answer, Grant, Import, Request, Story};
use super::{Tally, Violation, at, violation};
use crate::history::{Became, Brought};

/// The reasons of a refused claim, by stream or by call.
const NOT_IMPORTED: [&str; 2] = ["not_imported", "failedprecondition"];

pub(super) fn check(story: &Story, tally: &mut Tally, violations: &mut Vec<Violation>) {
    let claims = claims_of(story);
    let mut rows: BTreeMap<(&str, &str), Vec<Row<'_>>> = BTreeMap::new();
    for row in story.imports.iter().enumerate().flat_map(rows_of) {
        rows.entry((&row.is.name, &row.import.owner)).or_default().push(row);
    }
    for (key, rows) in &rows {
        let claims = claims.get(key).map_or(&[][..], Vec::as_slice);
        tally.imported += rows.iter().filter(|row| row.came_in()).count();
        tally.claimed += claims.iter().filter(|claim| claim.granted.is_some()).count();
        let found = [
            entered_ahead(rows),
            came_in_twice(rows),
            claimed_too_often(rows, claims),
            not_to_be_claimed(rows, claims),
            with_another_value(story, rows, claims),
            held_by_another(story, rows, claims),
        ];
        let what = |how| violation(25, format!("{}, imported for {}: {how}", key.0, key.1));
        violations.extend(found.into_iter().flatten().map(what));
    }
    out_of_order(&rows, &claims, violations);
}

/// The claims of each name and owner, in the order of the requests.
type Claims<'a> = BTreeMap<(&'a str, &'a str), Vec<&'a Request>>;

fn claims_of(story: &Story) -> Claims<'_> {
    let mut claims: Claims<'_> = BTreeMap::new();
    for request in &story.requests {
        if let (Some(owner), Some(name)) = (&request.claims, request.items.keys().next()) {
            claims.entry((name, owner)).or_default().push(request);
        }
    }
    claims
}

/// One row of one import.
struct Row<'a> {
    /// The position of its import among all imports, in the order of the requests.
    place: usize,
    import: &'a Import,
    is: &'a Brought,
    became: Option<(u64, &'a Became)>,
}

fn rows_of((place, import): (usize, &Import)) -> impl Iterator<Item = Row<'_>> {
    import.rows.iter().enumerate().map(move |(number, is)| {
        let told = import.told.as_ref();
        let became = told.and_then(|(at_ns, fates)| Some((*at_ns, fates.get(number)?)));
        Row { place, import, is, became }
    })
}

impl Row<'_> {
    /// Whether this import certainly brought it in.
    fn came_in(&self) -> bool {
        matches!(self.became, Some((_, Became::Held(_) | Became::Queued)))
    }

    /// Whether this import may have brought it in.
    fn may_have_come_in(&self) -> bool {
        !matches!(self.became, Some((_, Became::Refused)))
    }

    /// Before this instant it has certainly not run out. The leader's clock may be fast by the
    /// allowance, a tenth.
    fn lasts_until_ns(&self) -> u64 {
        let remaining_ns = self.import.remaining_ns;
        self.import.called_ns.saturating_add(remaining_ns - remaining_ns / 10)
    }

    fn held_under(&self) -> Option<(u64, u64)> {
        match self.became {
            Some((told_ns, Became::Held(token))) => Some((told_ns, *token)),
            _ => None,
        }
    }
}

/// The import that brought a row in, if no other import can have done so.
fn only<'a, 'b>(rows: &'b [Row<'a>]) -> Option<&'b Row<'a>> {
    let mut possible = rows.iter().filter(|row| row.may_have_come_in());
    possible.next().filter(|row| row.came_in()).filter(|_| possible.next().is_none())
}

/// A waiter of the other store waits for a holder that may just not have been imported yet.
fn entered_ahead(rows: &[Row<'_>]) -> Option<String> {
    let row = rows.iter().find(|row| row.is.waits && row.held_under().is_some())?;
    let (told_ns, token) = row.held_under()?;
    Some(format!("it waited there, and holds here under token {token}, told at {}", at(told_ns)))
}

fn came_in_twice(rows: &[Row<'_>]) -> Option<String> {
    let fresh: Vec<&Row<'_>> = rows.iter().filter(|row| row.came_in()).collect();
    fresh.iter().enumerate().find_map(|(number, first)| {
        let first_told_ns = first.became?.0;
        let again = fresh.iter().enumerate().find(|(other, again)| {
            let again_told_ns = again.became.map_or(u64::MAX, |(told_ns, _)| told_ns);
            number != *other
                && first_told_ns <= again.import.called_ns
                && again_told_ns < first.lasts_until_ns()
        });
        let told_ns = again?.1.became?.0;
        let (first, second) = (at(first_told_ns), at(told_ns));
        Some(format!("it came in, told at {first}, and again, told at {second}"))
    })
}

fn claimed_too_often(rows: &[Row<'_>], claims: &[&Request]) -> Option<String> {
    let possible = rows.iter().filter(|row| row.may_have_come_in()).count();
    let granted = claims.iter().filter(|claim| claim.granted.is_some()).count();
    (granted > possible)
        .then(|| format!("{granted} claims of it were granted, and it came in {possible} times"))
}

/// The row was there and no other claim was made, and yet the owner's claim was refused as not
/// imported.
fn not_to_be_claimed(rows: &[Row<'_>], claims: &[&Request]) -> Option<String> {
    claims.iter().enumerate().find_map(|(number, claim)| {
        let refused = |answer: &Answer| {
            matches!(answer, Answer::Refused(reason) if NOT_IMPORTED.contains(&reason.as_str()))
        };
        let told_ns = claim.answers.iter().find(|(_, answer)| refused(answer))?.0;
        let others = claims.iter().enumerate().filter(|(other, _)| *other != number);
        let others = others.filter(|(_, other)| other.called_ns < told_ns).count();
        let there = rows.iter().any(|row| {
            let came_ns = row.became.map_or(u64::MAX, |(came_ns, _)| came_ns);
            row.came_in() && came_ns < claim.called_ns && told_ns < row.lasts_until_ns()
        });
        (others == 0 && there).then(|| {
            format!("a claim of {} was refused at {}", claim.client, at(told_ns))
        })
    })
}

fn with_another_value(story: &Story, rows: &[Row<'_>], claims: &[&Request]) -> Option<String> {
    let row = only(rows)?;
    let (_, token) = row.held_under()?;
    let value = row.is.value.as_ref()?;
    if story.writes.iter().any(|write| write.name == row.is.name) {
        return None;
    }
    let claim = claims.iter().find(|claim| claim.granted.is_some())?;
    let hold = story.hold(claim.client, claim.token()?, &row.is.name)?;
    let shown = hold.value.as_ref();
    let same = shown.is_some_and(|shown| (&shown.value, shown.token) == (value, token));
    (!same).then(|| format!("its value {value:?} of token {token} was claimed as {shown:?}"))
}

/// Another client was granted the lock while it was certainly held for its owner, and before the
/// owner had even claimed it.
fn held_by_another(story: &Story, rows: &[Row<'_>], claims: &[&Request]) -> Option<String> {
    let claimed_ns = claims.iter().map(|claim| claim.called_ns).min().unwrap_or(u64::MAX);
    rows.iter().find_map(|row| {
        let (_, token) = row.held_under()?;
        let until_ns = row.lasts_until_ns().min(claimed_ns);
        let is_other = |grant: &Grant| {
            let ahead = grant.token > token && grant.at_ns < until_ns;
            ahead && grant.names.contains(&row.is.name)
        };
        let mut granted = story.requests.iter().filter_map(|other| {
            let grant = other.granted.as_ref().filter(|grant| is_other(grant))?;
            Some((other, grant))
        });
        let (other, grant) = granted.next()?;
        Some(format!(
            "it holds under token {token} until {} at least, and {} was granted token {} at {}",
            at(until_ns),
            other.client,
            grant.token,
            at(grant.at_ns)
        ))
    })
}

/// Of two rows that certainly came in as waiters one after the other, and were both claimed, the
/// first is granted first.
fn out_of_order(
    rows: &BTreeMap<(&str, &str), Vec<Row<'_>>>,
    claims: &Claims<'_>,
    violations: &mut Vec<Violation>,
) {
    let mut waiting: BTreeMap<&str, Vec<(&Row<'_>, &Request)>> = BTreeMap::new();
    for (key, rows) in rows {
        let Some(row) = only(rows).filter(|row| row.is.waits) else { continue };
        let granted = claims.get(key).into_iter().flatten().find(|claim| claim.granted.is_some());
        if let Some(claim) = granted {
            waiting.entry(key.0).or_default().push((row, claim));
        }
    }
    for (name, mut waiting) in waiting {
        waiting.sort_by_key(|(row, _)| row.place);
        for pair in waiting.windows(2) {
            let [(first, before), (second, after)] = pair else { continue };
            if before.token() > after.token() {
                let message = format!(
                    "{name}: {} stood before {}, and was granted {:?} after {:?}",
                    first.import.owner,
                    second.import.owner,
                    before.token(),
                    after.token()
                );
                violations.push(violation(25, message));
            }
        }
    }
}
