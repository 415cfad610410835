//! Obstacles to a step, by name.

use std::fmt;

use holdfast_recipes::{LockerMode, Registered};

use crate::plan::Finding;
use crate::verify::Difference;

/// Obstacles that are kept and shown by name.
const SHOWN: usize = 20;

/// One obstacle.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Obstacle {
    /// A process that the step would leave behind.
    Process {
        /// Its id.
        process: String,
        /// Its mode.
        mode: LockerMode,
        /// The mode it has to change to first.
        to: LockerMode,
    },
    /// A client that is not of our library changed a row lately: it locks by the recipe alone.
    ForeignWriter {
        /// The lock.
        lock: String,
        /// The row's owner.
        owner: String,
    },
    /// A client of our library changed a row lately that has registered no mode, or is of version 0.1.
    Unregistered {
        /// The lock.
        lock: String,
        /// The row's owner.
        owner: String,
    },
    /// The operator has not stated that the clients which know only the recipe are stopped.
    NotDeclared,
    /// A process of version 0.1, whose rows look like those of other clients with its service name.
    Older {
        /// Its id.
        process: String,
    },
    /// A row that cannot be imported.
    NotImported {
        /// Which, and why.
        finding: Finding,
    },
    /// A row that the store refused.
    Refused {
        /// The lock.
        lock: String,
        /// The row's owner.
        owner: String,
        /// Why.
        why: String,
    },
    /// A lock whose native state differs from the tables after an import.
    Differs {
        /// The lock.
        lock: String,
        /// How.
        difference: Difference,
    },
    /// A native client holds the lock without a row: an old client would not see the hold.
    NativeClient {
        /// The lock.
        lock: String,
        /// Its session's label.
        label: String,
    },
    /// A native client waits for a lock that a row would stand for until the present hold ends.
    NativeWaiter {
        /// The lock.
        lock: String,
        /// Its session's label.
        label: String,
    },
    /// The row of a native hold cannot be written, because the row has another owner.
    RowTaken {
        /// The lock.
        lock: String,
        /// The label of the native holder.
        label: String,
        /// The row's owner.
        by: String,
    },
    /// The row of a native hold cannot be written.
    NotWritten {
        /// The lock.
        lock: String,
        /// The label of the native holder.
        label: String,
        /// Why.
        why: String,
    },
}

impl Obstacle {
    /// A process that has to change to `to` first.
    pub(crate) fn left_behind(process: Registered, to: LockerMode) -> Self {
        let Registered { process, mode, .. } = process;
        Self::Process { process, mode, to }
    }

    /// A stable code for programs; it never changes.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Process { .. } => "process",
            Self::ForeignWriter { .. } => "stranger",
            Self::Unregistered { .. } => "unregistered",
            Self::NotDeclared => "no-word",
            Self::Older { .. } => "older",
            Self::NotImported { .. } => "not-imported",
            Self::Refused { .. } => "refused",
            Self::Differs { .. } => "differs",
            Self::NativeClient { .. } => "native-client",
            Self::NativeWaiter { .. } => "native-waiter",
            Self::RowTaken { .. } => "row-taken",
            Self::NotWritten { .. } => "not-written",
        }
    }

    /// What to do about every obstacle with this code.
    fn remedy(&self) -> &'static str {
        match self {
            Self::Process { to: LockerMode::Native, .. } => {
                "change it to native: set_mode, or its next start"
            }
            // The process would have to pass through `native`, which a scope at `both` does not
            // admit.
            Self::Process { mode: LockerMode::Fallback, .. } => {
                "end it, and start it in both; one that died is gone once the TTL of its row is over"
            }
            Self::Process { .. } => {
                "change it to both: set_mode, or its next start; one that died is gone once the TTL of \
                 its row is over"
            }
            Self::ForeignWriter { .. } => {
                "stop those clients; once all of them are, say --writers-stopped, and what they left \
                 is imported"
            }
            Self::Unregistered { .. } => {
                "they lock without a mode, or are of version 0.1: give each a Locker of this version (or \
                 --mode both); or stop them, and wait until their rows are over (--wait)"
            }
            Self::NotDeclared => {
                "no look shows that a client is gone which locks now and then: stop all of them, and say \
                 --writers-stopped; or revoke MODIFY from the role they log in as, and name it: --revoked-role"
            }
            Self::Older { .. } => "update it: it goes on from both only with this version",
            Self::NotImported { .. } => {
                "end these locks, or mend their rows; or let them be free natively, by --leave-out"
            }
            Self::Refused { .. } => "the store says what to do; then ask again",
            Self::Differs { .. } => {
                "ask again in a moment; `holdfast-migrate verify` lists them all"
            }
            Self::NativeClient { .. } => {
                "let them end, or change them to a Locker in both; or have rows written for them that \
                 stand for so long, by --live-for"
            }
            Self::NativeWaiter { .. } => {
                "let them have their turn, or end them: no row would stand for their hold"
            }
            Self::RowTaken { .. } => {
                "wait until one of the two has given its lock back, or its row is over; a Locker in both of a version before \
                 0.4, or at servers of one, does not show which row is its own: update it first"
            }
            Self::NotWritten { .. } => "wait until it is given back natively",
        }
    }
}

