//! The clients: of the native store, and of Cassandra while that serves.

use super::row::{Mode, Operation, Row};
use super::server::Term;

/// A fencing token. The number begins anew with each epoch: so it says least.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Token {
    pub(crate) epoch: u8,
    pub(crate) number: u8,
}

impl Token {
    /// The next one drawn in `epoch`. One of an earlier epoch has the higher number, too.
    pub(crate) fn drawn_in(self, epoch: u8) -> Self {
        let number = if epoch > self.epoch { 1 } else { self.number + 1 };
        Self { epoch, number }
    }
}

/// A keepalive that is under way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) enum KeepAlive {
    #[default]
    None,
    /// `age` is counted by the client, in ticks since it sent it.
    Sent { age: u8 },
    /// What remains of the authority, counted from when it was sent.
    Answered(Term),
}

/// A client that can reach a server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Native {
    /// A grant that is on its way.
    pub(crate) granted: Option<Token>,
    pub(crate) guard: Option<Token>,
    pub(crate) keep_alive: KeepAlive,
    /// The authority that covers it, of one epoch.
    pub(crate) cover: Term,
}

impl Native {
    pub(crate) fn receive(&mut self) {
        self.guard = self.granted.take();
    }

    /// What was answered is heard: the newer authority covers, or of one epoch the longer one.
    pub(crate) fn cover(&mut self) {
        let KeepAlive::Answered(new) = std::mem::take(&mut self.keep_alive) else { return };
        let newer = new.epoch != self.cover.epoch || new.left > self.cover.left;
        if new.left > 0 && newer {
            self.cover = new;
        }
    }

    /// A tick passes; one who counts from the receipt of an answer does not see that it grows old.
    pub(crate) fn grow_older(&mut self, longest: u8, from_receipt: bool) {
        self.cover.grow_older();
        match &mut self.keep_alive {
            KeepAlive::Sent { age } => *age = longest.min(*age + 1),
            KeepAlive::Answered(cover) if !from_receipt => cover.grow_older(),
            KeepAlive::None | KeepAlive::Answered(_) => {}
        }
    }
}

/// A client that cannot reach a server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Fallback {
    pub(crate) operation: Operation,
    /// The row as it read it last.
    pub(crate) view: Option<Row>,
    /// What is left to wait before it takes over from that.
    pub(crate) wait: u8,
    /// How long that read lets it hold.
    pub(crate) left: u8,
    pub(crate) hold: Option<Token>,
}

impl Fallback {
    pub(crate) fn sees(&self, mode: Mode) -> bool {
        self.view.is_some_and(|row| row.mode == mode)
    }

    pub(crate) fn grow_older(&mut self, longest: u8) {
        self.operation.grow_older(longest);
        self.wait = self.wait.saturating_sub(1);
        self.left = self.left.saturating_sub(1);
    }

    pub(crate) fn take_over(&mut self) {
        if let Some(row) = self.view {
            let to = Row { mode: Mode::Cassandra, epoch: row.epoch + 1, beat: 0, ..row };
            self.operation = Operation::cas(row, to);
        }
    }
}
