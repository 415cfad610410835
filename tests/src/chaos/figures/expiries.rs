//! How late sessions were expired after the deadline of the leader that expired them, from the logs
//! of the nodes: as its own clock measured it (DESIGN §5.2).

/// The log line of each expiry.
const EXPIRED: &str = "a session expired";
const LATE: &str = "late=";

/// The lateness of each expiry in these logs, milliseconds, in order.
pub(super) fn in_logs(logs: &[String]) -> Vec<u64> {
    let lines = logs.iter().flat_map(|log| log.lines()).filter(|line| line.contains(EXPIRED));
    let mut late: Vec<u64> = lines.filter_map(|line| millis(line.split_once(LATE)?.1)).collect();
    late.sort_unstable();
    late
}

/// A duration as `Duration`'s debug output prints it.
fn millis(text: &str) -> Option<u64> {
    let number = text.trim_end_matches(|c: char| !c.is_ascii_digit());
    let whole = |number: &str| number.split('.').next()?.parse().ok();
    match &text[number.len()..] {
        "ms" => whole(number),
        "µs" | "ns" => Some(0),
        "s" => {
            let (seconds, part) = number.split_once('.').unwrap_or((number, "0"));
            let thousandths: u64 = format!("{part:0<3}").get(..3)?.parse().ok()?;
            Some(seconds.parse::<u64>().ok()? * 1_000 + thousandths)
        }
        _ => None,
    }
}

/// The line of the table.
pub(super) fn told(late_ms: &[u64]) -> String {
    let Some(longest) = late_ms.last() else { return "none".into() };
    let at = |hundredths: usize| late_ms[(late_ms.len() - 1) * hundredths / 100];
    format!(
        "{} sessions, after their deadline by p50 {} ms, p99 {} ms, max {longest} ms",
        late_ms.len(),
        at(50),
        at(99)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lateness_of_expiries_is_read_from_logs() {
        let line = |late: &str| format!("INFO x: a session expired session=7 late={late}\n");
        let log =
            line("1.288s") + &line("45ms") + "INFO x: something else late=9ms\n" + &line("2s");

        assert_eq!(in_logs(&[log, line("850µs")]), [0, 45, 1_288, 2_000]);
    }
}
