//! The part of a page that a program makes, between two marks that name the program.

/// The page with `made` between the marks of the program `by`; `None` if it has no such marks.
pub fn put_between(page: &str, by: &str, made: &str) -> Option<String> {
    let begin = format!("<!-- made by {by}: begin -->");
    let end = format!("<!-- made by {by}: end -->");
    let (before, rest) = page.split_once(&begin)?;
    let (_, after) = rest.split_once(&end)?;
    Some(format!("{before}{begin}\n\n{made}{end}{after}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_stands_between_the_marks_is_made() {
        let other = "<!-- made by b: begin -->\nkept\n<!-- made by b: end -->\n";
        let page =
            format!("{other}<!-- made by a: begin -->\nold\n<!-- made by a: end -->\nafter\n");
        let made = put_between(&page, "a", "new\n").unwrap();

        assert_eq!(
            made,
            format!("{other}<!-- made by a: begin -->\n\nnew\n<!-- made by a: end -->\nafter\n")
        );
        assert_eq!(put_between(&made, "a", "new\n").unwrap(), made, "again it changes nothing");
        assert_eq!(put_between("no marks", "a", "new"), None);
    }
}
