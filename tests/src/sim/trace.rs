//! What happened in a run, line by line: equal runs have equal traces.

use std::fmt::{self, Write as _};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Every message of a run's network and every write of its disks. Cheap to clone; clones write the
/// same trace.
#[derive(Clone, Debug, Default)]
pub struct Trace(Arc<Mutex<Lines>>);

#[derive(Debug, Default)]
struct Lines {
    digest: DefaultHasher,
    count: u64,
    kept: Option<Vec<String>>,
}

impl Trace {
    /// A trace that keeps its lines for reading. Otherwise only their digest is kept.
    pub fn kept() -> Self {
        Self(Arc::new(Mutex::new(Lines { kept: Some(Vec::new()), ..Lines::default() })))
    }

    /// Writes a line.
    pub fn note(&self, at: Duration, line: fmt::Arguments<'_>) {
        let mut lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        lines.count += 1;
        at.hash(&mut lines.digest);
        // Writing into a digest or a string does not fail.
        let _ = Digested(&mut lines.digest).write_fmt(line);
        if let Some(kept) = &mut lines.kept {
            kept.push(format!("{:>13.6} {line}", at.as_secs_f64()));
        }
    }

    /// A digest of all lines so far.
    pub fn digest(&self) -> u64 {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).digest.finish()
    }

    /// How many lines were written.
    pub fn count(&self) -> u64 {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).count
    }

    /// The lines, if they are kept.
    pub fn lines(&self) -> Vec<String> {
        let lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        lines.kept.clone().unwrap_or_default()
    }
}

struct Digested<'a>(&'a mut DefaultHasher);

impl fmt::Write for Digested<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0.write(text.as_bytes());
        Ok(())
    }
}

/// A digest of bytes, for a line about them.
pub(super) fn digest_of(bytes: &[u8]) -> u64 {
    let mut digest = DefaultHasher::new();
    digest.write(bytes);
    digest.finish()
}
