//! `holdfast leader`: who leads an election.

use std::io::Write as _;

use holdfast::{Leader, LeaderEvent, Reader};
use holdfast_cli::block_on;
use holdfast_runtime::Runtime;
use serde_json::{Value, json};

use crate::args::Global;
use crate::failure::Failure;
use crate::show::Tone;
use crate::{show, signals};

/// Nobody leads.
const NOBODY: u8 = 1;

/// Prints what the leader proclaims, and nothing else: for `$(holdfast leader NAME)`.
pub(crate) fn show(global: &Global, election: &str) -> Result<u8, Failure> {
    let reader = global.builder()?.reader()?;
    let leader = block_on(reader.leader(election))??;
    match &leader {
        _ if global.json => show::line(json_of(leader.as_ref()).to_string()),
        Some(leader) => show::line(show::bytes_text(&leader.value)),
        None => {}
    }
    Ok(if leader.is_some() { 0 } else { NOBODY })
}

/// Prints until a signal asks to end, or the reader of the output is gone: both are the normal end.
pub(crate) fn watch(global: &Global, election: &str) -> Result<u8, Failure> {
    let reader = global.builder()?.reader()?;
    signals::until_asked_to_end(print_all(&reader, election, global.json))
}

async fn print_all(reader: &Reader, election: &str, as_json: bool) -> Result<(), Failure> {
    let clock = Runtime::system().clock;
    let mut leaders = reader.leaders(election);
    while let Some(event) = leaders.next().await {
        let (event, now) = (event?, clock.wall_ms());
        let line = if as_json {
            json_of_event(&event, now).to_string()
        } else {
            format!("{}  {}", show::time_of_day(now), text_of_event(&event))
        };
        if writeln!(anstream::stdout().lock(), "{line}").is_err() {
            return Ok(());
        }
    }
    Ok(())
}

fn text_of_event(event: &LeaderEvent) -> String {
    match event {
        LeaderEvent::Leads(Leader { value, holder, .. }) => {
            let label = show::label(&holder.label, &holder.identity, holder.is_imported);
            format!("{} leads ({label}, token {})", show::bytes_text(value), holder.token)
        }
        LeaderEvent::Nobody => Tone::Caution.of("nobody leads"),
        _ => {
            "# the servers do not keep all changes any more: leaders may have come and gone".into()
        }
    }
}

/// For programs.
fn json_of(leader: Option<&Leader>) -> Value {
    let Some(Leader { value, holder, .. }) = leader else { return Value::Null };
    let (encoding, data) = show::encoded(value);
    json!({ "value": { "encoding": encoding, "data": data }, "holder": show::holder(holder) })
}

fn json_of_event(event: &LeaderEvent, now_ms: u64) -> Value {
    let (name, leader) = match event {
        LeaderEvent::Leads(leader) => ("leads", Some(leader)),
        LeaderEvent::Nobody => ("nobody", None),
        _ => ("missed", None),
    };
    json!({ "at": show::instant(now_ms), "event": name, "leader": json_of(leader) })
}
