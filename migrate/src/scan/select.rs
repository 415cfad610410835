//! The text of the reads. What is named is an identifier, what is bound is a value.

use crate::layout::{Actual, Expected, Role};

/// A table that is there, as it is read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Readable {
    pub(super) table: String,
    /// The first is the partition key. TTL and write time follow those with detail.
    pub(super) columns: Vec<(String, bool)>,
}

impl Readable {
    /// TTL and write time can be asked for what is no part of a key.
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

    /// All rows of a range: the token first, then the columns.
    pub(super) fn select_range(&self, keyspace: &str) -> String {
        let token = self.token();
        let wanted = self.wanted();
        let table = of_keyspace(keyspace, &self.table);
        format!("SELECT {token}, {wanted} FROM {table} WHERE {token} > ? AND {token} <= ?")
    }

    /// The rows of one key: the same columns.
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

/// As the server has the name, capitals and all.
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
