//! The numbers that the table gives out: each once, rising, for the life of the cluster.

use borsh::{BorshDeserialize, BorshSerialize};

use crate::Rejection;
use crate::ids::{FencingToken, SessionId, Ticket};

/// The last number given out of each kind, and the epoch of the tokens.
///
/// Nothing here wraps (I3, I28): a counter at its end refuses for ever.
#[derive(Clone, Copy, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub struct Counters {
    /// Upper part of every new token for a name in no scope, and of the first tokens of a new
    /// scope; at most [`FencingToken::EPOCH_MAX`].
    ///
    /// Starts at 1: epoch 0 is left to tokens from before the cluster took over a name (DESIGN
    /// §10), which must stay below every token of the cluster.
    pub epoch: u16,
    /// Counter of the last token; at most [`FencingToken::COUNTER_MAX`].
    pub token: u64,
    /// The last session.
    pub session: u64,
    /// The last ticket.
    pub ticket: u64,
}

impl Default for Counters {
    fn default() -> Self {
        Self { epoch: 1, token: 0, session: 0, ticket: 0 }
    }
}

impl Counters {
    /// Draws the next fencing token, of the epoch of the request's names.
    ///
    /// # Errors
    ///
    /// [`Rejection::TokensExhausted`] after the last; nothing was drawn.
    pub(crate) fn next_token(&mut self, epoch: u16) -> Result<FencingToken, Rejection> {
        let exhausted = Rejection::TokensExhausted { epoch };
        let counter = self.token.checked_add(1);
        let token = counter.and_then(|counter| FencingToken::new(epoch, counter));
        let token = token.ok_or(exhausted)?;
        self.token = token.counter();
        Ok(token)
    }

    /// Whether another token can be drawn.
    pub(crate) fn has_tokens(&self) -> bool {
        self.token < FencingToken::COUNTER_MAX && self.epoch <= FencingToken::EPOCH_MAX
    }

    /// Draws the next session id; `None` after the last of 2⁶⁴.
    pub(crate) fn next_session(&mut self) -> Option<SessionId> {
        self.session = self.session.checked_add(1)?;
        Some(SessionId::new(self.session))
    }

    /// Draws the next ticket; `None` after the last of 2⁶⁴.
    pub(crate) fn next_ticket(&mut self) -> Option<Ticket> {
        self.ticket = self.ticket.checked_add(1)?;
        Some(Ticket::new(self.ticket))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_counter_at_its_end_refuses_for_ever_and_never_wraps() {
        let end = FencingToken::COUNTER_MAX;
        let mut counters =
            Counters { epoch: 7, token: end - 1, session: u64::MAX - 1, ticket: u64::MAX - 1 };
        assert_eq!(counters.next_token(7).map(FencingToken::counter), Ok(end));
        assert_eq!(counters.next_session(), Some(SessionId::new(u64::MAX)));
        assert_eq!(counters.next_ticket(), Some(Ticket::new(u64::MAX)));
        for _ in 0..2 {
            assert_eq!(counters.next_token(7), Err(Rejection::TokensExhausted { epoch: 7 }));
            assert_eq!(counters.next_session(), None);
            assert_eq!(counters.next_ticket(), None);
        }
    }

    #[test]
    fn a_token_of_a_later_epoch_is_larger_than_every_earlier_one() {
        let last = FencingToken::new(1, FencingToken::COUNTER_MAX);
        let first = FencingToken::new(2, 0);
        assert!(last.is_some() && last < first);
        assert!(first.is_some_and(|token| i64::try_from(token.get()).is_ok()));
    }
}
