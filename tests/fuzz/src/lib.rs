//! Throws mutated bytes at a decoder, and keeps what brought it down.
//!
//! A target is a test in the package that owns the decoder, so that nothing is made public for it:
//! [`Target::run`] hands bytes to a closure, which asserts whatever must hold of them. What it is
//! handed first are the cases that once brought it down (`tests/fuzz/cases`), then the seeds as
//! they are, then mutations of them until the time is over. An input whose [`Outcome`] was not seen
//! before joins the seeds: so mutations go on from inputs that came further, without a compiler
//! that counts branches.
//!
//! `HOLDFAST_FUZZ_MS` says how long each target runs (milliseconds, default 1,000), `HOLDFAST_SEED`
//! repeats a run whose seed was printed, as far as the time allows.

#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::missing_panics_doc,
    clippy::print_stdout,
    reason = "a target that fails ends its test, and tests print what they did"
)]
#![expect(clippy::disallowed_methods, reason = "how long a test runs is decided by real time")]

mod cases;
mod corpus;
mod mutate;
pub mod panics;
pub mod script;
mod tally;

use std::fmt::Display;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::{Duration, Instant};

use allocation_counter::measure;
use corpus::Corpus;
use rand::SeedableRng;
use rand::rngs::Xoshiro256PlusPlus;
use tally::Tally;

/// How long a target runs unless `HOLDFAST_FUZZ_MS` says otherwise, milliseconds.
const MILLIS_DEFAULT: u64 = 1_000;

/// Runs `run` to its end on this thread, in virtual time, which advances while all tasks wait.
pub fn on_virtual_time<T>(run: impl Future<Output = T>) -> T {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    runtime.enable_time().start_paused(true).build().expect("a runtime without I/O").block_on(run)
}

/// What came of one input, as far as it tells it from others.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Outcome {
    accepted: bool,
    words: String,
}

impl Outcome {
    /// It was what the decoder reads, and was taken in.
    pub fn accepted() -> Self {
        Self::came_to("")
    }

    /// It was taken in, and this kind of thing came of it.
    pub fn came_to(kind: impl Into<String>) -> Self {
        Self { accepted: true, words: kind.into() }
    }

    /// It was refused. Told from other refusals by the first words of the error, not by the names
    /// and numbers in it.
    pub fn refused(error: &impl Display) -> Self {
        Self { accepted: false, words: first_words(&error.to_string()) }
    }

    /// [`accepted`](Self::accepted) or [`refused`](Self::refused).
    pub fn of<T, E: Display>(result: &Result<T, E>) -> Self {
        result.as_ref().map_or_else(|error| Self::refused(error), |_| Self::accepted())
    }
}

/// What tells a text from others of its kind.
fn first_words(text: &str) -> String {
    const WORDS: usize = 6;
    let words = text.split(|c: char| !c.is_ascii_alphabetic()).filter(|word| !word.is_empty());
    words.take(WORDS).collect::<Vec<_>>().join(" ")
}

/// How much a target may allocate at any one time.
#[derive(Clone, Copy, Debug)]
struct Memory {
    per_byte: u64,
    besides: u64,
}

/// One decoder under fire.
#[derive(Debug)]
pub struct Target {
    name: &'static str,
    seeds: Vec<Vec<u8>>,
    memory: Option<Memory>,
}

impl Target {
    /// A target of this name, with `seeds` to mutate: valid encodings, small ones.
    pub fn new(name: &'static str, seeds: impl IntoIterator<Item = Vec<u8>>) -> Self {
        Self { name, seeds: seeds.into_iter().collect(), memory: None }
    }

    /// No input may make the target hold more memory at a time than `per_byte` times its length and
    /// `besides`, bytes.
    #[must_use]
    pub fn memory(self, per_byte: u64, besides: u64) -> Self {
        Self { memory: Some(Memory { per_byte, besides }), ..self }
    }

