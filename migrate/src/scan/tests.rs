//! Tables in memory for a scan, and what a scan reports of them.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::{FutureExt, join, ready};
use holdfast_runtime::{BoxFuture, simulated};

use super::scopes::ModeRow;
use super::tables::{Page, Row};
use super::*;
use crate::plan::{Rules, changed_by_foreign_writer};

/// A recipe's tables, which tests write directly. A row's token is its position in the order of
/// keys.
#[derive(Default)]
pub(crate) struct InMemory(Mutex<State>);

#[derive(Default)]
struct State {
    tables: [BTreeMap<Raw, Vec<Row>>; 2],
    now_us: i64,
    asked_for_time: usize,
}

impl InMemory {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Replaces the rows of one key; an empty list removes them.
    pub(crate) fn put(&self, table: usize, key: &str, rows: Vec<Row>) {
        let table = &mut self.lock().tables[table];
        let key = Raw::Text(key.to_owned());
        if rows.is_empty() {
            table.remove(&key);
        } else {
            table.insert(key, rows);
        }
    }

    /// Writes a lease of `owner`.
    pub(crate) fn lease(&self, lock: &str, owner: &str, left_s: i32, written_us: i64) {
        let owner = cell(owner, Some(left_s), Some(written_us));
        self.put(0, lock, vec![vec![cell(lock, None, None), owner, None]]);
    }

    /// How often somebody asked for the nodes' time: once in each pass over the tables.
    pub(crate) fn asked_for_time(&self) -> usize {
        self.lock().asked_for_time
    }

    /// Sets the nodes' clocks.
    pub(crate) fn set_now_us(&self, now_us: i64) {
        self.lock().now_us = now_us;
    }
}

#[expect(clippy::unnecessary_wraps, reason = "a row has optional cells")]
pub(crate) fn cell(text: &str, left_s: Option<i32>, written_us: Option<i64>) -> Option<Cell> {
    Some(Cell { value: Raw::Text(text.to_owned()), left_s, written_us })
}

impl Tables for InMemory {
    fn page(
        &self,
        table: usize,
        range: Range,
        _: Option<Vec<u8>>,
    ) -> BoxFuture<'_, Result<Page, ScanError>> {
        let state = self.lock();
        let keyed = (0_i64..).zip(&state.tables[table]);
        let within = keyed.filter(|(token, _)| range.after < *token && *token <= range.upto);
        let rows =
            within.flat_map(|(token, (_, rows))| rows.iter().map(move |row| (token, row.clone())));
        ready(Ok(Page { rows: rows.collect(), next: None })).boxed()
    }

    fn rows<'a>(
        &'a self,
        table: usize,
        key: &'a Raw,
    ) -> BoxFuture<'a, Result<Vec<Row>, ScanError>> {
        ready(Ok(self.lock().tables[table].get(key).cloned().unwrap_or_default())).boxed()
    }

    fn keyspace(&self) -> String {
        "model".to_owned()
    }

    fn now_us(&self) -> BoxFuture<'_, Result<i64, ScanError>> {
        let mut state = self.lock();
        state.asked_for_time += 1;
        ready(Ok(state.now_us)).boxed()
    }

    fn identity(&self) -> BoxFuture<'_, Result<Identity, ScanError>> {
        let (cluster, keyspace) = ("memory".to_owned(), "locks".to_owned());
        ready(Ok(Identity { cluster, keyspace, tables: Vec::new() })).boxed()
    }

    fn modes<'a>(&'a self, _: &'a str) -> BoxFuture<'a, Result<Vec<ModeRow>, ScanError>> {
        ready(Ok(Vec::new())).boxed()
    }
}

pub(crate) fn leases() -> Layout {
    Layout::of(Recipe::Lease)
}

fn tokens() -> Layout {
    Layout::of(Recipe::TokensLwt)
}

/// The locks that one pass reports.
async fn pass(scan: &Scan) -> Vec<LockRows> {
    let (send, mut news) = mpsc::channel(4);
    let listening = async {
        let mut told = Vec::new();
        while let Some(news) = news.recv().await {
            if let ScanMessage::Locks { locks, .. } = news {
                told.extend(locks);
            }
        }
        told
    };
    let (read, told) = join(scan.run(&Range::split(4), 2, send), listening).await;
    read.expect("tables in memory are read");
    told
}

/// One scan makes all passes of `cutover --wait`. A session with regular heartbeats never counts as
/// one without a heartbeat for two graces, however long ago the scan was opened.
#[tokio::test]
async fn each_pass_reads_the_heartbeats_as_they_are_then() {
    const SECOND: i64 = 1_000_000;
    let tables = Arc::new(InMemory::default());
    let beat = |at_s: i64| {
        let beat = cell("x", None, Some(at_s * SECOND));
        tables.put(1, "worker-7", vec![vec![cell("worker-7", None, None), beat]]);
        tables.set_now_us(at_s * SECOND);
    };
    tables.put(0, "job", vec![vec![cell("job", None, None), cell("worker-7", None, Some(SECOND))]]);
    let scan = Scan::over(tables.clone(), tokens(), simulated::runtime(1, 0));
    let rules = Rules::new("", Duration::from_mins(3));
    for minute in 0..20 {
        beat(100 + minute * 60);
        let now_us = scan.now_us().await.unwrap();
        let rows = pass(&scan).await;
        let foreign = rows.iter().find_map(|rows| changed_by_foreign_writer(rows, &rules, now_us));
        assert_eq!(foreign.as_deref(), Some("worker-7"), "after {minute} minutes");
    }
    // The session ends; its rows stop counting once two graces are over.
    tables.set_now_us((100 + 19 * 60 + 361) * SECOND);
    let now_us = scan.now_us().await.unwrap();
    let rows = pass(&scan).await;
    assert!(rows.iter().all(|rows| changed_by_foreign_writer(rows, &rules, now_us).is_none()));
}
