//! What keeps strangers, and pages of others, from using this one through a browser.
//!
//! - Without TLS it is served on loopback alone, and there only under names of loopback: a page from elsewhere whose name
//!   was made to mean this machine (DNS rebinding) is refused.
//! - Whatever changes something is a POST, with the header `Origin` of this page, and a form token that only a page of this
//!   process can know: it is made with a key that was drawn at its start, for the one cookie that the browser sent.
//! - The cookie is `HttpOnly` and `SameSite=Strict`; with TLS also `Secure`, under a name that no page without TLS can set.
//! - After [`FAILURES_MAX`] failed logins in a minute from one address, or ten times as many from all, logins wait.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use holdfast_runtime::{Instant, Runtime};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq as _;

use crate::Settings;

/// The cookie with the token; with TLS its name says that only this host may set it.
const COOKIE: &str = "holdfast";
const COOKIE_TLS: &str = "__Host-holdfast";
/// Failed logins of one address in a minute.
pub(crate) const FAILURES_MAX: u32 = 5;
/// Failed logins of all addresses together, for each of one.
const OF_ALL: u32 = 10;
const MINUTE: Duration = Duration::from_mins(1);
/// Addresses that are remembered; more than these share what is allowed for all.
const ADDRESSES_MAX: usize = 1_024;

/// Nothing is loaded from anywhere else, and nothing is run but the one script.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
                      form-action 'self'; base-uri 'none'; frame-ancestors 'none'";

pub(crate) struct Guard {
    is_loopback: bool,
    /// Drawn at the start.
    key: [u8; 32],
    runtime: Runtime,
    failures: Mutex<Failures>,
}

/// Failed logins of the minute that runs.
#[derive(Default)]
struct Failures {
    since: Option<Instant>,
    all: u32,
    by_address: BTreeMap<String, u32>,
}

/// A request that may not come in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// The port is reachable from outside, and has no TLS.
    NoTls,
    /// The browser was sent here by a name that is not this machine's.
    Name,
    /// Another page made it.
    Origin,
    /// It is not of a form of this page, or of one from before the last start.
    FormToken,
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        let why = match self {
            Self::NoTls => {
                "this node serves no page: its admin port is reachable from outside and has no TLS. Give it tls_cert and \
                 tls_key, or have it listen on loopback (admin_listen)\n"
            }
            Self::Name => "without TLS the page answers only under localhost, 127.0.0.1 or [::1]\n",
            Self::Origin => "refused: the request comes from another page\n",
            Self::FormToken => "refused: the form is too old; load the page again and repeat it\n",
        };
        (StatusCode::FORBIDDEN, why).into_response()
    }
}

impl Guard {
    pub(crate) fn new(settings: &Settings) -> Self {
        let mut key = [0; 32];
        settings.runtime.rng.fill(&mut key);
        Self {
            is_loopback: settings.is_loopback,
            key,
            runtime: settings.runtime.clone(),
            failures: Mutex::default(),
        }
    }

    /// Whether a request may come in at all.
    ///
    /// # Errors
    ///
    /// [`Refused`].
    pub(crate) fn admit(
        &self,
        has_tls: bool,
        method: &Method,
        headers: &HeaderMap,
    ) -> Result<(), Refused> {
        if !has_tls {
            if !self.is_loopback {
                return Err(Refused::NoTls);
            }
            if !headers.get(header::HOST).is_some_and(is_of_loopback) {
                return Err(Refused::Name);
            }
        }
        let reads = [Method::GET, Method::HEAD].contains(method);
        if reads || is_from_here(has_tls, headers) { Ok(()) } else { Err(Refused::Origin) }
    }

    /// The token of the forms of a page that is shown with this cookie.
    pub(crate) fn form_token(&self, token: Option<&str>) -> String {
        // Both parts have a fixed length, so that nothing can be shifted from one to the other.
        let shown = Sha256::digest(token.unwrap_or_default());
        hex::encode(Sha256::new().chain_update(self.key).chain_update(shown).finalize())
    }

