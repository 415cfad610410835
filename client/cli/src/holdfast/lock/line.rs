//! The progress line during a wait.

use std::io::IsTerminal;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use holdfast::{Instant, Place};
use holdfast_runtime::Runtime;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::show;

/// Shows the place in the queue, on a terminal only, and disappears when dropped.
#[derive(Clone)]
pub(crate) struct WaitLine {
    bar: ProgressBar,
    runtime: Runtime,
    last: Arc<Mutex<Option<(Place, Instant)>>>,
}

impl WaitLine {
    pub(crate) fn new(runtime: Runtime) -> Self {
        let shown = std::io::stderr().is_terminal();
        let target =
            if shown { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
        let bar = ProgressBar::with_draw_target(None, target);
        if let Ok(style) = ProgressStyle::with_template("{spinner} {msg}") {
            bar.set_style(style);
        }
        Self { bar, runtime, last: Arc::default() }
    }

    /// Shows a text that is not about a place.
    pub(crate) fn say(&self, text: &'static str) {
        self.bar.set_message(text);
        self.bar.tick();
    }

    /// Shows a place that the store pushed.
    pub(crate) fn at(&self, place: &Place) {
        let now = self.runtime.clock.now();
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Some((place.clone(), now));
        self.refresh();
    }

    /// Ends when it is time to refresh.
    pub(crate) async fn second(&self) {
        self.runtime.sleep(Duration::from_secs(1)).await;
    }

    /// Updates the shown times.
    pub(crate) fn refresh(&self) {
        let last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((place, told)) = &*last {
            let since = self.runtime.clock.now().saturating_since(*told);
            self.bar.set_message(text(place, since));
        }
        self.bar.tick();
    }

    pub(crate) fn clear(&self) {
        self.bar.finish_and_clear();
    }
}

/// The place of a request: `3rd in line, held by host:pid for 12 s`; `since` is the age of the
/// report.
fn text(place: &Place, since: Duration) -> String {
    if place.awaits_authority {
        return "next in line, waits for the scope's authority".into();
    }
    let at = show::place(place.place);
    match place.holders.first() {
        Some(holder) => format!(
            "{at}, held by {} for {}",
            show::escaped(&holder.label),
            show::length(holder.held + since)
        ),
        None => at,
    }
}
