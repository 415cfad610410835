//! Very many watchers of small prefixes, and a few of everything, while locks change hands; and the death of
//! their leader.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use holdfast::{Client, Reader, WatchEvent};
use holdfast_runtime::Task;

use super::{LOOK_EVERY, Stage, WITHIN, millis};
use crate::cluster::Setup;

/// Watches that are begun at once.
const AT_ONCE: usize = 100;
/// Clients that take and release locks which are watched.
const BUSY: usize = 4;
/// Between two locks of such a client.
const EVERY: Duration = Duration::from_millis(20);

/// What all watchers together have seen.
#[derive(Debug, Default)]
struct Seen {
    synced: AtomicU64,
    changes: AtomicU64,
    resumed: AtomicU64,
    begun_anew: AtomicU64,
    ended: AtomicU64,
    stopped: AtomicBool,
}

/// So many watchers of a prefix each, and `whole` of all names, looked at for `look` at a time; with `kill`,
/// the leader dies.
pub async fn measure(look: Duration, count: usize, whole: usize, kill: bool) {
    let room = count + whole + 100;
    let mut stage = Stage::start(&Setup::nodes(3).node("max_watches", room), look).await;
    let seen = Arc::new(Seen::default());
    let builder = Client::builder().endpoints(stage.endpoints()).share_connections();
    let reader = builder.reader().expect("a reader");
    let began = stage.now();
    let prefixes =
        (0..count).map(|number| format!("w/{number}/")).chain((0..whole).map(|_| String::new()));
    let mut tasks = Vec::new();
    for prefix in prefixes {
        tasks
            .push(stage.runtime.spawn("watcher", watch(reader.clone(), prefix, Arc::clone(&seen))));
        if tasks.len().is_multiple_of(AT_ONCE) {
            have_their_state(&stage, &seen, tasks.len()).await;
        }
    }
    have_their_state(&stage, &seen, tasks.len()).await;
    println!(
        "{count} watchers of a prefix and {whole} of everything in {:.1} s",
        stage.since(began).as_secs_f64()
    );
    stage.look("nothing changes").await;
    let busy = begin_changes(&stage, count, &seen).await;
    stage.look("locks change hands").await;
    println!("{} changes were seen", seen.changes.swap(0, Ordering::Relaxed));
    if kill {
        leader_dies(&mut stage, &seen, tasks.len()).await;
        stage.look("locks change hands at the new leader").await;
    }
    seen.stopped.store(true, Ordering::Relaxed);
    while !busy.iter().all(Task::is_finished) {
        stage.runtime.sleep(LOOK_EVERY).await;
    }
    assert_eq!(seen.ended.load(Ordering::Relaxed), 0, "watchers ended");
    drop(tasks);
    stage.end();
}

async fn watch(reader: Reader, prefix: String, seen: Arc<Seen>) {
    let mut watch = reader.watch(&prefix);
    while let Some(event) = watch.next().await {
        let count = match event {
            Ok(WatchEvent::Synced) => &seen.synced,
            Ok(WatchEvent::Change(_)) => &seen.changes,
            Ok(WatchEvent::Resumed) => &seen.resumed,
            Ok(WatchEvent::Restarted) => &seen.begun_anew,
            Ok(_) => continue,
            Err(_) => break,
        };
        count.fetch_add(1, Ordering::Relaxed);
    }
    seen.ended.fetch_add(1, Ordering::Relaxed);
}

async fn begin_changes(stage: &Stage, prefixes: usize, seen: &Arc<Seen>) -> Vec<Task> {
    let mut busy = Vec::new();
    for number in 0..BUSY {
        let client = Client::builder().endpoints(stage.endpoints()).connect().await;
        let changes =
            change(client.expect("it connects"), number, prefixes.max(1), Arc::clone(seen));
        busy.push(stage.runtime.spawn("busy", changes));
    }
    busy
}

async fn change(client: Client, mut number: usize, prefixes: usize, seen: Arc<Seen>) {
    let runtime = holdfast_runtime::Runtime::system();
    while !seen.stopped.load(Ordering::Relaxed) {
        if let Ok(guard) = client.lock(format!("w/{}/x", number % prefixes)).await {
            // The next request shows whether it was freed.
            let _ = guard.release().await;
        }
        number += BUSY;
        runtime.sleep(EVERY).await;
    }
    let _ = client.close().await;
}

async fn leader_dies(stage: &mut Stage, seen: &Seen, watchers: usize) {
    let (killed, led_after) = stage.kill_the_leader().await;
    let began = stage.now();
    let back = || seen.resumed.load(Ordering::Relaxed) + seen.begun_anew.load(Ordering::Relaxed);
    while back() < watchers as u64 {
        assert!(stage.since(began) < WITHIN, "{} watchers go on", back());
        stage.runtime.sleep(LOOK_EVERY).await;
    }
    println!(
        "the leader is killed: another one serves after {:.0} ms, all watchers go on after {:.1} s, {} of them with \
         their state anew; the quiet client waits {:.0} ms at most",
        millis(led_after),
        stage.since(killed).as_secs_f64(),
        seen.begun_anew.load(Ordering::Relaxed),
        millis(stage.quiet.take().percentile(100)),
    );
}

/// Waits until so many watchers have their state.
async fn have_their_state(stage: &Stage, seen: &Seen, watchers: usize) {
    let began = stage.now();
    while seen.synced.load(Ordering::Relaxed) < watchers as u64 {
        let (synced, ended) =
            (seen.synced.load(Ordering::Relaxed), seen.ended.load(Ordering::Relaxed));
        let goes_on = ended == 0 && stage.since(began) < WITHIN;
        assert!(goes_on, "{synced} of {watchers} watchers have their state, {ended} ended");
        stage.runtime.sleep(LOOK_EVERY / 10).await;
    }
}
