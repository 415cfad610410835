//! Very many sessions, each with a lock, over few connections; and the death of their leader.

use std::time::Duration;

use futures_util::{StreamExt as _, stream};
use holdfast::{Builder, Client, Guard};

use super::{Stage, millis};
use crate::cluster::Setup;

/// Sessions that are opened at once.
const AT_ONCE: usize = 256;
/// How long one may take to be opened.
const OPENED_WITHIN: Duration = Duration::from_mins(1);
/// After all sessions are back, until the guards are counted.
const AFTERWARDS: Duration = Duration::from_secs(5);

/// So many sessions with leases of `ttl`, looked at for `look` at a time; with `kill`, the leader dies.
pub async fn measure(look: Duration, count: usize, ttl: Duration, kill: bool) {
    let room = count + 1_000;
    let setup = Setup::nodes(3).cluster("max_sessions", room).node("max_attached_streams", room);
    let mut stage = Stage::start(&setup, look).await;
    let began = stage.now();
    let builder = Client::builder()
        .endpoints(stage.endpoints())
        .ttl(ttl)
        .connect_timeout(OPENED_WITHIN)
        .share_connections();
    let opened = stream::iter(0..count).map(|number| open(builder.clone(), number));
    let sessions: Vec<(Client, Guard)> = opened.buffer_unordered(AT_ONCE).collect().await;
    println!("{count} sessions with a lock each in {:.1} s", stage.since(began).as_secs_f64());
    stage.look("they are idle").await;
    if kill {
        leader_dies(&mut stage, &sessions).await;
        stage.look("idle at the new leader").await;
    }
    stage.end();
}

async fn open(builder: Builder, number: usize) -> (Client, Guard) {
    let client = builder.connect().await.expect("a session is opened");
    let guard = client.lock(format!("session/{number}")).await.expect("its lock is free");
    (client, guard)
}

async fn leader_dies(stage: &mut Stage, sessions: &[(Client, Guard)]) {
    let (killed, led_after) = stage.kill_the_leader().await;
    stage.leader_shows("streams", sessions.len() as u64).await;
    let back_after = stage.since(killed);
    stage.runtime.sleep(AFTERWARDS).await;
    let lost = sessions.iter().filter(|(_, guard)| !guard.is_safe()).count();
    println!(
        "the leader is killed: another one serves after {:.0} ms, all sessions are back after {:.1} s, {lost} guards \
         are lost; the quiet client waits {:.0} ms at most",
        millis(led_after),
        back_after.as_secs_f64(),
        millis(stage.quiet.take().percentile(100)),
    );
}
