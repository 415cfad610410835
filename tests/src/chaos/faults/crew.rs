//! Members that come, go and are replaced, and leadership that is handed over, as an operator does
//! it (`docs/membership.md`), while everything else goes on.

use std::collections::VecDeque;
use std::process::ExitStatus;
use std::time::Duration;

use holdfast::{Admin, Error};
use holdfast_runtime::{Runtime, Task};
use tokio::sync::oneshot;

use super::{Broken, Undo};
use crate::chaos::stage::Stage;

/// The exit code of a node that was removed from its cluster (`server/src/exit.rs`).
const REMOVED: i32 = 77;
/// The exit codes of a node that has lost its data: it may have joined its cluster, or formed it.
const REFUSED: [i32; 2] = [73, 78];
/// The interval between two checks of a change, and between two attempts.
const LOOK_AGAIN: Duration = Duration::from_millis(200);

/// A change that is under way.
#[derive(Debug)]
pub(super) struct Change {
    /// The machine.
    place: usize,
    /// The node on it, also when it has ended.
    id: u64,
    steps: VecDeque<Step>,
    /// The request that the cluster has not answered yet.
    asked: Option<Asked>,
}

/// What has to happen next.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// The node refuses to start, under its name: it has lost its data. It had logged so much
    /// before.
    Refuses { logged: usize },
    /// It is removed.
    Remove,
    /// It learns that it was removed, and ends.
    Ends,
    /// Its machine is free, and its id is refused for ever.
    IdIsSpent,
    /// Another one starts on its machine.
    Furnish,
    /// The one on the machine becomes a learner.
    Add,
    /// It becomes a voter.
    Promote,
    /// Another node leads.
    Transfer,
}

/// A request to the cluster.
#[derive(Debug)]
struct Asked {
    answer: oneshot::Receiver<Result<(), Error>>,
    _asking: Task,
}

impl Asked {
    fn of<F>(ask: impl FnOnce(Admin) -> F, admin: Admin) -> Self
    where
        F: Future<Output = Result<(), Error>> + Send + 'static,
    {
        let (tell, answer) = oneshot::channel();
        let asking = ask(admin);
        let asking = Runtime::system().spawn("change", async move {
            // The receiver is gone once the run is over.
            let _ = tell.send(asking.await);
        });
        Self { answer, _asking: asking }
    }
}

pub(super) fn add(stage: &mut Stage) -> Option<Broken> {
    let place = stage.spare()?;
    let steps = [Step::Furnish, Step::Add, Step::Promote];
    Some(Change::begin(stage, place, &steps, "a node joins"))
}

pub(super) fn remove_a_follower(stage: &mut Stage) -> Option<Broken> {
    if stage.spare().is_some() {
        return None;
    }
    let place = stage.idle_follower()?;
    Some(remove(stage, place))
}

pub(super) fn remove_the_leader(stage: &mut Stage) -> Option<Broken> {
    if stage.spare().is_some() {
        return None;
    }
    let place = stage.idle_leader()?;
    Some(remove(stage, place))
}

fn remove(stage: &mut Stage, place: usize) -> Broken {
    stage.busy.insert(place);
    let note = format!("{} is removed", stage.name(place));
    Change::begin(stage, place, &[Step::Remove, Step::Ends, Step::IdIsSpent], &note)
}

pub(super) fn wipe(stage: &mut Stage) -> Option<Broken> {
    let idle = stage.idle_nodes();
    let place = stage.draw.one_of(&idle)?;
    stage.busy.insert(place);
    stage.cluster.kill(place);
    stage.cluster.wipe(place);
    let logged = stage.cluster.log(place).len();
    stage.cluster.start_node(place);
    let steps = [
        Step::Refuses { logged },
        Step::Remove,
        Step::IdIsSpent,
        Step::Furnish,
        Step::Add,
        Step::Promote,
    ];
    let note = format!("{} loses its disk and is replaced", stage.name(place));
    Some(Change::begin(stage, place, &steps, &note))
}

pub(super) fn transfer(stage: &mut Stage) -> Broken {
    Change::begin(stage, 0, &[Step::Transfer], "to whoever can")
}

/// Checks a change once; returns it if it is not over yet.
pub(super) fn go_on(stage: &mut Stage, mut change: Change, note: String) -> Option<Broken> {
    if let Some(&step) = change.steps.front()
        && change.is_done(stage, step)
    {
        change.steps.pop_front();
    }
    if change.steps.is_empty() {
        return None;
    }
    Some(Broken::new(note, LOOK_AGAIN, Undo::GoOn(change)))
}

