//! Every case of every recipe, as tables: the rows, what is imported, what is found.

use super::*;
use crate::layout::{ColumnCell, Heartbeat, LeaseRow, TokenRow};

fn text(text: &str) -> Raw {
    Raw::Text(text.into())
}

fn cell(value: Raw, left_s: impl Into<Option<i32>>) -> Cell {
    Cell { value, left_s: left_s.into(), written_us: Some(7) }
}

/// A cell of a row: its column, and what is left of it.
fn column(column: &str, left_s: impl Into<Option<i32>>) -> ColumnCell {
    ColumnCell { column: text(column), cell: Some(cell(text("x"), left_s)) }
}

fn place(time: u32, thread: &str, left_s: impl Into<Option<i32>>) -> ColumnCell {
    column(&format!("{time:020}{thread}"), left_s)
}

fn number(process: i64, number: i64, left_s: impl Into<Option<i32>>) -> ColumnCell {
    ColumnCell { column: Raw::Number(process), cell: Some(cell(Raw::Number(number), left_s)) }
}

fn rules() -> Rules {
    Rules::new("", Duration::from_mins(3))
}

fn planned(lock: Raw, said: Said) -> LockPlan {
    plan(LockRows { lock, said }, &rules()).expect("every name begins with nothing")
}

/// `owner holds 5000`, `owner waits 5000`; then `owner: code`, or `code` alone.
fn said(plan: &LockPlan) -> Vec<String> {
    let row = |row: &Planned| {
        let kind = if row.has == ImportedState::Place { "waits" } else { "holds" };
        format!("{} {kind} {}", row.owner, row.left_ms)
    };
    let finding = |finding: &Finding| {
        let owner = finding.owner.iter().map(|owner| format!("{owner}: "));
        owner.chain([finding.reason.code().to_owned()]).collect()
    };
    plan.rows.iter().map(row).chain(plan.findings.iter().map(finding)).collect()
}

#[test]
fn a_lease_is_imported_with_its_value_or_it_is_said_why_not() {
    let owned = |owner: &str, left_s: Option<i32>| Some(cell(text(owner), left_s));
    let long = "x".repeat(257);
    let bytes = Some(cell(Raw::Bytes(vec![0xff]), 9));
    let value = |length: usize| Some(Raw::Bytes(vec![1; length]));
    let cases = [
        (owned("a", Some(5)), value(4096), vec!["a holds 5000"]),
        (owned("a", Some(1)), None, vec!["a holds 1000"]),
        (owned("a", Some(5)), value(4097), vec!["a: value-too-long"]),
        (owned("a", None), None, vec!["a: no-ttl"]),
        (owned("a", Some(0)), None, vec!["a: over"]),
        (owned("a", Some(-3)), None, vec!["a: over"]),
        (owned("", Some(5)), None, vec![": owner"]),
        (owned(&long, Some(5)), None, vec![": owner"]),
        (bytes, None, vec!["\\xff: owner-not-text"]),
        (owned("a\u{202e}", Some(5)), None, vec!["a\u{202e}: owner"]),
        (owned("a", Some(366 * 86_400)), None, vec!["a holds 31622400000"]),
        (owned("a", Some(366 * 86_400 + 1)), None, vec!["a: lease-too-long"]),
        (None, value(1), vec!["nobody-holds"]),
    ];
    for (owner, value, expected) in cases {
        let plan = planned(text("job"), Said::Lease(LeaseRow { owner, value }));
        let said: Vec<String> = said(&plan).iter().map(|line| line.replace(&long, "")).collect();
        assert_eq!(said, expected);
    }
}

#[test]
fn a_lease_keeps_value_and_write_time() {
    let owner = Some(cell(text("hf1:billing/a5"), 9));
    let row = LeaseRow { owner, value: Some(text("10.0.0.7:80")) };
    let plan = planned(text("job"), Said::Lease(row));
    let [row] = plan.rows.as_slice() else { panic!("{plan:?}") };

    assert_eq!(row.has, ImportedState::Hold { value: Some(b"10.0.0.7:80".to_vec()) });
    assert_eq!((row.written_us, row.is_ours()), (Some(7), true));
}

