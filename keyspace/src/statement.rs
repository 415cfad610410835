//! The few operations of CQL that the recipes need, as data: values are bound, names are
//! identifiers, and no input of a caller is ever spliced into the text.
//!
//! The driver turns a [`Statement`] into a prepared one; the model of the tests interprets it. So
//! the tests run what Cassandra receives.

use std::fmt::{self, Write as _};
use std::sync::Arc;

/// The exact name of a table or a column.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ident(Arc<str>);

impl Ident {
    /// A name as the server has it: the case counts.
    pub fn new(name: &str) -> Self {
        Self(name.into())
    }

    /// Without quotes.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Always quoted: `token` is a reserved word, and a deployment may have capitals.
impl fmt::Display for Ident {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", self.0.replace('"', "\"\""))
    }
}

/// A value of a cell.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Value {
    /// `text`.
    Text(String),
    /// `bigint`.
    Long(i64),
    /// `timestamp`: milliseconds since 1970.
    Time(i64),
    /// `list<text>`. An empty list is null in the table.
    Texts(Vec<String>),
    /// `boolean`.
    Flag(bool),
}

impl Value {
    /// The text, if it is one.
    pub fn text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            Self::Long(_) | Self::Time(_) | Self::Texts(_) | Self::Flag(_) => None,
        }
    }

    /// The number, if it is one.
    pub fn long(&self) -> Option<i64> {
        match self {
            Self::Long(number) => Some(*number),
            Self::Text(_) | Self::Time(_) | Self::Texts(_) | Self::Flag(_) => None,
        }
    }

    /// The time, if it is one.
    pub fn time_ms(&self) -> Option<i64> {
        match self {
            Self::Time(milliseconds) => Some(*milliseconds),
            Self::Text(_) | Self::Long(_) | Self::Texts(_) | Self::Flag(_) => None,
        }
    }

    /// The flag, if it is one.
    pub fn flag(&self) -> Option<bool> {
        match self {
            Self::Flag(flag) => Some(*flag),
            Self::Text(_) | Self::Long(_) | Self::Time(_) | Self::Texts(_) => None,
        }
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<i64> for Value {
    fn from(number: i64) -> Self {
        Self::Long(number)
    }
}

/// A part of the ring on which a cluster places partitions: above `after`, and up to `upto`. Counted in the 64 bits of
/// `Murmur3Partitioner`; another ring is divided in the same proportions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenRange {
    /// The last token below the range.
    pub after: i64,
    /// The last token of the range.
    pub upto: i64,
}

impl TokenRange {
    /// Splits the whole ring into this many ranges, at least one, whose lengths differ by one token
    /// at most. No range has the lowest token, because no key has it.
    pub fn split(number: usize) -> Vec<Self> {
        Self { after: i64::MIN, upto: i64::MAX }.divided(number)
    }

    /// Divides it likewise.
    #[must_use]
    pub fn divided(self, number: usize) -> Vec<Self> {
        let number = number.max(1);
        let bounds = |at: usize| {
            let (at, of) = (u128::try_from(at).unwrap_or(0), u128::try_from(number).unwrap_or(1));
            let offset = u128::from(self.upto.abs_diff(self.after)) * at / of;
            let bound = i128::from(self.after) + i128::try_from(offset).unwrap_or(0);
            i64::try_from(bound).unwrap_or(i64::MAX)
        };
        (0..number).map(|index| Self { after: bounds(index), upto: bounds(index + 1) }).collect()
    }

    /// Whether a token lies in it.
    pub fn has(self, token: i64) -> bool {
        self.after < token && token <= self.upto
    }
}

/// Columns with the values to set, or to compare with; `None` is null.
pub type Cells = Vec<(Ident, Option<Value>)>;

/// One operation, on one partition, except for [`Action::Page`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Statement {
    /// The table, without its keyspace.
    pub table: Ident,
    /// The columns of the partition key, then as many of the clustering key as the operation names.
    pub key: Vec<(Ident, Value)>,
    /// How many of them belong to the partition key.
    pub partition: usize,
    /// Whether all datacenters decide it, even where locks are exclusive within one.
    pub everywhere: bool,
    /// The operation.
    pub action: Action,
}