impl Change {
    fn begin(stage: &Stage, place: usize, steps: &[Step], note: &str) -> Broken {
        let id = stage.cluster.nodes()[place].id;
        let change = Self { place, id, steps: steps.iter().copied().collect(), asked: None };
        Broken::new(note.to_owned(), LOOK_AGAIN, Undo::GoOn(change))
    }

    fn is_done(&mut self, stage: &mut Stage, step: Step) -> bool {
        let id = self.id;
        match step {
            Step::Refuses { logged } => self.has_refused(stage, logged),
            Step::Remove => {
                self.is_made(stage, move |admin| async move { admin.remove_member(id).await })
            }
            Step::Ends => self.has_ended(stage),
            Step::IdIsSpent => self.is_refused(stage),
            Step::Furnish => {
                stage.busy.insert(self.place);
                self.id = stage.furnish(self.place);
                true
            }
            Step::Add => {
                let (advertise, peers) = stage.cluster.addresses(self.place);
                let added = self.is_made(stage, move |admin| async move {
                    admin.add_learner(id, &advertise, &peers).await
                });
                if added {
                    // From here on any fault may hit it, as any other node.
                    stage.busy.remove(&self.place);
                }
                added
            }
            Step::Promote => {
                self.is_made(stage, move |admin| async move { admin.promote(id).await })
            }
            Step::Transfer => {
                self.is_made(stage, |admin| async move { admin.transfer_leader(None).await })
            }
        }
    }

    /// Asks for it until it is made. A refusal now, because of another change or because too few
    /// members answer, is not final.
    fn is_made<F>(&mut self, stage: &Stage, ask: impl FnOnce(Admin) -> F) -> bool
    where
        F: Future<Output = Result<(), Error>> + Send + 'static,
    {
        match self.answer(stage, ask) {
            Some(Ok(())) => true,
            Some(Err(error)) => {
                stage.note(&format!("node {}: {error}", self.id));
                false
            }
            None => false,
        }
    }

    /// The answer, once it is there. The next check asks again.
    fn answer<F>(
        &mut self,
        stage: &Stage,
        ask: impl FnOnce(Admin) -> F,
    ) -> Option<Result<(), Error>>
    where
        F: Future<Output = Result<(), Error>> + Send + 'static,
    {
        let asked = self.asked.get_or_insert_with(|| Asked::of(ask, stage.admin()));
        let answer = asked.answer.try_recv().ok()?;
        self.asked = None;
        Some(answer)
    }

    fn has_refused(&self, stage: &mut Stage, logged: usize) -> bool {
        let Some(status) = stage.cluster.exited(self.place) else { return false };
        let log = stage.cluster.log(self.place);
        let said = log.get(logged..).unwrap_or_default();
        let named = said.contains(&format!("holdfast cluster remove {}", self.id));
        if !named || !status.code().is_some_and(|code| REFUSED.contains(&code)) {
            self.ended_wrongly(stage, status, "did not refuse to come back without its data (I22)");
        }
        stage.cluster.retire(self.place);
        true
    }

    fn has_ended(&self, stage: &mut Stage) -> bool {
        let Some(status) = stage.cluster.exited(self.place) else { return false };
        if status.code() != Some(REMOVED) {
            self.ended_wrongly(stage, status, "was removed and did not say so");
        }
        stage.cluster.retire(self.place);
        stage.busy.remove(&self.place);
        true
    }

    fn ended_wrongly(&self, stage: &mut Stage, status: ExitStatus, how: &str) {
        let log = stage.cluster.log(self.place);
        let last = log.lines().last().unwrap_or_default();
        stage.wrong.push(format!("node {} {how}, it ended with {status}: {last}", self.id));
    }

    /// Whether the leader has refused to add the node under its old id (I22).
    fn is_refused(&mut self, stage: &mut Stage) -> bool {
        let (id, (advertise, peers)) = (self.id, stage.cluster.addresses(self.place));
        let answer = self.answer(stage, move |admin| async move {
            admin.add_learner(id, &advertise, &peers).await
        });
        match answer {
            Some(Ok(())) => {
                stage.wrong.push(format!("node {id} was removed and is a member again (I22)"));
                true
            }
            Some(Err(Error::Refused { message, .. })) => message.contains("start the node with id"),
            _ => false,
        }
    }
}
