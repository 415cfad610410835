//! What operators asked the store for, and when it may have been in force.

use crate::history::{Order, Record, What};

/// The orders of a run, in the order in which they were asked for.
#[derive(Default)]
pub(super) struct Orders(Vec<Ordered>);

/// From when on an order may have been in force, and since when it certainly was done.
struct Ordered {
    number: u64,
    order: Order,
    asked_ns: u64,
    done_ns: Option<u64>,
}

impl Ordered {
    /// Whether it was asked for when the other one was certainly done, and done by `at_ns`: it certainly took its place.
    fn replaces(&self, other: &Self, at_ns: u64) -> bool {
        let after = other.done_ns.is_some_and(|done_ns| self.asked_ns >= done_ns);
        after && self.done_ns.is_some_and(|done_ns| done_ns <= at_ns)
    }
}

impl Orders {
    pub(super) fn take(&mut self, record: &Record) {
        match &record.what {
            What::Order { number, order } => self.0.push(Ordered {
                number: *number,
                order: order.clone(),
                asked_ns: record.at_ns,
                done_ns: None,
            }),
            What::OrderDone { number } => {
                let asked = self.0.iter_mut().rfind(|ordered| ordered.number == *number);
                if let Some(ordered) = asked.filter(|ordered| ordered.done_ns.is_none()) {
                    ordered.done_ns = Some(record.at_ns);
                }
            }
            _ => {}
        }
    }

    /// Each freeze over a name, with the thaws of the same prefix.
    fn freezes_over<'a>(
        &'a self,
        name: &'a str,
    ) -> impl Iterator<Item = (&'a Ordered, Vec<&'a Ordered>)> {
        self.0.iter().filter_map(move |freeze| {
            let Order::Freeze(prefix) = &freeze.order else { return None };
            let thaws = |one: &&Ordered| matches!(&one.order, Order::Thaw(of) if of == prefix);
            name.starts_with(prefix.as_str())
                .then(|| (freeze, self.0.iter().filter(thaws).collect()))
        })
    }

    /// Whether a name was certainly frozen all the time from one instant to another.
    pub(super) fn frozen_between(&self, name: &str, from_ns: u64, until_ns: u64) -> bool {
        self.freezes_over(name).any(|(freeze, thaws)| {
            let frozen = freeze.done_ns.is_some_and(|done_ns| done_ns < from_ns);
            let over_before =
                |thaw: &&Ordered| thaw.done_ns.is_some_and(|done_ns| done_ns <= freeze.asked_ns);
            let thawed = |thaw: &&Ordered| thaw.asked_ns <= until_ns && !over_before(thaw);
            frozen && !thaws.iter().any(thawed)
        })
    }

    /// Whether a name may have been frozen at some time from one instant to another.
    pub(super) fn maybe_frozen(&self, name: &str, from_ns: u64, until_ns: u64) -> bool {
        self.freezes_over(name).any(|(freeze, thaws)| {
            let replaced = thaws.iter().any(|thaw| thaw.replaces(freeze, from_ns));
            freeze.asked_ns <= until_ns && !replaced
        })
    }

    /// The limits of the permits of a lock that may have been in force at some time from one instant to another.
    pub(super) fn limits<'a>(
        &'a self,
        name: &'a str,
        from_ns: u64,
        until_ns: u64,
    ) -> impl Iterator<Item = u32> {
        let of_name = move |ordered: &'a Ordered| match &ordered.order {
            Order::Limit { name: of, permits } if of == name => Some((ordered, *permits)),
            _ => None,
        };
        let limits = move || self.0.iter().filter_map(of_name);
        limits().filter_map(move |(limit, permits)| {
            let replaced = limits().any(|(other, _)| other.replaces(limit, from_ns));
            (limit.asked_ns <= until_ns && !replaced).then_some(permits)
        })
    }
}
