//! A `holdfast lock` in the command of another one: it must not wait for what that one holds, because that one waits for its
//! command.
//!
//! Each tells its command of its hold, and of those that it runs under itself, in the variable `HOLDFAST_HOLDS`: a line for each, the
//! process, the cluster, the token. A token is never given twice by one cluster.

use std::fmt::Write as _;

use holdfast::{Client, FencingToken};

use crate::failure::{Failure, REFUSED};

const VARIABLE: &str = "HOLDFAST_HOLDS";

/// What the command of a hold is told, beside the hold itself.
pub(super) fn told(client: &Client, token: FencingToken) -> Option<(&'static str, Option<String>)> {
    let mut lines = lines_above();
    writeln!(lines, "{} {} {token}", std::process::id(), cluster(client)?).ok()?;
    Some((VARIABLE, Some(lines)))
}

/// The process that holds under that token, if this one runs in its command.
pub(super) fn holder_above(client: &Client, token: FencingToken) -> Option<u32> {
    process_of(&lines_above(), &cluster(client)?, token)
}

/// The refusal to wait for it.
pub(super) fn refusal(names: &[String], above: u32) -> Failure {
    let names: Vec<_> = names.iter().map(|name| name.escape_debug().to_string()).collect();
    let message = format!(
        "refused: {} would wait for itself: the holdfast lock of process {above}, which runs this command, holds it; ask \
         for it once, or give the inner command a name of its own",
        names.join(", ")
    );
    Failure::new(REFUSED, message)
}

fn lines_above() -> String {
    std::env::var(VARIABLE).unwrap_or_default()
}

fn cluster(client: &Client) -> Option<String> {
    let id = client.cluster()?;
    Some(id.iter().fold(String::new(), |text, byte| format!("{text}{byte:02x}")))
}

/// A line of another form was not written by a `holdfast lock`, and says nothing.
fn process_of(lines: &str, cluster: &str, token: FencingToken) -> Option<u32> {
    let token = token.to_string();
    lines.lines().find_map(|line| {
        let mut words = line.split(' ');
        let (process, of, under) = (words.next()?, words.next()?, words.next()?);
        (of == cluster && under == token).then(|| process.parse().ok()).flatten()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hold_above_is_found_by_its_cluster_and_token() {
        let lines = "17 aa 5\n19 bb 6\nnonsense\n\nx bb 7\n";
        let of = |cluster, token| process_of(lines, cluster, FencingToken::from_raw(token));
        assert_eq!(of("aa", 5), Some(17));
        assert_eq!(of("bb", 6), Some(19));
        assert_eq!((of("bb", 5), of("aa", 6), of("bb", 7)), (None, None, None));
    }
}
