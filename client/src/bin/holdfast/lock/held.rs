//! What a command runs under, and what it is told of it.

use std::time::Duration;

use holdfast::GuardState;
use tokio::sync::{oneshot, watch};

use super::Ended;

/// What the main thread knows of the hold.
pub(crate) struct Held {
    pub(crate) state: watch::Receiver<GuardState>,
    /// What is held, for messages: `the lock "a"`.
    pub(crate) what: String,
    /// What the command is told.
    pub(crate) told: Told,
    pub(crate) ttl: Duration,
}

/// What a command is told of what it runs under.
#[derive(Default)]
pub(crate) struct Told {
    /// One without a value is taken out of its environment: it would be about something else.
    pub(crate) variables: Vec<(&'static str, Option<String>)>,
    /// Its standard input, where that is not ours.
    pub(crate) input: Option<String>,
    /// Who wants to know how it ended.
    pub(crate) ended: Option<oneshot::Sender<Ended>>,
}

impl Held {
    /// Of these locks: with `--any` not all that were asked for. The token is there where what stands behind the lock
    /// gives one.
    pub(crate) fn of_locks(
        state: watch::Receiver<GuardState>,
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
        Self { state, what, told: Told { variables, ..Told::default() }, ttl }
    }
}
