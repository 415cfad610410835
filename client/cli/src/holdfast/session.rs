//! `holdfast session`.

use holdfast::{RequestState, SessionInfo, SessionRequest};
use serde_json::{Value, json};

use crate::args::{Global, SessionArgs};
use crate::failure::{Failure, REFUSED};
use crate::{runtime, show};

pub(crate) fn run(global: &Global, args: &SessionArgs) -> Result<u8, Failure> {
    let admin = global.builder().admin(Global::connect_limit(None))?;
    let session = runtime::block_on(admin.session(args.id))??;
    let Some(session) = session else {
        let message = format!("there is no session {}: it was never opened, or has ended", args.id);
        return Err(Failure::new(REFUSED, message));
    };
    if global.json {
        show::line(as_json(&session));
    } else {
        print(&session);
    }
    Ok(0)
}

fn as_json(session: &SessionInfo) -> Value {
    let of = |request: &SessionRequest| {
        let (held, place) = match request.state {
            RequestState::Held { token } => (Some(token.to_string()), None),
            RequestState::Waits { place } => (None, Some(place)),
        };
        json!({ "names": request.names, "names_in_all": request.name_count, "token": held,
                "place": place, "since_ms": milliseconds(request.since) })
    };
    json!({
        "session": session.session.to_string(),
        "label": session.label,
        "ttl_ms": milliseconds(session.ttl),
        "age_ms": milliseconds(session.age),
        "imported": session.is_imported,
        "requests": session.requests.iter().map(of).collect::<Vec<_>>(),
        "requests_in_all": session.request_count,
    })
}

fn milliseconds(length: std::time::Duration) -> u64 {
    u64::try_from(length.as_millis()).unwrap_or(u64::MAX)
}

fn print(session: &SessionInfo) {
    let SessionInfo { session: id, requests, request_count, .. } = session;
    let (ttl, age) = (show::length(session.ttl), show::length(session.age));
    let label = show::escaped(&session.label);
    show::line(if session.is_imported {
        format!("session {id} was imported for {label} {age} ago, and ends {ttl} after that")
    } else {
        format!("session {id} of {label}, opened {age} ago, lease {ttl}")
    });
    for request in requests {
        let names: Vec<String> = request.names.iter().map(|name| show::escaped(name)).collect();
        let (names, since) = (names.join(", "), show::length(request.since));
        show::line(match request.state {
            RequestState::Held { token } => {
                format!("  holds {names} for {since} under token {token}")
            }
            RequestState::Waits { place } => {
                format!("  waits for {names} for {since}, {}", show::place(place))
            }
        });
    }
    let more = request_count.saturating_sub(u64::try_from(requests.len()).unwrap_or(u64::MAX));
    if *request_count == 0 {
        show::line("  holds nothing and waits for nothing");
    } else if more > 0 {
        show::line(format!("  and {more} more"));
    }
}