impl fmt::Display for Obstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Process { process, mode, .. } => write!(f, "{process} is in {mode}"),
            Self::ForeignWriter { lock, owner } => {
                write!(f, "{owner}, no client of ours, changed the row of {lock} within two TTLs")
            }
            Self::Unregistered { lock, owner } => {
                write!(f, "{owner} holds {lock} in Cassandra alone, and is no process of the scope")
            }
            Self::NotDeclared => f.write_str(
                "nobody has said that the clients which know only the recipe are stopped",
            ),
            Self::Older { process } => write!(f, "{process} is of version 0.1"),
            Self::NotImported { finding } => {
                let (lock, owner) = (&finding.lock, finding.owner.as_deref());
                let heading = finding.reason.heading();
                write!(f, "{lock}{} cannot be imported: {heading}", of(owner))
            }
            Self::Refused { lock, owner, why } => {
                write!(f, "the store refuses {lock} of {owner}: {why}")
            }
            Self::Differs { lock, difference } => write!(f, "{lock}: {difference}"),
            Self::NativeClient { lock, label } => {
                write!(f, "{label} has {lock} natively, and no row in Cassandra")
            }
            Self::NativeWaiter { lock, label } => {
                write!(f, "{label} waits for {lock} natively, and would have no row in Cassandra")
            }
            Self::RowTaken { lock, label, by } => {
                write!(f, "{label} holds {lock} natively, and the row is {by}'s")
            }
            Self::NotWritten { lock, label, why } => {
                write!(f, "{label} holds {lock} natively, and its row cannot be written: {why}")
            }
        }
    }
}

fn of(owner: Option<&str>) -> String {
    owner.map(|owner| format!(" of {owner}")).unwrap_or_default()
}

/// Counts all obstacles and keeps the first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Obstacles {
    shown: Vec<Obstacle>,
    number: usize,
}

impl Obstacles {
    /// Adds one obstacle.
    pub fn push(&mut self, obstacle: Obstacle) {
        self.number += 1;
        if self.shown.len() < SHOWN {
            self.shown.push(obstacle);
        }
    }

    /// Adds all of another list.
    pub fn append(&mut self, other: Self) {
        let not_shown = other.number - other.shown.len();
        self.extend(other.shown);
        self.number += not_shown;
    }

    /// Whether there is no obstacle.
    pub fn is_empty(&self) -> bool {
        self.number == 0
    }

    /// How many obstacles there are, kept or not.
    pub fn number(&self) -> usize {
        self.number
    }

    /// The first obstacles, at most 20.
    pub fn shown(&self) -> &[Obstacle] {
        &self.shown
    }

    /// What to do, once for each kind.
    pub fn remedies(&self) -> Vec<&'static str> {
        let mut remedies: Vec<&'static str> = Vec::new();
        for remedy in self.shown.iter().map(Obstacle::remedy) {
            if !remedies.contains(&remedy) {
                remedies.push(remedy);
            }
        }
        remedies
    }
}

impl Extend<Obstacle> for Obstacles {
    fn extend<I: IntoIterator<Item = Obstacle>>(&mut self, obstacles: I) {
        obstacles.into_iter().for_each(|obstacle| self.push(obstacle));
    }
}

