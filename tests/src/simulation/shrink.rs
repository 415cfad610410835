//! Makes a failing run shorter: leaves things out as long as it still fails.

use super::plan::{ClientPlan, Plan};

/// Time after the last fault that a shorter run still has, milliseconds.
const AFTERWARDS_MS: u64 = 12_000;

/// The smallest plan found that still fails, with at most `tries` runs.
///
/// Leaving something out changes the random draws of the rest of the run, so this is a search, not
/// a proof: a run may also have failed because of a part that was left out.
pub fn shrink(plan: Plan, tries: usize, mut fails: impl FnMut(&Plan) -> bool) -> Plan {
    let mut search = Search { best: plan, left: tries };
    loop {
        let before = search.best.clone();
        search.leave_out(&mut fails, |plan| plan.strikes.len(), remove_strikes);
        search.leave_out(&mut fails, |plan| plan.clients.len(), remove_clients);
        search.end_earlier(&mut fails);
        search.simplify(&mut fails);
        if search.best == before || search.left == 0 {
            return search.best;
        }
    }
}

struct Search {
    best: Plan,
    left: usize,
}

impl Search {
    fn take_if(&mut self, candidate: Plan, fails: &mut impl FnMut(&Plan) -> bool) -> bool {
        if self.left == 0 || candidate == self.best {
            return false;
        }
        self.left -= 1;
        let failed = fails(&candidate);
        if failed {
            self.best = candidate;
        }
        failed
    }

    /// Leaves out halves, then quarters, at last single items.
    fn leave_out(
        &mut self,
        fails: &mut impl FnMut(&Plan) -> bool,
        count: impl Fn(&Plan) -> usize,
        remove: impl Fn(&mut Plan, usize, usize),
    ) {
        let mut size = count(&self.best).div_ceil(2);
        while size > 0 {
            let mut from = 0;
            while from < count(&self.best) {
                let mut candidate = self.best.clone();
                remove(&mut candidate, from, size);
                if !self.take_if(candidate, fails) {
                    from += size;
                }
            }
            size /= 2;
        }
    }

    fn end_earlier(&mut self, fails: &mut impl FnMut(&Plan) -> bool) {
        let last = self.best.strikes.iter().map(|strike| strike.at_ms + strike.lasts_ms).max();
        let mut candidate = self.best.clone();
        candidate.length_ms = candidate.length_ms.min(last.unwrap_or(0) + AFTERWARDS_MS);
        self.take_if(candidate, fails);
    }

    /// Fewer tasks, simpler requests, fewer names, a quiet network.
    fn simplify(&mut self, fails: &mut impl FnMut(&Plan) -> bool) {
        let simpler: [fn(&mut Plan); 10] = [
            |plan| plan.scopes = None,
            |plan| {
                plan.scopes.iter_mut().for_each(|scopes| scopes.moves = None);
            },
            |plan| plan.rogue = false,
            |plan| plan.imports = false,
            |plan| each_client(plan, |client| client.workers = 1),
            |plan| each_client(plan, |client| client.everything = false),
            |plan| each_client(plan, |client| client.watches = false),
            |plan| each_client(plan, |client| client.calls = false),
            |plan| plan.names = 1,
            |plan| {
                plan.air.lost_per_million = 0;
                plan.air.twice_per_million = 0;
            },
        ];
        for simplify in simpler {
            let mut candidate = self.best.clone();
            simplify(&mut candidate);
            self.take_if(candidate, fails);
        }
    }
}

fn each_client(plan: &mut Plan, change: impl Fn(&mut ClientPlan)) {
    plan.clients.iter_mut().for_each(change);
}

fn remove_strikes(plan: &mut Plan, from: usize, count: usize) {
    let until = (from + count).min(plan.strikes.len());
    plan.strikes.drain(from..until);
}

/// At least one client stays.
fn remove_clients(plan: &mut Plan, from: usize, count: usize) {
    let until = (from + count).min(plan.clients.len());
    if until - from < plan.clients.len() {
        plan.clients.drain(from..until);
    }
}

#[cfg(test)]
mod tests {
    use super::super::fault::Kind;
    use super::super::plan::Clocks;
    use super::*;

    /// A made-up bug: it needs a pause and a client that asks for everything.
    fn fails(plan: &Plan) -> bool {
        plan.strikes.iter().any(|strike| strike.fault.kind() == Kind::Pause)
            && plan.clients.iter().any(|client| client.everything)
    }

    #[test]
    fn only_what_is_needed_to_fail_is_left() {
        let seed = (0..1_000).find(|seed| fails(&Plan::draw(*seed, Clocks::Within))).unwrap();

        let plan = shrink(Plan::draw(seed, Clocks::Within), 200, fails);

        let kinds: Vec<Kind> = plan.strikes.iter().map(|strike| strike.fault.kind()).collect();
        assert_eq!(kinds, [Kind::Pause]);
        assert_eq!((plan.clients.len(), plan.names), (1, 1));
        assert!(plan.length_ms <= plan.strikes[0].at_ms + plan.strikes[0].lasts_ms + 12_000);
    }

    #[test]
    fn no_more_runs_are_tried_than_allowed() {
        let mut tried = 0;
        shrink(Plan::draw(1, Clocks::Within), 7, |_| {
            tried += 1;
            false
        });
        assert_eq!(tried, 7);
    }
}
