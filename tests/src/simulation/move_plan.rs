//! A scope that moves from locks on Cassandra to the store, through all modes, and back, as it is drawn for a simulated run.

use serde::{Deserialize, Serialize};

use super::plan::rate;
use crate::draw::Draw;
use crate::recipe::Recipe;

/// What a seed is turned into for this.
const MOVES_STREAM: u64 = 0x4d4f_5645_5331;
/// Of so many runs with scopes one has a scope that moves.
const MOVES_ONE_IN: u64 = 2;
/// Of so many of those one stays where it is.
const STAYS_ONE_IN: u64 = 3;
/// What a seed is turned into for what was added later.
const WISHES_STREAM: u64 = 0x5749_5348_4553_3131;
/// Of so many of those one has a client that comes by another recipe.
const MISTAKEN_ONE_IN: u64 = 4;

/// A scope that moves.
#[expect(clippy::struct_excessive_bools, reason = "each says whether the run has one thing more")]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MovesPlan {
    /// What its processes lock by in Cassandra.
    pub recipe: Recipe,
    /// The clients that lock in it.
    pub clients: Vec<MoverPlan>,
    /// Longest pause of the operator between two moves, milliseconds.
    pub every_ms: u64,
    /// Whether the operator begins on the way to the store.
    pub onward: bool,
    /// The operator never moves it: all locks are the recipe's.
    #[serde(default)]
    pub stays: bool,
    /// Its processes ask for the lock in all ways there are: as candidates of an election, and as one of several of a batch, too.
    #[serde(default)]
    pub wishes: bool,
    /// They draw numbers of a sequence as well, which an operator moves between the stores.
    #[serde(default)]
    pub numbers: bool,
}

/// A client that locks in a scope that moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MoverPlan {
    /// How much faster than true time its clock is, parts of a million.
    pub rate: i32,
    /// Longest hold, milliseconds.
    pub hold_ms: u64,
    /// The limit of a waiting call, milliseconds.
    pub within_ms: u64,
    /// Whether it is an old client, which knows the recipe and nothing of modes.
    pub old: bool,
    /// Another recipe than that of the scope, by mistake: it has to be refused.
    #[serde(default)]
    pub mistaken: Option<Recipe>,
}

impl MovesPlan {
    /// What the seed of a run with scopes draws.
    pub(super) fn draw(seed: u64) -> Option<Self> {
        let mut draw = Draw::new(seed ^ MOVES_STREAM);
        (draw.below(MOVES_ONE_IN) == 0).then(|| Self::any(&mut draw))
    }

    /// One with that seed, whether or not the run that is drawn from it has one.
    pub(super) fn of(seed: u64) -> Self {
        Self::any(&mut Draw::new(seed ^ MOVES_STREAM))
    }

    fn any(draw: &mut Draw) -> Self {
        let recipes: Vec<Recipe> = Recipe::ALL_FORMS.into_iter().chain(Recipe::OLDER).collect();
        let recipe = recipes[usize::try_from(draw.below(recipes.len() as u64)).unwrap_or(0)];
        let old = draw.below(3);
        let mut clients: Vec<MoverPlan> =
            (0..old + 2 + draw.below(2)).map(|place| MoverPlan::draw(draw, place < old)).collect();
        if draw.below(MISTAKEN_ONE_IN) == 0 {
            let other = if recipe == Recipe::Lease { Recipe::TokensLwt } else { Recipe::Lease };
            clients.push(MoverPlan { mistaken: Some(other), ..MoverPlan::draw(draw, false) });
        }
        Self {
            recipe,
            clients,
            every_ms: 800 + draw.below(3_000),
            onward: draw.below(2) == 0,
            stays: draw.below(STAYS_ONE_IN) == 0,
            wishes: false,
            numbers: false,
        }
    }

    /// Adds what its processes want besides the lock, each in half of the runs.
    pub(super) fn add_wishes(&mut self, seed: u64) {
        let mut draw = Draw::new(seed ^ WISHES_STREAM);
        self.wishes = draw.below(2) == 0;
        self.numbers = draw.below(2) == 0;
    }
}

impl MoverPlan {
    fn draw(draw: &mut Draw, old: bool) -> Self {
        let hold_ms = 20 + draw.below(2_000);
        Self {
            rate: rate(draw),
            hold_ms: if draw.below(3) == 0 { 12_000 } else { hold_ms },
            within_ms: 2_000 + draw.below(20_000),
            old,
            mistaken: None,
        }
    }
}
