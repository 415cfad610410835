//! What a run of histories has met, and whether that is enough.

use std::collections::BTreeMap;

use holdfast_core::{Answer, Applied, Command, Event, Need, ValueChange};

use crate::model::{Model, What};

const REJECTIONS: [&str; 25] = [
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
];
const COMMANDS: [&str; 8] = [
    "Configure",
    "OpenSession",
    "CloseSession",
    "ExpireSession",
    "Acquire",
    "Cancel",
    "Release",
    "SetValue",
];
/// What has to come about often, besides every command and rejection.
const SCENES: [&str; 14] = [
    "a set was granted at once",
    "a set was granted after it waited",
    "an any of several was granted a part at once",
    "an any of several was granted after it waited",
    "an any left the queues of what it was not granted",
    "one command granted several",
    "a lock was held by several",
    "a grant gave back a part",
    "a value went with a grant",
    "a suspect value went with a grant",
    "a value became suspect",
    "a value was confirmed",
    "a write was retried",
    "an acquire was retried",
];

/// What the run has met: without it, "nothing went wrong" could mean "nothing happened".
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
                (Command::Acquire { .. }, Event::Granted { .. }) => self.granted_at_once += 1,
                (_, Event::Granted { .. }) => self.handed_over += 1,
                (_, Event::Queued { .. } | Event::Denied { .. }) => self.contended += 1,
                _ => {}
            }
            self.scenes_of(command, event);
        }
        self.scene(grants > 1, "one command granted several");
        match applied.outcome {
            Ok(Answer::Acquired { fresh: false, .. }) => {
                self.scene(true, "an acquire was retried");
            }
            Ok(Answer::ValueSet { fresh: false, .. }) => self.scene(true, "a write was retried"),
            _ => {}
        }
    }

    fn scenes_of(&mut self, command: &Command, event: &Event) {
        match (event, command) {
            (Event::Granted { items, values, .. }, _) => {
                let suspect = values.iter().any(|(_, value)| value.suspect);
                self.scene(!values.is_empty(), "a value went with a grant");
                self.scene(suspect, "a suspect value went with a grant");
                if let Command::Acquire { items: asked, need, .. } = command {
                    let part = items.len() < asked.len();
                    self.scene(part, "an any of several was granted a part at once");
                    let set = *need == Need::All && asked.len() > 1;
                    self.scene(set, "a set was granted at once");
                }
            }
            (Event::Released { over: false, .. }, _) => {
                self.scene(true, "a grant gave back a part");
            }
            (Event::Left { .. }, Command::Release { .. }) => {
                self.scene(true, "an any left the queues of what it was not granted");
            }
            (Event::ValueChanged { value: Some(value), .. }, Command::ExpireSession { .. }) => {
                self.scene(value.suspect, "a value became suspect");
            }
            (Event::ValueChanged { .. }, Command::SetValue { change, .. }) => {
                self.scene(*change == ValueChange::Confirm, "a value was confirmed");
            }
            _ => {}
        }
    }

    /// What only the model can tell: who waited before, and how many hold.
    pub(crate) fn note_state(&mut self, command: &Command, applied: &Applied, model: &Model) {
        for event in &applied.events {
            let Event::Granted { session, request, items, .. } = event else { continue };
            let Some(granted) = model.request(*session, *request) else { continue };
            let What::Asked(asked) = &granted.what else { continue };
            let waited = asked.items.len() > 1 && !matches!(command, Command::Acquire { .. });
            let set = asked.need == Need::All;
            self.scene(waited && set, "a set was granted after it waited");
            self.scene(waited && !set, "an any of several was granted after it waited");
            let several = items.iter().any(|item| model.holders(&item.lock).len() > 1);
            self.scene(several, "a lock was held by several");
        }
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
        for name in REJECTIONS {
            let count = rejections.get(name).copied().unwrap_or(0);
            assert!(count >= 100, "{name} was reached {count} times");
        }
        assert_eq!(rejections.len(), REJECTIONS.len(), "a rejection that is not listed here");
        for name in SCENES {
            let count = scenes.get(name).copied().unwrap_or(0);
            assert!(count >= 100, "{count} times {name}");
        }
        let acquires = granted_at_once + contended;
        assert!(contended * 100 >= acquires * 40, "{contended} of {acquires} were contended");
        assert!(*handed_over >= 1_000);
    }
}

/// The name of an enum's variant.
fn kind(value: &impl std::fmt::Debug) -> String {
    let text = format!("{value:?}");
    text.split([' ', '{', '(']).next().unwrap().to_string()
}
