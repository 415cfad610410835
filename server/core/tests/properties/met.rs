//! Counts the situations that a run of histories has met, and judges whether they suffice.

use std::collections::BTreeMap;

use holdfast_core::{
    Acquired, Answer, Applied, Ask, Command, Deed, EndCause, Event, Fate, Item, LockName,
    LossCause, Need, Rejection, ValueChange,
};

use crate::model::{Model, Request, What};

const REJECTIONS: [&str; 55] = [
    "UnknownSession",
    "TtlOutOfRange",
    "TooManySessions",
    "TooManyRequests",
    "TooManyWaiters",
    "LockHeld",
    "LockAwaited",
    "NothingFree",
    "RequestGone",
    "RequestReused",
    "RequestEnded",
    "NotHolder",
    "NotHeldUnder",
    "NotExclusive",
    "NoValue",
    "ValueTooLarge",
    "TooManyValueBytes",
    "NoNames",
    "TooManyNames",
    "NameTwice",
    "MinAboveNames",
    "MinUnsupported",
    "OtherTenure",
    "TokensExhausted",
    "UnusableLimits",
    "NotImported",
    "Suspended",
    "SeveralScopes",
    "UnknownScope",
    "ScopesOverlap",
    "ScopeCutsRequest",
    "OtherEpoch",
    "EpochNotAbove",
    "EpochTooHigh",
    "TableFull",
    "Forbidden",
    "Rules",
    "SessionRevoked",
    "NotHeld",
    "OverQuota",
    "LimitDiffers",
    "NoLimit",
    "PermitsOutOfRange",
    "HeadStartTooLong",
    "HeadStartInScope",
    "AlreadyHeld",
    "AlreadyAsked",
    "Frozen",
    "NotFrozen",
    "FreezeInScope",
    "SequenceStep",
    "SequenceInScope",
    "SequenceNotAbove",
    "HoldAtLeastShared",
    "NotClosed",
];
/// Rejections that need what a history has rarely: a scope that was removed, many scopes, the end of a sequence.
const RARE_REJECTIONS: [&str; 13] = [
    "SequenceExhausted",
    "TooFewFree",
    "LockClosed",
    "HoldBoundTooLong",
    "HoldBoundsCross",
    "HoldBoundsInScope",
    "ScopeHasHoldBounds",
    "PermitsInScope",
    "TooManyScopes",
    "HeldInOtherEpoch",
    "ScopeHasLimit",
    "ScopeHasHeadStart",
    "ScopeHasFreeze",
];
const COMMANDS: [&str; 13] = [
    "Configure",
    "OpenSession",
    "CloseSession",
    "ExpireSession",
    "Acquire",
    "AcquireOn",
    "Cancel",
    "Release",
    "SetValue",
    "Import",
    "Claim",
    "Resume",
    "By",
];
/// Commands that are few, because otherwise a history would consist of little else.
const RARE_COMMANDS: [&str; 8] = [
    "SetScope",
    "RemoveScope",
    "Suspend",
    "RaiseEpoch",
    "LimitTable",
    "EndClosed",
    "EndLongHold",
    "OpenLock",
];
/// Situations that have to occur often, besides every command and rejection.
const SCENES: [&str; 28] = [
    "a request with a head start entered its queue before others",
    "a request with a head start was granted at once before others who wait",
    "a request with a head start waits behind one that came long before",
    "permits were granted beside others",
    "a set was granted at once",
    "a set was granted after it waited",
    "an any of several was granted a part at once",
    "an any of several was granted after it waited",
    "one command granted several",
    "a lock was held by several",
    "a grant gave back a part",
    "a value went with a grant",
    "a suspect value went with a grant",
    "a value became suspect",
    "a value became suspect with a lost grant that was given back",
    "a value was confirmed",
    "a write was retried",
    "an acquire was retried",
    "a hold was imported",
    "a place was imported",
    "a row was imported that was known",
    "a place without a holder was refused",
    "an imported hold was claimed",
    "a session was revoked",
    "a revoked session left its queues",
    "a revoked session ended",
    "a hold was closed",
    "a sequence gave out several numbers",
];
/// Rarer situations: those with scopes, of which a history has only a few, and those that a full
/// table makes rare.
const RARE_SCENES: [&str; 13] = [
    "a closed hold was given back",
    "a closed hold was lost",
    "an any left the queues of what it was not granted",
    "a waiter was granted when a freeze was lifted",
    "a waiter was granted when a limit was raised",
    "a waiter was refused for a lowered limit",
    "an imported place was claimed",
    "a scope was set over holds and waits",
    "a request waited for a free lock of a suspended scope",
    "several were granted when a scope was resumed",
    "a waiter was granted when its scope was removed",
    "several holds were lost with an epoch",
    "a value became suspect with an epoch",
];

