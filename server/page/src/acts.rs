//! What an operator does on the page: each act has a form, and what it is done to is typed once more.

use axum::Router;
use axum::extract::{Extension, Form, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use holdfast_proto::v1;
use serde::Deserialize;

use crate::calls::{Client, Visitor};
use crate::login::see_other;
use crate::views::{Problem, Shell, encoded, lock_href};
use crate::words::length;
use crate::{Shared, guard, html, starting};

/// What may be done to a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Act {
    /// Takes it away from all who hold it.
    Force,
    /// Grants nothing of the names that begin with it.
    Freeze,
    /// Lifts a freeze.
    Thaw,
    /// Sets the limit of its permits, or takes it away.
    Limit,
}

/// The form of an act.
#[derive(Deserialize)]
struct Wanted {
    /// The lock on whose page it was filled in, and to which it is done.
    name: String,
    /// The same, as the operator typed it.
    typed: String,
    /// The reason, the message, or the number.
    #[serde(default)]
    text: String,
    form_token: String,
}

/// The paths of the acts.
pub(crate) fn router() -> Router<Shared> {
    let acts = [
        ("/force", Act::Force),
        ("/freeze", Act::Freeze),
        ("/thaw", Act::Thaw),
        ("/limit", Act::Limit),
    ];
    acts.into_iter().fold(Router::new(), |router, (path, act)| {
        router.route(path, post(answer).layer(Extension(act)))
    })
}

/// Does an act, and shows the lock again with what became of it.
async fn answer(
    State(page): State<Shared>,
    Extension(act): Extension<Act>,
    Extension(visitor): Extension<Visitor>,
    headers: HeaderMap,
    Form(wanted): Form<Wanted>,
) -> Response {
    let token = guard::token_in(visitor.has_tls, &headers);
    if let Err(refused) = page.guard.check_form(token.as_deref(), &wanted.form_token) {
        return refused.into_response();
    }
    let Some(client) = page.client_with(visitor, token) else { return starting() };
    match act.carry_out(&client, &wanted).await {
        Ok(said) => see_other(&format!("{}&said={}", lock_href(&wanted.name), encoded(&said))),
        Err(problem) => {
            let form_token = page.guard.form_token(client.token());
            let shell = Shell::bare(client.identity().await, form_token);
            html(problem.status(), &shell.around(&problem.main()))
        }
    }
}

impl Act {
    /// What became of it, in words.
    async fn carry_out(self, client: &Client, wanted: &Wanted) -> Result<String, Problem> {
        if wanted.typed != wanted.name {
            let typed = &wanted.typed;
            return Err(refused(&format!(
                "nothing was done: you typed {typed:?}, not the lock's name"
            )));
        }
        let (name, text) = (wanted.name.clone(), wanted.text.trim().to_owned());
        match self {
            Self::Force => force(client, name, text).await,
            Self::Freeze => {
                client.freeze(v1::FreezeRequest { prefix: name, message: text }).await?;
                Ok("names that begin with it are frozen".to_owned())
            }
            Self::Thaw => {
                client.thaw(v1::ThawRequest { prefix: name }).await?;
                Ok("it is thawed".to_owned())
            }
            Self::Limit => limit(client, name, &text).await,
        }
    }
}

async fn force(client: &Client, name: String, reason: String) -> Result<String, Problem> {
    let request = v1::CloseHoldsRequest { name, token: None, reason, now: false };
    let closed = client.close_holds(request).await?;
    let within = closed.holds.iter().map(|hold| hold.within_ms).max().unwrap_or(0);
    Ok(format!("its holders are told; it passes on within {} at most", length(within)))
}

async fn limit(client: &Client, name: String, permits: &str) -> Result<String, Problem> {
    let limit = match permits {
        "" => None,
        text => {
            let number = text.parse();
            Some(number.map_err(|_| refused(&format!("{text:?} is no number of permits")))?)
        }
    };
    client.set_limit(v1::SetLimitRequest { name, limit }).await?;
    Ok(limit.map_or("its limit goes".to_owned(), |limit| format!("its limit is {limit}")))
}

fn refused(why: &str) -> Problem {
    Problem::new(StatusCode::BAD_REQUEST, why)
}
