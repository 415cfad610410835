//! Why everybody waits: who holds a lock, what they wait for, and so on, as it is drawn.

use std::collections::BTreeSet;

use holdfast_proto::v1;

use crate::views::{lock_href, session_href};
use crate::words::{count, length, who};

/// Steps of a chain that are drawn.
const STEPS_MAX: usize = 40;

/// A chain as a list of steps, each a lock or a holder, as deep as it stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Chain {
    pub(crate) steps: Vec<Step>,
    /// What it comes to.
    pub(crate) verdict: String,
    /// `wrong` for a deadlock.
    pub(crate) tone: &'static str,
    /// There is more than is drawn.
    pub(crate) is_cut: bool,
}

/// One step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Step {
    pub(crate) depth: usize,
    /// `lock`, `holder` or `back`, which closes a cycle.
    pub(crate) kind: &'static str,
    pub(crate) text: String,
    pub(crate) href: String,
    pub(crate) said: String,
    /// Everybody waits for this one, who waits for nothing.
    pub(crate) is_culprit: bool,
}

/// A chain while it is drawn.
struct Drawing<'a> {
    explained: &'a v1::ExplainResponse,
    steps: Vec<Step>,
    /// The locks from the first one to where it is drawn.
    path: Vec<String>,
    drawn: BTreeSet<String>,
    cycle: Option<Vec<String>>,
    culprits: Vec<String>,
    is_cut: bool,
}

impl Chain {
    pub(crate) fn of(explained: &v1::ExplainResponse) -> Self {
        let mut drawing = Drawing {
            explained,
            steps: Vec::new(),
            path: Vec::new(),
            drawn: BTreeSet::new(),
            cycle: None,
            culprits: Vec::new(),
            is_cut: explained.more,
        };
        if let Some(first) = explained.locks.first() {
            drawing.lock(&first.name, "", 0);
        }
        let (verdict, tone) = drawing.verdict();
        Self { steps: drawing.steps, verdict, tone, is_cut: drawing.is_cut }
    }
}

