//! `holdfast top`: the locks that matter most, live, on a terminal.
//!
//! [`app`] is what is shown and what keys do, without a terminal, a server or a clock; [`screen`] draws it; [`store`] asks
//! the servers. This module moves keys and answers between them.

mod app;
mod screen;
mod store;

use std::io::IsTerminal as _;
use std::thread;
use std::time::Duration;

use holdfast_cli::block_on;
use holdfast_runtime::Runtime;
use ratatui::crossterm::event::{self, Event};
use ratatui::{DefaultTerminal, TerminalOptions, Viewport};
use tokio::sync::mpsc;

use self::app::{App, Ask, Input};
use self::store::Store;
use crate::args::{Global, TopArgs};
use crate::failure::{Failure, OWN_ERROR};

/// How often the screen is made anew.
const EVERY: Duration = Duration::from_secs(1);
/// How long the thread that reads keys waits before it looks whether the screen is still there.
const KEYS_EVERY: Duration = Duration::from_millis(100);

/// Shows until `q` or Ctrl-C.
pub(crate) fn run(global: &Global, args: &TopArgs) -> Result<u8, Failure> {
    if !std::io::stdout().is_terminal() {
        let message =
            "top needs a terminal; for programs there are list, history and watch, with --json";
        return Err(Failure::new(OWN_ERROR, message));
    }
    let store = Store::open(global)?;
    let no_terminal =
        |error| Failure::new(OWN_ERROR, format!("the terminal cannot be used: {error}"));
    // It makes a panic give the terminal back as well.
    let mut terminal =
        ratatui::try_init_with_options(TerminalOptions { viewport: Viewport::Fullscreen })
            .map_err(no_terminal)?;
    let shown = block_on(show(&mut terminal, store, App::new(&args.prefix)));
    ratatui::restore();
    shown?.map_err(no_terminal)?;
    Ok(0)
}

async fn show(terminal: &mut DefaultTerminal, store: Store, mut app: App) -> std::io::Result<()> {
    let (keys_in, mut keys) = mpsc::channel(64);
    thread::Builder::new().name("keys".to_owned()).spawn(move || read_keys(&keys_in))?;
    let (asked, mut questions) = mpsc::channel(16);
    let (answered, mut answers) = mpsc::channel(16);
    let runtime = Runtime::system();
    let _asking = runtime.spawn("store", async move {
        while let Some(ask) = questions.recv().await {
            if answered.send(store.answer(ask).await).await.is_err() {
                return;
            }
        }
    });
    let mut next = runtime.clock.now();
    loop {
        terminal.draw(|frame| screen::draw(frame, &app))?;
        let input = holdfast_runtime::select! {
            key = keys.recv() => match key {
                Some(Ok(Event::Key(key))) => Input::Key(key),
                // It is drawn again with its new size.
                Some(Ok(_)) => continue,
                Some(Err(error)) => return Err(error),
                None => return Ok(()),
            },
            Some(answer) = answers.recv() => Input::Answer(answer),
            () = runtime.clock.sleep_until(next) => {
                next = runtime.clock.now() + EVERY;
                Input::Tick
            }
        };
        for ask in app.take(input) {
            if matches!(ask, Ask::Leave) {
                return Ok(());
            }
            // The store is slow: what it has not answered yet is enough.
            let _ = asked.try_send(ask);
        }
    }
}

/// Reads keys until nobody wants them any more.
fn read_keys(keys: &mpsc::Sender<std::io::Result<Event>>) {
    loop {
        let event = match event::poll(KEYS_EVERY) {
            Ok(true) => event::read(),
            Ok(false) if keys.is_closed() => return,
            Ok(false) => continue,
            Err(error) => Err(error),
        };
        let is_over = event.is_err();
        if keys.blocking_send(event).is_err() || is_over {
            return;
        }
    }
}