/// The situations that the run has met: without this count, a run without errors could be a run
/// without events.
#[derive(Default)]
pub(crate) struct Met {
    commands: BTreeMap<String, u64>,
    rejections: BTreeMap<String, u64>,
    scenes: BTreeMap<&'static str, u64>,
    granted_at_once: u64,
    contended: u64,
    handed_over: u64,
}

impl Met {
    pub(crate) fn note(&mut self, command: &Command, applied: &Applied) {
        *self.commands.entry(kind(command)).or_default() += 1;
        if let Err(rejection) = &applied.outcome {
            *self.rejections.entry(kind(rejection)).or_default() += 1;
        }
        let mut grants = 0;
        for event in &applied.events {
            grants += u64::from(matches!(event, Event::Granted { .. }));
            match (command, event) {
                (Command::Acquire { .. } | Command::AcquireOn(_), Event::Granted { .. }) => {
                    self.granted_at_once += 1;
                }
                (_, Event::Granted { .. }) => self.handed_over += 1,
                (_, Event::Queued { .. } | Event::Denied { .. }) => self.contended += 1,
                _ => {}
            }
            self.scenes_of(command, event);
        }
        self.scene(grants > 1, "one command granted several");
        let raised = matches!(command, Command::By { deed: Deed::SetLimit { .. }, .. });
        self.scene(grants > 0 && raised, "a waiter was granted when a limit was raised");
        let thawed = matches!(command, Command::By { deed: Deed::Thaw { .. }, .. });
        self.scene(grants > 0 && thawed, "a waiter was granted when a freeze was lifted");
        let several = matches!(command, Command::By { deed: Deed::Advance { by: 2.., .. }, .. });
        let numbered = several && applied.outcome.is_ok();
        self.scene(numbered, "a sequence gave out several numbers");
        match applied.outcome {
            Ok(Answer::Acquired { fresh: false, .. }) => {
                self.scene(true, "an acquire was retried");
            }
            Ok(Answer::ValueSet { fresh: false, .. }) => self.scene(true, "a write was retried"),
            Ok(Answer::Acquired { fresh: true, ref state, .. })
                if matches!(command, Command::Claim { .. }) =>
            {
                let held = matches!(state, Acquired::Granted { .. });
                self.scene(held, "an imported hold was claimed");
                self.scene(!held, "an imported place was claimed");
            }
            Ok(Answer::Imported { ref fates, .. }) => self.note_fates(fates),
            Ok(Answer::ImportsLengthened { .. }) => {
                let longer = |event: &Event| matches!(event, Event::ImportLengthened { .. });
                self.scene(applied.events.iter().any(longer), "an import was lengthened");
            }
            _ => {}
        }
    }

    /// Notes the situations with scopes; `model` is the state after the command.
    fn note_scopes(&mut self, command: &Command, applied: &Applied, model: &Model) {
        let count = |is: fn(&Event) -> bool| applied.events.iter().filter(|e| is(e)).count();
        let granted = count(|event| matches!(event, Event::Granted { .. }));
        let lost = count(|event| matches!(event, Event::Lost { .. }));
        match command {
            Command::SetScope { scope }
                if count(|e| matches!(e, Event::ScopeChanged { .. })) > 0 =>
            {
                let inside = |name: &LockName| name.as_str().starts_with(scope.as_str());
                let live = |r: &&Request| r.arrival().is_some() || r.token().is_some();
                let live: Vec<_> = model.requests.iter().filter(live).collect();
                let waits =
                    live.iter().any(|r| r.arrival().is_some() && inside(&r.items()[0].lock));
                let holds = live.iter().any(|r| r.holds().iter().any(|item| inside(&item.lock)));
                self.scene(waits && holds, "a scope was set over holds and waits");
            }
            Command::Acquire { items, .. } | Command::AcquireOn(Ask { items, .. }) => {
                let free = |item: &Item| model.holders(&item.lock).is_empty();
                let first = |item: &Item| model.queue(&item.lock).len() == 1;
                let scene = items.iter().all(|item| free(item) && first(item));
                let queued = count(|event| matches!(event, Event::Queued { .. })) == 1;
                self.scene(
                    queued && scene,
                    "a request waited for a free lock of a suspended scope",
                );
            }
            Command::Resume { .. } => {
                self.scene(granted > 1, "several were granted when a scope was resumed");
            }
            Command::RemoveScope { .. } => {
                self.scene(granted > 0, "a waiter was granted when its scope was removed");
            }
            Command::RaiseEpoch { .. } => {
                let suspect = count(|event| matches!(event, Event::ValueChanged { .. }));
                self.scene(lost > 1, "several holds were lost with an epoch");
                self.scene(suspect > 0, "a value became suspect with an epoch");
            }
            _ => {}
        }
    }

