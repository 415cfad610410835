//! From rows to claims. No I/O.

use std::collections::BTreeMap;

use super::{Claim, ClaimState, ClaimedLock, Says, Told, service_of};

/// The locks that have claims.
pub(super) fn locks(told: BTreeMap<String, Vec<Told>>) -> Vec<ClaimedLock> {
    let locks = told.into_iter().map(|(lock, told)| ClaimedLock { lock, claims: claims(told) });
    locks.filter(|lock| !lock.claims.is_empty()).collect()
}

fn claims(mut told: Vec<Told>) -> Vec<Claim> {
    told.sort_by(|one, other| (&one.order, &one.owner).cmp(&(&other.order, &other.owner)));
    let of = |says: Says| told.iter().filter(move |row| row.says == says);
    let holders: Vec<&Told> = of(Says::Holder).collect();
    let (mut claims, mut seen) = (Vec::new(), Vec::new());
    let mut claim = |row: &Told, state| {
        if seen.contains(&row.owner) {
            return;
        }
        seen.push(row.owner.clone());
        claims.push(Claim {
            name: service_of(&row.owner).to_owned(),
            owner: row.owner.clone(),
            state,
            left: row.left,
            since_ms: row.since_ms,
        });
    };
    if let [holder] = holders.as_slice() {
        claim(holder, ClaimState::Holds);
    }
    for (place, row) in of(Says::Numbers).enumerate() {
        claim(row, if place == 0 { ClaimState::Holds } else { ClaimState::Waits });
    }
    of(Says::Line).for_each(|row| claim(row, ClaimState::Waits));
    for row in holders.iter().copied().chain(of(Says::Tries)) {
        claim(row, ClaimState::Tries);
    }
    claims.sort_by_key(|claim| claim.state);
    claims
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(says: Says, owner: &str, order: (i64, &str)) -> Told {
        let order = (order.0, order.1.to_owned());
        Told { says, owner: owner.to_owned(), order, left: None, since_ms: None }
    }

    fn judged(rows: Vec<Told>) -> Vec<(String, ClaimState)> {
        let mut locks = locks(BTreeMap::from([("jobs".to_owned(), rows)]));
        let claims = locks.pop().map(|lock| lock.claims).unwrap_or_default();
        claims.into_iter().map(|claim| (claim.name, claim.state)).collect()
    }

    fn is(name: &str, state: ClaimState) -> (String, ClaimState) {
        (name.to_owned(), state)
    }

    #[test]
    fn a_single_row_of_holders_is_the_holder_and_several_are_clients_that_try() {
        use ClaimState::{Holds, Tries};
        let none = (0, "");
        assert_eq!(judged(vec![]), []);
        assert_eq!(judged(vec![row(Says::Holder, "a", none)]), [is("a", Holds)]);
        let two = vec![row(Says::Holder, "b", none), row(Says::Holder, "a", none)];
        assert_eq!(judged(two), [is("a", Tries), is("b", Tries)]);
        let shadow = vec![
            row(Says::Tries, "b", none),
            row(Says::Tries, "a", none),
            row(Says::Holder, "b", none),
        ];
        assert_eq!(judged(shadow), [is("b", Holds), is("a", Tries)]);
    }

    /// The holder keeps its place in the queue while it holds.
    #[test]
    fn a_queue_is_in_the_order_of_its_places_behind_its_holder() {
        use ClaimState::{Holds, Waits};
        let rows = vec![
            row(Says::Line, "c", (0, "0003c")),
            row(Says::Line, "a", (0, "0001a")),
            row(Says::Line, "b", (0, "0002b")),
            row(Says::Holder, "a", (0, "")),
        ];
        assert_eq!(judged(rows), [is("a", Holds), is("b", Waits), is("c", Waits)]);
        let next = vec![row(Says::Line, "b", (0, "0002b"))];
        assert_eq!(judged(next), [is("b", Waits)], "it has not taken it yet");
    }

    #[test]
    fn at_the_bakery_the_lowest_number_holds_and_of_equal_ones_the_lower_id() {
        use ClaimState::{Holds, Waits};
        let rows = vec![
            row(Says::Numbers, "hf1:c@0123456789abcdef/1", (10, "")),
            row(Says::Numbers, "b", (9, "")),
            row(Says::Numbers, "a", (10, "")),
        ];
        assert_eq!(judged(rows), [is("b", Holds), is("a", Waits), is("c", Waits)]);
    }
}
