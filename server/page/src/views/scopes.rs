//! The scopes with fallback, and the stage of each.

use askama::Template;
use holdfast_proto::v1;

use super::{Main, Problem, encoded};
use crate::calls::Client;
use crate::words::length;

#[derive(Template)]
#[template(path = "scopes.html")]
struct ScopesPage {
    scopes: Vec<ScopeRow>,
    has_fallback: bool,
}

struct ScopeRow {
    scope: String,
    href: String,
    stage: String,
    tone: &'static str,
    epoch: u32,
    authority: String,
    beat: String,
    trouble: String,
}

pub(super) async fn page(client: &Client) -> Result<Main, Problem> {
    let found = client.list_scopes(v1::ListScopesRequest {}).await?;
    let page = ScopesPage {
        scopes: found.scopes.iter().map(scope_row).collect(),
        has_fallback: found.has_fallback,
    };
    Ok(Main::of("Scopes", &page))
}

fn scope_row(scope: &v1::ScopeInfo) -> ScopeRow {
    let stage = scope.row.as_ref().map_or("not known", |row| row.mode.as_str());
    let (stage, tone) = if scope.suspended {
        (format!("{stage}, suspended"), "caution")
    } else {
        (stage.to_owned(), "good")
    };
    ScopeRow {
        scope: scope.scope.clone(),
        href: format!("/locks?prefix={}", encoded(&scope.scope)),
        stage,
        tone: if scope.trouble.is_empty() { tone } else { "wrong" },
        epoch: scope.epoch,
        authority: scope.authority_ms.map(length).unwrap_or_default(),
        beat: scope.beat_age_ms.map(length).unwrap_or_default(),
        trouble: scope.trouble.clone(),
    }
}