    /// Runs `target` until the time is over, and prints a line that says what was done.
    ///
    /// # Panics
    ///
    /// An input made the target panic, in a task of the same thread too, or allocate too much: it is kept, and named. No seed was
    /// accepted: then the run would try nothing but the first check.
    pub fn run(self, mut target: impl FnMut(&[u8]) -> Outcome) {
        panics::count();
        let seed = rand_seed();
        println!("fuzz {}: HOLDFAST_SEED={seed}", self.name);
        let begun = Instant::now();
        let mut tally = Tally::default();
        for (path, bytes) in cases::read(self.name) {
            println!("fuzz {}: again {}", self.name, path.display());
            tally.add(&bytes, self.once(&mut target, &bytes));
        }
        self.try_seeds(&mut target, &mut tally);
        let mut corpus = Corpus::new(self.seeds.clone());
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed);
        let length = length();
        while begun.elapsed() < length {
            let bytes = mutate::mutate(&corpus, &mut rng);
            if tally.add(&bytes, self.once(&mut target, &bytes)) {
                corpus.add(bytes);
            }
        }
        println!("fuzz {}: {tally} in {} ms", self.name, begun.elapsed().as_millis());
    }

    fn try_seeds(&self, target: &mut impl FnMut(&[u8]) -> Outcome, tally: &mut Tally) {
        let mut accepted = false;
        for bytes in &self.seeds {
            let seen = self.once(target, bytes);
            accepted |= seen.outcome.accepted;
            tally.add(bytes, seen);
        }
        assert!(accepted, "fuzz {}: no seed is what the decoder reads", self.name);
    }

    /// Hands one input to the target. What brings it down is kept before the panic goes on.
    fn once(&self, target: &mut impl FnMut(&[u8]) -> Outcome, bytes: &[u8]) -> Seen {
        let mut caught = None;
        let before = panics::of_this_thread();
        let used = measure(|| caught = Some(catch_unwind(AssertUnwindSafe(|| target(bytes)))));
        match caught.expect("measure runs its closure") {
            Ok(outcome) => {
                self.check_panics(bytes, panics::of_this_thread() - before);
                self.check_memory(bytes, used.bytes_max);
                Seen { outcome, bytes_max: used.bytes_max }
            }
            Err(panic) => {
                let path = cases::keep(self.name, bytes);
                println!("fuzz {}: the input is kept in {}", self.name, path.display());
                resume_unwind(panic);
            }
        }
    }

    /// A task that panics is silent but for the hook: its runtime goes on.
    fn check_panics(&self, bytes: &[u8], panics: u64) {
        if panics > 0 {
            let path = cases::keep(self.name, bytes);
            panic!("fuzz {}: a task panicked, see above; kept in {}", self.name, path.display());
        }
    }

    fn check_memory(&self, bytes: &[u8], used: u64) {
        let Some(Memory { per_byte, besides }) = self.memory else { return };
        let allowed = per_byte.saturating_mul(bytes.len() as u64).saturating_add(besides);
        if used > allowed {
            let path = cases::keep(self.name, bytes);
            let (name, len) = (self.name, bytes.len());
            panic!(
                "fuzz {name}: an input of {len} bytes made it allocate {used}, {allowed} are \
                 allowed; it is kept in {}",
                path.display()
            );
        }
    }
}

/// What was seen of one input.
struct Seen {
    outcome: Outcome,
    bytes_max: u64,
}

fn rand_seed() -> u64 {
    let given = std::env::var("HOLDFAST_SEED").ok();
    given.map_or_else(rand::random, |seed| seed.parse().expect("HOLDFAST_SEED is a number"))
}

fn length() -> Duration {
    let given = std::env::var("HOLDFAST_FUZZ_MS").ok();
    let millis = given.map_or(MILLIS_DEFAULT, |ms| ms.parse().expect("a number of milliseconds"));
    Duration::from_millis(millis)
}
