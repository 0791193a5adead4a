//! What all pages share.

use crate::web::Caller;
use axum::{
    http::{StatusCode, header},
    response::{IntoResponse, Response},
};
use maud::{DOCTYPE, Markup, PreEscaped, html};

pub(crate) const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'";

/// The address of each page, relative to any page, and its name.
const PAGES: [(&str, &str); 6] = [
    ("./", "Now"),
    ("people", "People"),
    ("workers", "Workers"),
    ("courses", "Courses"),
    ("capacity", "Capacity"),
    ("audit", "Audit"),
];

pub(super) struct Page {
    /// The address of the menu entry to mark as current.
    pub(super) here: &'static str,
    pub(super) title: String,
    /// The address of the stream with changed fragments.
    pub(super) live: Option<String>,
    pub(super) main: Markup,
}

/// A changing part of a page, with the id of its element.
pub(super) type Fragment = (&'static str, String);

impl Page {
    pub(super) fn show(self, caller: &Caller) -> Response {
        self.answer(StatusCode::OK, caller)
    }

    pub(super) fn answer(self, status: StatusCode, caller: &Caller) -> Response {
        let headers = [
            (header::CONTENT_SECURITY_POLICY, POLICY),
            (header::CACHE_CONTROL, "no-store"),
        ];
        (status, headers, self.markup(caller)).into_response()
    }

    fn markup(self, caller: &Caller) -> Markup {
        let who = caller.identity.person().unwrap_or("Operator");
        html! {
                   (DOCTYPE)
                   html lang="en" {
                       head {
                           meta charset="utf-8";
                           meta name="viewport" content="width=device-width, initial-scale=1";
                           meta name="color-scheme" content="light dark";
                           meta name="htmx-config" content="includeIndicatorCSS:false history:false extensions:sse";
                           title { (self.title) " · Baton" }
                           link rel="icon" href="static/icon.svg" type="image/svg+xml";
                           link rel="stylesheet" href="static/page.css";
                       }
                       body {
                           a.skip href="#main" { "Skip to the content" }
                           header.bar { div {
                               a.brand href="./" {
                                   svg viewBox="0 0 24 24" aria-hidden="true" {
                                       path d="M4.2 16.6 15.9 4.9a2.3 2.3 0 0 1 3.2 3.2L7.4 19.8a2.3 2.3 0 0 1-3.2-3.2Z" {}
                                       circle cx="19" cy="18.5" r="2.5" opacity=".55" {}
                                   }
                                   "Baton"
        }
                               nav aria-label="Pages" { ul {
                                   @for (address, name) in PAGES {
                                       li { a href=(address) aria-current=[(address == self.here).then_some("page")] { (name) } }
                                   }
                               } }
                               span.who { (who) }
                               @if caller.identity.person().is_some() {
                                   form action="sign-out" method="post" {
                                       (form_key(caller))
                                       button.plain type="submit" { "Sign out" }
                                   }
                               }
                               button #pause type="button" aria-pressed="false" hidden { "Pause updates" }
                           } }
                           main #main tabindex="-1" { (self.main) }
                           @if let Some(live) = self.live {
                               div #updates hx-sse:connect=(live) hidden {}
                               // Not deferred: a deferred htmx would start without its extension if
                               // that loads late.
                               script src="static/htmx-4.0.1.min.js" {}
                               script src="static/hx-sse-4.0.1.min.js" {}
                           }
                           script src="static/page.js" {}
                       }
                   }
               }
    }
}

/// The element of a fragment.
pub(super) fn element(fragments: &[Fragment], id: &str) -> Markup {
    let found = fragments.iter().find(|(known, _)| *known == id);
    let content = found.map_or("", |(_, content)| content.as_str());
    html! { div id=(id) { (PreEscaped(content)) } }
}

/// The hidden field for every form of this caller.
pub(super) fn form_key(caller: &Caller) -> Markup {
    html! { input type="hidden" name="key" value=(caller.form_key()); }
}

/// The last digits of an id. Its first ones are a time, so they may be equal in many ids.
pub(super) fn short(id: &str) -> &str {
    id.get(id.len().saturating_sub(8)..).unwrap_or(id)
}
