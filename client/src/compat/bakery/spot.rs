//! The steps of one attempt at the bakery. Why they are these, and in this order, stands in the [module
//! above](super).

use std::collections::BTreeSet;
use std::time::Duration;

use holdfast_seams::Moment;

use super::BakeryForm;
use super::cells::Cells;
use super::line::Turn;
use crate::compat::database::Fault;
use crate::compat::keeper::{Attempt, Left, Recipe, Renewal};
use crate::compat::terms::Terms;

/// How many may be before somebody who looks often: the holder, and the next.
const NEAR: usize = 2;
/// The longest pause between two looks of who is near; as of the queue.
const NEAR_PAUSE_MAX: Duration = Duration::from_millis(200);
/// How often who does not wait looks whether those who are choosing have drawn: they need about three round trips.
const TRY_LOOKS: u32 = 8;
/// The pause between two of these looks.
const TRY_PAUSE: Duration = Duration::from_millis(50);

/// One attempt.
pub(super) struct BakerySpot {
    cells: Cells,
    terms: Terms,
    /// Whether it stays in line when somebody is before it.
    waits: bool,
    ticket: Option<Ticket>,
    /// Of the PHP form: whom its first step waits for, once it has looked.
    first: Option<Choosers>,
    flag_may_be_up: bool,
    has_written: bool,
}

/// A number that was acknowledged in time, and has stood ever since.
struct Ticket {
    number: i64,
    /// When its last acknowledged write was sent.
    sent: Moment,
    /// Whom it waits for, once it has looked. Who raises a flag later than that draws a higher number.
    choosers: Option<Choosers>,
}

/// Who was choosing at a first look, and is since.
type Choosers = BTreeSet<String>;

impl BakerySpot {
    pub(super) fn new(cells: Cells, terms: Terms, waits: bool) -> Self {
        Self {
            cells,
            terms,
            waits,
            ticket: None,
            first: None,
            flag_may_be_up: false,
            has_written: false,
        }
    }

    fn now(&self) -> Moment {
        self.cells.clock.now()
    }

    /// What has to be before a number is drawn; `Some` if it is not so yet.
    async fn before_drawing(&mut self) -> Result<Option<Attempt>, Fault> {
        if !self.waits {
            // In no seed: nothing is gained by a number behind others.
            let line = self.cells.line().await?;
            if let Some(other) = line.other_than(self.cells.owner.as_str()) {
                return Ok(Some(held_by(other)));
            }
        }
        // PHP, step 1. It excludes nobody, see the module.
        if self.cells.form() == BakeryForm::Php
            && let Some(chooser) = self.awaited(Phase::BeforeDrawing).await?
        {
            return Ok(Some(held_by(&chooser)));
        }
        Ok(None)
    }

    /// Wiki, lines 1 to 4; PHP, steps 2 to 4. What an earlier call left behind without an answer loses to
    /// what this one writes later.
    async fn draw(&mut self) -> Result<(), Fault> {
        (self.has_written, self.flag_may_be_up) = (true, true);
        let raised = self.cells.raise_flag().await?;
        let Some(number) = self.cells.line().await?.next_number() else {
            return Err(Fault::Refused(format!(
                "table {}: lock {:?} has the highest number there is; delete its row, once nobody is in line",
                self.cells.names.numbers.as_str(),
                self.cells.lock,
            )));
        };
        let sent = self.cells.put_number(number).await?;
        // Without the flag somebody may have looked between, drawn a higher number, and be in.
        if self.now() >= self.terms.safe_until(raised) {
            return Err(Fault::NotDone(
                "drawing a number took longer than the flag is certain to stand".into(),
            ));
        }
        self.ticket = Some(Ticket { number, sent, choosers: None });
        self.first = None;
        Ok(())
    }

    /// Writes the number again, and says when it was sent. `None` if the last one may have ended before
    /// this one came, late as it was or its owner: who drew between the two did not see it, and it counts for
    /// nothing.
    async fn write_again(&mut self) -> Result<Option<Moment>, Fault> {
        let Some(Ticket { number, sent, .. }) = self.ticket else { return Ok(None) };
        let put = self.cells.put_number(number).await;
        if self.now() >= self.terms.safe_until(sent) {
            self.ticket = None;
            return Ok(None);
        }
        let sent = put?;
        self.ticket = self.ticket.take().map(|ticket| Ticket { sent, ..ticket });
        Ok(Some(sent))
    }

    /// Who waits renews its number as who holds does.
    async fn keep_in_line(&mut self) -> Result<(), Fault> {
        let is_due = |ticket: &Ticket| self.now() >= self.terms.renew_at(ticket.sent);
        if self.ticket.as_ref().is_some_and(is_due) {
            self.write_again().await?;
        }
        Ok(())
    }

