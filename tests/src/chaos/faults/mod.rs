//! How each fault is injected and undone.

mod answers;
mod clocks;
mod crew;
mod damage;
mod disks;
mod failing;
mod limits;
mod lines;
mod processes;

use std::time::Duration;

pub use clocks::Clock;
pub(super) use clocks::set_wall_clock;
pub use lines::LineRelays;

use super::kind::Kind;
use super::stage::Stage;
use answers::Answers;
use crew::Change;
use damage::Damaged;
use failing::Ill;
use limits::Lowered;
use lines::Detour;
use processes::Turns;

use crate::net::Rule;

/// A fault in force until it is undone.
#[derive(Debug)]
#[must_use = "what is broken has to be undone"]
pub struct Broken {
    /// The fault and its target.
    pub note: String,
    /// For how long.
    pub lasts: Duration,
    undo: Undo,
}

/// How to undo it.
#[derive(Debug)]
enum Undo {
    /// It was over at once.
    Nothing,
    /// These nodes are started again.
    Start(Vec<usize>),
    /// A frozen node goes on.
    Thaw(usize),
    /// A frozen client process goes on.
    ThawClient(usize),
    /// A slowed node gets all of its processor time again.
    GoOnAtOnce(Turns),
    /// Rules of the network are lifted.
    Lift(Vec<Rule>),
    /// Traffic to a node goes straight to it again.
    Straighten(Detour),
    /// Messages that were held back are delivered.
    Deliver(Answers),
    /// The relays before these nodes forward everything again, at once.
    Mend(Vec<usize>),
    /// A node's wall clock steps back to the right time.
    StepBack(usize),
    /// A node is started again with the right clocks.
    SetRight(usize),
    /// A node's disk is emptied, and the node started again if that stopped it.
    Empty(usize),
    /// A node's disk is as quick as before.
    Quicken(usize),
    /// A disk that hangs or fails is checked until the fault is over, and then mended.
    LookAtDisk(Ill),
    /// A limit of a process is as high as before.
    Raise(Lowered),
    /// A node that refuses its damaged folder gets it back as it was.
    Restore(Damaged),
    /// A change of the members, or of who leads them, goes on to its end.
    GoOn(Change),
}

impl Broken {
    fn new(note: String, lasts: Duration, undo: Undo) -> Self {
        Self { note, lasts, undo }
    }
}

/// Injects a fault of this kind; `None` if there is no target right now.
pub async fn begin(stage: &mut Stage, kind: Kind) -> Option<Broken> {
    match kind {
        Kind::KillNode => processes::kill_a_node(stage),
        Kind::KillLeader => processes::kill_the_leader(stage),
        Kind::KillClient => Some(processes::kill_a_client(stage)),
        Kind::StopNode => processes::stop_a_follower(stage),
        Kind::StopLeader => processes::stop_the_leader(stage),
        Kind::StopClient => Some(processes::stop_a_client(stage)),
        Kind::LongStop => processes::stop_for_long(stage),
        Kind::SlowNode => processes::slow_down(stage),
        Kind::NoDescriptors => limits::no_descriptors(stage),
        Kind::LittleMemory => limits::little_memory(stage),
        Kind::PowerNode => processes::cut_power(stage, 1).await,
        Kind::PowerMinority => {
            let minority = stage.minority();
            processes::cut_power(stage, minority).await
        }
        Kind::PowerAll => {
            let all = stage.members().len();
            processes::cut_power(stage, all).await
        }
        Kind::SplitMinority => lines::split_a_minority(stage),
        Kind::SplitMajority => Some(lines::split_the_majority(stage)),
        Kind::SplitLeader => lines::split_the_leader(stage),
        Kind::SplitRing => Some(lines::split_into_a_ring(stage)),
        Kind::SplitClient => lines::split_a_client(stage),
        Kind::OneWay => lines::one_way(stage),
        Kind::Loss => lines::lose(stage),
        Kind::Reset => lines::reset(stage).await,
        Kind::Rate => lines::throttle(stage),
        Kind::Delay => lines::delay(stage).await,
        Kind::HoldAnswers => answers::hold(stage),
        Kind::ClockStep => clocks::step(stage),
        Kind::ClockRate => clocks::rate(stage),
        Kind::FullDisk => disks::fill(stage),
        Kind::SlowDisk => disks::slow(stage),
        Kind::CrawlingDisk => disks::crawl(stage),
        Kind::HungDisk => failing::hang(stage),
        Kind::FailedWrite => failing::fail(stage),
        Kind::Damage => damage::flip_a_bit(stage),
        Kind::AddMember => crew::add(stage),
        Kind::RemoveMember => crew::remove_a_follower(stage),
        Kind::RemoveLeader => crew::remove_the_leader(stage),
        Kind::WipeNode => crew::wipe(stage),
        Kind::TransferLeader => Some(crew::transfer(stage)),
    }
}

/// Undoes a fault; returns it if it is not over yet.
pub fn undo(stage: &mut Stage, broken: Broken) -> Option<Broken> {
    match broken.undo {
        Undo::Nothing => {}
        Undo::Start(nodes) => processes::start(stage, &nodes),
        Undo::Thaw(node) => processes::thaw(stage, node),
        Undo::ThawClient(client) => processes::thaw_client(stage, client),
        Undo::GoOnAtOnce(turns) => processes::go_on(stage, turns),
        Undo::Lift(rules) => lines::lift(rules),
        Undo::Straighten(detour) => detour.straighten(),
        Undo::Deliver(answers) => return answers::deliver(stage, answers, broken.note),
        Undo::Mend(nodes) => lines::mend(stage, &nodes),
        Undo::StepBack(node) => clocks::step_back(stage, node),
        Undo::SetRight(node) => clocks::set_right(stage, node),
        Undo::Empty(node) => disks::empty(stage, node),
        Undo::Quicken(node) => disks::quicken(stage, node),
        Undo::LookAtDisk(ill) => return failing::look(stage, ill, broken.note),
        Undo::Raise(lowered) => return limits::raise(stage, lowered, broken.note),
        Undo::Restore(damaged) => return damage::restore(stage, damaged),
        Undo::GoOn(change) => return crew::go_on(stage, change, broken.note),
    }
    None
}
