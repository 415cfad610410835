//! A client process of a chaos run: to be killed, frozen and cut off by `holdfast-chaos`, which
//! starts it. It works until SIGTERM, then finishes what it is at.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a helper of tests: what cannot go on fails the run that started it"
)]

use std::path::PathBuf;

use clap::Parser;
use holdfast_runtime::Runtime;
use holdfast_tests::chaos::workload::{Work, work};
use holdfast_tests::history::Recorder;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

/// What `holdfast-chaos` gives it.
#[derive(Parser)]
struct Arguments {
    /// The nodes.
    #[arg(long)]
    endpoints: String,
    /// Its first client's id.
    #[arg(long)]
    first: u64,
    /// What it draws from.
    #[arg(long)]
    seed: u64,
    /// Where the fenced resource is.
    #[arg(long)]
    resource: String,
    /// Where it writes down what it sees.
    #[arg(long)]
    history: PathBuf,
}

/// A panic ends the process, whichever task it is in. Otherwise the calls of that task would never
/// end, and the judge would blame the store.
fn end_at_a_panic() {
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        usual(info);
        std::process::abort();
    }));
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    end_at_a_panic();
    let arguments = Arguments::parse();
    let recorder = Recorder::to_file(Runtime::system().clock, &arguments.history).unwrap();
    let mut told = signal(SignalKind::terminate()).expect("signals can be heard");
    let (stop, stopped) = watch::channel(false);
    let listening = Runtime::system().spawn("signals", async move {
        told.recv().await;
        stop.send_replace(true);
    });
    let Arguments { endpoints, first, seed, resource, .. } = arguments;
    work(&Work { endpoints, first, seed, resource }, &recorder, stopped).await;
    drop(listening);
}
