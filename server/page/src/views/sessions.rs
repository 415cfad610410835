//! The sessions, and one of them.

use askama::Template;
use holdfast_proto::v1;

use super::{Main, Problem, ROWS, lock_href, session_href};
use crate::calls::Client;
use crate::words::{count, length, who};

#[derive(Template)]
#[template(path = "sessions.html")]
struct SessionsPage {
    sessions: Vec<SessionRow>,
    next: Option<String>,
    is_first: bool,
}

struct SessionRow {
    id: u64,
    href: String,
    who: String,
    age: String,
    ttl: String,
    requests: String,
    state: &'static str,
}

pub(super) async fn page(client: &Client, after: &str) -> Result<Main, Problem> {
    let request = v1::ListSessionsRequest { page_size: Some(ROWS), page_token: after.to_owned() };
    let found = client.list_sessions(request).await?;
    let next = Some(&found.next_page_token).filter(|token| !token.is_empty());
    let page = SessionsPage {
        sessions: found.sessions.iter().map(session_row).collect(),
        next: next.map(|token| format!("/sessions?after={token}")),
        is_first: after.is_empty(),
    };
    Ok(Main::of("Sessions", &page))
}

fn session_row(session: &v1::SessionInfo) -> SessionRow {
    SessionRow {
        id: session.session_id,
        href: session_href(session.session_id),
        who: who(&session.label, &session.identity, session.imported, session.session_id),
        age: length(session.age_ms),
        ttl: length(session.ttl_ms),
        requests: count(session.request_count),
        state: if session.revoked.is_some() { "ending" } else { "" },
    }
}

#[derive(Template)]
#[template(path = "session.html")]
struct SessionPage {
    id: u64,
    /// `None`: it is over, or never was.
    session: Option<SessionRow>,
    revoked: Option<String>,
    requests: Vec<RequestRow>,
    more: String,
    past_href: String,
}

struct RequestRow {
    locks: Vec<(String, String)>,
    more: String,
    state: String,
    tone: &'static str,
    since: String,
}

pub(super) async fn one(client: &Client, id: u64) -> Result<Main, Problem> {
    let request = v1::InspectSessionRequest { session_id: id };
    let found = client.inspect_session(request).await?.session;
    let requests = found.iter().flat_map(|session| &session.requests).map(request_row);
    let requests: Vec<_> = requests.collect();
    let all = found.as_ref().map_or(0, |session| session.request_count);
    let hidden = all.saturating_sub(requests.len() as u64);
    let page = SessionPage {
        id,
        session: found.as_ref().map(session_row),
        revoked: found.as_ref().and_then(|session| session.revoked.clone()),
        requests,
        more: if hidden == 0 { String::new() } else { format!("and {} more", count(hidden)) },
        past_href: format!("/history?session={id}"),
    };
    Ok(Main::of(&format!("Session {id}"), &page))
}

fn request_row(request: &v1::SessionRequest) -> RequestRow {
    use v1::session_request::State;
    let (state, tone) = match request.state {
        Some(State::Held(_)) if request.ending => ("has to give it up".to_owned(), "caution"),
        Some(State::Held(token)) => (format!("holds it, token {token}"), "good"),
        Some(State::Place(0)) => ("waits, next in line".to_owned(), "quiet"),
        Some(State::Place(place)) => (format!("waits, {} before it", count(place)), "quiet"),
        None => (String::new(), "quiet"),
    };
    let hidden = request.name_count.saturating_sub(request.names.len() as u64);
    let names = request.names.iter().map(|name| (name.clone(), lock_href(name)));
    RequestRow {
        locks: names.collect(),
        more: if hidden == 0 { String::new() } else { format!("and {} more", count(hidden)) },
        state,
        tone,
        since: length(request.since_ms),
    }
}
