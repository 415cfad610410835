//! The prefixes by which metrics about locks are kept apart: those that the settings name, and one label for
//! all other names. So the number of series is bounded, and no name of a lock becomes a label.

use std::sync::Arc;

use prometheus_client::metrics::family::{Family, MetricConstructor};

use crate::config::OTHER;

/// The one label: the prefix.
type Label = [(&'static str, String); 1];

/// The prefixes of `metrics_prefixes`, the longest first. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub(super) struct Prefixes(Arc<[String]>);

/// Which of the prefixes, or none of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Which(usize);

impl Prefixes {
    pub(super) fn new(prefixes: &[String]) -> Self {
        let mut prefixes = prefixes.to_vec();
        prefixes.sort_by_key(|prefix| std::cmp::Reverse(prefix.len()));
        Self(prefixes.into())
    }

    /// The longest prefix that a name begins with. Looks at each of them, at most 32.
    pub(super) fn of(&self, name: &str) -> Which {
        let found = self.0.iter().position(|prefix| name.starts_with(prefix.as_str()));
        Which(found.unwrap_or(self.0.len()))
    }

    /// One more than there are prefixes: [`OTHER`] is the last.
    pub(super) fn labels(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(String::as_str).chain([OTHER])
    }
}

/// A metric for each prefix, and one for the other names: each is there from the beginning, and found without
/// a look at its label. Clones count together.
#[derive(Clone, Debug)]
pub struct ByPrefix<M> {
    /// To be registered.
    pub family: Family<Label, M, fn() -> M>,
    each: Arc<[M]>,
}

impl<M: Clone> ByPrefix<M>
where
    fn() -> M: MetricConstructor<M>,
{
    pub(super) fn new(prefixes: &Prefixes, make: fn() -> M) -> Self {
        let family = Family::new_with_constructor(make);
        let label = |prefix: &str| [("prefix", prefix.to_owned())];
        let each = prefixes.labels().map(|prefix| family.get_or_create_owned(&label(prefix)));
        let each = each.collect();
        Self { family, each }
    }

    pub(super) fn of(&self, which: Which) -> Option<&M> {
        self.each.get(which.0)
    }

    /// In the order of [`Prefixes::labels`].
    pub(super) fn iter(&self) -> impl Iterator<Item = &M> {
        self.each.iter()
    }
}

impl Which {
    /// Its place in the order of [`Prefixes::labels`].
    pub(super) fn place(self) -> usize {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use prometheus_client::metrics::counter::Counter;

    use super::*;

    fn prefixes(texts: &[&str]) -> Prefixes {
        let texts: Vec<String> = texts.iter().map(|&text| text.to_owned()).collect();
        Prefixes::new(&texts)
    }

    #[test]
    fn the_longest_prefix_of_a_name_is_its_label_and_names_without_one_share_a_label() {
        let prefixes = prefixes(&["orders/", "o", "orders/eu/", "jobs"]);
        let label = |name: &str| prefixes.labels().nth(prefixes.of(name).place());
        for (name, expected) in [
            ("orders/eu/7", "orders/eu/"),
            ("orders/7", "orders/"),
            ("orders", "o"),
            ("jobs", "jobs"),
            ("job", OTHER),
            ("Orders/7", OTHER),
        ] {
            assert_eq!(label(name), Some(expected), "{name}");
        }
    }

    #[test]
    fn without_prefixes_there_is_one_label() {
        let none = Prefixes::default();
        assert_eq!(none.labels().collect::<Vec<_>>(), [OTHER]);
        let counters = ByPrefix::<Counter>::new(&none, Counter::default);
        counters.of(none.of("jobs")).expect("a counter").inc();
        let label = [("prefix", OTHER.to_owned())];
        assert_eq!(counters.family.get_or_create(&label).get(), 1);
    }
}