impl Statement {
    /// An operation on a table whose partition key has one column, the first of `key`.
    pub fn new(table: Ident, key: Vec<(Ident, Value)>, action: Action) -> Self {
        Self { table, key, partition: 1, everywhere: false, action }
    }

    /// Reads the time of the node that executes it.
    pub fn node_time() -> Self {
        Self::new(Ident::new("local"), Vec::new(), Action::NodeTime)
    }

    /// Sets the number of columns of the partition key.
    #[must_use]
    pub fn partitioned_by(mut self, columns: usize) -> Self {
        self.partition = columns;
        self
    }

    /// Makes all datacenters decide it, whatever the session's scope is.
    #[must_use]
    pub fn decided_everywhere(mut self) -> Self {
        self.everywhere = true;
        self
    }
}

/// An operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// `INSERT … IF NOT EXISTS USING TTL`.
    InsertIfAbsent {
        /// The cells of the row, without its key.
        cells: Cells,
        /// The TTL of all of them, seconds.
        ttl_s: Option<i32>,
    },
    /// `UPDATE … USING TTL … IF`.
    UpdateIf {
        /// The cells to set.
        cells: Cells,
        /// The TTL of these cells, seconds.
        ttl_s: Option<i32>,
        /// The cells to compare.
        only_if: Cells,
    },
    /// `DELETE … IF`, of a whole row; `IF EXISTS` when there is nothing to compare.
    DeleteIf {
        /// The cells to compare.
        only_if: Cells,
    },
    /// `SELECT` of these columns with their remaining TTLs, at SERIAL.
    SelectSerial {
        /// The columns.
        columns: Vec<Ident>,
    },
    /// The same at QUORUM, as of the last LWT that was acknowledged, or a later one: for looks that decide nothing. It takes part in no round of
    /// Paxos, so it makes no LWT of others fail.
    Select {
        /// The columns.
        columns: Vec<Ident>,
    },
    /// `INSERT … USING TIMESTAMP … AND TTL`, unconditionally.
    Put {
        /// The cells of the row, without its key.
        cells: Cells,
        /// The TTL of all of them, seconds; 0: no TTL, whatever the table's default is.
        ttl_s: i32,
        /// The timestamp, microseconds since 1970.
        at_us: i64,
    },
    /// `DELETE … USING TIMESTAMP`, of a whole row, or of all rows below the columns that the key names.
    Erase {
        /// The timestamp, microseconds since 1970.
        at_us: i64,
    },
    /// `SELECT` of these columns of all rows of a partition, at SERIAL.
    AllSerial {
        /// The columns.
        columns: Vec<Ident>,
    },
    /// `SELECT` of these columns of a partition's first rows, at QUORUM.
    First {
        /// The columns.
        columns: Vec<Ident>,
        /// The maximum number of rows.
        limit: i32,
    },
    /// The same, from a given row on.
    FirstFrom {
        /// The columns.
        columns: Vec<Ident>,
        /// The clustering column after those of the key, and its minimum value.
        from: (Ident, Value),
        /// The maximum number of rows.
        limit: i32,
    },
    /// `SELECT` of these columns, the partition key's first, of all rows of the table, or of the partition if there is a key, at QUORUM: one
    /// page, from the end of the previous one.
    Page {
        /// The columns.
        columns: Vec<Ident>,
        /// One of them, of which the remaining TTL is read too.
        ttl_of: Option<Ident>,
        /// The part of the ring whose rows are read, unless there is a key; `None`: all of it.
        range: Option<TokenRange>,
        /// Where the previous page ended.
        from: Option<Vec<u8>>,
    },
    /// `SELECT toUnixTimestamp(now())`: the coordinator's wall clock in milliseconds. It belongs to no table
    /// ([`Statement::node_time`]).
    NodeTime,
}

