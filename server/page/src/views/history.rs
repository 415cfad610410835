//! The past of all locks, or of some.

use askama::Template;
use axum::http::StatusCode;

use super::{Main, Problem};
use crate::calls::Client;
use crate::past::{self, PastRow};

/// Entries of a page.
const PAST: u32 = 500;

#[derive(Template)]
#[template(path = "history.html")]
struct HistoryPage<'a> {
    asked: &'a past::Asked,
    rows: Vec<PastRow>,
    node: u64,
    earlier: Option<String>,
    /// Nothing before this entry is remembered.
    begins: Option<u64>,
}

pub(super) async fn page(client: &Client, asked: &past::Asked) -> Result<Main, Problem> {
    let request = asked.request(PAST, client.now_ms());
    let request = request.map_err(|why| Problem::new(StatusCode::BAD_REQUEST, &why))?;
    let found = client.history(request).await?;
    let mut rows = past::rows(&found);
    // The newest first: that is what is looked for.
    rows.reverse();
    let page = HistoryPage {
        asked,
        rows,
        node: found.node_id,
        earlier: asked.earlier(&found.earlier_page_token),
        begins: found.begins_after.filter(|after| *after > 0).map(|after| after + 1),
    };
    Ok(Main::of("History", &page))
}