    fn note_fates(&mut self, fates: &[Fate]) {
        for fate in fates {
            match fate {
                Fate::Held { .. } => self.scene(true, "a hold was imported"),
                Fate::Queued { .. } => self.scene(true, "a place was imported"),
                Fate::Known => self.scene(true, "a row was imported that was known"),
                Fate::Refused(Rejection::NothingToWaitFor { .. }) => {
                    self.scene(true, "a place without a holder was refused");
                }
                Fate::Refused(_) => {}
            }
        }
    }

    fn scenes_of(&mut self, command: &Command, event: &Event) {
        match (event, command) {
            (Event::Granted { items, values, .. }, _) => {
                let suspect = values.iter().any(|(_, value)| value.suspect);
                self.scene(!values.is_empty(), "a value went with a grant");
                self.scene(suspect, "a suspect value went with a grant");
                if let Command::Acquire { items: asked, need, .. }
                | Command::AcquireOn(Ask { items: asked, need, .. }) = command
                {
                    let part = items.len() < asked.len();
                    self.scene(part, "an any of several was granted a part at once");
                    let set = *need == Need::All && asked.len() > 1;
                    self.scene(set, "a set was granted at once");
                }
            }
            (Event::Denied { rejection: Rejection::PermitsOutOfRange { .. }, .. }, _) => {
                self.scene(true, "a waiter was refused for a lowered limit");
            }
            (Event::SessionRevoked { .. }, _) => self.scene(true, "a session was revoked"),
            (Event::SessionEnded { cause: EndCause::Revoked, .. }, command) => {
                self.scene(!from_outside(command), "a revoked session ended");
            }
            (Event::HoldClosed { .. }, _) => self.scene(true, "a hold was closed"),
            (Event::Lost { cause: LossCause::Forced, .. }, Command::EndClosed { .. }) => {
                self.scene(true, "a closed hold was lost");
            }
            (Event::Left { .. }, command) if from_outside(command) => {
                self.scene(true, "a revoked session left its queues");
            }
            (Event::ValueChanged { .. }, Command::Release { .. }) => {
                self.scene(true, "a closed hold was given back");
            }
            (Event::Released { over: false, .. }, _) => {
                self.scene(true, "a grant gave back a part");
            }
            (Event::Left { .. }, Command::Release { .. } | Command::ReleaseLost { .. }) => {
                self.scene(true, "an any left the queues of what it was not granted");
            }
            (Event::ValueChanged { value: Some(value), .. }, Command::ExpireSession { .. }) => {
                self.scene(value.suspect, "a value became suspect");
            }
            (Event::ValueChanged { .. }, Command::ReleaseLost { .. }) => {
                self.scene(true, "a value became suspect with a lost grant that was given back");
            }
            (Event::ValueChanged { .. }, Command::SetValue { change, .. }) => {
                self.scene(*change == ValueChange::Confirm, "a value was confirmed");
            }
            _ => {}
        }
    }