/// The column of the answer to [`Action::NodeTime`].
pub const NODE_TIME: &str = "now";

impl Statement {
    /// Whether it is an LWT, which takes effect depending on the existing row.
    pub fn is_conditional(&self) -> bool {
        match self.action {
            Action::InsertIfAbsent { .. } | Action::UpdateIf { .. } | Action::DeleteIf { .. } => {
                true
            }
            Action::SelectSerial { .. }
            | Action::Select { .. }
            | Action::Put { .. }
            | Action::Erase { .. }
            | Action::AllSerial { .. }
            | Action::First { .. }
            | Action::FirstFrom { .. }
            | Action::Page { .. }
            | Action::NodeTime => false,
        }
    }

    /// Whether it is a read that Paxos decides.
    pub fn is_serial_read(&self) -> bool {
        matches!(self.action, Action::SelectSerial { .. } | Action::AllSerial { .. })
    }

    /// The text to prepare, without values.
    pub fn text(&self, keyspace: &Ident) -> String {
        let table = format!("{keyspace}.{}", self.table);
        let key = all(self.key.iter().map(|(column, _)| column), " AND ");
        match &self.action {
            Action::InsertIfAbsent { cells, ttl_s } => {
                let ttl = using_ttl(*ttl_s);
                format!("{} IF NOT EXISTS{ttl}", self.insert_into(&table, cells))
            }
            Action::Put { cells, .. } => {
                format!("{} USING TIMESTAMP ? AND TTL ?", self.insert_into(&table, cells))
            }
            Action::Erase { .. } => format!("DELETE FROM {table} USING TIMESTAMP ? WHERE {key}"),
            Action::First { columns, .. } => {
                format!("SELECT {} FROM {table} WHERE {key} LIMIT ?", listed(columns))
            }
            Action::FirstFrom { columns, from: (column, _), .. } => {
                format!(
                    "SELECT {} FROM {table} WHERE {key} AND {column} >= ? LIMIT ?",
                    listed(columns)
                )
            }
            Action::AllSerial { columns } => {
                format!("SELECT {} FROM {table} WHERE {key}", listed(columns))
            }
            Action::Page { columns, ttl_of, range, .. } => {
                let ttl = ttl_of.iter().fold(String::new(), |_, column| format!(", ttl({column})"));
                let of = match (range, columns.first()) {
                    _ if !self.key.is_empty() => format!(" WHERE {key}"),
                    (Some(_), Some(first)) => {
                        format!(" WHERE token({first}) > ? AND token({first}) <= ?")
                    }
                    _ => String::new(),
                };
                format!("SELECT {}{ttl} FROM {table}{of}", listed(columns))
            }
            Action::NodeTime => "SELECT toUnixTimestamp(now()) FROM system.local".to_owned(),
            Action::UpdateIf { cells, ttl_s, only_if } => {
                let ttl = using_ttl(*ttl_s);
                let set = all(cells.iter().map(|(column, _)| column), ", ");
                let only_if = all(only_if.iter().map(|(column, _)| column), " AND ");
                format!("UPDATE {table}{ttl} SET {set} WHERE {key} IF {only_if}")
            }
            Action::DeleteIf { only_if } if only_if.is_empty() => {
                format!("DELETE FROM {table} WHERE {key} IF EXISTS")
            }
            Action::DeleteIf { only_if } => {
                let only_if = all(only_if.iter().map(|(column, _)| column), " AND ");
                format!("DELETE FROM {table} WHERE {key} IF {only_if}")
            }
            Action::SelectSerial { columns } | Action::Select { columns } => {
                let mut wanted = String::new();
                for column in columns {
                    // Infallible: writing to a String cannot fail.
                    let _ = write!(wanted, "{column}, ttl({column}), ");
                }
                let wanted = wanted.trim_end_matches(", ");
                format!("SELECT {wanted} FROM {table} WHERE {key}")
            }
        }
    }