impl Drawing<'_> {
    fn step(&mut self, step: Step) {
        if self.steps.len() < STEPS_MAX {
            self.steps.push(step);
        } else {
            self.is_cut = true;
        }
    }

    /// A lock, then its holders below it.
    fn lock(&mut self, name: &str, waited: &str, depth: usize) {
        let step = |kind, said: String| Step {
            depth,
            kind,
            text: name.to_owned(),
            href: lock_href(name),
            said,
            is_culprit: false,
        };
        if let Some(at) = self.path.iter().position(|before| before == name) {
            self.cycle.get_or_insert_with(|| self.path.split_at(at).1.to_vec());
            self.step(step("back", format!("{waited}; that closes the circle")));
            return;
        }
        let explained = self.explained;
        let found = explained.locks.iter().find(|lock| lock.name == name);
        let waiting = found.map_or(0, |lock| lock.waiting);
        let waiting =
            if waiting == 1 { "1 waits".to_owned() } else { format!("{} wait", count(waiting)) };
        let comma = if waited.is_empty() { "" } else { ", " };
        self.step(step("lock", format!("{waited}{comma}{waiting}")));
        // What was drawn above is not drawn again, and a chain that is too long is cut.
        let Some(lock) = found.filter(|_| self.drawn.insert(name.to_owned())) else { return };
        if self.steps.len() >= STEPS_MAX {
            self.is_cut = true;
            return;
        }
        self.path.push(name.to_owned());
        for held in &lock.holders {
            self.holder(held, depth + 1);
        }
        if let Some(wait) = lock.kept_for.as_ref().filter(|_| lock.holders.is_empty()) {
            self.kept_for(name, wait, depth + 1);
        }
        self.path.pop();
    }

    /// A holder, then what it waits for below it.
    fn holder(&mut self, held: &v1::ExplainedHolder, depth: usize) {
        let Some(holder) = &held.holder else { return };
        let text = who(&holder.label, &holder.identity, holder.imported, holder.session_id);
        let is_culprit = held.waits.is_empty() && !held.may_wait_for_more;
        if is_culprit && !self.culprits.contains(&text) {
            self.culprits.push(text.clone());
        }
        let ending = if holder.ending { ", has to give it up" } else { "" };
        self.step(Step {
            depth,
            kind: "holder",
            text,
            href: session_href(holder.session_id),
            said: format!("holds it for {}{ending}", length(holder.held_ms)),
            is_culprit,
        });
        for wait in &held.waits {
            for name in &wait.names {
                self.lock(name, &format!("waited for {}", length(wait.waiting_ms)), depth + 1);
            }
        }
    }

    /// Nobody holds a lock, and it is kept for a request that waits for others too.
    fn kept_for(&mut self, lock: &str, wait: &v1::ExplainedWait, depth: usize) {
        self.step(Step {
            depth,
            kind: "holder",
            text: who(&wait.label, "", false, wait.session_id),
            href: session_href(wait.session_id),
            said: "is next, and it is kept for it".to_owned(),
            is_culprit: false,
        });
        for name in wait.names.iter().filter(|name| *name != lock) {
            self.lock(name, &format!("waited for {}", length(wait.waiting_ms)), depth + 1);
        }
    }

    fn verdict(&self) -> (String, &'static str) {
        if let Some(cycle) = &self.cycle {
            let round = cycle.iter().chain(cycle.first());
            let round = round.map(String::as_str).collect::<Vec<_>>().join(" → ");
            return (format!("Deadlock: they wait for each other in a circle ({round})"), "wrong");
        }
        match self.culprits.as_slice() {
            [] => (String::new(), "quiet"),
            [one] => (format!("In the end all wait for {one}"), "caution"),
            [one, rest @ ..] => {
                (format!("In the end all wait for {one} and {} more", rest.len()), "caution")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held(label: &str, session_id: u64, waits_for: &[&str]) -> v1::ExplainedHolder {
        let names: Vec<String> = waits_for.iter().map(ToString::to_string).collect();
        let wait = v1::ExplainedWait { session_id, names, ..v1::ExplainedWait::default() };
        v1::ExplainedHolder {
            holder: Some(v1::Holder { session_id, label: label.into(), ..v1::Holder::default() }),
            waits: if waits_for.is_empty() { vec![] } else { vec![wait] },
            may_wait_for_more: false,
        }
    }

    fn lock(name: &str, holder: v1::ExplainedHolder) -> v1::ExplainedLock {
        let name = name.to_owned();
        v1::ExplainedLock {
            name,
            holders: vec![holder],
            waiting: 1,
            ..v1::ExplainedLock::default()
        }
    }

    fn chain(locks: Vec<v1::ExplainedLock>) -> Chain {
        Chain::of(&v1::ExplainResponse { locks, ..v1::ExplainResponse::default() })
    }

    #[test]
    fn a_chain_leads_to_the_one_that_waits_for_nothing() {
        let drawn =
            chain(vec![lock("nightly", held("w7", 7, &["db"])), lock("db", held("w8", 8, &[]))]);
        let shown: Vec<_> = drawn.steps.iter().map(|it| (it.depth, it.text.as_str())).collect();
        assert_eq!(shown, [(0, "nightly"), (1, "w7"), (2, "db"), (3, "w8")]);
        assert!(drawn.steps[3].is_culprit && !drawn.steps[1].is_culprit);
        assert_eq!(drawn.verdict, "In the end all wait for w8");
    }

    #[test]
    fn a_circle_is_closed_and_called_a_deadlock() {
        let drawn =
            chain(vec![lock("a", held("one", 1, &["b"])), lock("b", held("two", 2, &["a"]))]);
        let last = drawn.steps.last().unwrap();
        assert_eq!((last.kind, last.text.as_str(), last.depth), ("back", "a", 4));
        assert_eq!(drawn.verdict, "Deadlock: they wait for each other in a circle (a → b → a)");
    }

    #[test]
    fn a_chain_that_is_too_long_is_cut() {
        let names: Vec<String> = (0..60).map(|nth| format!("lock-{nth}")).collect();
        let locks = (0..59_u64).map(|nth| {
            let at = usize::try_from(nth).unwrap();
            lock(&names[at], held("w", nth, &[&names[at + 1]]))
        });
        let drawn = chain(locks.collect());
        assert!(drawn.is_cut && drawn.steps.len() == STEPS_MAX);
    }
}
