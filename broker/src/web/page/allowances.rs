//! GPU time that staff granted beyond the budget of a course, and the form with which they grant it.

use super::{
    form::{Fields, Refused, complaint, is_wrong, value},
    layout::form_key,
    time::Zone,
};
use crate::{
    web::{ApiError, Caller, Shared},
    words,
};
use baton_broker_queue::{
    Command, NotDone,
    courses::{Wrong, milliseconds},
};
use baton_protocol::api::{Allowance, Budget};
use maud::{Markup, html};

pub(super) fn section(
    course: &str,
    allowances: &[Allowance],
    zone: &Zone,
    caller: &Caller,
    refused: Option<&Refused>,
) -> Markup {
    let may_steer = caller.identity.may_steer(course);
    html! {
        section.card #allowances {
            h2 { "Additional GPU time" }
            (complaint(refused, "action"))
            div.scroll tabindex="0" role="region" aria-label="Additional GPU time" { table {
                caption { "What staff granted beyond the budget of the course" }
                thead { tr {
                    th scope="col" { "Person" }
                    th.number scope="col" { "More" }
                    th scope="col" { "Until" }
                    th scope="col" { "Left" }
                    th scope="col" { "Granted by" }
                    @if may_steer { th scope="col" { "Action" } }
                } }
                tbody {
                    @for allowance in allowances { (row(course, allowance, zone, caller, may_steer)) }
                    @if allowances.is_empty() { tr { td.empty colspan=(if may_steer { 6 } else { 5 }) { "Nothing is granted." } } }
                }
            } }
            @if may_steer { (form(course, zone, caller, refused)) }
        }
    }
}

fn row(
    course: &str,
    allowance: &Allowance,
    zone: &Zone,
    caller: &Caller,
    may_steer: bool,
) -> Markup {
    let person = allowance.person.as_deref();
    html! {
        tr {
            th scope="row" { (person.unwrap_or("everyone in the course")) }
            td.number { (words::span(allowance.gpu_time_ms)) }
            td { (zone.moment(allowance.until_ms)) }
            td { (allowance.budget.as_ref().map_or_else(|| "–".to_owned(), left)) }
            td { (allowance.by.as_deref().unwrap_or("operator")) }
            @if may_steer { td {
                form method="post" action="act" {
                    (form_key(caller))
                    input type="hidden" name="course" value=(course);
                    input type="hidden" name="person" value=(person.unwrap_or_default());
                    button name="action" value="revoke" { "Revoke" }
                }
            } }
        }
    }
}

pub(super) fn left(budget: &Budget) -> String {
    let period = budget.period.words();
    let (left, of) = (words::span(budget.left_ms), words::span(budget.of_ms));
    format!("{left} of {of} left {period}")
}

fn form(course: &str, zone: &Zone, caller: &Caller, refused: Option<&Refused>) -> Markup {
    let shown = |name| value(refused, name, "").to_owned();
    let wrong = |name| is_wrong(refused, name);
    html! {
        form.fields method="post" action="act" {
            (form_key(caller))
            input type="hidden" name="course" value=(course);
            label { "Person" small { "Empty for everyone in the course." } (complaint(refused, "person"))
                input name="person" maxlength="500" value=(shown("person")) autocomplete="off" autofocus[wrong("person")]; }
            label { "GPU time" small { "In addition to each budget: 30m, 2h. Replaces what the person was granted before." } (complaint(refused, "gpu_time"))
                input name="gpu_time" required value=(shown("gpu_time")) autocomplete="off" autofocus[wrong("gpu_time")]; }
            label { "Until" small { "In " (zone.name_in_forms()) ". Empty for the next reset of the budget." } (complaint(refused, "granted_until"))
                input name="granted_until" type="datetime-local" value=(shown("granted_until")) autofocus[wrong("granted_until")]; }
            div."buttons wide" { button.first name="action" value="grant" { "Grant" } }
        }
    }
}

/// The command of a submitted form that grants or revokes.
pub(super) fn command(shared: &Shared, course: String, form: &Fields) -> Result<Command, ApiError> {
    let given = |field: &str| form.get(field).map(|text| text.trim()).unwrap_or_default();
    let wrong = |field, says| NotDone::from(Wrong::new(field, says));
    let person = Some(given("person").to_owned()).filter(|person| !person.is_empty());
    if given("action") == "revoke" {
        return Ok(Command::Revoke { course, person });
    }
    let gpu_time_ms = milliseconds(given("gpu_time"))
        .map_err(|_| wrong("gpu_time", "must be a time such as 30m or 2h"))?;
    let until_ms = match given("granted_until") {
        "" => None,
        until => Some(
            Zone::of(shared)
                .of_field(until)
                .map_err(|_| wrong("granted_until", "must be a date and a time"))?,
        ),
    };
    Ok(Command::Grant {
        course,
        person,
        gpu_time_ms,
        until_ms,
    })
}
