//! Words that depend on what a job runs.

use baton_protocol::JobKind;

/// How an option of a job of this kind is written.
pub(crate) fn option(name: &str, kind: JobKind) -> String {
    match kind {
        JobKind::Block | JobKind::Call | JobKind::Map => format!("{name}="),
        JobKind::Cell | JobKind::Background | JobKind::Notebook | JobKind::Script => {
            format!("--{name}")
        }
    }
}

/// An option with its value, as it is written in a job of this kind.
pub(crate) fn option_with(name: &str, value: &str, kind: JobKind) -> String {
    match kind {
        JobKind::Block | JobKind::Call | JobKind::Map => format!("gpu({name}=\"{value}\")"),
        JobKind::Cell | JobKind::Background => format!("%%gpu --{name} {value}"),
        JobKind::Notebook | JobKind::Script => format!("--{name} {value}"),
    }
}

pub(crate) fn run_again(kind: JobKind) -> String {
    format!("run the {} again", kind.noun())
}

/// A message about a job that changed no variables of its notebook. A run has no variables.
pub(crate) fn with_safety(what: &str, kind: JobKind) -> String {
    match kind.is_program() {
        true => what.to_owned(),
        false => format!("{what}. {}", baton_humanize::safe(kind.noun())),
    }
}
