//! What the row of a native client's hold calls its owner.

use std::time::Duration;

use holdfast::compat::is_ours;

/// What the attempt of such an owner begins with.
const MARK: &str = "native-";

/// The hold of a native client, as it is called in Cassandra: `hf1:LABEL/native-TOKEN`. Ours, so that nobody takes it
/// for a stranger's, and shown by its label; of one grant, so that it is known when that has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StandIn {
    pub(crate) label: String,
    pub(crate) token: u64,
}

impl StandIn {
    /// As the owner of a row; with the term in seconds where the recipe's ids end with it.
    pub(crate) fn owner(&self, term: Option<Duration>) -> String {
        let term = term.map(|term| format!(":{}", term.as_secs())).unwrap_or_default();
        format!("hf1:{}/{MARK}{}{term}", self.label, self.token)
    }

    /// Of the owner of a row, if it is one.
    pub(crate) fn of(owner: &str) -> Option<Self> {
        if !is_ours(owner) {
            return None;
        }
        let (label, attempt) = owner.strip_prefix("hf1:")?.rsplit_once('/')?;
        let token = attempt.strip_prefix(MARK)?.split(':').next()?.parse().ok()?;
        // A native client may be called anything: whatever its label ends with is not a writer.
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