/// The plan refuses what the native store refuses, by the same rule.
#[test]
fn a_name_is_what_the_native_store_allows() {
    let long = "x".repeat(513);
    let cases = [
        (text(""), "a lock name cannot be empty"),
        (text(&long), "513 bytes is longer than the 512 allowed"),
        (text("a\nb"), "character U+000A at byte 1"),
        (Raw::Bytes(b"ab\xff".to_vec()), "not UTF-8 from byte 2 on"),
    ];
    for (lock, says) in cases {
        let plan = planned(lock, Said::Tokens(Vec::new()));
        assert_eq!(said(&plan), ["name"]);
        assert!(plan.findings[0].reason.detail().starts_with(says), "{plan:?}");
    }
}

/// A process in `both`, others of our library in the same service, and a foreign client with a
/// similar id.
#[test]
fn what_registered_processes_hold_is_not_planned_and_the_rest_of_a_line_is() {
    let registered = Writer::of("hf1:billing@0123456789abcdef/x").into_iter().collect();
    let rules = Rules { registered, ..rules() };
    let owned = |owner: &str| {
        let row = LeaseRow { owner: Some(cell(text(owner), 5)), value: None };
        let plan = plan(LockRows { lock: text("job"), said: Said::Lease(row) }, &rules);
        said(&plan.expect("every name begins with nothing"))
    };
    assert_eq!(owned("hf1:billing@0123456789abcdef/a5"), [""; 0]);
    assert_eq!(owned("hf1:billing@0123456789abcdef/a5:180"), [""; 0]);
    // The same service: another process, and one of version 0.1, which may be any of them.
    for other in ["hf1:billing@0123456789abcde0/a5", "hf1:billing/a5"] {
        assert_eq!(owned(other), [format!("{other} holds 5000")]);
    }
    assert_eq!(owned("billing/a5"), ["billing/a5 holds 5000"]);
}

#[test]
fn only_names_below_the_prefix_are_planned() {
    let rules = Rules { prefix: "orders/".into(), ..rules() };
    let row = |lock: Raw| LockRows { lock, said: Said::Tokens(Vec::new()) };

    assert!(plan(row(text("orders/1")), &rules).is_some());
    assert!(plan(row(text("order")), &rules).is_none());
    assert!(plan(row(Raw::Bytes(b"orders/\xff".to_vec())), &rules).is_some());
    assert!(plan(row(Raw::Bytes(b"\xff".to_vec())), &rules).is_none());
}

#[test]
fn a_queue_is_its_holder_and_then_its_places_in_order() {
    let [a, b, c] = [place(1, "a", 50), place(2, "b", 40), place(3, "c", 30)];
    let cases = [
        // The holder keeps its own place while it holds.
        (
            vec![column("a", 9)],
            vec![a.clone(), b.clone(), c.clone()],
            vec!["a holds 9000", "b waits 40000", "c waits 30000"],
        ),
        // The order in which the cells were read does not matter.
        (vec![], vec![c.clone(), a.clone()], vec!["a holds 50000", "c waits 30000"]),
        // The holder's own place ended first: only the main row decides.
        (vec![column("c", 9)], vec![b.clone()], vec!["c holds 9000", "b waits 40000"]),
        (
            vec![column("a", 9), column("b", 9)],
            vec![a.clone(), b.clone()],
            vec![
                "several-holders",
                "00000000000000000001a: holder-left-out",
                "00000000000000000002b: holder-left-out",
            ],
        ),
        (
            vec![column("a", None)],
            vec![b.clone()],
            vec!["a: no-ttl", "00000000000000000002b: holder-left-out"],
        ),
        // The first has ended: the next one holds.
        (vec![column("a", 0)], vec![b.clone()], vec!["b holds 40000", "a: over"]),
        (
            vec![],
            vec![a, place(2, "b", None), c.clone(), place(3, "a", 9), column("00001", 9)],
            vec![
                "a holds 50000",
                "c waits 30000",
                "00000000000000000002b: no-ttl",
                "00000000000000000003a: second-place",
                "00001: place",
            ],
        ),
        (vec![], vec![column("0000000000000000000ab", 9)], vec!["0000000000000000000ab: place"]),
        (vec![], vec![place(1, "", 9)], vec!["00000000000000000001: place"]),
    ];
    for (main, queue, expected) in cases {
        assert_eq!(said(&planned(text("job"), Said::Queue { main, queue })), expected);
    }
}

