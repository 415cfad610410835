//! The steps of one attempt at the bakery. The [module above](super) explains the steps and their
//! order.

use std::collections::BTreeSet;
use std::time::Duration;

use holdfast_runtime::Instant;

use super::BakeryForm;
use super::cells::Cells;
use super::line::Turn;
use crate::database::Fault;
use crate::lock_task::{Attempt, Left, Reached, Renewal};
use crate::row_timing::RowTiming;

/// A waiter with at most this many before it looks often: the holder, and the next waiter.
const NEAR: usize = 2;
/// The longest pause between two looks of such a waiter; as in the queue.
const NEAR_PAUSE_MAX: Duration = Duration::from_millis(200);
/// How often a `try` looks whether those that are choosing have drawn: drawing takes about three round trips.
const TRY_LOOKS: u32 = 8;
const TRY_PAUSE: Duration = Duration::from_millis(50);

pub(super) struct BakeryAttempt {
    cells: Cells,
    waits: bool,
    ticket: Option<Ticket>,
    /// The choosers that it waits for, once it has looked: before it draws in the PHP form, and then
    /// with its number. A client that raises its flag later draws a higher number.
    awaited: Option<Choosers>,
    flag_may_be_up: bool,
    has_written: bool,
}

/// A number that was acknowledged in time, and has stood without a gap since.
#[derive(Clone, Copy)]
struct Ticket {
    number: i64,
    /// The instant at which its last acknowledged write was sent.
    sent: Instant,
}

/// The clients that were choosing at a first look and at every look since.
type Choosers = BTreeSet<String>;

impl BakeryAttempt {
    pub(super) fn new(cells: Cells, waits: bool) -> Self {
        Self {
            cells,
            waits,
            ticket: None,
            awaited: None,
            flag_may_be_up: false,
            has_written: false,
        }
    }

    fn now(&self) -> Instant {
        self.cells.own.base.now()
    }

    fn timing(&self) -> RowTiming {
        self.cells.own.base.timing
    }

    /// The steps before a number is drawn; `Some` if drawing has to wait.
    async fn before_drawing(&mut self) -> Result<Option<Reached>, Fault> {
        if !self.waits {
            // In no article: a number behind others gains nothing.
            let line = self.cells.line().await?;
            if let Some(other) = line.other_than(self.cells.own.owner.as_str()) {
                return Ok(Some(held_by(other)));
            }
        }
        // PHP, step 1. It excludes no client; see the module.
        if self.cells.form() == BakeryForm::Php
            && let Some(chooser) = self.awaited().await?
        {
            return Ok(Some(held_by(&chooser)));
        }
        Ok(None)
    }

    /// Wiki, lines 1 to 4; PHP, steps 2 to 4. Cells of an earlier call that had no answer lose to this
    /// call's later writes.
    async fn draw(&mut self) -> Result<(), Fault> {
        (self.has_written, self.flag_may_be_up) = (true, true);
        let raised = self.cells.raise_flag().await?;
        let Some(number) = self.cells.line().await?.next_number() else {
            return Err(Fault::Refused(format!(
                "table {}: lock {:?} has the highest number there is; delete its row, once nobody is in line",
                self.cells.names.numbers.as_str(),
                self.cells.own.lock,
            )));
        };
        let sent = self.cells.put_number(number).await?;
        // Without the flag another client may have looked in between, drawn a higher number, and
        // taken the lock.
        if self.now() >= self.timing().safe_until(raised) {
            return Err(Fault::NotDone(
                "drawing a number took longer than the flag is certain to stand".into(),
            ));
        }
        (self.ticket, self.awaited) = (Some(Ticket { number, sent }), None);
        Ok(())
    }

    /// The number counts for nothing any more.
    fn drop_ticket(&mut self) {
        (self.ticket, self.awaited) = (None, None);
    }

