//! The prefixes of lock names by which metrics are kept apart.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::fmt;
use std::str::FromStr;

use holdfast_core::LockName;
use serde::{Deserialize, Serialize};

/// The label of names that begin with none of the prefixes; so it is no prefix itself.
pub const OTHER: &str = "other";
/// Most prefixes: each is a series of its own in several metrics.
const PREFIXES_MAX: usize = 32;

/// Prefixes of lock names, as they were given.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MetricsPrefixes(pub Vec<String>);

impl MetricsPrefixes {
    /// Whether lock names can begin with each of them, and each stands there once.
    ///
    /// # Errors
    ///
    /// What is wrong, and with which of them.
    pub(super) fn check(&self) -> Result<(), String> {
        let count = self.0.len();
        if count > PREFIXES_MAX {
            return Err(format!("{count} prefixes; at most {PREFIXES_MAX}"));
        }
        let mut seen = BTreeSet::new();
        for prefix in &self.0 {
            if let Err(error) = LockName::parse(prefix) {
                return Err(format!("no lock name begins with {prefix:?}: {error}"));
            }
            if prefix == OTHER {
                return Err(format!("{OTHER:?} is what names without a prefix are counted under"));
            }
            if !seen.insert(prefix) {
                return Err(format!("{prefix:?} stands twice"));
            }
        }
        Ok(())
    }
}

impl FromStr for MetricsPrefixes {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Infallible> {
        let prefixes = text.split(',').map(str::trim).filter(|prefix| !prefix.is_empty());
        Ok(Self(prefixes.map(str::to_owned).collect()))
    }
}

impl fmt::Display for MetricsPrefixes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_are_names_each_once_and_at_most_as_many_as_metrics_have_room_for() {
        let said = |text: &str| text.parse::<MetricsPrefixes>().unwrap().check();
        assert_eq!(said(""), Ok(()));
        assert_eq!(said("orders/, jobs"), Ok(()));
        let many = |count: usize| (0..count).map(|n| n.to_string()).collect::<Vec<_>>().join(",");
        assert_eq!(said(&many(PREFIXES_MAX)), Ok(()));
        for (text, problem) in [
            (many(PREFIXES_MAX + 1).as_str(), "33 prefixes; at most 32"),
            ("a,b,a", "\"a\" stands twice"),
            ("a,other", "\"other\" is what names without a prefix"),
            ("a\u{7}", "U+0007"),
        ] {
            let error = said(text).unwrap_err();
            assert!(error.contains(problem), "{error}");
        }
        let empty = MetricsPrefixes(vec![String::new()]);
        assert!(empty.check().unwrap_err().contains("cannot be empty"));
    }
}
