//! The pages: what each reads, and what it shows.

use std::collections::BTreeMap;

mod history;
mod lock;
mod locks;
mod now;
mod scopes;
mod sessions;
mod shell;

use askama::Template;
use axum::extract::Query;
use axum::http::{StatusCode, Uri};
use holdfast_proto::v1;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

pub(crate) use self::lock::Known;
pub(crate) use self::shell::Shell;
use crate::calls::Client;
use crate::past;

/// Rows of a page of locks or sessions.
const ROWS: u32 = 100;
/// What stands in an address as it is, besides letters and digits.
const PLAIN: &AsciiSet =
    &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~').remove(b'/');

/// Why a page cannot be shown, or an act was not done.
#[derive(Clone, Debug)]
pub(crate) struct Problem {
    status: StatusCode,
    why: String,
}

impl Problem {
    pub(crate) fn new(status: StatusCode, why: &str) -> Self {
        Self { status, why: why.to_owned() }
    }

    pub(crate) fn status(&self) -> StatusCode {
        self.status
    }

    pub(crate) fn why(&self) -> &str {
        &self.why
    }

    /// Nobody in particular may not see it: a token may help.
    pub(crate) fn asks_to_log_in(&self) -> bool {
        self.status == StatusCode::UNAUTHORIZED
    }

    /// What stands in place of the page.
    pub(crate) fn main(&self) -> Main {
        let (title, hint) = match self.status {
            StatusCode::FORBIDDEN => {
                ("Not allowed", "Log in with a token that may, or ask for the right.")
            }
            StatusCode::SERVICE_UNAVAILABLE => (
                "No answer",
                "No leader answers: it may be that a majority of the members is down.",
            ),
            StatusCode::CONFLICT => ("Not possible", ""),
            StatusCode::BAD_REQUEST => ("Not understood", ""),
            StatusCode::TOO_MANY_REQUESTS => ("Too many at once", "Try again in a moment."),
            _ => ("That did not work", ""),
        };
        Main::of(title, &ProblemPage { title, why: &self.why, hint })
    }
}

#[derive(Template)]
#[template(path = "problem.html")]
struct ProblemPage<'a> {
    title: &'a str,
    why: &'a str,
    hint: &'a str,
}

/// What stands between header and footer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Main {
    pub(crate) title: String,
    pub(crate) html: String,
}

impl Main {
    pub(crate) fn of(title: &str, template: &impl Template) -> Self {
        // A template writes into memory: it cannot fail.
        Self { title: title.to_owned(), html: template.render().unwrap_or_default() }
    }
}

/// A page, with what was asked of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum View {
    Now { order: Order, prefix: String },
    Locks { prefix: String, after: String },
    Lock { name: String },
    Sessions { after: String },
    Session { id: u64 },
    Scopes,
    Past(past::Asked),
}

/// By which measure locks are busy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    Hottest,
    Queue,
    Held,
}

impl Order {
    const ALL: [(Self, &'static str, &'static str); 3] = [
        (Self::Hottest, "hottest", "Hottest"),
        (Self::Queue, "queue", "Longest queues"),
        (Self::Held, "held", "Longest held"),
    ];

    fn of(name: &str) -> Self {
        Self::ALL.into_iter().find(|(_, key, _)| *key == name).map_or(Self::Hottest, |(it, ..)| it)
    }

    fn on_the_wire(self) -> v1::BusiestOrder {
        match self {
            Self::Hottest => v1::BusiestOrder::Hottest,
            Self::Queue => v1::BusiestOrder::LongestQueue,
            Self::Held => v1::BusiestOrder::LongestHeld,
        }
    }
}

/// What is asked in an address.
fn parameters(uri: &Uri) -> BTreeMap<String, String> {
    Query::try_from_uri(uri).map(|Query(found)| found).unwrap_or_default()
}

impl View {
    /// The page at an address; `None`: there is none.
    pub(crate) fn at(uri: &Uri) -> Option<Self> {
        let mut asked = parameters(uri);
        let mut take = |key: &str| asked.remove(key).unwrap_or_default();
        Some(match uri.path() {
            "/" => Self::Now { order: Order::of(&take("order")), prefix: take("prefix") },
            "/locks" => Self::Locks { prefix: take("prefix"), after: take("after") },
            "/lock" => Self::Lock { name: take("name") },
            "/sessions" => Self::Sessions { after: take("after") },
            "/session" => Self::Session { id: take("id").parse().ok()? },
            "/scopes" => Self::Scopes,
            "/history" => Self::Past(past::Asked::of(&mut take)),
            _ => return None,
        })
    }

    /// Whether what it shows moves.
    fn is_live(&self) -> bool {
        !matches!(self, Self::Past(_))
    }

    /// Reads what the page shows, and makes it. `known` is what was read before of the same page.
    ///
    /// # Errors
    ///
    /// What the services say.
    pub(crate) async fn main(
        &self,
        client: &Client,
        form_token: &str,
        known: &mut Known,
    ) -> Result<Main, Problem> {
        match self {
            Self::Now { order, prefix } => now::page(client, *order, prefix).await,
            Self::Locks { prefix, after } => locks::page(client, prefix, after).await,
            Self::Lock { name } => lock::page(client, name, form_token, known).await,
            Self::Sessions { after } => sessions::page(client, after).await,
            Self::Session { id } => sessions::one(client, *id).await,
            Self::Scopes => scopes::page(client).await,
            Self::Past(asked) => history::page(client, asked).await,
        }
    }
}

/// Text for a part of an address.
pub(crate) fn encoded(text: &str) -> String {
    utf8_percent_encode(text, PLAIN).to_string()
}

pub(crate) fn lock_href(name: &str) -> String {
    format!("/lock?name={}", encoded(name))
}

pub(crate) fn session_href(id: u64) -> String {
    format!("/session?id={id}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view(at: &str) -> Option<View> {
        View::at(&at.parse().unwrap())
    }

    #[test]
    fn an_address_is_a_page_with_what_is_asked_of_it() {
        let name = "jobs/n\u{202e}ightly & <b>";
        assert_eq!(view(&lock_href(name)), Some(View::Lock { name: name.to_owned() }));
        let now = View::Now { order: Order::Queue, prefix: "a/".to_owned() };
        assert_eq!(view("/?order=queue&prefix=a/"), Some(now));
        assert_eq!(view("/session?id=7"), Some(View::Session { id: 7 }));
        assert_eq!(view("/session?id=x"), None);
        assert_eq!(view("/elsewhere"), None);
    }
}
