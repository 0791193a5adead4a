//! The audit log.

use super::{
    layout::{Page, short},
    time::Zone,
};
use crate::{
    web::{ApiError, Caller, Shared},
    words,
};
use axum::{
    Extension,
    extract::{Query, State},
    response::Response,
};
use baton_broker_queue::AuditEntry;
use baton_broker_store::AuditRow;
use baton_protocol::api::Action;
use maud::{Markup, html};

const ROWS: u32 = 100;

#[derive(serde::Deserialize)]
pub(super) struct Asked {
    before: Option<u64>,
}

pub(super) async fn show(
    State(shared): State<Shared>,
    Extension(caller): Extension<Caller>,
    Query(asked): Query<Asked>,
) -> Result<Response, ApiError> {
    let rows = shared
        .store
        .audit_log()
        .entries(&caller.identity, None, asked.before, ROWS)
        .await?;
    let next = rows
        .last()
        .filter(|_| rows.len() == ROWS as usize)
        .map(|row| row.number);
    let page = Page {
        here: "audit",
        title: "Audit".to_owned(),
        live: None,
        main: html! {
            div.head { h1 { "Audit" } p.quiet { "Cancels, and actions by staff, in your courses, newest first" } }
            section.card { (table(&rows, &caller, &Zone::of(&shared))) }
            @if let Some(next) = next { p { a href={ "audit?before=" (next) } { "Older" } } }
        },
    };
    Ok(page.show(&caller))
}

fn table(rows: &[AuditRow], caller: &Caller, zone: &Zone) -> Markup {
    let empty = match caller.identity.is_staff() {
        true => "No actions yet. Cancels, holds, moves and changes by staff appear here.",
        false => "Only the staff of a course can see its actions.",
    };
    html! {
        div.scroll tabindex="0" role="region" aria-label="Audit" { table {
            caption { "Acts" }
            thead { tr {
                th scope="col" { "When" }
                th scope="col" { "Who" }
                th scope="col" { "What" }
                th scope="col" { "Course" }
                th scope="col" { "Of" }
                th scope="col" { "Why" }
            } }
            tbody {
                @for row in rows { (act(&row.entry, zone)) }
                @if rows.is_empty() { tr { td.empty colspan="6" { (empty) } } }
            }
        } }
    }
}

fn act(entry: &AuditEntry, zone: &Zone) -> Markup {
    let of_job = matches!(
        entry.action,
        Action::Cancel | Action::Hold | Action::Release | Action::MoveToFront
    );
    html! {
        tr {
            td { (zone.moment(entry.at_ms)) }
            th scope="row" { (entry.person.as_deref().unwrap_or("Operator")) }
            td { (words::action(entry.action)) }
            td { (words::course(&entry.course)) }
            td {
                @if of_job { a href={ "job?id=" (entry.subject) } { code { (short(&entry.subject)) } } }
                @else { (entry.subject) }
            }
            td.words { (entry.detail.as_deref().unwrap_or("–")) }
        }
    }
}
