//! The progress of a run, from what its client processes have written so far.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};

use super::stage::Stage;

/// A grant in a history.
const GRANTED: &str = "\"what\":\"granted\"";

/// Counts grants in histories that grow.
#[derive(Debug, Default)]
pub struct Progress {
    read: BTreeMap<PathBuf, u64>,
    grants: usize,
}

impl Progress {
    /// One line: grants, faults, the leader, violations.
    pub fn line(&mut self, stage: &Stage, faults: usize) -> String {
        for history in stage.clients.histories() {
            // A history that cannot be read now is read with the next line.
            let _ = self.count(history);
        }
        let leader = stage
            .pulse
            .leader()
            .map_or("nobody leads".into(), |node| format!("{} leads", stage.name(node)));
        let wrong = match stage.wrong.len() {
            0 => String::new(),
            wrong => format!(", {wrong} WRONG: {}", stage.wrong[wrong - 1]),
        };
        format!("{} grants, {faults} faults, {leader}{wrong}", self.grants)
    }

    fn count(&mut self, history: &Path) -> std::io::Result<()> {
        let read = self.read.entry(history.to_path_buf()).or_default();
        let mut file = File::open(history)?;
        file.seek(SeekFrom::Start(*read))?;
        let mut text = String::new();
        file.read_to_string(&mut text)?;
        // An incomplete line is left for the next time.
        let whole = text.rfind('\n').map_or(0, |end| end + 1);
        self.grants += text[..whole].matches(GRANTED).count();
        *read += whole as u64;
        Ok(())
    }
}
