//! Which columns a table must have for a recipe, and a check of them.

use std::collections::BTreeMap;
use std::fmt;

/// A table that a recipe expects. Other columns are allowed, and are not read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expected {
    /// Its name.
    pub table: String,
    /// The columns that are read. The first one is the whole partition key.
    pub columns: Vec<Column>,
}

/// A column that is read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Column {
    /// Its name.
    pub name: String,
    /// Its place in the table's keys.
    pub role: Role,
    /// The types it may have.
    pub types: &'static [Type],
    /// Whether TTL and write time are read too, if the column is part of no key.
    pub detail: bool,
}

/// A column's place in the table's keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The partition key.
    Partition,
    /// The clustering key.
    Clustering,
    /// Part of no key.
    Regular,
    /// Part of the clustering key or of no key: both are in use.
    ClusteringOrRegular,
}

/// The types that recipes use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Type {
    /// `text`, `ascii`.
    Text,
    /// `blob`.
    Blob,
    /// `int`, `bigint`, `smallint`, `tinyint`, `varint`.
    Number,
    /// `uuid`, `timeuuid`.
    Uuid,
    /// `boolean`.
    Flag,
    /// `timestamp`.
    Time,
    /// Any other type, by its CQL name.
    Other(String),
}

/// Types of lock names.
pub(super) const NAME: &[Type] = &[Type::Text, Type::Blob];
/// Types of owners' ids: what is not `text` comes from Thrift, or is a UUID.
pub(super) const ID: &[Type] = &[Type::Text, Type::Blob, Type::Uuid];
/// Types of the bakery's lock names.
pub(super) const KEY: &[Type] = &[Type::Text, Type::Blob, Type::Number];
/// Types of the bakery's processes: "integers".
pub(super) const NUMBERED: &[Type] = &[Type::Text, Type::Blob, Type::Uuid, Type::Number];
/// Any type, for cells whose value is not used.
pub(super) const ANY: &[Type] =
    &[Type::Text, Type::Blob, Type::Uuid, Type::Number, Type::Flag, Type::Time];

/// A table as it exists.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Actual {
    /// By name.
    pub columns: BTreeMap<String, ActualColumn>,
}

/// One of its columns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ActualColumn {
    /// Its place in the table's keys.
    pub role: Role,
    /// Its type.
    pub is: Type,
}

/// Why a table does not fit the recipe.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Mismatch {
    /// A column is missing.
    #[error(
        "it has no column \"{column}\", which was expected as {expected}; its columns are: {has}"
    )]
    NoColumn {
        /// The name.
        column: String,
        /// The place and types that it should have.
        expected: String,
        /// The columns that the table has.
        has: String,
    },
    /// A column has another type.
    #[error("its column \"{column}\" is of type {is}, expected was {expected}")]
    WrongType {
        /// The name.
        column: String,
        /// Its type.
        is: Type,
        /// The types that it should have.
        expected: String,
    },
    /// A column has another place in the keys.
    #[error("its column \"{column}\" is {is}, expected was {expected}")]
    WrongRole {
        /// The name.
        column: String,
        /// Its place.
        is: Role,
        /// The place that it should have.
        expected: Role,
    },
    /// A key has more columns than the recipe's.
    #[error("\"{column}\" is {is} too, which the recipe does not have")]
    LongerKey {
        /// The name.
        column: String,
        /// The key that it is part of.
        is: Role,
    },
}

impl Expected {
    /// Checks that the existing table fits. Columns that are not read may be of any type.
    ///
    /// # Errors
    ///
    /// [`Mismatch`] is the first difference.
    pub fn check(&self, actual: &Actual) -> Result<(), Mismatch> {
        for column in &self.columns {
            let Some(there) = actual.columns.get(&column.name) else {
                let has = actual.columns.keys().cloned().collect::<Vec<_>>().join(", ");
                let expected = format!("{}, {}", column.role, column.type_names());
                return Err(Mismatch::NoColumn { column: column.name.clone(), expected, has });
            };
            column.check(there)?;
        }
        let expected = |name: &str| self.columns.iter().any(|column| column.name == name);
        let is_key = |there: &ActualColumn| there.role != Role::Regular;
        let mut more =
            actual.columns.iter().filter(|(name, there)| is_key(there) && !expected(name));
        more.next().map_or(Ok(()), |(name, there)| {
            Err(Mismatch::LongerKey { column: name.clone(), is: there.role })
        })
    }
}