/// The main row is empty, and the client of the first place may write itself there at any moment. If
/// the place behind it were imported as the holder, the lock would have one holder in each store.
#[test]
fn behind_a_first_place_that_cannot_be_imported_nothing_of_the_queue_is() {
    let [b, c] = [place(2, "b", 40), place(3, "c", 30)];
    let not_text = ColumnCell { column: Raw::Bytes(b"\0\xff".to_vec()), cell: b.cell.clone() };
    let heads = [
        (place(1, "a", None), "00000000000000000001a", "no-ttl"),
        (place(1, "a", 367 * 86_400), "00000000000000000001a", "lease-too-long"),
        (place(1, "a\u{202e}", 9), "00000000000000000001a\u{202e}", "owner"),
        (column("000", 9), "000", "place"),
        // Cassandra orders columns by their bytes.
        (not_text, "\\x00\\xff", "place"),
    ];
    for (head, shown, code) in heads {
        let queue = vec![c.clone(), head, b.clone(), place(4, "b", 9), place(5, "d", None)];
        let plan = planned(text("job"), Said::Queue { main: vec![], queue });
        let expected = [
            format!("{shown}: {code}"),
            "00000000000000000002b: first-left-out".into(),
            "00000000000000000003c: first-left-out".into(),
            "00000000000000000004b: second-place".into(),
            "00000000000000000005d: no-ttl".into(),
        ];
        assert_eq!(said(&plan), expected);
        assert!(plan.findings[1].reason.omits_a_claim(), "cutover stops at it");
        let detail = plan.findings[1].reason.detail();
        assert!(detail.contains(shown) && detail.contains("plan and import again"), "{detail}");
    }
    // A first place that has ended keeps out none of the others.
    let queue = vec![place(1, "a", 0), b];
    let plan = planned(text("job"), Said::Queue { main: vec![], queue });
    assert_eq!(said(&plan), ["b holds 40000", "00000000000000000001a: over"]);
}

#[test]
fn a_shadow_row_has_nobody_in_line() {
    let cases = [
        (vec![column("a", 9)], vec![column("b", 9)], vec!["a holds 9000", "b: trying"]),
        // Between steps 11 and 12 of listing 3.
        (vec![column("a", 9)], vec![column("a", 9)], vec!["a holds 9000"]),
        (vec![], vec![column("a", 9)], vec!["a: trying"]),
        (vec![column("a", None)], vec![], vec!["a: no-ttl"]),
        (
            vec![column("a", 9), column("b", 9)],
            vec![column("a", 9)],
            vec!["several-holders", "a: trying"],
        ),
    ];
    for (main, shadow, expected) in cases {
        assert_eq!(said(&planned(text("job"), Said::Shadow { main, shadow })), expected);
    }
}

#[test]
fn a_token_is_its_sessions_as_long_as_that_beats_and_for_a_grace() {
    let beats = Heartbeat::There { written_us: Some(1) };
    let session = |id: &str, left_s: Option<i32>, heartbeat| TokenRow {
        session: Some(cell(text(id), left_s)),
        heartbeat,
    };
    let nobody = TokenRow { session: None, heartbeat: Heartbeat::Missing };
    let cases = [
        (vec![session("a", None, beats)], vec!["a holds 180000"]),
        // A session of our library states its term in its id: a longer one counts, a shorter one
        // does not.
        (vec![session("hf1:a/b:600", None, beats)], vec!["hf1:a/b:600 holds 600000"]),
        (vec![session("hf1:a/b:60", None, beats)], vec!["hf1:a/b:60 holds 180000"]),
        (vec![session("a", Some(9), beats)], vec!["a holds 9000"]),
        (vec![session("a", Some(900), beats)], vec!["a holds 180000"]),
        (vec![session("a", None, Heartbeat::Missing)], vec!["a: no-heartbeat"]),
        (vec![session("a", None, beats), session("b", None, beats)], vec!["several-holders"]),
        (vec![nobody], vec!["nobody-holds"]),
    ];
    for (sessions, expected) in cases {
        assert_eq!(said(&planned(text("job"), Said::Tokens(sessions))), expected);
    }
}

