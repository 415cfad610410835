//! Somebody else's clients of the recipes, in Python with the ordinary driver (`tests/legacy`).

use std::path::{Path, PathBuf};

use crate::python::Python;

/// One of their files.
pub fn script(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("legacy").join(file)
}

/// The Python that runs them, with the packages they need, made once below the target folder (`temporary` is its `tmp`).
/// `suite` can be left out where that cannot be had.
pub fn python(temporary: &str, suite: &str) -> Python {
    let folder = Path::new(temporary).join("legacy-client");
    Python::with(&script("requirements.txt"), &folder).unwrap_or_else(|why| {
        panic!(
            "needs python3 with venv and pip, and the packages in tests/legacy/requirements.txt (or leave it \
             out: tests/run --leave-out {suite}): {why}"
        )
    })
}