impl Column {
    fn type_names(&self) -> String {
        self.types.iter().map(Type::to_string).collect::<Vec<_>>().join(" or ")
    }

    fn check(&self, there: &ActualColumn) -> Result<(), Mismatch> {
        let either = [Role::Clustering, Role::Regular].contains(&there.role);
        if there.role != self.role && !(self.role == Role::ClusteringOrRegular && either) {
            let (is, expected) = (there.role, self.role);
            return Err(Mismatch::WrongRole { column: self.name.clone(), is, expected });
        }
        if !self.types.contains(&there.is) {
            let (is, expected) = (there.is.clone(), self.type_names());
            return Err(Mismatch::WrongType { column: self.name.clone(), is, expected });
        }
        Ok(())
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Partition => "part of the partition key",
            Self::Clustering => "part of the clustering key",
            Self::Regular => "part of no key",
            Self::ClusteringOrRegular => "part of the clustering key or of no key",
        })
    }
}

impl fmt::Display for Type {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Text => "text",
            Self::Blob => "blob",
            Self::Number => "int or bigint",
            Self::Uuid => "uuid",
            Self::Flag => "boolean",
            Self::Time => "timestamp",
            Self::Other(name) => name,
        })
    }
}

#[cfg(test)]
mod tests {
    use holdfast_recipes::Recipe;

    use super::super::Layout;
    use super::*;

    fn expected() -> Expected {
        let lease = Layout::of(Recipe::Lease).expected();
        let columns = lease.into_iter().flat_map(|table| table.columns).take(2).collect();
        Expected { table: "leases".into(), columns }
    }

    fn actual(columns: &[(&str, Role, Type)]) -> Actual {
        let column = |(name, role, is): &(&str, Role, Type)| {
            ((*name).to_owned(), ActualColumn { role: *role, is: is.clone() })
        };
        Actual { columns: columns.iter().map(column).collect() }
    }

    #[test]
    fn a_table_may_have_more_columns_but_no_longer_key() {
        let name = ("name", Role::Partition, Type::Text);
        let owner = ("owner", Role::Regular, Type::Blob);
        let more = ("more", Role::Regular, Type::Other("double".into()));
        assert_eq!(expected().check(&actual(&[name.clone(), owner.clone(), more])), Ok(()));

        let key = ("shard", Role::Partition, Type::Number);
        let refused = expected().check(&actual(&[name, owner, key])).unwrap_err();
        assert!(refused.to_string().starts_with("\"shard\" is part of the partition key too"));
    }

    #[test]
    fn what_is_missing_or_of_another_type_or_elsewhere_is_named_with_what_was_expected() {
        let cases = [
            (
                actual(&[
                    ("name", Role::Partition, Type::Text),
                    ("who", Role::Regular, Type::Text),
                ]),
                "it has no column \"owner\", which was expected as part of no key, text or blob or \
                 uuid; its columns are: name, who",
            ),
            (
                actual(&[
                    ("name", Role::Partition, Type::Text),
                    ("owner", Role::Regular, Type::Number),
                ]),
                "its column \"owner\" is of type int or bigint, expected was text or blob or uuid",
            ),
            (
                actual(&[
                    ("name", Role::Partition, Type::Text),
                    ("owner", Role::Clustering, Type::Text),
                ]),
                "its column \"owner\" is part of the clustering key, expected was part of no key",
            ),
        ];
        for (actual, says) in cases {
            assert_eq!(expected().check(&actual).unwrap_err().to_string(), says);
        }
    }
}
