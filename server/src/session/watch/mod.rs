//! Watching: what happens to the locks below a prefix, first the state, then every change.
//!
//! # No gap, no doubling
//!
//! A watcher receives pages of the state, in the order of names, each read under the table's lock as of
//! an index of its own, and in between the *news*: the changes of the locks that its pages have shown.
//!
//! - News are written under the table's lock too, in the order of the log. So for every page and every
//!   log entry it is certain which came first, and the page notes how far the news had come when it was
//!   read: its *mark*.
//! - News up to the mark are sent before the page, but only those of names that earlier pages have
//!   shown. What is left out concerns later names, and happened before this page was read: this page, or
//!   one after it, shows its effect.
//! - News behind the mark happened after the page was read, so the page does not show their effect, and
//!   they are sent if it has shown their name.
//!
//! So each change is either in the page that shows its name, or sent after it, and never both. `Synced`
//! ends the last page and has its index; from there on the watcher has the whole state.
//!
//! Pages and news are states and events of committed entries only (I4, I23). The first page is read
//! after a quorum round begun after the call, so it holds all that was committed before (I18). While
//! there are watchers, a round every [`ROUND_EVERY`] makes sure that a leader cut off from its cluster
//! does not leave them with a past that looks like the present.
//!
//! # Bounds
//!
//! A watcher may be `watch_backlog` changes behind the news, besides what the transport has taken over
//! and a page; then it ends its own watch: the thread that applies the log never waits for a watcher
//! (I27). A change is made once for all watchers, and written once per prefix.

mod changes;
mod news;
mod page;
mod watcher;
mod watches;

use std::time::Duration;

pub(super) use watches::Watches;

/// How often a leader with watchers confirms that it still leads.
pub(super) const ROUND_EVERY: Duration = Duration::from_secs(5);
