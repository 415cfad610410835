//! What is around each page: tabs, who looks, whether it is live.

use askama::Template;
use axum::http::Uri;

use super::{Main, View, encoded, parameters};
use crate::calls::{Rules, Who};

/// What is around each page.
#[derive(Template)]
#[template(path = "shell.html")]
struct ShellPage<'a> {
    title: &'a str,
    main: &'a str,
    tabs: Vec<Tab>,
    live: Option<String>,
    who: &'a Who,
    form_token: &'a str,
    said: Option<&'a str>,
}

struct Tab {
    name: &'static str,
    href: &'static str,
    is_here: bool,
}

/// The same, before the page is made.
pub(crate) struct Shell {
    view: Option<View>,
    live: Option<String>,
    who: Who,
    form_token: String,
    said: Option<String>,
}

impl Shell {
    pub(crate) fn new(view: &View, uri: &Uri, who: Who, form_token: String) -> Self {
        let at = uri.path_and_query().map_or("/", |at| at.as_str());
        let live = view.is_live().then(|| format!("/live?at={}", encoded(at)));
        let said = parameters(uri).remove("said");
        Self { view: Some(view.clone()), live, who, form_token, said }
    }

    /// Around what is none of the pages.
    pub(crate) fn bare(who: Who, form_token: String) -> Self {
        Self { view: None, live: None, who, form_token, said: None }
    }

    pub(crate) fn form_token(&self) -> &str {
        &self.form_token
    }

    pub(crate) fn around(&self, main: &Main) -> String {
        let tab = |name, href, is: fn(&View) -> bool| Tab {
            name,
            href,
            is_here: self.view.as_ref().is_some_and(is),
        };
        let tabs = vec![
            tab("Now", "/", |view| matches!(view, View::Now { .. })),
            tab("Locks", "/locks", |view| matches!(view, View::Locks { .. } | View::Lock { .. })),
            tab("Sessions", "/sessions", |view| {
                matches!(view, View::Sessions { .. } | View::Session { .. })
            }),
            tab("Scopes", "/scopes", |view| matches!(view, View::Scopes)),
            tab("History", "/history", |view| matches!(view, View::Past(_))),
        ];
        let page = ShellPage {
            title: &main.title,
            main: &main.html,
            tabs,
            live: self.live.clone(),
            who: &self.who,
            form_token: &self.form_token,
            said: self.said.as_deref(),
        };
        page.render().unwrap_or_default()
    }
}
