//! The authority row, and an operation on it that is under way.

/// Which store serves the scope.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Mode {
    #[default]
    Native,
    Cassandra,
    Draining,
}

/// The row. The beat begins anew with each epoch: so it says least. V is the same for all, and of W there are two at most.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Row {
    pub(crate) mode: Mode,
    pub(crate) epoch: u8,
    pub(crate) beat: u8,
    /// W is that of [`Bounds::longer`](super::Bounds::longer).
    pub(crate) longer: bool,
}

impl Row {
    pub(crate) fn bumped(self) -> Self {
        Self { beat: self.beat + 1, ..self }
    }

    /// Whether a hold under a token of `epoch` may go on.
    pub(crate) fn extends(self, epoch: u8) -> bool {
        match self.mode {
            Mode::Native => false,
            Mode::Cassandra => self.epoch == epoch,
            Mode::Draining => self.epoch == epoch + 1,
        }
    }
}

/// A conditional write: mode, epoch and beat must be as in `from`. (W need not be asked for: it changes with a beat.)
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Cas {
    pub(crate) from: Row,
    pub(crate) to: Row,
}

impl Cas {
    pub(crate) fn is_bump(self) -> bool {
        self.from.epoch == self.to.epoch
    }

    pub(crate) fn is_return(self) -> bool {
        self.from.mode == Mode::Draining && self.to.mode == Mode::Native
    }

    pub(crate) fn is_take_over(self) -> bool {
        self.to.mode == Mode::Cassandra
    }
}

/// What a process asked Cassandra for; `age` is counted by the process, in ticks since it asked.
/// It was carried out once `seen` or `applied` is there, which is then on its way back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) enum Operation {
    #[default]
    None,
    Read {
        age: u8,
        seen: Option<Row>,
    },
    Cas {
        age: u8,
        cas: Cas,
        applied: Option<bool>,
    },
}

impl Operation {
    pub(crate) fn read() -> Self {
        Self::Read { age: 0, seen: None }
    }

    pub(crate) fn cas(from: Row, to: Row) -> Self {
        Self::Cas { age: 0, cas: Cas { from, to }, applied: None }
    }

    pub(crate) fn is_carried_out(self) -> bool {
        match self {
            Self::None => false,
            Self::Read { seen, .. } => seen.is_some(),
            Self::Cas { applied, .. } => applied.is_some(),
        }
    }

    pub(crate) fn grow_older(&mut self, longest: u8) {
        if let Self::Read { age, .. } | Self::Cas { age, .. } = self {
            *age = longest.min(*age + 1);
        }
    }
}