/// Equal numbers are ordered by the process, as numbers: 9 before 10, even as text.
#[test]
fn the_bakerys_lowest_number_holds_and_the_others_wait_in_order() {
    let text_number = |process: &str, number: &str| ColumnCell {
        column: text(process),
        cell: Some(cell(text(number), 9)),
    };
    let flag = |process, up| ColumnCell {
        column: Raw::Number(process),
        cell: Some(cell(Raw::Flag(up), None)),
    };
    let cases = [
        (
            vec![number(10, 2, 9), number(9, 2, 8), number(11, 1, 7)],
            vec![],
            vec!["11 holds 7000", "9 waits 8000", "10 waits 9000"],
        ),
        (
            vec![text_number("10", "2"), text_number("9", "2")],
            vec![],
            vec!["9 holds 9000", "10 waits 9000"],
        ),
        // A choosing process has no place; one that has drawn its number has, whatever its flag
        // says.
        (
            vec![number(1, 5, 9), number(2, 6, 9)],
            vec![flag(2, true), flag(3, true), flag(4, false)],
            vec!["1 holds 9000", "2 waits 9000", "3: choosing"],
        ),
        (vec![], vec![flag(3, true)], vec!["3: choosing"]),
        (
            vec![number(1, 1, None), number(2, 2, 9)],
            vec![],
            vec!["1: no-ttl", "2: holder-left-out"],
        ),
        (
            vec![number(1, 1, 9), number(2, 2, None), number(3, 3, 9)],
            vec![],
            vec!["1 holds 9000", "3 waits 9000", "2: no-ttl"],
        ),
        (vec![number(1, 1, 0), number(2, 2, 9)], vec![], vec!["2 holds 9000", "1: over"]),
        // The work queue's mark, 0=0.
        (vec![number(0, 0, 9), number(2, 2, 9)], vec![], vec!["2 holds 9000", "0: not-in-line"]),
        (
            vec![text_number("1", "x"), number(2, 2, 9)],
            vec![],
            vec!["1: number", "2: holder-left-out"],
        ),
    ];
    for (numbers, choosing, expected) in cases {
        assert_eq!(said(&planned(text("job"), Said::Bakery { numbers, choosing })), expected);
    }
}

/// A row with a TTL was written within it; one without is as old as its write time.
#[test]
fn a_foreign_writer_that_still_writes_is_found_and_our_own_client_is_none() {
    let now_us = 1_000_000_000;
    let old = now_us - 2 * 180_000_000;
    let found =
        |said| changed_by_foreign_writer(&LockRows { lock: text("job"), said }, &rules(), now_us);
    let lease = |owner: &str, left_s: Option<i32>, written_us: i64| {
        let cell = Cell { value: text(owner), left_s, written_us: Some(written_us) };
        Said::Lease(LeaseRow { owner: Some(cell), value: None })
    };
    assert_eq!(found(lease("old", Some(5), old)).as_deref(), Some("old"));
    assert_eq!(found(lease("old", None, old + 1)).as_deref(), Some("old"));
    assert_eq!(found(lease("old", None, old)), None);
    assert_eq!(found(lease("hf1:a/b", Some(5), now_us)), None);

    let queue = |main: &str, waiter: &str| Said::Queue {
        main: vec![column(main, 9)],
        queue: vec![place(1, waiter, 9)],
    };
    assert_eq!(found(queue("hf1:a/b", "hf1:a/c")), None);
    assert_eq!(found(queue("hf1:a/b", "x")).as_deref(), Some("x"));

    let token = |written_us| {
        let heartbeat = Heartbeat::There { written_us };
        Said::Tokens(vec![TokenRow { session: Some(cell(text("s"), None)), heartbeat }])
    };
    assert_eq!(found(token(Some(now_us))).as_deref(), Some("s"));
    assert_eq!(found(token(None)).as_deref(), Some("s"), "when, nobody knows");
    assert_eq!(found(token(Some(old))), None);
}
