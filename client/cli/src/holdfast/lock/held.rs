//! The hold that a command runs under, and the command's environment.

use std::time::Duration;

use holdfast::GuardStates;
use tokio::sync::oneshot;

use super::Ended;

/// The hold, as the main thread needs it.
pub(crate) struct Held {
    pub(crate) states: GuardStates,
    /// The held lock or item, for messages: `the lock "a"`.
    pub(crate) what: String,
    /// The command's environment and input.
    pub(crate) told: ChildInput,
    pub(crate) ttl: Duration,
}

/// The information that a command gets about its hold.
#[derive(Default)]
pub(crate) struct ChildInput {
    /// A variable without a value is removed from its environment: it would be about another lock.
    pub(crate) variables: Vec<(&'static str, Option<String>)>,
    /// Its standard input, if it is not that of this process.
    pub(crate) input: Option<String>,
    /// Receives how the command ended.
    pub(crate) ended: Option<oneshot::Sender<Ended>>,
}

impl Held {
    /// A hold of these locks: with `--any` perhaps not all of the request. There is a token only if
    /// the store behind the lock gives one.
    pub(crate) fn of_locks(
        states: GuardStates,
        names: &[String],
        token: Option<String>,
        ttl: Duration,
    ) -> Self {
        let variables = vec![
            ("HOLDFAST_LOCK", Some(names.first().cloned().unwrap_or_default())),
            // No name has a line feed in it.
            ("HOLDFAST_LOCKS", Some(names.join("\n"))),
            ("HOLDFAST_TOKEN", token),
        ];
        let listed: Vec<_> = names.iter().map(|name| name.escape_debug().to_string()).collect();
        let one = if names.len() == 1 { "the lock" } else { "the locks" };
        let what = format!("{one} {}", listed.join(", "));
        Self { states, what, told: ChildInput { variables, ..ChildInput::default() }, ttl }
    }
}
