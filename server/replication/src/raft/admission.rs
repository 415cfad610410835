//! Which commands may wait to be proposed, by count and by bytes.
//!
//! ```text
//!              of all that waits                      of one session
//!   asks       seven eighths of the limits            a quarter of that
//!   frees      the last eighth, then as much as       a quarter of that, then the same
//!              its session has to free
//!   the        never refused for load
//!   leader's
//! ```
//!
//! Commands that free shrink the load, so load never refuses them: a client would only send a
//! refused release again, and a refused expiry withholds a lock from its waiters.
//!
//! # Bounds
//!
//! - Asks: [`Bounds`], less the eighth reserved for commands that free. One command alone always
//!   fits.
//! - Frees: the reserved eighth, then as much as there can be to free, each in a command of at most
//!   [`FREE_BYTES`]: of what the table shows of a session, one for each lock and each other request,
//!   and one more for its end; of what it does not show yet, one for each request of the session that
//!   waits here or is in an entry on its way. The two are counted apart: a client that gives up waits
//!   which load has refused cancels them before it hears that, and its release has its place all the
//!   same. A session that sends more than this repeats itself, or cancels what does not exist; it is
//!   refused, and told whether it or all sessions together fill the reserved eighth.
//! - Clearing or confirming a value counts as asking, although it takes no room on the disk: there
//!   may be any number of them for one lock, and they would take the places of its release.
//! - The leader's own: one expiry a session, one end of a wait for each waiting call
//!   (`max_waiting_calls`), one step a scope, one change of limits, one that carries on work.

use std::collections::BTreeMap;

use holdfast_core::{Ask, Command, Deed, RuleChange, SessionId, ValueChange};
use holdfast_mutants::mutant;

use super::proposer::MAX_BATCH_BYTES;
use crate::error::ProposeError;

/// One in this many places, and bytes, is reserved for commands that free.
const KEPT: usize = 8;
/// One session may take one in this many of the places of a kind: when four sessions flood the
/// queue, the fifth is still served.
const SHARE: usize = 4;
/// Most bytes of a command that frees and waits beyond the reserved part: any cancel, any release
/// of a whole grant, and any of one name (512 bytes).
const FREE_BYTES: usize = 1_024;

/// The bounds of all waiting commands together.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    pub(super) commands: usize,
    pub(super) bytes: usize,
}

/// How a command changes the load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Takes new room.
    Asks,
    /// Takes no new room, or gives some back.
    Frees,
    /// The same, proposed by the leader itself.
    Own,
}

impl Kind {
    fn of(command: &Command) -> Self {
        match command {
            // A scope whose suspension or resumption is late serves no client.
            Command::Configure { .. }
            | Command::LimitTable { .. }
            | Command::LimitWork { .. }
            | Command::CarryOn
            | Command::GrantAgain
            | Command::BeginTokens { .. }
            | Command::ExpireSession { .. }
            | Command::EndClosed { .. }
            | Command::EndLongHold { .. }
            | Command::OpenLock { .. }
            | Command::StopWaiting { .. }
            | Command::Suspend { .. }
            | Command::Resume { .. }
            | Command::RaiseEpoch { .. } => Self::Own,
            Command::CloseSession { .. }
            | Command::Cancel { .. }
            | Command::Release { .. }
            | Command::ReleaseLost { .. } => Self::Frees,
            Command::OpenSession { .. }
            | Command::Acquire { .. }
            | Command::AcquireOn(_)
            | Command::SetValue { .. }
            | Command::Import { .. }
            | Command::Claim { .. }
            | Command::SetScope { .. }
            | Command::RemoveScope { .. }
            | Command::By { .. } => Self::Asks,
        }
    }
}

