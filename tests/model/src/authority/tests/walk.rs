//! Random walks: far, where a search of everything stays near.

use std::hash::{BuildHasher, RandomState};

use stateright::Model;

use super::super::{Action, Bounds, State, World};
use super::course::lines;
use super::recovery::is_served;

/// Steps of a walk.
const LENGTH: usize = 250;

/// `SplitMix64`: enough to choose steps by, and the same everywhere.
pub(super) struct Dice(u64);

impl Dice {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// One of `0..sides`, of which there are few: that the first come up more often does not show.
    fn roll(&mut self, sides: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((mixed ^ (mixed >> 31)) >> 33).unwrap_or_default() % sides
    }

    /// One of the steps. What goes wrong is chosen less often than what goes on.
    fn choose(&mut self, actions: &[Action]) -> Action {
        loop {
            let action = actions[self.roll(actions.len())];
            if !goes_wrong(action) || self.roll(8) == 0 {
                return action;
            }
        }
    }
}

fn goes_wrong(action: Action) -> bool {
    matches!(
        action,
        Action::GiveUp(_)
            | Action::LeaveBehind(_)
            | Action::LoseLate { .. }
            | Action::Elect { .. }
            | Action::Stop { .. }
            | Action::EndHold { .. }
            | Action::Release { .. }
    )
}

/// Where a walk came to.
pub(super) struct Walk {
    pub(super) state: State,
    pub(super) taken: Vec<Action>,
    /// Whether something bad was found, which ended it.
    pub(super) is_bad: bool,
}

/// Takes up to `steps` steps from a first state.
pub(super) fn walk(world: &World, dice: &mut Dice, steps: usize) -> Walk {
    let mut state = world.init_states()[0];
    let (mut taken, mut actions) = (Vec::with_capacity(steps), Vec::new());
    for _ in 0..steps {
        actions.clear();
        world.actions(&state, &mut actions);
        if actions.is_empty() {
            return Walk { state, taken, is_bad: true };
        }
        let action = dice.choose(&actions);
        taken.push(action);
        state = world.next_state(&state, action).unwrap_or(state);
    }
    let is_bad = !world.is_exclusive(&state) || !world.is_in_order(&state);
    Walk { state, taken, is_bad }
}

/// Walks until `steps` were taken, through each of `worlds` in turn: nothing bad is found, and where a
/// walk ended the scope is served again. The seed is fresh, or `HOLDFAST_SEED`.
#[track_caller]
pub(super) fn walks(worlds: &[Bounds], steps: usize) {
    let repeated = std::env::var("HOLDFAST_SEED").ok().map(|seed| seed.parse().unwrap());
    let seed = repeated.unwrap_or_else(|| RandomState::new().hash_one(()));
    println!("HOLDFAST_SEED={seed}");
    let (mut dice, mut taken, mut epochs) = (Dice::new(seed), 0, 0);
    for bounds in worlds.iter().cycle() {
        let world = World { bounds: *bounds, without: None };
        let walk = walk(&world, &mut dice, LENGTH);
        assert!(!walk.is_bad, "HOLDFAST_SEED={seed}: bad after {}", lines(&walk.taken));
        let served = is_served(&world, &walk.state);
        assert!(served, "HOLDFAST_SEED={seed}: never served after {}", lines(&walk.taken));
        taken += walk.taken.len();
        epochs = epochs.max(walk.state.row.epoch);
        if taken >= steps {
            break;
        }
    }
    println!("{taken} steps, up to epoch {epochs}");
    assert!(epochs >= 4, "no walk went there and back");
}
