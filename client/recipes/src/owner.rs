//! The ids of attempts, as the tables and other clients have them.
//!
//! An id is `hf1:SERVICE@WRITER/ATTEMPT`. The service is the name that the user chose; several processes may share it. The writer
//! is 64 random bits of one locker, which identify its rows. Version 0.1 wrote `hf1:SERVICE/ATTEMPT`: such a row does not show
//! which locker wrote it.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use holdfast_mutants::mutant;
use holdfast_runtime::Rng;

/// The prefix of this client's ids, by which a migration recognises its rows (DESIGN §10).
pub(crate) const MARK: &str = "hf1:";
const WRITER_DIGITS: usize = 16;
/// What the note of a native hold begins with whose holder has a row in Cassandra as well.
const NOTED: &str = "in Cassandra too, as @";

/// Whether an id was written by this client, in any version.
pub fn is_ours(owner: &str) -> bool {
    owner.starts_with(MARK)
}

/// The locker that wrote a row: 64 random bits, as they stand in ids. A [`Locker`](super::Locker) draws them for the recipe it builds
/// on, and its row in the table of modes has the same writer. So its rows are distinguishable from all others, whatever the service
/// name is.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Writer(Arc<str>);

impl Writer {
    pub(crate) fn draw(rng: &dyn Rng) -> Self {
        Self(format!("{:016x}", rng.next_u64()).into())
    }

    /// The writer in an owner id of this client, or in a process id of the table of modes; `None` for ids of version 0.1 and
    /// of foreign clients.
    pub fn of(owner: &str) -> Option<Self> {
        let (service, _) = owner.strip_prefix(MARK)?.rsplit_once('/')?;
        let (_, writer) = split(service)?;
        Some(Self(writer.into()))
    }

    /// The note of the native half of a lock that this writer has in both stores. It shows which row in Cassandra is the other half:
    /// without it, a row that a process left behind looks like the row of whoever holds the lock natively.
    pub(crate) fn note(&self) -> String {
        format!("{NOTED}{}", self.0)
    }

    /// The writer of the row that a native holder with this note has in Cassandra; `None` for the note of any other holder.
    pub fn of_note(note: &str) -> Option<Self> {
        let (_, writer) = split(note).filter(|_| note.starts_with(NOTED))?;
        Some(Self(writer.into()))
    }
}

fn split(service: &str) -> Option<(&str, &str)> {
    let (service, writer) = service.rsplit_once('@')?;
    let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    (writer.len() == WRITER_DIGITS && writer.bytes().all(is_digit)).then_some((service, writer))
}

#[derive(Clone, Debug)]
pub(crate) struct Signature {
    service: Arc<str>,
    writer: Writer,
}

impl Signature {
    /// The signature of a locker that no row of the table of modes registers.
    pub(crate) fn draw(service: &str, rng: &dyn Rng) -> Self {
        Self { service: service.into(), writer: Writer::draw(rng) }
    }

    pub(crate) fn of_writer(&self, writer: &Writer) -> Self {
        Self { service: self.service.clone(), writer: writer.clone() }
    }

    pub(crate) fn service(&self) -> &str {
        &self.service
    }
}

/// The id of one attempt. No other attempt has it at the same time, so a row with it is this attempt's. What an attempt writes by LWT
/// has an id that no attempt ever had before; only the recipes of plain writes use ids again ([`OwnerPool`]).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct OwnerId(String);

impl OwnerId {
    /// `hf1:service@writer/` and 128 random bits.
    pub(crate) fn draw(signature: &Signature, rng: &dyn Rng) -> Self {
        let mut bits = [0; 16];
        if !mutant!(AttemptsShareId) {
            rng.fill(&mut bits);
        }
        let Signature { service, writer } = signature;
        let mut id = format!("{MARK}{service}@{}/", writer.0);
        for byte in bits {
            // Infallible: a String takes whatever is written to it.
            let _ = write!(id, "{byte:02x}");
        }
        Self(id)
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

/// The ids of one locker's attempts that are over and left nothing in the tables. The lowest is used first, so that few ids are in
/// use while many attempts follow each other.
#[derive(Default)]
pub(crate) struct OwnerPool(Mutex<BTreeSet<OwnerId>>);

impl OwnerPool {
    /// An id that no attempt has now: one that was given back, or else a newly drawn one.
    pub(crate) fn take(&self, draw: impl FnOnce() -> OwnerId) -> OwnerId {
        self.free().pop_first().unwrap_or_else(draw)
    }

    /// No cell of this id is in the tables, and none that arrives later can win over the deletes of them.
    pub(crate) fn give_back(&self, owner: OwnerId) {
        self.free().insert(owner);
    }

    fn free(&self) -> MutexGuard<'_, BTreeSet<OwnerId>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How an owner is shown to people: the service of an id of this client, any other id unchanged.
pub fn service_of(owner: &str) -> &str {
    let ours = owner.strip_prefix(MARK).and_then(|rest| rest.rsplit_once('/'));
    let Some((service, _)) = ours else { return owner };
    split(service).map_or(service, |(service, _)| service)
}

/// Always draws the same bits.
#[cfg(test)]
pub(crate) struct Always;

#[cfg(test)]
impl Rng for Always {
    fn fill(&self, bytes: &mut [u8]) {
        bytes.fill(0xa5);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_owner_is_shown_as_its_service_and_a_stranger_as_it_stands() {
        let owner = OwnerId::draw(&Signature::draw("billing/eu", &Always), &Always);

        let [writer, attempt] = ["a5".repeat(8), "a5".repeat(16)];
        assert_eq!(owner.as_str(), format!("hf1:billing/eu@{writer}/{attempt}"));
        assert_eq!(service_of(owner.as_str()), "billing/eu");
        assert_eq!(service_of("client_unique_id_1"), "client_unique_id_1");
        assert_eq!(service_of("node/1"), "node/1");
    }

    /// A service of version 0.1 may have an `@` in its name, too.
    #[test]
    fn whose_a_row_is_says_a_row_of_ours_and_none_of_version_0_1() {
        let writer = |owner: &str| Writer::of(owner).map(|writer| writer.0.to_string());
        let of_0_1 = format!("hf1:billing@eu/{}", "a5".repeat(16));

        assert_eq!(service_of(&of_0_1), "billing@eu");
        assert_eq!(writer(&of_0_1), None);
        assert_eq!(writer("hf1:billing/0123"), None);
        assert_eq!(writer("billing@0123456789abcdef/7"), None);
        assert_eq!(writer("hf1:billing@0123456789ABCDEF/7"), None);
        assert_eq!(writer("hf1:a@b@0123456789abcdef/7:180").unwrap(), "0123456789abcdef");
    }
}