/// Whether a command takes no new room on the disk, or gives some back. The load counts some of
/// these as asking.
pub(super) fn frees(command: &Command) -> bool {
    match command {
        // Removing a scope or a limit grants no more than before.
        Command::RemoveScope { .. }
        | Command::By {
            deed:
                Deed::RemoveScope { .. }
                | Deed::EndSession { .. }
                | Deed::CutOff { .. }
                | Deed::CloseHolds { .. }
                | Deed::Thaw { .. }
                | Deed::SetLimit { limit: None, .. },
            ..
        }
        | Command::SetValue { change: ValueChange::Clear | ValueChange::Confirm, .. } => true,
        // An operator keeps an identity out, disk or no disk.
        Command::By { deed: Deed::Rule { change }, .. } => matches!(
            change,
            RuleChange::RevokeToken { .. }
                | RuleChange::RemoveRole { .. }
                | RuleChange::Turn { .. }
        ),
        command => Kind::of(command) != Kind::Asks,
    }
}

/// The session whose request a command is; `None` if no session sent it.
fn session_of(command: &Command) -> Option<SessionId> {
    match command {
        Command::CloseSession { session }
        | Command::ExpireSession { session, .. }
        | Command::EndClosed { session, .. }
        | Command::EndLongHold { session, .. }
        | Command::Acquire { session, .. }
        | Command::AcquireOn(Ask { session, .. })
        | Command::Cancel { session, .. }
        | Command::Release { session, .. }
        | Command::ReleaseLost { session, .. }
        | Command::SetValue { session, .. }
        | Command::StopWaiting { session, .. }
        | Command::Claim { session, .. } => Some(*session),
        Command::Configure { .. }
        | Command::LimitTable { .. }
        | Command::LimitWork { .. }
        | Command::CarryOn
        | Command::GrantAgain
        | Command::BeginTokens { .. }
        | Command::OpenLock { .. }
        | Command::OpenSession { .. }
        | Command::Import { .. }
        | Command::SetScope { .. }
        | Command::RemoveScope { .. }
        | Command::Suspend { .. }
        | Command::Resume { .. }
        | Command::RaiseEpoch { .. }
        | Command::By { .. } => None,
    }
}

/// The weight of one command while it waits.
#[derive(Clone, Copy, Debug)]
pub(super) struct Weight {
    kind: Kind,
    session: Option<SessionId>,
    /// The table shows what it frees.
    is_shown: bool,
    pub(super) bytes: usize,
}

impl Weight {
    /// `is_shown`: the table shows what the command frees.
    pub(super) fn of(command: &Command, is_shown: bool) -> Self {
        // A command that cannot be measured counts as large; the log store decides in the end.
        let bytes = borsh::object_length(command).unwrap_or(MAX_BATCH_BYTES);
        let kind = match Kind::of(command) {
            Kind::Frees if mutant!(ReleaseRefusedForLoad) => Kind::Asks,
            Kind::Asks if mutant!(ConfirmsCountAsFreeing) && frees(command) => Kind::Frees,
            kind => kind,
        };
        let is_shown = is_shown || mutant!(CancelsCrowdReleases) || mutant!(ConfirmsCountAsFreeing);
        Self { kind, session: session_of(command), is_shown, bytes }
    }

    fn frees_what_is_shown(self) -> bool {
        self.kind == Kind::Frees && self.is_shown
    }
}

