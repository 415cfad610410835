//! The CQL of the reads. Names are quoted identifiers, values are bound.

use crate::layout::{Actual, Expected, Role};

/// An existing table, with the columns to read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Readable {
    pub(super) table: String,
    /// The columns, the partition key first. TTL and write time follow those marked `true`.
    pub(super) columns: Vec<(String, bool)>,
}

impl Readable {
    /// Reads TTL and write time only of columns that are part of no key.
    pub(super) fn of(expected: &Expected, actual: &Actual) -> Self {
        let is_regular = |name: &String| {
            actual.columns.get(name).is_some_and(|there| there.role == Role::Regular)
        };
        let columns = expected.columns.iter();
        Self {
            table: expected.table.clone(),
            columns: columns
                .map(|column| (column.name.clone(), column.detail && is_regular(&column.name)))
                .collect(),
        }
    }

    /// Reads all rows of a range: the token first, then the columns.
    pub(super) fn select_range(&self, keyspace: &str) -> String {
        let token = self.token();
        let wanted = self.wanted();
        let table = of_keyspace(keyspace, &self.table);
        format!("SELECT {token}, {wanted} FROM {table} WHERE {token} > ? AND {token} <= ?")
    }

    /// Reads the rows of one key, with the same columns.
    pub(super) fn select_key(&self, keyspace: &str) -> String {
        let (token, wanted, key) = (self.token(), self.wanted(), self.key());
        format!(
            "SELECT {token}, {wanted} FROM {} WHERE {key} = ?",
            of_keyspace(keyspace, &self.table)
        )
    }

    fn key(&self) -> String {
        self.columns.first().map(|(name, _)| quoted(name)).unwrap_or_default()
    }

    fn token(&self) -> String {
        format!("token({})", self.key())
    }

    fn wanted(&self) -> String {
        let column = |(name, detail): &(String, bool)| {
            let name = quoted(name);
            if *detail { format!("{name}, TTL({name}), WRITETIME({name})") } else { name }
        };
        self.columns.iter().map(column).collect::<Vec<_>>().join(", ")
    }
}

/// A table by its full name.
pub(super) fn of_keyspace(keyspace: &str, table: &str) -> String {
    format!("{}.{}", quoted(keyspace), quoted(table))
}

/// Quotes a name, so that the server keeps its case.
pub(crate) fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_quoted_and_details_follow_their_column() {
        let columns = vec![("key".into(), false), ("own\"er".into(), true)];
        let table = Readable { table: "Leases; --".into(), columns };
        assert_eq!(
            table.select_range("k"),
            "SELECT token(\"key\"), \"key\", \"own\"\"er\", TTL(\"own\"\"er\"), \
             WRITETIME(\"own\"\"er\") FROM \"k\".\"Leases; --\" WHERE token(\"key\") > ? AND \
             token(\"key\") <= ?"
        );
        assert!(table.select_key("k").ends_with("\" WHERE \"key\" = ?"));
    }
}
