//! Core dumps of programs that hold keys, tokens and secrets of sessions.

use rustix::process::{DumpableBehavior, set_dumpable_behavior};

/// Keeps the memory of this process out of core dumps, also of those that the system hands to a program: there the
/// limit of their size does not count (core(5)).
///
/// From then on only root can trace this process or read its memory. What it starts is not bound by this: for `main`
/// of a program, and never for a library.
pub fn forbid() {
    // The system knows this value, and a program that it refused would serve all the same.
    let _ = set_dumpable_behavior(DumpableBehavior::NotDumpable);
}
