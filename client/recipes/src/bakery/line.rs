//! The numbers of a lock: which is next, and whose turn it is. No I/O.

use crate::owner::is_ours;

#[derive(Debug, Default)]
pub(super) struct Line(Vec<(i64, String)>);

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Turn {
    Ours,
    /// The number is missing or another one: it has ended, or was deleted.
    NotThere,
    /// No client has a lower number, but a foreign client has the same; whether and how it compares ids
    /// is unknown.
    Tied {
        with: String,
    },
    Behind {
        first: String,
        before: usize,
    },
}

impl Line {
    /// Adds a cell as it is in the table. 0 is not in line: Lamport's value for a process that does
    /// not compete.
    ///
    /// # Errors
    ///
    /// Describes a number that no client draws. Such a cell could stand for any number.
    pub(super) fn add(&mut self, id: &str, number: Option<i64>) -> Result<(), String> {
        match number {
            Some(0) => {}
            Some(number) if number > 0 => self.0.push((number, id.to_owned())),
            Some(number) => return Err(format!("has the number {number}, which nobody draws")),
            None => return Err("has no number".to_owned()),
        }
        Ok(())
    }

    /// Wiki, line 3: the highest number plus one; `None` behind the last that there is.
    pub(super) fn next_number(&self) -> Option<i64> {
        self.0.iter().map(|(number, _)| *number).max().unwrap_or(0).checked_add(1)
    }

    pub(super) fn other_than(&self, own: &str) -> Option<&str> {
        self.0.iter().map(|(_, id)| id.as_str()).find(|id| *id != own)
    }

    /// The position of `own` with that number: by number, and between equal numbers by the id (PHP,
    /// step 8).
    pub(super) fn turn_of(&self, own: &str, number: i64) -> Turn {
        if !self.0.iter().any(|(drawn, id)| id == own && *drawn == number) {
            return Turn::NotThere;
        }
        let is_before = |cell: &&(i64, String)| {
            let (drawn, id) = *cell;
            *drawn < number || (*drawn == number && is_ours(id) && id.as_str() < own)
        };
        let before: Vec<_> = self.0.iter().filter(is_before).collect();
        if let Some((_, first)) = before.iter().min() {
            return Turn::Behind { first: first.clone(), before: before.len() };
        }
        let tied = self.0.iter().find(|(drawn, id)| *drawn == number && !is_ours(id));
        tied.map_or(Turn::Ours, |(_, with)| Turn::Tied { with: with.clone() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(cells: &[(&str, i64)]) -> Line {
        let mut line = Line::default();
        for (id, number) in cells {
            line.add(id, Some(*number)).unwrap();
        }
        line
    }

    #[test]
    fn a_number_is_one_more_than_the_highest_and_there_is_none_behind_the_last() {
        assert_eq!(line(&[]).next_number(), Some(1));
        assert_eq!(line(&[("a", 0)]).next_number(), Some(1));
        assert_eq!(line(&[("a", 3), ("b", 7), ("c", 5)]).next_number(), Some(8));
        assert_eq!(line(&[("a", i64::MAX)]).next_number(), None);
    }

    #[test]
    fn a_number_that_nobody_draws_is_named() {
        let mut line = Line::default();
        assert!(line.add("a", Some(-4)).unwrap_err().contains("-4"));
        assert!(line.add("a", Some(i64::MIN)).is_err());
        assert!(line.add("a", None).unwrap_err().contains("no number"));
        assert_eq!(line.add("a", Some(i64::MAX)), Ok(()));
    }

    #[test]
    fn it_goes_by_number_and_of_equal_ones_by_the_id() {
        let behind = |first: &str, before| Turn::Behind { first: first.to_owned(), before };
        let cells = [("hf1:s/b", 2), ("hf1:s/a", 2), ("hf1:s/c", 1), ("hf1:s/d", 3), ("old", 0)];
        let line = line(&cells);
        assert_eq!(line.turn_of("hf1:s/c", 1), Turn::Ours);
        assert_eq!(line.turn_of("hf1:s/a", 2), behind("hf1:s/c", 1));
        assert_eq!(line.turn_of("hf1:s/b", 2), behind("hf1:s/c", 2));
        assert_eq!(line.turn_of("hf1:s/d", 3), behind("hf1:s/c", 3));
    }

    #[test]
    fn a_number_that_is_not_there_is_nobodys_turn() {
        let line = line(&[("hf1:s/a", 2)]);
        assert_eq!(line.turn_of("hf1:s/b", 1), Turn::NotThere);
        assert_eq!(line.turn_of("hf1:s/a", 1), Turn::NotThere);
    }

    /// However the ids compare.
    #[test]
    fn a_strangers_equal_number_is_a_tie_once_nobody_is_before() {
        for old in ["17", "zz"] {
            let tied = Turn::Tied { with: old.to_owned() };
            assert_eq!(line(&[("hf1:s/a", 2), (old, 2)]).turn_of("hf1:s/a", 2), tied);
            let waits = line(&[("hf1:s/a", 2), (old, 2), ("other", 1)]).turn_of("hf1:s/a", 2);
            assert_eq!(waits, Turn::Behind { first: "other".into(), before: 1 });
        }
    }
}