    /// Wiki, line 5; PHP, step 5: not before the number is acknowledged.
    async fn lower_flag(&mut self) -> Result<(), Fault> {
        if self.flag_may_be_up {
            self.cells.lower_flag().await?;
            self.flag_may_be_up = false;
        }
        Ok(())
    }

    /// One of those that are waited for: who was choosing at the first look of this phase, and is still. Who
    /// does not wait gives them a moment.
    async fn awaited(&mut self, phase: Phase) -> Result<Option<String>, Fault> {
        let mut looks = 0;
        loop {
            let choosing = self.cells.choosing().await?;
            let Some(awaited) = self.awaited_in(phase) else { return Ok(None) };
            let still = match awaited.take() {
                Some(before) => &before & &choosing,
                None => choosing,
            };
            let one = still.first().cloned();
            *awaited = Some(still);
            looks += 1;
            if one.is_none() || self.waits || looks >= TRY_LOOKS {
                return Ok(one);
            }
            self.cells.clock.sleep_until(self.now() + TRY_PAUSE).await;
        }
    }

    fn awaited_in(&mut self, phase: Phase) -> Option<&mut Option<Choosers>> {
        match phase {
            Phase::BeforeDrawing => Some(&mut self.first),
            Phase::InLine => self.ticket.as_mut().map(|ticket| &mut ticket.choosers),
        }
    }

    /// Wiki, lines 6 and 8 to 12; PHP, step 6.
    async fn chooser(&mut self) -> Result<Option<String>, Fault> {
        let nobody_left =
            |ticket: &Ticket| ticket.choosers.as_ref().is_some_and(BTreeSet::is_empty);
        if self.ticket.as_ref().is_some_and(nobody_left) {
            return Ok(None);
        }
        self.awaited(Phase::InLine).await
    }

    /// Wiki, lines 7 and 13 to 16, in the order of PHP's steps 6 to 9: the numbers are read after
    /// everybody who was choosing has one.
    async fn take_turn(&mut self) -> Result<Attempt, Fault> {
        let line = self.cells.line().await?;
        let Some(Ticket { number, sent, .. }) = self.ticket else {
            return Ok(Attempt::HeldBy { owner: None, again: None });
        };
        match line.turn_of(self.cells.owner.as_str(), number) {
            Turn::Ours => Ok(Attempt::Had { started: sent }),
            Turn::NotThere => {
                self.ticket = None;
                Ok(Attempt::HeldBy { owner: None, again: None })
            }
            Turn::Tied { with } => {
                // A higher number comes after his by any rule.
                self.ticket = None;
                Ok(held_by(&with))
            }
            Turn::Behind { first, before } => {
                let pause_max = if before <= NEAR { NEAR_PAUSE_MAX } else { Duration::MAX };
                Ok(self.behind(&first, pause_max))
            }
        }
    }

    /// It waits for somebody, and looks again before its number has to be written again, at the latest.
    fn behind(&self, owner: &str, pause_max: Duration) -> Attempt {
        let due = |ticket: &Ticket| {
            self.terms.renew_at(ticket.sent).saturating_since(self.now()).min(pause_max)
        };
        Attempt::HeldBy { owner: Some(owner.to_owned()), again: self.ticket.as_ref().map(due) }
    }
}

/// When it waits for who is choosing.
#[derive(Clone, Copy)]
enum Phase {
    /// PHP, step 1.
    BeforeDrawing,
    /// With its number.
    InLine,
}

fn held_by(owner: &str) -> Attempt {
    Attempt::HeldBy { owner: Some(owner.to_owned()), again: None }
}

impl Recipe for BakerySpot {
    async fn attempt(&mut self) -> Result<Attempt, Fault> {
        self.keep_in_line().await?;
        if self.ticket.is_none() {
            if let Some(not_yet) = self.before_drawing().await? {
                return Ok(not_yet);
            }
            self.draw().await?;
        }
        self.lower_flag().await?;
        match self.chooser().await? {
            Some(chooser) => Ok(self.behind(&chooser, Duration::MAX)),
            None => self.take_turn().await,
        }
    }

    /// In no seed. The number is the lock.
    async fn renew(&mut self) -> Renewal {
        match self.write_again().await {
            Ok(Some(sent)) => Renewal::Applied(sent),
            Ok(None) => Renewal::Gone,
            Err(_) => Renewal::Unknown,
        }
    }

    /// Wiki, line 19; PHP, step 10: the number first, for the next in line looks at that.
    async fn leave(&mut self) -> Result<Left, Fault> {
        if !self.has_written {
            return Ok(Left::NotHad);
        }
        self.cells.erase_number().await?;
        if self.flag_may_be_up || self.cells.form() == BakeryForm::Php {
            self.cells.erase_flag().await?;
        }
        Ok(Left::Released)
    }
}
