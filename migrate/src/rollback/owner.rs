//! The owner's id in the row that stands in for a native client's hold.

use std::time::Duration;

use holdfast_recipes::is_ours;

/// The prefix of the attempt in such an id.
const MARK: &str = "native-";

/// A native client's hold, with its id in Cassandra: `hf1:LABEL/native-TOKEN`. The id has our
/// prefix, so that it does not count as a foreign client's; the label is for people; the token
/// shows whether the grant has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StandIn {
    pub(crate) label: String,
    pub(crate) token: u64,
}

impl StandIn {
    /// The owner's id; it ends with the term in seconds if the recipe's ids do.
    pub(crate) fn owner(&self, term: Option<Duration>) -> String {
        let term = term.map(|term| format!(":{}", term.as_secs())).unwrap_or_default();
        format!("hf1:{}/{MARK}{}{term}", self.label, self.token)
    }

    /// Parses the owner's id of a row; `None` if the row stands in for no native hold.
    pub(crate) fn of(owner: &str) -> Option<Self> {
        if !is_ours(owner) {
            return None;
        }
        let (label, attempt) = owner.strip_prefix("hf1:")?.rsplit_once('/')?;
        let token = attempt.strip_prefix(MARK)?.split(':').next()?.parse().ok()?;
        // A native client chooses its label freely, so the end of the label is not parsed as a
        // writer.
        Some(Self { label: label.to_owned(), token })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_owner_says_which_grant_it_stands_for_and_others_say_none() {
        let stand_in = StandIn { label: "host/a:7".into(), token: 42 };
        assert_eq!(stand_in.owner(None), "hf1:host/a:7/native-42");
        for term in [None, Some(Duration::from_mins(10))] {
            assert_eq!(StandIn::of(&stand_in.owner(term)), Some(stand_in.clone()), "{term:?}");
        }
        for other in ["a/native-42", "hf1:a/0123", "hf1:a/native-x", "hf1:native-4", ""] {
            assert_eq!(StandIn::of(other), None, "{other}");
        }
    }
}
