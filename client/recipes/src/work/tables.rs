//! The names of the work queue's tables.

use crate::recipe::{Names, Naming};
use crate::statement::Ident;

/// The wiki's three column families, and two of Holdfast's own: to find their content, and for dead letters.
pub(crate) const NAMES: &[Naming] = &[
    Naming::new(
        "work-details-table",
        &[("TABLE", "work_details", "")],
        "The contents of the items of work, and their attempts",
    ),
    Naming::new(
        "work-choosing-table",
        &[("TABLE", "work_choosing", "")],
        "Which workers choose a number for an item",
    ),
    Naming::new(
        "work-numbers-table",
        &[("TABLE", "work_numbers", "")],
        "The items in order, with the workers' numbers",
    ),
    Naming::new(
        "work-hours-table",
        &[("TABLE", "work_hours", "")],
        "The hours in which there are items",
    ),
    Naming::new("work-aside-table", &[("TABLE", "work_aside", "")], "The dead letters"),
];

/// The names of the work queues' tables, for deployments with other names. Their columns have fixed
/// names.
#[derive(Clone, Debug)]
pub struct WorkTables {
    pub(crate) details: Ident,
    pub(crate) choosing: Ident,
    pub(crate) numbers: Ident,
    pub(crate) hours: Ident,
    pub(crate) aside: Ident,
}

impl Default for WorkTables {
    /// `work_details`, `work_choosing`, `work_numbers`, the article's column families; and `work_hours`, `work_aside`.
    fn default() -> Self {
        Self::of(&Names::default())
    }
}

impl WorkTables {
    /// Names the tables exactly as the server has them: details, choosing, numbers, the hours that have items, the dead
    /// letters.
    #[must_use]
    pub fn named(tables: [&str; 5]) -> Self {
        let [details, choosing, numbers, hours, aside] = tables.map(Ident::new);
        Self { details, choosing, numbers, hours, aside }
    }

    pub(crate) fn of(names: &Names) -> Self {
        let mut names = NAMES.iter().map(|naming| names.one(naming));
        Self::named(std::array::from_fn(|_| names.next().unwrap_or_default()))
    }

    /// Each table, and what follows its name in `CREATE TABLE`.
    pub(crate) fn created(&self) -> [String; 5] {
        let Self { details, choosing, numbers, hours, aside } = self;
        [
            format!(
                "{details} (\"queue\" text, \"item\" text, \"name\" text, \"value\" text, \
                 PRIMARY KEY ((\"queue\", \"item\"), \"name\"))"
            ),
            format!(
                "{choosing} (\"queue\" text, \"item\" text, \"worker\" text, \
                 PRIMARY KEY ((\"queue\", \"item\"), \"worker\"))"
            ),
            format!(
                "{numbers} (\"queue\" text, \"hour\" bigint, \"item\" text, \"worker\" text, \"number\" bigint, \
                 PRIMARY KEY ((\"queue\", \"hour\"), \"item\", \"worker\"))"
            ),
            format!("{hours} (\"queue\" text, \"hour\" bigint, PRIMARY KEY (\"queue\", \"hour\"))"),
            format!("{aside} (\"queue\" text, \"item\" text, PRIMARY KEY (\"queue\", \"item\"))"),
        ]
    }
}
