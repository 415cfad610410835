//! Which commands may wait to be proposed, by count and by bytes.
//!
//! ```text
//!              of all that waits                      of one session
//!   asks       seven eighths of the limits            a quarter of that
//!   frees      the last eighth, then one more for     a quarter of that, then the same
//!              each lock and request that its session has
//!   the        never refused for load
//!   leader's
//! ```
//!
//! What frees shrinks the load, so load never refuses it: a refused release is only sent again, and
//! a refused expiry keeps a lock from those who wait for it.
//!
//! # Bounds
//!
//! - What asks: [`Bounds`], less the eighth kept for what frees. One command alone always fits.
//! - What frees: the kept eighth; then as much as there can be to free, which is one command of at
//!   most [`FREE_BYTES`] for each lock that the table says a session holds, for each other request that
//!   the table or the queue has of it, and one more for its end. A session that sends more than that
//!   repeats itself: the refusal reaches it alone.
//! - A value that is cleared or confirmed asks, although it takes no room at the disk: there may be any
//!   number of them for one lock, and they would take the places of its release.
//! - The leader's own: one expiry a session, one end of a wait for each call that waits
//!   (`max_waiting_calls`), one step a scope, one change of limits.

use std::collections::BTreeMap;

use holdfast_core::{Command, SessionId, ValueChange};
use holdfast_mutants::mutant;

use super::proposer::MAX_BATCH_BYTES;
use crate::error::ProposeError;

/// One in so many places, and of so many bytes, is kept for what frees.
const KEPT: usize = 8;
/// One session may take one in so many of the places of a kind: four that flood the queue at once
/// still find the fifth served.
const SHARE: usize = 4;
/// Most bytes of a command that frees and waits beyond the kept part: any cancel, any release of a
/// whole grant, and any of one name (512 bytes).
const FREE_BYTES: usize = 1_024;

/// What all commands that wait may take together.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    pub(super) commands: usize,
    pub(super) bytes: usize,
}

/// What a command does to the load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Takes new room.
    Asks,
    /// Takes no new room, or gives some back.
    Frees,
    /// The same, and the leader itself proposes it.
    Own,
}

impl Kind {
    fn of(command: &Command) -> Self {
        match command {
            // A scope that is neither suspended nor resumed in time serves nobody.
            Command::Configure { .. }
            | Command::LimitTable { .. }
            | Command::ExpireSession { .. }
            | Command::StopWaiting { .. }
            | Command::Suspend { .. }
            | Command::Resume { .. }
            | Command::RaiseEpoch { .. } => Self::Own,
            Command::CloseSession { .. } | Command::Cancel { .. } | Command::Release { .. } => {
                Self::Frees
            }
            Command::OpenSession { .. }
            | Command::Acquire { .. }
            | Command::SetValue { .. }
            | Command::Import { .. }
            | Command::Claim { .. }
            | Command::SetScope { .. }
            | Command::RemoveScope { .. } => Self::Asks,
        }
    }
}

/// Whether a command takes no new room at the disk, or gives some back. To load some of these add like
/// all.
pub(super) fn frees(command: &Command) -> bool {
    match command {
        // A scope that is removed is granted in no more than before.
        Command::RemoveScope { .. }
        | Command::SetValue { change: ValueChange::Clear | ValueChange::Confirm, .. } => true,
        command => Kind::of(command) != Kind::Asks,
    }
}

/// Whose request a command is; `None`: nobody's who has a session.
fn session_of(command: &Command) -> Option<SessionId> {
    match command {
        Command::CloseSession { session }
        | Command::ExpireSession { session, .. }
        | Command::Acquire { session, .. }
        | Command::Cancel { session, .. }
        | Command::Release { session, .. }
        | Command::SetValue { session, .. }
        | Command::StopWaiting { session, .. }
        | Command::Claim { session, .. } => Some(*session),
        Command::Configure { .. }
        | Command::LimitTable { .. }
        | Command::OpenSession { .. }
        | Command::Import { .. }
        | Command::SetScope { .. }
        | Command::RemoveScope { .. }
        | Command::Suspend { .. }
        | Command::Resume { .. }
        | Command::RaiseEpoch { .. } => None,
    }
}

/// What one command weighs while it waits.
#[derive(Clone, Copy, Debug)]
pub(super) struct Weight {
    kind: Kind,
    session: Option<SessionId>,
    pub(super) bytes: usize,
}

impl Weight {
    pub(super) fn of(command: &Command) -> Self {
        // What cannot be measured counts as large; the log store has the last word.
        let bytes = borsh::object_length(command).unwrap_or(MAX_BATCH_BYTES);
        let kind = match Kind::of(command) {
            Kind::Frees if mutant!(ReleaseRefusedForLoad) => Kind::Asks,
            kind => kind,
        };
        Self { kind, session: session_of(command), bytes }
    }
}

/// So many commands of so many bytes wait.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Load {
    commands: usize,
    bytes: usize,
}

impl Load {
    fn add(&mut self, bytes: usize) {
        self.commands += 1;
        self.bytes += bytes;
    }

    fn remove(&mut self, bytes: usize) {
        self.commands = self.commands.saturating_sub(1);
        self.bytes = self.bytes.saturating_sub(bytes);
    }

