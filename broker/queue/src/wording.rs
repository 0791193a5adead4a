//! Words that depend on what a job runs.

use baton_protocol::JobKind;

/// A message about a job that changed no variables of its notebook. A run has no variables.
pub(crate) fn with_safety(what: &str, kind: JobKind) -> String {
    match kind.is_program() {
        true => what.to_owned(),
        false => format!("{what}. {}", baton_humanize::safe(kind.noun())),
    }
}
