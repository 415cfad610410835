//! Why something is not imported.

use holdfast_types::{TextError, VALUE_BYTES_MAX};

use super::LEASE_MAX_MS;
use crate::layout::NoText;

/// A row, or a lock, that is not imported.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The reason.
    pub reason: Reason,
    /// The lock's name, printable.
    pub lock: String,
    /// The owner of the cell, printable; `None`: the finding is about the lock.
    pub owner: Option<String>,
}

/// Why something is not imported. Some reasons are normal states of a recipe, whose rows are
/// skipped; the others say that rows contradict the recipe, or each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The native store does not allow the name.
    Name(TextError),
    /// The name is no text.
    NameIsNoText(NoText),
    /// The owner's id is empty.
    OwnerEmpty,
    /// An import does not take the owner's id.
    Owner(TextError),
    /// The owner's id is no text.
    OwnerIsNoText(NoText),
    /// The value is too long.
    ValueTooLong {
        /// Its length in bytes.
        len: usize,
    },
    /// More time is left than an import accepts.
    LeaseTooLong {
        /// What is left, milliseconds.
        left_ms: u64,
    },
    /// The row has no owner.
    NoOwner,
    /// The TTL has ended.
    Over,
    /// The owner waits for a lock whose holder is not imported.
    HolderLeftOut,
    /// The owner waits in a queue whose main row is empty and whose first place is not imported: the
    /// client of that place may take the lock.
    FirstLeftOut {
        /// The column of the first place, printable.
        first: String,
    },
    /// The same owner has an earlier place in line.
    SecondPlace,
    /// The thread tries to get the lock, and is not in line.
    Trying,
    /// The process is drawing a number, and has no place yet.
    Choosing,
    /// The process has the number 0: it is not in line.
    NotInLine,
    /// Several owners hold a lock that one can hold.
    SeveralHolders {
        /// How many.
        holders: usize,
    },
    /// The row has no TTL, so it would never end.
    NoTtl,
    /// The token's session has no heartbeat.
    NoHeartbeat,
    /// A queue's cell whose name is not 20 digits and a thread.
    PlaceUnreadable,
    /// A number that cannot be read.
    NumberUnreadable,
}

/// What a reason says of its row. A contradiction may omit a claim too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Weight {
    Contradicts,
    OmitsAClaim,
    Harmless,
}

impl Reason {
    /// Whether the rows contradict the recipe; otherwise they are only skipped.
    pub fn is_contradiction(&self) -> bool {
        self.weight() == Weight::Contradicts
    }

    /// Whether the omitted row may be a hold or a wait, which its owner then does not have
    /// natively. Rows that have ended, are not in line, or only try lose nothing.
    pub fn omits_a_claim(&self) -> bool {
        self.weight() != Weight::Harmless
    }

    fn weight(&self) -> Weight {
        match self {
            Self::SeveralHolders { .. }
            | Self::NoTtl
            | Self::NoHeartbeat
            | Self::PlaceUnreadable
            | Self::NumberUnreadable => Weight::Contradicts,
            Self::Name(_)
            | Self::NameIsNoText(_)
            | Self::OwnerEmpty
            | Self::Owner(_)
            | Self::OwnerIsNoText(_)
            | Self::ValueTooLong { .. }
            | Self::LeaseTooLong { .. }
            | Self::HolderLeftOut
            | Self::FirstLeftOut { .. } => Weight::OmitsAClaim,
            Self::NoOwner
            | Self::Over
            | Self::SecondPlace
            | Self::Trying
            | Self::Choosing
            | Self::NotInLine => Weight::Harmless,
        }
    }

    /// A stable code for programs; it never changes.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Name(_) | Self::NameIsNoText(_) => "name",
            Self::OwnerEmpty | Self::Owner(_) => "owner",
            Self::OwnerIsNoText(_) => "owner-not-text",
            Self::ValueTooLong { .. } => "value-too-long",
            Self::LeaseTooLong { .. } => "lease-too-long",
            Self::NoOwner => "nobody-holds",
            Self::Over => "over",
            Self::HolderLeftOut => "holder-left-out",
            Self::FirstLeftOut { .. } => "first-left-out",
            Self::SecondPlace => "second-place",
            Self::Trying => "trying",
            Self::Choosing => "choosing",
            Self::NotInLine => "not-in-line",
            Self::SeveralHolders { .. } => "several-holders",
            Self::NoTtl => "no-ttl",
            Self::NoHeartbeat => "no-heartbeat",
            Self::PlaceUnreadable => "place",
            Self::NumberUnreadable => "number",
        }
    }

    /// What all findings with this code have in common, for people.
    pub fn heading(&self) -> &'static str {
        match self {
            Self::Name(_) | Self::NameIsNoText(_) => "a name that the native store does not allow",
            Self::OwnerEmpty | Self::Owner(_) => "an owner's id that cannot be imported",
            Self::OwnerIsNoText(_) => "an owner's id that is no text",
            Self::ValueTooLong { .. } => "a value that is too long",
            Self::LeaseTooLong { .. } => "a lease that is too long",
            Self::NoOwner => "a row that says of nobody that he holds",
            Self::Over => "its TTL is over",
            Self::HolderLeftOut => "it waits for a lock whose holder is not imported",
            Self::FirstLeftOut { .. } => {
                "it waits for a free lock, and the first in the queue is not imported"
            }
            Self::SecondPlace => "a second place in line of one owner",
            Self::Trying => "it tries, and is not in line",
            Self::Choosing => "it is choosing a number, and has no place yet",
            Self::NotInLine => "its number is 0: it is not in line",
            Self::SeveralHolders { .. } => "several hold what one can hold",
            Self::NoTtl => "no TTL: it would never end",
            Self::NoHeartbeat => "a token whose session has no heartbeat",
            Self::PlaceUnreadable => "a place that is not 20 digits and a thread",
            Self::NumberUnreadable => "a number that is none",
        }
    }

    /// The details of this case; empty if the heading suffices.
    pub fn detail(&self) -> String {
        match self {
            Self::Name(fault) | Self::Owner(fault) => fault.to_string(),
            Self::NameIsNoText(fault) | Self::OwnerIsNoText(fault) => fault.to_string(),
            Self::OwnerEmpty => "empty".to_owned(),
            Self::ValueTooLong { len } => {
                format!("{len} bytes is longer than the {VALUE_BYTES_MAX} allowed")
            }
            Self::LeaseTooLong { left_ms } => {
                let [left, most] = [*left_ms, LEASE_MAX_MS].map(|ms| ms / 86_400_000);
                format!("{left} days is longer than the {most} allowed")
            }
            Self::SeveralHolders { holders } => format!("{holders} cells"),
            Self::FirstLeftOut { first } => format!(
                "\"{first}\" may take the lock in Cassandra: end its client or mend its cell, and once \
                 the cell is gone or mended, plan and import again"
            ),
            Self::NoOwner
            | Self::Over
            | Self::HolderLeftOut
            | Self::SecondPlace
            | Self::Trying
            | Self::Choosing
            | Self::NotInLine
            | Self::NoTtl
            | Self::NoHeartbeat
            | Self::PlaceUnreadable
            | Self::NumberUnreadable => String::new(),
        }
    }
}