    /// Checks the token of a form.
    ///
    /// # Errors
    ///
    /// [`Refused::FormToken`].
    pub(crate) fn check_form(&self, token: Option<&str>, sent: &str) -> Result<(), Refused> {
        let wanted = self.form_token(token);
        let is_right: bool = wanted.as_bytes().ct_eq(sent.as_bytes()).into();
        if is_right { Ok(()) } else { Err(Refused::FormToken) }
    }

    /// Whether an address may try to log in now.
    pub(crate) fn may_try(&self, address: &str) -> bool {
        let failures = self.failures();
        let own = failures.by_address.get(address).copied().unwrap_or_default();
        own < FAILURES_MAX && failures.all < FAILURES_MAX * OF_ALL
    }

    /// Counts a failed login.
    pub(crate) fn failed(&self, address: &str) {
        let mut failures = self.failures();
        failures.all += 1;
        let has_room = failures.by_address.len() < ADDRESSES_MAX;
        if has_room || failures.by_address.contains_key(address) {
            *failures.by_address.entry(address.to_owned()).or_default() += 1;
        }
    }

    fn failures(&self) -> std::sync::MutexGuard<'_, Failures> {
        let now = self.runtime.clock.now();
        let mut failures = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
        if failures.since.is_none_or(|since| now.saturating_since(since) >= MINUTE) {
            *failures = Failures { since: Some(now), ..Failures::default() };
        }
        failures
    }
}

/// Whether a form was sent from this page.
fn is_from_here(has_tls: bool, headers: &HeaderMap) -> bool {
    let text = |name: HeaderName| headers.get(name).and_then(|value| value.to_str().ok());
    let (origin, host) = (text(header::ORIGIN), text(header::HOST));
    let scheme = if has_tls { "https://" } else { "http://" };
    let Some((origin, host)) = origin.zip(host) else { return false };
    origin.strip_prefix(scheme) == Some(host)
}

/// The header that gives a browser its cookie; an empty token takes it away.
pub(crate) fn cookie(has_tls: bool, token: &str) -> Option<HeaderValue> {
    let (name, secure) = if has_tls { (COOKIE_TLS, "; Secure") } else { (COOKIE, "") };
    let over = if token.is_empty() { "; Max-Age=0" } else { "" };
    let cookie = format!("{name}={token}; Path=/; HttpOnly; SameSite=Strict{secure}{over}");
    HeaderValue::from_str(&cookie).ok()
}

/// Whether a browser that was sent to this host means this machine itself.
fn is_of_loopback(host: &HeaderValue) -> bool {
    let Ok(host) = host.to_str() else { return false };
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|digit| digit.is_ascii_digit()) => name,
        _ => host,
    };
    ["localhost", "127.0.0.1", "[::1]"].contains(&name)
}

/// The token in the cookie of a request. With TLS it is in the one that only a page with TLS can set.
pub(crate) fn token_in(has_tls: bool, headers: &HeaderMap) -> Option<String> {
    let own = if has_tls { COOKIE_TLS } else { COOKIE };
    let cookies =
        headers.get_all(header::COOKIE).iter().filter_map(|cookies| cookies.to_str().ok());
    let mut cookies = cookies.flat_map(|cookies| cookies.split("; "));
    let token = cookies.find_map(|cookie| {
        let (name, token) = cookie.split_once('=')?;
        (name == own).then(|| token.to_owned())
    });
    token.filter(|token| !token.is_empty())
}