/// A number of waiting commands and their bytes.
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

    /// The bound that one more command would pass. An empty queue passes none.
    fn passed_by(self, bytes: usize, bounds: Bounds) -> Option<Passed> {
        if self.commands == 0 {
            None
        } else if self.commands >= bounds.commands {
            Some(Passed::Commands)
        } else if self.bytes.saturating_add(bytes) > bounds.bytes
            && !mutant!(PendingBytesNotCounted)
        {
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

/// The commands of one session that wait, or are in an entry on its way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct OfSession {
    asks: Load,
    frees: Load,
    /// Those of `frees` that free what the table shows.
    frees_shown: usize,
    /// Those that ask and are on their way.
    asks_away: usize,
}

/// Counts the waiting commands, and decides whether one more may wait.
///
/// # Invariants
///
/// - What [`Admission::enter`] counted stays counted until [`Admission::leave`] or
///   [`Admission::depart`] with the same weight, or [`Admission::clear`].
/// - A session is in the map exactly while a command of it waits, or one that asks is on its way.
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

    /// Why a command may not wait; `None` if it may. `steps_of` returns the number of steps in
    /// which a session can give back what the table has of it.
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
        if let Some(passed) = self.asks.passed_by(weight.bytes, bounds) {
            return Some(self.over_all(passed));
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
        let by_all = self.frees.passed_by(weight.bytes, kept);
        let by_session = own.frees.passed_by(weight.bytes, kept.share());
        if by_all.is_none() && by_session.is_none() {
            return None;
        }
        // As much as the session can have to free: each of its locks and requests once, and itself.
        let to_free = if weight.is_shown {
            steps_of(session).saturating_add(1)
        } else {
            own.asks.commands + own.asks_away
        };
        if own.waiting(weight.is_shown) < to_free && weight.bytes <= FREE_BYTES {
            return None;
        }
        let share = Bounds { commands: to_free.max(kept.share().commands), ..kept.share() };
        let of_session = by_session.map(|passed| over_share(session, passed, share));
        of_session.or_else(|| by_all.map(|passed| self.over_all(passed)))
    }

    fn over_all(&self, passed: Passed) -> ProposeError {
        match passed {
            Passed::Commands => ProposeError::Overloaded { limit: self.bounds.commands },
            Passed::Bytes => ProposeError::OverloadedBytes { limit: self.bounds.bytes },
        }
    }

    fn of(&self, session: SessionId) -> OfSession {
        self.sessions.get(&session).copied().unwrap_or_default()
    }

    /// Counts a command that begins to wait.
    pub(super) fn enter(&mut self, weight: Weight) {
        self.load_of(weight.kind).add(weight.bytes);
        // The leader's own commands about a session take no share of its client's.
        if let Some(session) = weight.session.filter(|_| weight.kind != Kind::Own) {
            self.sessions.entry(session).or_default().add(weight);
        }
    }

    /// Removes a command that waits no more, and will not be proposed.
    pub(super) fn leave(&mut self, weight: Weight) {
        self.load_of(weight.kind).remove(weight.bytes);
        if let Some(session) = weight.session.filter(|_| weight.kind != Kind::Own) {
            self.change(session, |own| own.remove(weight));
        }
    }

    /// Removes a command that is proposed now. The session it returns is to be given to
    /// [`Admission::landed`] when the entry has landed.
    pub(super) fn depart(&mut self, weight: Weight) -> Option<SessionId> {
        let asks = weight.session.filter(|_| weight.kind == Kind::Asks);
        if let Some(session) = asks {
            self.change(session, |own| own.asks_away += 1);
        }
        self.leave(weight);
        asks
    }

    /// A command that asks, and was on its way, is applied or given up.
    pub(super) fn landed(&mut self, session: SessionId) {
        self.change(session, |own| own.asks_away = own.asks_away.saturating_sub(1));
    }

    fn change(&mut self, session: SessionId, change: impl FnOnce(&mut OfSession)) {
        if let Some(own) = self.sessions.get_mut(&session) {
            change(own);
            if *own == OfSession::default() {
                self.sessions.remove(&session);
            }
        }
    }

    /// Removes all commands.
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
    /// How many commands wait that free what the table shows, or what it does not show.
    fn waiting(self, is_shown: bool) -> usize {
        if is_shown {
            self.frees_shown
        } else {
            self.frees.commands.saturating_sub(self.frees_shown)
        }
    }

    fn add(&mut self, weight: Weight) {
        self.load_of(weight.kind).add(weight.bytes);
        self.frees_shown += usize::from(weight.frees_what_is_shown());
    }

    fn remove(&mut self, weight: Weight) {
        self.load_of(weight.kind).remove(weight.bytes);
        self.frees_shown -= usize::from(weight.frees_what_is_shown()).min(self.frees_shown);
    }

    fn load_of(&mut self, kind: Kind) -> &mut Load {
        if kind == Kind::Asks { &mut self.asks } else { &mut self.frees }
    }
}

impl Bounds {
    /// The part that is reserved for commands that free.
    fn kept(self) -> Self {
        Self { commands: self.commands / KEPT, bytes: self.bytes / KEPT }
    }

    fn less_kept(self) -> Self {
        let kept = self.kept();
        Self { commands: self.commands - kept.commands, bytes: self.bytes - kept.bytes }
    }

    /// The share that one session may take.
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
