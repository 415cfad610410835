//! Reads the scopes, with the processes registered in them, from the table of modes, if there is
//! one.

use std::collections::BTreeSet;

use holdfast_recipes::{LockerMode, Stage, Writer};

use super::{Scan, ScanError};

/// A scope, as it was at some instant of the read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeenScope {
    /// What its locks' names begin with.
    pub scope: String,
    /// Its stage; `None`: one that this release does not know.
    pub stage: Option<Stage>,
    /// The writers of its processes that hold natively whatever they hold in the recipe's tables.
    pub writers: BTreeSet<Writer>,
    /// Processes of version 0.1 among those, whose rows look like those of other clients.
    pub older: Vec<String>,
    /// The recipe and tables that its processes lock by, if one has recorded them.
    pub recipe: Option<String>,
    /// The cluster of the native store that they lock in, if one has recorded it.
    pub cluster: Option<String>,
}

/// A row of the table of modes: scope, process, mode, stage, recipe, cluster.
pub(crate) type ModeRow = [Option<String>; 6];

impl SeenScope {
    /// Whether a name can have both prefixes.
    pub fn meets(&self, prefix: &str) -> bool {
        self.scope.starts_with(prefix) || prefix.starts_with(&self.scope)
    }
}

impl Scan {
    /// Reads the scopes of a table of modes; none if there is no such table.
    ///
    /// # Errors
    ///
    /// [`ScanError`] if it could not be read.
    pub async fn scopes(&self, table: &str) -> Result<Vec<SeenScope>, ScanError> {
        Ok(scopes_of(self.tables.modes(table).await?))
    }
}

/// Groups rows by scope; the rows of one scope are adjacent.
fn scopes_of(rows: Vec<ModeRow>) -> Vec<SeenScope> {
    let mut scopes: Vec<SeenScope> = Vec::new();
    for [scope, process, mode, stage, recipe, cluster] in rows {
        let Some(scope) = scope.as_deref().and_then(|scope| scope.strip_suffix('*')) else {
            continue;
        };
        if scopes.last().is_none_or(|last| last.scope != scope) {
            // A scope without a stage was never moved.
            let stage = stage.as_deref().map_or(Some(Stage::Cassandra), Stage::of_row);
            let scope = scope.to_owned();
            let (writers, older) = (BTreeSet::new(), Vec::new());
            scopes.push(SeenScope { scope, stage, writers, older, recipe, cluster });
        }
        let holds_natively =
            mode.as_deref().and_then(LockerMode::of_row) != Some(LockerMode::Cassandra);
        let (Some(seen), Some(process)) = (scopes.last_mut(), process) else { continue };
        match Writer::of(&process) {
            Some(writer) if holds_natively => drop(seen.writers.insert(writer)),
            None if holds_natively => seen.older.push(process),
            Some(_) | None => {}
        }
    }
    scopes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(scope: &str, process: &str, mode: &str, stage: Option<&str>) -> ModeRow {
        let [scope, process, mode] = [scope, process, mode].map(|text| Some(text.to_owned()));
        [scope, process, mode, stage.map(str::to_owned), Some("lease k.leases".into()), None]
    }

    #[test]
    fn a_scope_has_its_stage_and_the_writers_that_hold_natively() {
        let of = |digit: &str| format!("hf1:one@{}/17", digit.repeat(16));
        let scopes = scopes_of(vec![
            row("a/*", &of("1"), "both/2", Some("both")),
            row("a/*", &of("2"), "cassandra/2", Some("both")),
            row("a/*", "hf1:older/18", "both", Some("both")),
            [Some("b/*".into()), None, None, Some("native/2".into()), None, None],
            row("*", &of("3"), "native/2", None),
            row("c/*", &of("4"), "both/2", Some("beyond")),
        ]);

        let seen = |scope: &SeenScope| {
            let writers = scope.writers.clone();
            (scope.scope.clone(), scope.stage, writers.into_iter().collect::<Vec<_>>())
        };
        let seen: Vec<_> = scopes.iter().map(seen).collect();
        let writer = |digit: &str| vec![Writer::of(&of(digit)).unwrap()];
        assert_eq!(
            seen,
            [
                ("a/".into(), Some(Stage::Both), writer("1")),
                ("b/".into(), Some(Stage::Native), Vec::new()),
                (String::new(), Some(Stage::Cassandra), writer("3")),
                ("c/".into(), None, writer("4")),
            ]
        );
        assert_eq!(scopes[0].older, ["hf1:older/18"]);
        assert_eq!(scopes[0].recipe.as_deref(), Some("lease k.leases"));
    }

    #[test]
    fn a_scope_meets_what_is_above_and_below_it() {
        let (writers, older) = (BTreeSet::new(), Vec::new());
        let (recipe, cluster) = (None, None);
        let scope =
            SeenScope { scope: "a/b/".into(), stage: None, writers, older, recipe, cluster };
        let meets = ["", "a/", "a/b/", "a/b/c", "a/c", "b"].map(|prefix| scope.meets(prefix));
        assert_eq!(meets, [true, true, true, true, false, false]);
    }
}
