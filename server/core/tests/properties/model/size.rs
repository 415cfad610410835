//! The size of the model, counted from scratch at each call.

use holdfast_core::{Answer, LockName, Outcome, Rejection, Terms, ValueChange};

use super::values::cost;
use super::{Asked, Model, Request, Session, What};

impl Model {
    pub(super) fn limit_table(&mut self, max_bytes: u64) -> Outcome {
        if max_bytes == 0 {
            return Err(Rejection::UnusableLimits { reason: String::new() });
        }
        self.max_table_bytes = Some(max_bytes);
        Ok(Answer::Configured)
    }

    pub(crate) fn bytes(&self) -> u64 {
        let sessions = self.sessions.iter().map(|session| of_session(session.label_bytes));
        let requests = self.requests.iter().map(|request| self.bytes_of(request));
        sessions.chain(requests).sum::<u64>() + self.value_bytes()
    }

    fn bytes_of(&self, request: &Request) -> u64 {
        let imported = |session: &&Session| session.stands_for.is_some();
        let import = self.session(request.session).filter(imported);
        let names = request.items().iter().map(|item| &item.lock);
        let index = import.map_or(0, |session| {
            128 + session.label_bytes + request.items()[0].lock.as_str().len() as u64
        });
        let terms = match &request.what {
            What::Asked(asked) => of_terms(asked),
            What::Nothing | What::Write { .. } => 0,
        };
        of_request(names) + terms + index
    }

    pub(super) fn no_table_room(&self, more: u64) -> Option<Rejection> {
        let limit = self.max_table_bytes?;
        (self.bytes() + more > limit).then_some(Rejection::TableFull { limit })
    }

    /// A command that frees something may exceed the limit by an eighth.
    pub(super) fn no_table_room_to_free(&self, more: u64) -> Option<Rejection> {
        let limit = self.max_table_bytes?;
        (self.bytes() + more > limit.saturating_add(limit / 8))
            .then_some(Rejection::TableFull { limit })
    }

    pub(super) fn no_table_room_for(&self, what: &What) -> Option<Rejection> {
        match what {
            What::Nothing => self.no_table_room_to_free(192),
            What::Asked(asked) => {
                let names = asked.items.iter().map(|item| &item.lock);
                self.no_table_room(of_request(names) + of_terms(asked))
            }
            What::Write { lock, change, .. } => {
                let ValueChange::Set(bytes) = change else {
                    return self.no_table_room_to_free(192);
                };
                match self.value_growth(lock, bytes.len()) {
                    0 => self.no_table_room_to_free(192),
                    more => self.no_table_room(192 + more),
                }
            }
        }
    }

    pub(super) fn value_growth(&self, lock: &LockName, bytes: usize) -> u64 {
        let before = self.values.iter().find(|(name, _)| name == lock).map_or(0, cost);
        (256 + lock.as_str().len() as u64 + bytes as u64).saturating_sub(before)
    }
}

pub(super) fn of_session(label_bytes: u64) -> u64 {
    768 + label_bytes
}

fn of_terms(Asked { terms, .. }: &Asked) -> u64 {
    let note = terms.note.as_str().len() as u64;
    if *terms == Terms::default() { 0 } else { 192 + note }
}

pub(super) fn of_request<'a>(locks: impl Iterator<Item = &'a LockName>) -> u64 {
    192 + locks.map(|lock| 256 + lock.as_str().len() as u64).sum::<u64>()
}