/// One line: the obstacles by name, then what to do.
impl fmt::Display for Obstacles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let each: Vec<String> = self.shown.iter().map(Obstacle::to_string).collect();
        write!(f, "{} in the way: {}", self.number, each.join("; "))?;
        if self.number > self.shown.len() {
            write!(f, "; and {} more", self.number - self.shown.len())?;
        }
        write!(f, " ({})", self.remedies().join("; "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cutover::MoveError;
    use crate::plan::Reason;
    use crate::verify::Difference;
    use holdfast_recipes::Stage;

    /// Each obstacle, with `…` for its names.
    fn each_obstacle() -> Vec<Obstacle> {
        let [lock, owner, label, why, process] = ["…"; 5].map(str::to_owned);
        let finding = Finding { reason: Reason::OwnerEmpty, lock: lock.clone(), owner: None };
        let in_mode =
            |mode| Obstacle::Process { process: "…".to_owned(), mode, to: LockerMode::Both };
        vec![
            in_mode(LockerMode::Cassandra),
            in_mode(LockerMode::Both),
            in_mode(LockerMode::Native),
            in_mode(LockerMode::Fallback),
            Obstacle::ForeignWriter { lock: lock.clone(), owner: owner.clone() },
            Obstacle::Unregistered { lock: lock.clone(), owner: owner.clone() },
            Obstacle::NotDeclared,
            Obstacle::Older { process },
            Obstacle::NotImported { finding },
            Obstacle::Refused { lock: lock.clone(), owner: owner.clone(), why: why.clone() },
            Obstacle::Differs { lock: lock.clone(), difference: Difference::NotHeld { owner } },
            Obstacle::NativeClient { lock: lock.clone(), label: label.clone() },
            Obstacle::NativeWaiter { lock: lock.clone(), label: label.clone() },
            Obstacle::RowTaken { lock: lock.clone(), label: label.clone(), by: "…".to_owned() },
            Obstacle::NotWritten { lock, label, why },
        ]
    }

    /// A reader who looks for a message finds it in the guide.
    #[test]
    fn the_guide_has_what_every_obstacle_and_refusal_says() {
        let guide = include_str!("../../../docs/migration.md");
        let [scope, lock, owner] = ["…"; 3].map(str::to_owned);
        let still = |said| MoveError::StillWritten {
            scope: scope.clone(),
            lock: lock.clone(),
            owner: owner.clone(),
            said,
        };
        let unregistered = MoveError::WrittenUnregistered {
            scope: scope.clone(),
            lock: lock.clone(),
            owner: owner.clone(),
        };
        let beyond = MoveError::Beyond {
            scope: scope.clone(),
            stage: Stage::Native,
            target: Stage::Both,
            back: "rollback",
        };
        let obstacles = each_obstacle().into_iter().map(|one| one.to_string());
        // The heading of a finding stands in the output of `plan`.
        let obstacles = obstacles
            .map(|said| said.split("cannot be imported: ").next().unwrap_or_default().to_owned());
        let refusals = [still("…"), unregistered].map(|error| {
            let said = error.to_string();
            let (_, behind) = said.split_once("stays at both: ").unwrap();
            behind.split([';', '(']).next().unwrap_or_default().trim().to_owned()
        });
        let beyond = beyond.to_string().replace("native", "…").replace("both", "…");
        let beyond = beyond.split(';').next().unwrap_or_default().replace("\"…\"", "…");
        for said in obstacles.chain(refusals).chain([beyond]) {
            assert!(guide.contains(said.trim()), "the guide has no \"{said}\"");
        }
    }

    #[test]
    fn many_are_counted_the_first_are_named_and_what_to_do_is_said_once() {
        let mut obstacles = Obstacles::default();
        obstacles.extend((0..25).map(|number| Obstacle::Process {
            process: format!("hf1:p{number:02}/ab"),
            mode: LockerMode::Cassandra,
            to: LockerMode::Both,
        }));
        let said = obstacles.to_string();
        assert!(said.starts_with("25 in the way: hf1:p00/ab is in cassandra; "), "{said}");
        assert!(
            said.contains("hf1:p19/ab is in cassandra; and 5 more (change it to both"),
            "{said}"
        );
        assert_eq!(said.matches("change it").count(), 1, "{said}");
    }

    #[test]
    fn a_process_in_fallback_that_has_to_go_to_both_is_to_be_ended() {
        let mut obstacles = Obstacles::default();
        obstacles.extend([Obstacle::Process {
            process: "hf1:p00/ab".to_owned(),
            mode: LockerMode::Fallback,
            to: LockerMode::Both,
        }]);
        let said = obstacles.to_string();
        assert!(said.contains("is in fallback (end it, and start it in both"), "{said}");
    }
}
