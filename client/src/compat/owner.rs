//! Who an attempt is, in the table and to others.

use std::fmt::Write as _;

use holdfast_seams::Rng;

/// What the ids of this client begin with, so that a migration knows its rows (DESIGN §10).
pub(crate) const MARK: &str = "hf1:";

/// Whether an id is one of this client's, of any version of it.
pub fn is_ours(owner: &str) -> bool {
    owner.starts_with(MARK)
}

/// The id of one attempt: never used by another one, so a row that has it is this attempt's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OwnerId(String);

impl OwnerId {
    /// `hf1:service/` and 128 random bits.
    pub(crate) fn draw(service: &str, rng: &dyn Rng) -> Self {
        let mut bits = [0; 16];
        rng.fill(&mut bits);
        let mut id = format!("{MARK}{service}/");
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

/// What people are shown of an owner: the service of one of ours, anything else as it stands.
pub fn service_of(owner: &str) -> &str {
    thread_id(owner)
}

/// The same, as the recipes call it.
pub(crate) fn thread_id(owner: &str) -> &str {
    let ours = owner.strip_prefix(MARK).and_then(|rest| rest.rsplit_once('/'));
    ours.map_or(owner, |(service, _)| service)
}

/// Draws the same bits always.
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
        let owner = OwnerId::draw("billing/eu", &Always);

        assert_eq!(owner.as_str(), format!("hf1:billing/eu/{}", "a5".repeat(16)));
        assert_eq!(thread_id(owner.as_str()), "billing/eu");
        assert_eq!(thread_id("client_unique_id_1"), "client_unique_id_1");
        assert_eq!(thread_id("node/1"), "node/1");
    }
}