    /// Writes the number again, and returns when it was sent. Returns `None` if the last write may have
    /// ended before this one arrived, because the write or its client was late: a client that drew in
    /// between did not see the number, so it counts for nothing.
    async fn write_again(&mut self) -> Result<Option<Instant>, Fault> {
        let Some(Ticket { number, sent }) = self.ticket else { return Ok(None) };
        let put = self.cells.put_number(number).await;
        if self.now() >= self.timing().safe_until(sent) {
            self.drop_ticket();
            return Ok(None);
        }
        let sent = put?;
        self.ticket = Some(Ticket { number, sent });
        Ok(Some(sent))
    }

    async fn keep_in_line(&mut self) -> Result<(), Fault> {
        let is_due = |ticket: &Ticket| self.now() >= self.timing().renew_at(ticket.sent);
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

    /// One of those that were choosing at the first look and still are. A `try` looks
    /// several times.
    async fn awaited(&mut self) -> Result<Option<String>, Fault> {
        let mut looks = 0;
        loop {
            let choosing = self.cells.choosing().await?;
            let still = match self.awaited.take() {
                Some(before) => &before & &choosing,
                None => choosing,
            };
            let one = still.first().cloned();
            self.awaited = Some(still);
            looks += 1;
            if one.is_none() || self.waits || looks >= TRY_LOOKS {
                return Ok(one);
            }
            self.cells.own.base.runtime().clock.sleep_until(self.now() + TRY_PAUSE).await;
        }
    }

    /// The chooser that a client with a number waits for. Wiki, lines 6 and 8 to 12; PHP, step 6.
    async fn chooser(&mut self) -> Result<Option<String>, Fault> {
        if self.awaited.as_ref().is_some_and(BTreeSet::is_empty) {
            return Ok(None);
        }
        self.awaited().await
    }

    /// Wiki, lines 7 and 13 to 16, in the order of PHP's steps 6 to 9: it reads the numbers after
    /// all clients that were choosing have one.
    async fn take_turn(&mut self) -> Result<Reached, Fault> {
        let line = self.cells.line().await?;
        let Some(Ticket { number, sent }) = self.ticket else {
            return Ok(Reached::HeldBy { owner: None, again: None });
        };
        match line.turn_of(self.cells.own.owner.as_str(), number) {
            Turn::Ours => Ok(Reached::Hold { started: sent }),
            Turn::NotThere => {
                self.drop_ticket();
                Ok(Reached::HeldBy { owner: None, again: None })
            }
            Turn::Tied { with } => {
                // A higher number comes after the other client's by any rule.
                self.drop_ticket();
                Ok(held_by(&with))
            }
            Turn::Behind { first, before } => {
                let pause_max = if before <= NEAR { NEAR_PAUSE_MAX } else { Duration::MAX };
                Ok(self.behind(&first, pause_max))
            }
        }
    }

    /// Waits for another client, and looks again before its number is due for a renewal, at the latest.
    fn behind(&self, owner: &str, pause_max: Duration) -> Reached {
        let due = |ticket: &Ticket| {
            self.timing().renew_at(ticket.sent).saturating_since(self.now()).min(pause_max)
        };
        Reached::HeldBy { owner: Some(owner.to_owned()), again: self.ticket.as_ref().map(due) }
    }
}

fn held_by(owner: &str) -> Reached {
    Reached::HeldBy { owner: Some(owner.to_owned()), again: None }
}

impl Attempt for BakeryAttempt {
    const RECIPE: &'static str = super::SPEC.name;

    async fn advance(&mut self) -> Result<Reached, Fault> {
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

    /// In no article. The number is the lock.
    async fn renew(&mut self) -> Renewal {
        match self.write_again().await {
            Ok(Some(sent)) => Renewal::Applied(sent),
            Ok(None) => Renewal::Gone,
            Err(_) => Renewal::Unknown,
        }
    }

    /// Wiki, line 19; PHP, step 10: deletes the number first, because the next in line looks at
    /// that.
    async fn give_back(&mut self) -> Result<Left, Fault> {
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