    fn insert_into(&self, table: &str, cells: &Cells) -> String {
        let key = self.key.iter().map(|(column, _)| column);
        let columns = key.chain(cells.iter().map(|(column, _)| column));
        let columns: Vec<String> = columns.map(Ident::to_string).collect();
        let marks = vec!["?"; columns.len()].join(", ");
        format!("INSERT INTO {table} ({}) VALUES ({marks})", columns.join(", "))
    }

    /// The values to bind, in the order of the marks in the text, where a TTL stands among them.
    pub fn binds(&self) -> Vec<Bind> {
        let key = self.key.iter().map(|(_, value)| Bind::Value(Some(value.clone())));
        let of = |cells: &Cells| -> Vec<Bind> {
            cells.iter().map(|(_, value)| Bind::Value(value.clone())).collect()
        };
        let ttl = |ttl_s: &Option<i32>| ttl_s.map(Bind::Int);
        match &self.action {
            Action::InsertIfAbsent { cells, ttl_s } => {
                key.chain(of(cells)).chain(ttl(ttl_s)).collect()
            }
            Action::UpdateIf { cells, ttl_s, only_if } => {
                ttl(ttl_s).into_iter().chain(of(cells)).chain(key).chain(of(only_if)).collect()
            }
            Action::DeleteIf { only_if } => key.chain(of(only_if)).collect(),
            Action::SelectSerial { .. } | Action::Select { .. } | Action::AllSerial { .. } => {
                key.collect()
            }
            Action::Put { cells, ttl_s, at_us } => {
                let using = [Bind::Value(Some(Value::Long(*at_us))), Bind::Int(*ttl_s)];
                key.chain(of(cells)).chain(using).collect()
            }
            Action::Erase { at_us } => {
                [Bind::Value(Some(Value::Long(*at_us)))].into_iter().chain(key).collect()
            }
            Action::First { limit, .. } => key.chain([Bind::Int(*limit)]).collect(),
            Action::FirstFrom { from: (_, from), limit, .. } => {
                key.chain([Bind::Value(Some(from.clone())), Bind::Int(*limit)]).collect()
            }
            Action::Page { range: Some(range), .. } if self.key.is_empty() => {
                [range.after, range.upto].map(Bind::Token).to_vec()
            }
            Action::Page { .. } => key.collect(),
            Action::NodeTime => Vec::new(),
        }
    }
}

/// The value for one mark of a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Bind {
    /// A cell; `None` is null.
    Value(Option<Value>),
    /// The seconds of a TTL, or a number of rows.
    Int(i32),
    /// The bound of a [`TokenRange`].
    Token(i64),
}

fn all<'a>(columns: impl Iterator<Item = &'a Ident>, between: &str) -> String {
    columns.map(|column| format!("{column} = ?")).collect::<Vec<_>>().join(between)
}

fn listed(columns: &[Ident]) -> String {
    columns.iter().map(Ident::to_string).collect::<Vec<_>>().join(", ")
}

