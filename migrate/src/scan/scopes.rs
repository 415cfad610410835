//! The scopes that processes of ours have registered in: read from the table of modes, where there is one.

use std::collections::BTreeSet;

use holdfast::compat::{LockerMode, Stage, service_of};

use super::{Scan, ScanError};

/// A scope, as it was at some instant of the read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeenScope {
    /// What its locks' names begin with.
    pub scope: String,
    /// Where it is; `None`: at a stage that is not known here.
    pub stage: Option<Stage>,
    /// The services of those of its processes that hold natively whatever they hold in the recipe's tables.
    pub services: BTreeSet<String>,
}

/// A row of the table of modes: scope, process, mode, stage.
pub(super) type ModeRow = [Option<String>; 4];

impl SeenScope {
    /// Whether a name can begin with both.
    pub fn meets(&self, prefix: &str) -> bool {
        self.scope.starts_with(prefix) || prefix.starts_with(&self.scope)
    }
}

impl Scan {
    /// The scopes in a table of modes; none if there is no such table.
    ///
    /// # Errors
    ///
    /// [`ScanError`] if it could not be read.
    pub async fn scopes(&self, table: &str) -> Result<Vec<SeenScope>, ScanError> {
        Ok(scopes_of(self.driver.modes(table).await?))
    }
}

/// The rows of one scope stand together.
fn scopes_of(rows: Vec<ModeRow>) -> Vec<SeenScope> {
    let mut scopes: Vec<SeenScope> = Vec::new();
    for [scope, process, mode, stage] in rows {
        let Some(scope) = scope.as_deref().and_then(|scope| scope.strip_suffix('*')) else {
            continue;
        };
        if scopes.last().is_none_or(|last| last.scope != scope) {
            let (scope, stage) = (scope.to_owned(), stage_of(stage.as_deref()));
            scopes.push(SeenScope { scope, stage, services: BTreeSet::new() });
        }
        let holds_natively =
            mode.as_deref().and_then(LockerMode::parse) != Some(LockerMode::Cassandra);
        if let (Some(seen), Some(process), true) = (scopes.last_mut(), process, holds_natively) {
            seen.services.insert(service_of(&process).to_owned());
        }
    }
    scopes
}

/// One that nobody has moved yet says none.
fn stage_of(stage: Option<&str>) -> Option<Stage> {
    let Some(stage) = stage else { return Some(Stage::Cassandra) };
    Stage::parse(stage)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(scope: &str, process: &str, mode: &str, stage: Option<&str>) -> ModeRow {
        [Some(scope.into()), Some(process.into()), Some(mode.into()), stage.map(str::to_owned)]
    }

    #[test]
    fn a_scope_has_its_stage_and_the_services_that_hold_natively() {
        let scopes = scopes_of(vec![
            row("a/*", "hf1:one/17", "both", Some("both")),
            row("a/*", "hf1:two/18", "cassandra", Some("both")),
            [Some("b/*".into()), None, None, Some("native".into())],
            row("*", "hf1:three/19", "native", None),
            row("c/*", "hf1:four/20", "both", Some("beyond")),
        ]);

        let seen = |scope: &SeenScope| {
            let services: Vec<&str> = scope.services.iter().map(String::as_str).collect();
            (scope.scope.clone(), scope.stage, services.join(" "))
        };
        let seen: Vec<_> = scopes.iter().map(seen).collect();
        assert_eq!(
            seen,
            [
                ("a/".into(), Some(Stage::Both), "one".into()),
                ("b/".into(), Some(Stage::Native), String::new()),
                (String::new(), Some(Stage::Cassandra), "three".into()),
                ("c/".into(), None, "four".into()),
            ]
        );
    }

    #[test]
    fn a_scope_meets_what_is_above_and_below_it() {
        let scope = SeenScope { scope: "a/b/".into(), stage: None, services: BTreeSet::new() };
        let meets = ["", "a/", "a/b/", "a/b/c", "a/c", "b"].map(|prefix| scope.meets(prefix));
        assert_eq!(meets, [true, true, true, true, false, false]);
    }
}
