//! A server: what it keeps in memory while it believes that it leads.

use super::row::{Mode, Operation, Row};

/// A right, or a wait, that belongs to an epoch; `left` ticks of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Term {
    pub(crate) epoch: u8,
    pub(crate) left: u8,
}

impl Term {
    /// None, when nothing is left of it.
    pub(crate) fn right(epoch: u8, left: u8) -> Self {
        if left == 0 { Self::default() } else { Self { epoch, left } }
    }

    pub(crate) fn grow_older(&mut self) {
        *self = Self::right(self.epoch, self.left.saturating_sub(1));
    }
}

/// A bump whose outcome was never heard; kept only where a rule is missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Unsettled {
    pub(crate) to: Row,
    pub(crate) age: u8,
}

/// One server. Nothing of this survives a restart, a deposition that it learned of, or an election.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Server {
    /// It believes so.
    pub(crate) leads: bool,
    /// It is deposed, and may have had its quorum round for one more write just before.
    pub(crate) may_write_once: bool,
    pub(crate) operation: Operation,
    /// The row as it knows it, from an answer and not from a guess; its next CAS names this.
    pub(crate) view: Option<Row>,
    pub(crate) authority: Term,
    /// What is left to wait before the core's epoch is raised to this one.
    pub(crate) due: Option<Term>,
    pub(crate) unsettled: Option<Unsettled>,
    /// Its bumps in a row found a longer W than its own, and nobody else wrote in between: what is left to wait before it
    /// may shorten that.
    pub(crate) alone: Option<u8>,
}

impl Server {
    pub(crate) fn elected() -> Self {
        Self { leads: true, ..Self::default() }
    }

    pub(crate) fn has_authority(&self) -> bool {
        self.authority.left > 0
    }

    /// It knows the row now; `wait` is what it owes if that is native above the core's epoch. A
    /// wait for that epoch that is running goes on.
    pub(crate) fn learn(&mut self, row: Row, core_epoch: u8, wait: u8) {
        self.view = Some(row);
        let owes = row.mode == Mode::Native && row.epoch > core_epoch;
        let running = self.due.filter(|due| due.epoch == row.epoch);
        let due = running.unwrap_or(Term { epoch: row.epoch, left: wait });
        self.due = owes.then_some(due);
    }

    /// A tick passes. A machine that was suspended, and has the wrong clock, does not count it.
    pub(crate) fn grow_older(&mut self, longest: u8, suspended: bool) {
        if suspended {
            return;
        }
        self.operation.grow_older(longest);
        self.authority.grow_older();
        self.alone = self.alone.map(|left| left.saturating_sub(1));
        if let Some(due) = &mut self.due {
            due.left = due.left.saturating_sub(1);
        }
        if let Some(unsettled) = &mut self.unsettled {
            unsettled.age = longest.min(unsettled.age + 1);
        }
    }
}