/// A TTL of 0 is none, whatever the table's `default_time_to_live` is. Without it a table that somebody gave a default would
/// end tokens under their holders, and begin sequences again.
fn using_ttl(ttl_s: Option<i32>) -> &'static str {
    if ttl_s.is_some() { " USING TTL ?" } else { " USING TTL 0" }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn statement(action: Action) -> Statement {
        let key = vec![(Ident::new("name"), Value::from("it's"))];
        Statement::new(Ident::new("leases"), key, action)
    }

    fn owner(value: &str) -> Cells {
        vec![(Ident::new("owner"), Some(Value::from(value)))]
    }

    /// The marks in the text have the order of the values.
    #[test]
    fn a_statement_binds_what_its_text_marks_in_the_order_of_the_marks() {
        let update = statement(Action::UpdateIf {
            cells: owner("new"),
            ttl_s: Some(180),
            only_if: owner("old"),
        });

        assert_eq!(
            update.text(&Ident::new("k")),
            "UPDATE \"k\".\"leases\" USING TTL ? SET \"owner\" = ? WHERE \"name\" = ? IF \"owner\" = ?"
        );
        let values = ["new", "it's", "old"].map(|text| Bind::Value(Some(Value::from(text))));
        let mut expected = vec![Bind::Int(180)];
        expected.extend(values);
        assert_eq!(update.binds(), expected);
    }

    /// The default of a table would end the row.
    #[test]
    fn a_row_without_a_ttl_says_so() {
        let insert = statement(Action::InsertIfAbsent { cells: owner("new"), ttl_s: None });
        assert_eq!(
            insert.text(&Ident::new("k")),
            "INSERT INTO \"k\".\"leases\" (\"name\", \"owner\") VALUES (?, ?) IF NOT EXISTS USING TTL 0"
        );
        assert_eq!(insert.binds().len(), 2);
        let (cells, only_if) = (owner("new"), owner("old"));
        let update = statement(Action::UpdateIf { cells, ttl_s: None, only_if });
        assert!(
            update.text(&Ident::new("k")).starts_with("UPDATE \"k\".\"leases\" USING TTL 0 SET ")
        );
        assert_eq!(update.binds().len(), 3);
    }

    #[test]
    fn a_delete_that_compares_nothing_asks_whether_there_is_a_row() {
        let delete = statement(Action::DeleteIf { only_if: Vec::new() });

        assert_eq!(
            delete.text(&Ident::new("k")),
            "DELETE FROM \"k\".\"leases\" WHERE \"name\" = ? IF EXISTS"
        );
        assert_eq!(delete.binds(), [Bind::Value(Some(Value::from("it's")))]);
    }

    #[test]
    fn rows_from_one_on_are_bound_after_the_key() {
        let columns = vec![Ident::new("item")];
        let from = (Ident::new("item"), Value::from("7"));
        let scan = statement(Action::FirstFrom { columns, from, limit: 9 });

        assert_eq!(
            scan.text(&Ident::new("k")),
            "SELECT \"item\" FROM \"k\".\"leases\" WHERE \"name\" = ? AND \"item\" >= ? LIMIT ?"
        );
        let values = ["it's", "7"].map(|text| Bind::Value(Some(Value::from(text))));
        assert_eq!(scan.binds(), [&values[..], &[Bind::Int(9)]].concat());
    }

    #[test]
    fn a_page_is_of_all_rows_or_of_those_of_a_partition() {
        let columns = vec![Ident::new("token"), Ident::new("timestamp")];
        let page =
            |ttl_of| Action::Page { columns: columns.clone(), ttl_of, range: None, from: None };
        let all = Statement::new(Ident::new("leases"), Vec::new(), page(None));
        let text = "SELECT \"token\", \"timestamp\" FROM \"k\".\"leases\"";
        assert_eq!((all.text(&Ident::new("k")).as_str(), all.binds()), (text, vec![]));

        let one = statement(page(Some(Ident::new("timestamp"))));
        assert_eq!(
            one.text(&Ident::new("k")),
            "SELECT \"token\", \"timestamp\", ttl(\"timestamp\") FROM \"k\".\"leases\" WHERE \"name\" = ?"
        );
        assert_eq!(one.binds(), [Bind::Value(Some(Value::from("it's")))]);

        let range = Some(TokenRange { after: -5, upto: 7 });
        let action = Action::Page { columns: columns.clone(), ttl_of: None, range, from: None };
        let part = Statement::new(Ident::new("leases"), Vec::new(), action);
        let within = " WHERE token(\"token\") > ? AND token(\"token\") <= ?";
        assert_eq!(part.text(&Ident::new("k")), format!("{text}{within}"));
        assert_eq!(part.binds(), [Bind::Token(-5), Bind::Token(7)]);
    }

    #[test]
    fn a_name_cannot_end_its_quotes() {
        let select = Statement {
            table: Ident::new("a\"; DROP"),
            ..statement(Action::SelectSerial { columns: vec![Ident::new("token")] })
        };

        assert_eq!(
            select.text(&Ident::new("K")),
            "SELECT \"token\", ttl(\"token\") FROM \"K\".\"a\"\"; DROP\" WHERE \"name\" = ?"
        );
    }
}
