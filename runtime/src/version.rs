//! Which build a program is, for its `--version`.

use std::fmt::Write as _;

use object::Object as _;

/// The commit, where the variable names one while the program is built, as for a release.
const COMMIT: Option<&str> = option_env!("HOLDFAST_COMMIT");

/// `release`, with the commit that this program was built from and the id that its linker gave it, as far as they are
/// known. The id is the one by which debuggers find the symbols of a program.
pub fn of(release: &str) -> String {
    let commit = COMMIT.map(|commit| format!("commit {commit}"));
    let build = build_id().map(|id| format!("build id {id}"));
    let known: Vec<_> = commit.into_iter().chain(build).collect();
    if known.is_empty() { release.to_owned() } else { format!("{release} ({})", known.join(", ")) }
}

/// From the file of this process; `None` if it cannot be read, or has none.
fn build_id() -> Option<String> {
    let program = std::fs::read(std::env::current_exe().ok()?).ok()?;
    let file = object::File::parse(&*program).ok()?;
    let id = file.build_id().ok()??;
    let digits = id.iter().fold(String::new(), |mut digits, byte| {
        // Writing to a string cannot fail.
        let _ = write!(digits, "{byte:02x}");
        digits
    });
    Some(digits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_begins_with_the_release_and_names_the_build() {
        let said = of("1.2.3");
        assert!(said.starts_with("1.2.3"), "{said}");
        let id = build_id().map(|id| said.contains(&id));
        assert!(id.unwrap_or(true), "{said}");
    }
}