    /// Which of the bounds one more command would pass. Where nothing waits it passes none.
    fn passed_by(self, bytes: usize, bounds: Bounds) -> Option<Passed> {
        if self.commands == 0 {
            None
        } else if self.commands >= bounds.commands {
            Some(Passed::Commands)
        } else if self.bytes.saturating_add(bytes) > bounds.bytes {
            Some(Passed::Bytes)
        } else {
            None
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Passed {
    Commands,
    Bytes,
}

/// What waits of one session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct OfSession {
    asks: Load,
    frees: Load,
}

/// What waits, and whether more may.
///
/// # Invariants
///
/// - Whatever [`Admission::enter`] counted is counted until [`Admission::leave`], under the same
///   weight, or [`Admission::clear`].
/// - A session is in the map exactly while something of it waits.
#[derive(Debug)]
pub(super) struct Admission {
    bounds: Bounds,
    asks: Load,
    frees: Load,
    own: Load,
    sessions: BTreeMap<SessionId, OfSession>,
}

impl Admission {
    pub(super) fn new(bounds: Bounds) -> Self {
        let (asks, frees, own) = (Load::default(), Load::default(), Load::default());
        Self { bounds, asks, frees, own, sessions: BTreeMap::new() }
    }

    /// How many bytes wait.
    pub(super) fn bytes(&self) -> usize {
        self.asks.bytes + self.frees.bytes + self.own.bytes
    }

    /// Why a command may not wait; `None`: it may. `steps_of` says in how many steps a session can give
    /// back what the table has of it.
    pub(super) fn refusal(
        &self,
        weight: Weight,
        steps_of: impl FnOnce(SessionId) -> usize,
    ) -> Option<ProposeError> {
        match weight.kind {
            Kind::Asks => self.refusal_of_ask(weight),
            Kind::Frees => self.refusal_of_free(weight, steps_of),
            Kind::Own => None,
        }
    }

    fn refusal_of_ask(&self, weight: Weight) -> Option<ProposeError> {
        let bounds = self.bounds.less_kept();
        let Bounds { commands, bytes } = self.bounds;
        match self.asks.passed_by(weight.bytes, bounds) {
            Some(Passed::Commands) => return Some(ProposeError::Overloaded { limit: commands }),
            Some(Passed::Bytes) => return Some(ProposeError::OverloadedBytes { limit: bytes }),
            None => {}
        }
        let session = weight.session?;
        let share = bounds.share();
        let passed = self.of(session).asks.passed_by(weight.bytes, share)?;
        Some(over_share(session, passed, share))
    }

    fn refusal_of_free(
        &self,
        weight: Weight,
        steps_of: impl FnOnce(SessionId) -> usize,
    ) -> Option<ProposeError> {
        let kept = self.bounds.kept();
        let session = weight.session?;
        let own = self.of(session);
        let fits_in_all = self.frees.passed_by(weight.bytes, kept).is_none();
        let passed = own.frees.passed_by(weight.bytes, kept.share());
        if fits_in_all && passed.is_none() {
            return None;
        }
        // As much as it can have to free: each lock and request of it once, and itself.
        let to_free = steps_of(session).saturating_add(own.asks.commands + 1);
        if own.frees.commands < to_free && weight.bytes <= FREE_BYTES {
            return None;
        }
        let share = Bounds { commands: to_free, ..kept.share() };
        Some(over_share(session, passed.unwrap_or(Passed::Commands), share))
    }

    fn of(&self, session: SessionId) -> OfSession {
        self.sessions.get(&session).copied().unwrap_or_default()
    }

    /// A command waits from here on.
    pub(super) fn enter(&mut self, weight: Weight) {
        self.load_of(weight.kind).add(weight.bytes);
        // The leader's own commands about a session take nothing of what its client may send.
        if let Some(session) = weight.session.filter(|_| weight.kind != Kind::Own) {
            self.sessions.entry(session).or_default().load_of(weight.kind).add(weight.bytes);
        }
    }

    /// It waits no more.
    pub(super) fn leave(&mut self, weight: Weight) {
        self.load_of(weight.kind).remove(weight.bytes);
        if let Some(session) = weight.session.filter(|_| weight.kind != Kind::Own)
            && let Some(own) = self.sessions.get_mut(&session)
        {
            own.load_of(weight.kind).remove(weight.bytes);
            if *own == OfSession::default() {
                self.sessions.remove(&session);
            }
        }
    }

    /// Nothing waits any more.
    pub(super) fn clear(&mut self) {
        *self = Self::new(self.bounds);
    }

    fn load_of(&mut self, kind: Kind) -> &mut Load {
        match kind {
            Kind::Asks => &mut self.asks,
            Kind::Frees => &mut self.frees,
            Kind::Own => &mut self.own,
        }
    }
}

impl OfSession {
    fn load_of(&mut self, kind: Kind) -> &mut Load {
        if kind == Kind::Asks { &mut self.asks } else { &mut self.frees }
    }
}

impl Bounds {
    /// What is kept for what frees.
    fn kept(self) -> Self {
        Self { commands: self.commands / KEPT, bytes: self.bytes / KEPT }
    }

    fn less_kept(self) -> Self {
        let kept = self.kept();
        Self { commands: self.commands - kept.commands, bytes: self.bytes - kept.bytes }
    }

    /// What one session may take of it.
    fn share(self) -> Self {
        Self { commands: self.commands.div_ceil(SHARE), bytes: self.bytes.div_ceil(SHARE) }
    }
}

fn over_share(session: SessionId, passed: Passed, share: Bounds) -> ProposeError {
    match passed {
        Passed::Commands => ProposeError::SessionOverloaded { session, limit: share.commands },
        Passed::Bytes => ProposeError::SessionOverloadedBytes { session, limit: share.bytes },
    }
}
