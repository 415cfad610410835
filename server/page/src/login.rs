//! Logging in with a token, and out.

use askama::Template;
use axum::extract::{Extension, Form, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use holdfast_proto::v1;
use serde::Deserialize;

use crate::calls::{Rules, Visitor, Who};
use crate::views::{Main, Shell, encoded};
use crate::{Shared, guard, html, starting};

#[derive(Template)]
#[template(path = "login.html")]
struct LoginPage<'a> {
    form_token: &'a str,
    /// Where to go then.
    at: &'a str,
    trouble: &'a str,
    rules: Rules,
}

/// The form.
#[derive(Deserialize)]
pub(crate) struct Entered {
    token: String,
    #[serde(default)]
    at: String,
    form_token: String,
}

/// To the form, and back then.
pub(crate) fn redirect(uri: &Uri) -> Response {
    let at = uri.path_and_query().map_or("/", |at| at.as_str());
    see_other(&format!("/login?at={}", encoded(at)))
}

/// Another page, read with GET.
pub(crate) fn see_other(at: &str) -> Response {
    match HeaderValue::from_str(at) {
        Ok(at) => (StatusCode::SEE_OTHER, [(header::LOCATION, at)]).into_response(),
        Err(_) => StatusCode::BAD_REQUEST.into_response(),
    }
}

/// A page of this node, and nothing else.
fn own(at: &str) -> &str {
    let is_own = at.starts_with('/') && !at.starts_with("//") && !at.contains(['\\', '\r', '\n']);
    if is_own { at } else { "/" }
}

/// Shows the form.
pub(crate) async fn form(
    State(page): State<Shared>,
    Extension(visitor): Extension<Visitor>,
    uri: Uri,
    headers: HeaderMap,
) -> Response {
    let at = uri.query().and_then(|query| query.strip_prefix("at=")).unwrap_or("/");
    let token = guard::token_in(visitor.has_tls, &headers);
    let rules = match page.client_with(visitor, token.clone()) {
        Some(client) => client.identity().await.rules,
        None => Rules::Unknown,
    };
    let form_token = page.guard.form_token(token.as_deref());
    let form = LoginPage { form_token: &form_token, at, trouble: "", rules };
    show(&form, StatusCode::OK)
}

fn show(form: &LoginPage<'_>, status: StatusCode) -> Response {
    let who = Who { rules: form.rules, ..Who::default() };
    let shell = Shell::bare(who, form.form_token.to_owned());
    html(status, &shell.around(&Main::of("Log in", form)))
}

/// Takes a token, if the node knows it, and keeps it in the cookie.
pub(crate) async fn enter(
    State(page): State<Shared>,
    Extension(visitor): Extension<Visitor>,
    headers: HeaderMap,
    Form(entered): Form<Entered>,
) -> Response {
    let before = guard::token_in(visitor.has_tls, &headers);
    if let Err(refused) = page.guard.check_form(before.as_deref(), &entered.form_token) {
        return refused.into_response();
    }
    let form_token = page.guard.form_token(before.as_deref());
    let again = |trouble, status| {
        let (form_token, at) = (form_token.as_str(), entered.at.as_str());
        show(&LoginPage { form_token, at, trouble, rules: Rules::Unknown }, status)
    };
    if !page.guard.may_try(&visitor.address) {
        let trouble = "Too many failed logins; wait a minute.";
        return again(trouble, StatusCode::TOO_MANY_REQUESTS);
    }
    let token = entered.token.trim().to_owned();
    let (address, has_tls) = (visitor.address.clone(), visitor.has_tls);
    let Some(client) = page.client_with(visitor, Some(token.clone())) else { return starting() };
    match client.auth_status(v1::AuthStatusRequest {}).await {
        Ok(_) if !token.is_empty() => {}
        Err(problem) if problem.status() == StatusCode::SERVICE_UNAVAILABLE => {
            return again("No leader answers; try again in a moment.", problem.status());
        }
        Ok(_) | Err(_) => {
            page.guard.failed(&address);
            return again("That token is not valid.", StatusCode::UNAUTHORIZED);
        }
    }
    let at = decoded(&entered.at);
    let mut response = see_other(own(&at));
    if let Some(cookie) = guard::cookie(has_tls, &token) {
        response.headers_mut().insert(header::SET_COOKIE, cookie);
    }
    response
}

/// The form's field is the part of an address as it stood there.
fn decoded(at: &str) -> String {
    let pair = format!("/?at={at}").parse::<Uri>().ok();
    let query = pair
        .as_ref()
        .map(axum::extract::Query::<std::collections::BTreeMap<String, String>>::try_from_uri);
    let at = query.and_then(Result::ok).and_then(|mut found| found.0.remove("at"));
    at.unwrap_or_else(|| "/".to_owned())
}

/// The form of whatever has nothing but its token.
#[derive(Deserialize)]
pub(crate) struct Bare {
    form_token: String,
}

/// Forgets the token.
pub(crate) async fn leave(
    State(page): State<Shared>,
    Extension(visitor): Extension<Visitor>,
    headers: HeaderMap,
    Form(form): Form<Bare>,
) -> Response {
    let token = guard::token_in(visitor.has_tls, &headers);
    if let Err(refused) = page.guard.check_form(token.as_deref(), &form.form_token) {
        return refused.into_response();
    }
    let mut response = see_other("/");
    if let Some(cookie) = guard::cookie(visitor.has_tls, "") {
        response.headers_mut().insert(header::SET_COOKIE, cookie);
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_login_leads_back_to_pages_of_this_node_alone() {
        assert_eq!(own("/lock?name=a"), "/lock?name=a");
        for other in ["https://evil.example", "//evil.example", "/\\evil.example", "evil", ""] {
            assert_eq!(own(other), "/", "{other}");
        }
        assert_eq!(decoded("/lock%3Fname%3Da%2520b"), "/lock?name=a%20b");
    }
}
