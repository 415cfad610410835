//! A search that begins where a script ended, and the scripts.

use stateright::{Checker, HasDiscoveries, Model, Property};

use super::super::{Action, Bounds, EXCLUSIVE, IN_ORDER, Rule, State, Who, World};
use super::recovery::is_served;

/// Name of the property that the scope is served again once nothing goes wrong any more.
const SERVED: &str = "neither store ever serves again";

/// The model from a state on; `recovers`: from each state that is found, service is looked for.
#[derive(Clone)]
struct Course {
    world: World,
    start: State,
    recovers: bool,
}

impl Model for Course {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![self.start]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        self.world.actions(state, actions);
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        self.world.next_state(last, action)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(EXCLUSIVE, |course: &Self, state| course.world.is_exclusive(state)),
            Property::always(IN_ORDER, |course: &Self, state| course.world.is_in_order(state)),
            Property::always(SERVED, |course: &Self, state| {
                !course.recovers || is_served(&course.world, state)
            }),
        ]
    }
}

impl Course {
    /// From the first state, through steps each of which is possible where it is taken.
    #[track_caller]
    fn after(world: World, script: &[Action]) -> Self {
        let mut start = world.init_states()[0];
        for action in script {
            let mut possible = Vec::new();
            world.actions(&start, &mut possible);
            assert!(possible.contains(action), "{action:?} is not possible in {start:?}");
            start = world.next_state(&start, *action).unwrap_or(start);
        }
        Self { world, start, recovers: false }
    }

    /// What a search finds within `steps`, or at all, and how many states it saw.
    fn search(self, steps: Option<usize>) -> (Option<(&'static str, Vec<Action>)>, usize) {
        let checker = self.checker().threads(1).finish_when(HasDiscoveries::Any);
        let checker = match steps {
            Some(steps) => checker.target_max_depth(steps + 1),
            None => checker,
        };
        let checker = checker.spawn_bfs().join();
        assert!(checker.is_done(), "the search was cut short");
        let found = checker.discoveries().into_iter().next();
        let found = found.map(|(name, path)| (name, path.into_actions()));
        (found, checker.unique_state_count())
    }
}

/// Searches all there is, and finds nothing.
#[track_caller]
pub(super) fn holds(bounds: Bounds) {
    find_nothing(Course::after(World { bounds, without: None }, &[]), None);
}

/// The same, and service is found from each state, too.
#[track_caller]
pub(super) fn holds_and_recovers(bounds: Bounds) {
    let course = Course::after(World { bounds, without: None }, &[]);
    find_nothing(Course { recovers: true, ..course }, None);
}

/// Searches what is within `steps` after the script, and finds nothing.
#[track_caller]
pub(super) fn holds_near(bounds: Bounds, script: &[Action], steps: usize) {
    find_nothing(Course::after(World { bounds, without: None }, script), Some(steps));
}

#[track_caller]
fn find_nothing(course: Course, steps: Option<usize>) {
    let bounds = course.world.bounds;
    let (found, states) = course.search(steps);
    println!("{bounds:?}: {states} states");
    if let Some((what, actions)) = found {
        panic!("{what} after {}", lines(&actions));
    }
}

/// Finds something bad after the script; with the rule, nothing as near to it.
#[track_caller]
pub(super) fn is_missed(rule: Rule, bounds: Bounds, script: &[Action]) {
    let world = World { bounds, without: Some(rule) };
    let steps = find_something(&format!("without {rule:?}"), Course::after(world, script));
    let with = World { without: None, ..world };
    find_nothing(Course::after(with, script), Some(steps));
}

/// Finds a state from which the scope is never served; with the rule there is none as near.
#[track_caller]
pub(super) fn is_missed_in_recovery(rule: Rule, bounds: Bounds) {
    let world = World { bounds, without: Some(rule) };
    let without = Course { recovers: true, ..Course::after(world, &[]) };
    let with = Course { world: World { without: None, ..world }, ..without.clone() };
    let steps = find_something(&format!("without {rule:?}"), without);
    find_nothing(with, Some(steps));
}

/// Finds something bad with all rules, in bounds in which they cannot hold.
#[track_caller]
pub(super) fn fails(bounds: Bounds, script: &[Action]) {
    let course = Course::after(World { bounds, without: None }, script);
    find_something(&format!("{:?}", bounds.durations), course);
}

#[track_caller]
fn find_something(what: &str, course: Course) -> usize {
    let (found, states) = course.search(None);
    let (name, actions) = found.expect("nothing bad");
    let steps = actions.len();
    println!("{what}: {name}, {steps} steps, found after {states} states{}", lines(&actions));
    steps
}

/// Each on a line of its own.
pub(super) fn lines(actions: &[Action]) -> String {
    let lines: Vec<String> = actions.iter().map(|action| format!("\n  {action:?}")).collect();
    lines.concat()
}

/// An operation from start to answer.
pub(super) fn done(who: Who, start: Action) -> Vec<Action> {
    vec![start, Action::CarryOut(who), Action::Answer(who)]
}

pub(super) fn server_reads(server: usize) -> Vec<Action> {
    done(Who::Server(server), Action::Read(Who::Server(server)))
}

pub(super) fn client_reads(client: usize) -> Vec<Action> {
    done(Who::Client(client), Action::Read(Who::Client(client)))
}

/// A client reads, waits `ticks`, takes over, and reads that Cassandra serves.
pub(super) fn takes_over(client: usize, ticks: u8) -> Vec<Action> {
    let waits = vec![Action::Tick; ticks.into()];
    let take_over = done(Who::Client(client), Action::TakeOver { client });
    [client_reads(client), waits, take_over, client_reads(client)].concat()
}

/// The leader finds that Cassandra serves, and lets it drain.
pub(super) fn drains(server: usize) -> Vec<Action> {
    [server_reads(server), done(Who::Server(server), Action::Drain { server })].concat()
}

pub(super) fn returns(server: usize) -> Vec<Action> {
    done(Who::Server(server), Action::Return { server })
}

pub(super) fn bumps(server: usize) -> Vec<Action> {
    done(Who::Server(server), Action::Bump { server })
}

/// The leader waits a V of one tick and raises the core's epoch.
pub(super) fn raises(server: usize) -> Vec<Action> {
    vec![Action::Tick, Action::ProposeRaise { server }, Action::CommitRaise]
}

/// A native client is granted the lock, hears of authority, and is safe.
pub(super) fn holds_natively(native: usize, server: usize) -> Vec<Action> {
    [vec![Action::Grant { native }, Action::Receive { native }], covers(native, server)].concat()
}

/// A native client's guard is covered by what is left of that server's authority.
pub(super) fn covers(native: usize, server: usize) -> Vec<Action> {
    vec![
        Action::KeepAlive { native },
        Action::Acknowledge { native, server },
        Action::Cover { native },
    ]
}