    /// Notes what only the model shows: which requests waited before, and how many hold a lock.
    pub(crate) fn note_state(&mut self, command: &Command, applied: &Applied, model: &Model) {
        self.note_scopes(command, applied, model);
        self.note_head_start(command, applied, model);
        for event in &applied.events {
            let Event::Granted { session, request, items, .. } = event else { continue };
            let Some(granted) = model.request(*session, *request) else { continue };
            let What::Asked(asked) = &granted.what else { continue };
            let waited = asked.items.len() > 1 && !is_acquire(command);
            let set = asked.need == Need::All;
            self.scene(waited && set, "a set was granted after it waited");
            self.scene(waited && !set, "an any of several was granted after it waited");
            let shared =
                |item: &Item| item.mode.is_permits() && model.holders(&item.lock).len() > 1;
            self.scene(items.iter().any(shared), "permits were granted beside others");
            let several = items.iter().any(|item| model.holders(&item.lock).len() > 1);
            self.scene(several, "a lock was held by several");
        }
    }

    /// Notes where a request with a head start came to stand; `model` is the state after the command.
    fn note_head_start(&mut self, command: &Command, applied: &Applied, model: &Model) {
        let Command::AcquireOn(Ask { session, request, items, terms, .. }) = command else {
            return;
        };
        if terms.head_start_ms == 0
            || !matches!(applied.outcome, Ok(Answer::Acquired { fresh: true, .. }))
        {
            return;
        }
        let Some(own) = model.request(*session, *request) else { return };
        let queues = || items.iter().map(|item| model.queue(&item.lock));
        let at_once = own.arrival().is_none() && queues().any(|queue| !queue.is_empty());
        self.scene(
            at_once,
            "a request with a head start was granted at once before others who wait",
        );
        let Some((_, number)) = own.arrival() else { return };
        let others = || queues().flatten().filter_map(Request::arrival);
        let before =
            others().any(|(at, other)| other < number && (at, other) > own.arrival().unwrap());
        self.scene(before, "a request with a head start entered its queue before others");
        let behind =
            others().any(|(at, other)| other < number && (at, other) < own.arrival().unwrap());
        self.scene(behind, "a request with a head start waits behind one that came long before");
    }

    fn scene(&mut self, seen: bool, scene: &'static str) {
        *self.scenes.entry(scene).or_default() += u64::from(seen);
    }

    pub(crate) fn judge(&self) {
        let Self { commands, rejections, scenes, granted_at_once, contended, handed_over } = self;
        println!("{commands:?}\n{rejections:?}\n{scenes:?}");
        println!("{granted_at_once} granted at once, {contended} contended");
        println!("{handed_over} handed over");
        let all: u64 = commands.values().sum();
        assert!(all >= 200_000, "{all} commands");
        for name in COMMANDS {
            let count = commands.get(name).copied().unwrap_or(0);
            assert!(count * 100 >= all, "{count} of {all} commands are {name}");
        }
        for name in RARE_COMMANDS {
            let count = commands.get(name).copied().unwrap_or(0);
            assert!(count * 500 >= all, "{count} of {all} commands are {name}");
        }
        for name in REJECTIONS {
            let count = rejections.get(name).copied().unwrap_or(0);
            assert!(count >= 100, "{name} was reached {count} times");
        }
        for name in RARE_REJECTIONS {
            let count = rejections.get(name).copied().unwrap_or(0);
            assert!(count >= 15, "{name} was reached {count} times");
        }
        let listed = REJECTIONS.len() + RARE_REJECTIONS.len();
        assert_eq!(rejections.len(), listed, "a rejection that is not listed here");
        for name in SCENES {
            let count = scenes.get(name).copied().unwrap_or(0);
            assert!(count >= 100, "{count} times {name}");
        }
        for name in RARE_SCENES {
            let count = scenes.get(name).copied().unwrap_or(0);
            assert!(count >= 15, "{count} times {name}");
        }
        let acquires = granted_at_once + contended;
        assert!(contended * 100 >= acquires * 40, "{contended} of {acquires} were contended");
        assert!(*handed_over >= 1_000);
    }
}

fn is_acquire(command: &Command) -> bool {
    matches!(command, Command::Acquire { .. } | Command::AcquireOn(_))
}

fn from_outside(command: &Command) -> bool {
    matches!(
        command,
        Command::By {
            deed: Deed::EndSession { .. } | Deed::CutOff { .. } | Deed::CloseHolds { .. },
            ..
        }
    )
}

/// The name of an enum's variant.
fn kind(value: &impl std::fmt::Debug) -> String {
    let text = format!("{value:?}");
    text.split([' ', '{', '(']).next().unwrap().to_string()
}
