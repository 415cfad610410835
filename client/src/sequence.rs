//! Sequences: numbers that are given out once (DESIGN §16).

use std::num::NonZeroU32;
use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex as StdMutex, MutexGuard, PoisonError};

use futures_util::TryFutureExt as _;
use holdfast_proto::v1;
use tokio::sync::Mutex;

use crate::endpoints::{Asked, NoAnswer};
use crate::reader::{ATTEMPT_LIMIT, PAGE_SIZE};
use crate::transport::operator::Services;
use crate::{Admin, Builder, Client, Reader, Result};

/// Numbers that are given out once, in rising order, to whoever asks: [`Client::sequence`], or [`Builder::sequence`]
/// without a session. It needs no lock, and has nothing to do with a lock of its name. Clones share a block.
///
/// No number is given out twice, to whichever client, over restarts and restores of the cluster. There are gaps: the
/// numbers of an answer that did not arrive, the rest of a block whose client ended, and those that a restore leaves
/// out.
///
/// ```no_run
/// # async fn example(client: holdfast::Client) -> holdfast::Result<()> {
/// let invoices = client.sequence("invoices/2026");
/// println!("invoice {}", invoices.next().await?);
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
#[must_use = "no number is taken until one is asked for"]
pub struct Sequence {
    reader: Reader,
    name: String,
    block: u32,
    at_hand: Arc<Mutex<AtHand>>,
    /// The server that gave the last numbers: the next call begins there.
    server: Arc<StdMutex<Option<String>>>,
}

/// What is left of the last block.
#[derive(Debug, Default)]
struct AtHand {
    next: u64,
    left: u32,
}

/// A sequence as the store reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SequenceInfo {
    /// Its name.
    pub name: String,
    /// The last number that was given out; 0 if none was yet.
    pub last: u64,
}

impl Sequence {
    fn new(reader: Reader, name: String) -> Self {
        Self { reader, name, block: 1, at_hand: Arc::default(), server: Arc::default() }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Takes so many numbers from the store at a time, 1 to 65,536, and [`Sequence::next`] gives them out from memory. Default: 1.
    ///
    /// A block costs one commit, whatever its size. The numbers of one client rise; those of clients
    /// with blocks do not rise in the order in which the clients ask. What is left of a block when its
    /// last clone is dropped is lost.
    pub fn blocks_of(self, numbers: NonZeroU32) -> Self {
        Self { block: numbers.get(), at_hand: Arc::default(), ..self }
    }

    /// The next number.
    ///
    /// Cancel safe: a number of a call that is dropped is lost.
    ///
    /// # Errors
    ///
    /// No number was returned, and some may be lost. [`Error::Unreachable`](crate::Error::Unreachable) if no server answered within
    /// the connect timeout. [`Error::Refused`](crate::Error::Refused), with
    /// [`RefusalReason::Sequence`](crate::RefusalReason::Sequence) if the name is in a scope with fallback, whose other store knows
    /// no sequences, or the sequence is at its end; with [`RefusalReason::Limit`](crate::RefusalReason::Limit) for a block
    /// that is too large, or a new sequence for which there is no room, because it counts as a value; with
    /// [`RefusalReason::Forbidden`](crate::RefusalReason::Forbidden) without the verb `sequence` on the name.
    pub async fn next(&self) -> Result<u64> {
        // A caller that comes while a block is under way waits for it, and asks for none of its own.
        let mut at_hand = self.at_hand.lock().await;
        if at_hand.left == 0 {
            let first = self.advance(self.block).await?;
            *at_hand = AtHand { next: first, left: self.block };
        }
        let number = at_hand.next;
        at_hand.left -= 1;
        // There is none after the last of all, and nothing is left then.
        at_hand.next = number.wrapping_add(1);
        Ok(number)
    }

    /// The next `count` numbers, 1 to 65,536, without a gap between them. It takes them from the store, not from the block.
    ///
    /// Cancel safe: the numbers of a call that is dropped are lost.
    ///
    /// # Errors
    ///
    /// As of [`Sequence::next`].
    pub async fn take(&self, count: NonZeroU32) -> Result<RangeInclusive<u64>> {
        let first = self.advance(count.get()).await?;
        Ok(first..=first.saturating_add(u64::from(count.get()) - 1))
    }

    /// The first of `by` new numbers. If an answer does not arrive, it asks again, and the numbers of the first call are
    /// lost.
    async fn advance(&self, by: u32) -> Result<u64> {
        let request = v1::AdvanceRequest { name: self.name.clone(), by };
        let Reader { transport, servers } = &self.reader;
        let call =
            |endpoint: &str| transport.advance(endpoint, request.clone()).map_err(NoAnswer::from);
        let mut asked = Asked::beginning_at(self.server().take());
        let answer = servers.ask(ATTEMPT_LIMIT, &mut asked, call).await?;
        *self.server() = asked.at;
        Ok(answer.first)
    }

    fn server(&self) -> MutexGuard<'_, Option<String>> {
        self.server.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Client {
    /// The sequence `name`. It sends nothing.
    pub fn sequence(&self, name: impl Into<String>) -> Sequence {
        Sequence::new(self.reader().clone(), name.into())
    }
}

impl Builder {
    /// The sequence `name`, without a session: for a process that wants nothing but numbers. It sends nothing.
    ///
    /// # Errors
    ///
    /// As of [`Builder::reader`].
    pub fn sequence(&self, name: impl Into<String>) -> Result<Sequence> {
        Ok(Sequence::new(self.reader()?, name.into()))
    }
}

impl Admin {
    /// Has the next number of a sequence be `at`, for one that goes on from another system's: 1 or more, and above all that
    /// were given out. Repeating it is harmless until the next number is taken. Needs the verb `sequence` on the name.
    ///
    /// # Errors
    ///
    /// As of [`Admin`]; [`RefusalReason::Sequence`](crate::RefusalReason::Sequence) for a number that was given out, also by a
    /// call for a number after a first copy of this one, and for a name in a scope with fallback;
    /// [`RefusalReason::Limit`](crate::RefusalReason::Limit) if a new sequence has no room.
    pub async fn begin_sequence(&self, name: &str, at: u64) -> Result<()> {
        let request = v1::BeginSequenceRequest { name: name.to_owned(), at };
        let begin = |mut services: Services| {
            let request = request.clone();
            async move { services.locks.begin_sequence(request).await }
        };
        self.ask("beginning a sequence", true, begin).await.map(drop)
    }

    /// The sequences whose names begin with `prefix`, in the order of their names. It reads page by page; each page is
    /// consistent as of an instant of its own. Needs the verb `read` on the prefix.
    ///
    /// # Errors
    ///
    /// As of [`Admin`].
    pub async fn sequences(&self, prefix: &str) -> Result<Vec<SequenceInfo>> {
        let (mut sequences, mut page_token) = (Vec::new(), String::new());
        loop {
            let (prefix, page_size) = (prefix.to_owned(), Some(PAGE_SIZE));
            let request = v1::ListSequencesRequest { prefix, page_size, page_token };
            let list = |mut services: Services| {
                let request = request.clone();
                async move { services.locks.list_sequences(request).await }
            };
            let page = self.ask("listing sequences", false, list).await?;
            let infos = page.sequences.into_iter();
            sequences.extend(infos.map(|v1::Sequence { name, last }| SequenceInfo { name, last }));
            page_token = page.next_page_token;
            if page_token.is_empty() {
                return Ok(sequences);
            }
        }
    }
}