/// What a browser may do with any answer.
pub(crate) fn set_headers(headers: &mut HeaderMap) {
    let set = [
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        // Without any, a browser would not say where a form comes from.
        (header::REFERRER_POLICY, "same-origin"),
        (header::X_FRAME_OPTIONS, "DENY"),
        (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
        (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    ];
    for (name, value) in set {
        headers.insert(name, HeaderValue::from_static(value));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guard(is_loopback: bool) -> Guard {
        let runtime = Runtime::system();
        Guard::new(&Settings { calls: Box::new(|| None), is_loopback, runtime })
    }

    fn headers(pairs: &[(HeaderName, &str)]) -> HeaderMap {
        let pair = |(name, value): &(HeaderName, &str)| {
            (name.clone(), HeaderValue::from_str(value).unwrap())
        };
        pairs.iter().map(pair).collect()
    }

    #[test]
    fn without_tls_it_answers_on_loopback_alone_and_under_its_names() {
        let of = |host: &str| headers(&[(header::HOST, host)]);
        let local = guard(true);
        for host in ["localhost:7422", "127.0.0.1:7422", "[::1]:7422", "localhost"] {
            assert_eq!(local.admit(false, &Method::GET, &of(host)), Ok(()), "{host}");
        }
        for host in ["evil.example:7422", "127.0.0.1.evil.example", "localhost.evil", ""] {
            let refused = local.admit(false, &Method::GET, &of(host));
            assert_eq!(refused, Err(Refused::Name), "{host}");
        }
        let open = guard(false);
        assert_eq!(open.admit(false, &Method::GET, &of("localhost")), Err(Refused::NoTls));
        assert_eq!(open.admit(true, &Method::GET, &of("db1.example:7422")), Ok(()));
    }

    #[test]
    fn what_changes_something_comes_from_this_page() {
        let guard = guard(false);
        let from = |origin: &str| headers(&[(header::HOST, "db1:7422"), (header::ORIGIN, origin)]);
        assert_eq!(guard.admit(true, &Method::POST, &from("https://db1:7422")), Ok(()));
        for other in ["https://evil.example", "http://db1:7422", "null", "https://db1:7423"] {
            let refused = guard.admit(true, &Method::POST, &from(other));
            assert_eq!(refused, Err(Refused::Origin), "{other}");
        }
        let without = headers(&[(header::HOST, "db1:7422")]);
        assert_eq!(guard.admit(true, &Method::POST, &without), Err(Refused::Origin));
    }

    #[test]
    fn a_form_token_is_for_one_cookie_and_one_process() {
        let (one, other) = (guard(false), guard(false));
        let token = one.form_token(Some("hft_a"));
        assert_eq!(one.check_form(Some("hft_a"), &token), Ok(()));
        assert_eq!(one.check_form(Some("hft_b"), &token), Err(Refused::FormToken));
        assert_eq!(one.check_form(None, &token), Err(Refused::FormToken));
        assert_eq!(other.check_form(Some("hft_a"), &token), Err(Refused::FormToken));
        assert_eq!(one.check_form(Some("hft_a"), ""), Err(Refused::FormToken));
    }

    #[test]
    fn the_token_is_found_in_the_cookie() {
        let with = |has_tls, cookie: &str| token_in(has_tls, &headers(&[(header::COOKIE, cookie)]));
        assert_eq!(with(false, "a=b; holdfast=hft_x; c=d").as_deref(), Some("hft_x"));
        assert_eq!(with(true, "__Host-holdfast=hft_x").as_deref(), Some("hft_x"));
        assert_eq!(with(true, "holdfast=hft_x"), None, "a page without TLS may have set it");
        assert_eq!(with(false, "holdfast="), None);
        assert_eq!(with(false, "other=hft_x"), None);
    }

    #[test]
    fn after_five_failed_logins_an_address_waits_and_others_do_not() {
        let guard = guard(false);
        for _ in 0..FAILURES_MAX {
            assert!(guard.may_try("10.0.0.1"));
            guard.failed("10.0.0.1");
        }
        assert!(!guard.may_try("10.0.0.1") && guard.may_try("10.0.0.2"));
        for nth in 0..FAILURES_MAX * OF_ALL {
            guard.failed(&format!("10.1.0.{nth}"));
        }
        assert!(!guard.may_try("10.0.0.2"), "too many from all");
    }
}
