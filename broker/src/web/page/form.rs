//! Forms, and forms that are shown again because a field is missing or wrong.

use crate::{web::ApiError, words};
use baton_broker_queue::NotDone;
use maud::{Markup, html};
use std::collections::HashMap;

pub(super) type Fields = HashMap<String, String>;

/// A form whose command was refused.
pub(super) struct Refused {
    fields: Fields,
    /// The name of the wrong field in the form.
    field: &'static str,
    says: String,
}

impl Refused {
    /// Returns `None` if the person cannot correct the error on the same page.
    pub(super) fn of(error: &ApiError, fields: Fields) -> Option<Self> {
        let (field, says) = match error {
            ApiError::NotDone(NotDone::Wrong(wrong)) => (in_form(wrong.field)?, wrong.to_string()),
            ApiError::NotDone(
                NotDone::Over | NotDone::NotWaiting | NotDone::Leaving(_) | NotDone::NoAllowance(_),
            ) => ("action", error.to_string()),
            _ => return None,
        };
        Some(Self {
            fields,
            field,
            says,
        })
    }

    pub(super) fn field(&self, name: &str) -> &str {
        self.fields.get(name).map_or("", String::as_str)
    }
}

/// The value of a field: what the person entered, if the form is shown again.
pub(super) fn value<'a>(refused: Option<&'a Refused>, name: &str, stored: &'a str) -> &'a str {
    refused.map_or(stored, |refused| refused.field(name))
}

pub(super) fn is_wrong(refused: Option<&Refused>, name: &str) -> bool {
    refused.is_some_and(|refused| refused.field == name)
}

/// What is wrong with this field. For the field `action`, why the command was refused.
pub(super) fn complaint(refused: Option<&Refused>, name: &str) -> Markup {
    let found = refused.filter(|refused| refused.field == name);
    html! {
        @if let Some(refused) = found { span.wrong role="alert" { (words::capital(&refused.says)) "." } }
    }
}

/// The name of a field in the form.
fn in_form(field: &'static str) -> Option<&'static str> {
    Some(match field {
        "timeout_ms" => "timeout",
        "longest_timeout_ms" => "longest",
        "deadlines" => "until",
        "gpu_time_ms" => "gpu_time",
        "until_ms" => "granted_until",
        "reason" | "message" | "paused" | "weight" | "timeout" | "longest" | "until" | "before"
        | "boost" | "timetable" | "person" | "gpu_time" | "granted_until" => field,
        _ => return None,
    })
}
