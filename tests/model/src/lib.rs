//! Two small models. Here, the rules of time (DESIGN §5), searched whole: no client believes that it
//! holds a lock after its session's expiry was committed. In [`authority`], how two stores that do not
//! know each other hand a scope to and fro (DESIGN §10).
//!
//! # The rules of time
//!
//! Three nodes, client X whose session holds, client Y that waits. The model knows terms, logs, commits and
//! what a leader keeps in memory; the client knows its safe deadline. Y is granted when an
//! effective `ExpireSession` of X's session is committed. In a bad state it is, and X is still safe.
//!
//! # What is left out, and why that is no hole
//!
//! - Time is a tick for all: the clocks run alike. What differs between them is the allowance's
//!   business (§5.4), which the simulator covers. All timers are relative, so that time has no end.
//! - Every action may be taken or not, so that any process may pause for any time between any two of
//!   its steps, and any message may be late or lost.
//! - A question of a quorum round and its answer are two messages, and two such pairs may be under way
//!   at a time; each may be late for any time, overtake the other, or be lost. Any other exchange
//!   between two nodes happens at one instant; what comes of it is used at any time later. An append
//!   carries the whole log of its leader. An election is one step, with one vote
//!   besides the candidate's own: a quorum of three.
//! - What a follower has applied is not kept: it matters only to the leader, which serves
//!   nothing before it has applied an entry of its own.
//! - Nodes have no names: of states that differ in the names only, one is looked at.

pub mod authority;
mod node;
mod rule;
#[cfg(test)]
mod tests;
mod world;

pub use rule::Rule;
pub use world::{Action, Bounds, State, World};

/// Name of the property that holds in every state.
pub const EXCLUSIVE: &str = "nobody is granted what another one is sure to hold";
