//! Third-party clients of the recipes, in Python with the ordinary driver (`tests/legacy`).

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::history::{Record, What};
use crate::python::Python;

/// How often a lock passed from an old client, whose numbers begin with `first_old`, to one of ours, and from one of ours to an old one.
pub fn passed(records: &[Record], first_old: u64) -> (usize, usize) {
    let mut last = BTreeMap::<&str, bool>::new();
    let (mut to_us, mut to_them) = (0, 0);
    for record in records {
        let What::Granted { names, .. } = &record.what else { continue };
        let old = record.client.0 >= first_old;
        for name in names {
            match last.insert(name, old) {
                Some(true) if !old => to_us += 1,
                Some(false) if old => to_them += 1,
                _ => {}
            }
        }
    }
    (to_us, to_them)
}

/// The path of one of their files.
pub fn script(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("legacy").join(file)
}

/// The Python that runs them, with the packages they need, made once below the target folder (`temporary` is its `tmp`). A run can leave
/// out `suite` where that is not available.
pub fn python(temporary: &str, suite: &str) -> Python {
    let folder = Path::new(temporary).join("legacy-client");
    Python::with(&script("requirements.txt"), &folder).unwrap_or_else(|why| {
        panic!(
            "needs python3 with venv and pip, and the packages in tests/legacy/requirements.txt (or leave it \
             out: tests/run --leave-out {suite}): {why}"
        )
    })
}
