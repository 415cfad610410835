//! What an operator does on the page: each act has a form, and what it is done to is typed once more.

use axum::extract::{Extension, Form, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use holdfast_proto::v1;
use serde::Deserialize;

use crate::calls::{Client, Visitor};
use crate::login::see_other;
use crate::views::{Problem, Shell, encoded, lock_href};
use crate::words::length;
use crate::{Shared, guard, html, starting};

/// The form of an act.
#[derive(Deserialize)]
pub(crate) struct Wanted {
    /// The lock on whose page it was filled in, and to which it is done.
    name: String,
    /// The same, as the operator typed it.
    typed: String,
    /// The reason, the message, or the number.
    #[serde(default)]
    text: String,
    form_token: String,
}

/// Takes a lock away from all who hold it.
pub(crate) async fn force(
    State(page): State<Shared>,
    Extension(visitor): Extension<Visitor>,
    headers: HeaderMap,
    Form(wanted): Form<Wanted>,
) -> Response {
    act(&page, visitor, &headers, wanted, async |client, wanted| {
        let request = v1::CloseHoldsRequest {
            name: wanted.name.clone(),
            token: None,
            reason: wanted.text.trim().to_owned(),
            now: false,
        };
        let closed = client.close_holds(request).await?;
        let within = closed.holds.iter().map(|hold| hold.within_ms).max().unwrap_or(0);
        Ok(format!("its holders are told; it passes on within {} at most", length(within)))
    })
    .await
}

/// Grants nothing of the names that begin with it.
pub(crate) async fn freeze(
    State(page): State<Shared>,
    Extension(visitor): Extension<Visitor>,
    headers: HeaderMap,
    Form(wanted): Form<Wanted>,
) -> Response {
    act(&page, visitor, &headers, wanted, async |client, wanted| {
        let (prefix, message) = (wanted.name.clone(), wanted.text.trim().to_owned());
        client.freeze(v1::FreezeRequest { prefix, message }).await?;
        Ok("names that begin with it are frozen".to_owned())
    })
    .await
}

/// Lifts a freeze.
pub(crate) async fn thaw(
    State(page): State<Shared>,
    Extension(visitor): Extension<Visitor>,
    headers: HeaderMap,
    Form(wanted): Form<Wanted>,
) -> Response {
    act(&page, visitor, &headers, wanted, async |client, wanted| {
        client.thaw(v1::ThawRequest { prefix: wanted.name.clone() }).await?;
        Ok("it is thawed".to_owned())
    })
    .await
}

/// Sets the limit of its permits, or takes it away.
pub(crate) async fn limit(
    State(page): State<Shared>,
    Extension(visitor): Extension<Visitor>,
    headers: HeaderMap,
    Form(wanted): Form<Wanted>,
) -> Response {
    act(&page, visitor, &headers, wanted, async |client, wanted| {
        let limit = match wanted.text.trim() {
            "" => None,
            text => Some(text.parse().map_err(|_| {
                Problem::new(StatusCode::BAD_REQUEST, &format!("{text:?} is no number of permits"))
            })?),
        };
        client.set_limit(v1::SetLimitRequest { name: wanted.name.clone(), limit }).await?;
        Ok(limit.map_or("its limit goes".to_owned(), |limit| format!("its limit is {limit}")))
    })
    .await
}

/// Does an act, and shows the lock again with what became of it.
async fn act(
    page: &Shared,
    visitor: Visitor,
    headers: &HeaderMap,
    wanted: Wanted,
    act: impl AsyncFnOnce(&Client, &Wanted) -> Result<String, Problem>,
) -> Response {
    let token = guard::token_in(visitor.has_tls, headers);
    if let Err(refused) = page.guard.check_form(token.as_deref(), &wanted.form_token) {
        return refused.into_response();
    }
    let Some(calls) = (page.settings.calls)() else { return starting() };
    let client = Client::new(calls, visitor, token);
    let done = if wanted.typed == wanted.name {
        act(&client, &wanted).await
    } else {
        let why = format!("nothing was done: you typed {:?}, not the lock's name", wanted.typed);
        Err(Problem::new(StatusCode::BAD_REQUEST, &why))
    };
    match done {
        Ok(said) => see_other(&format!("{}&said={}", lock_href(&wanted.name), encoded(&said))),
        Err(problem) => {
            let form_token = page.guard.form_token(client.token());
            let shell = Shell::bare(client.identity().await, form_token);
            html(problem.status(), &shell.around(&problem.main()))
        }
    }
}
