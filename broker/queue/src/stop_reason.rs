//! Why a job is stopped although its notebook did not ask for it, in words for its owner.

use baton_protocol::{
    JobKind, RemoteError,
    wording::{run_again, with_safety},
};
use serde::{Deserialize, Serialize};

/// It is stored as JSON.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StopReason {
    /// Course staff stopped it. `person` is `None` if they used the broker's own token.
    Staff {
        person: Option<String>,
        reason: Option<String>,
    },
    /// Its notebook did not reconnect in time.
    NotebookAway {},
    /// The broker refused what its notebook sent for it.
    Refused { why: String, hint: String },
}

impl StopReason {
    /// Who or what stopped it, without a full stop.
    pub fn sentence(&self, kind: JobKind) -> String {
        self.sentence_with(kind, "")
    }

    /// The error of a job that returns no result.
    pub(crate) fn error(&self, kind: JobKind, had_started: bool) -> RemoteError {
        let when = match had_started {
            true => " before its changes could be returned",
            false => " before it ran",
        };
        let (name, hint) = match self {
            Self::Staff { .. } => (
                "CellStopped",
                "ask your course staff before you run it again".to_owned(),
            ),
            Self::NotebookAway {} => ("NotebookAway", run_again(kind)),
            Self::Refused { hint, .. } => ("GpuServiceError", hint.clone()),
        };
        let what = self.sentence_with(kind, when);
        RemoteError::of_baton(name, with_safety(&what, kind), hint)
    }

    fn sentence_with(&self, kind: JobKind, when: &str) -> String {
        let noun = kind.noun();
        match self {
            Self::Staff { person, reason } => {
                let who = person.as_deref().unwrap_or("Your course staff");
                let why = reason.as_deref().map(|reason| format!(" ({reason})"));
                format!("{who} stopped this {noun}{}{when}", why.unwrap_or_default())
            }
            Self::NotebookAway {} => format!(
                "This {noun} was stopped{when}, because its connection to the GPU service was lost"
            ),
            Self::Refused { why, .. } => why.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn staff(person: Option<&str>, reason: Option<&str>) -> StopReason {
        StopReason::Staff {
            person: person.map(str::to_owned),
            reason: reason.map(str::to_owned),
        }
    }

    #[test]
    fn a_reason_names_what_was_stopped() {
        let by_staff = staff(None, None);
        let sentence = |kind| by_staff.sentence(kind);
        assert_eq!(
            sentence(JobKind::Cell),
            "Your course staff stopped this cell"
        );
        assert_eq!(
            sentence(JobKind::Script),
            "Your course staff stopped this run"
        );
        assert_eq!(
            staff(Some("tia"), Some("it loops")).sentence(JobKind::Block),
            "tia stopped this block (it loops)"
        );
    }

    #[test]
    fn only_a_stop_by_staff_refers_to_them() {
        let error = StopReason::NotebookAway {}.error(JobKind::Cell, false);
        assert_eq!(
            error.value,
            "This cell was stopped before it ran, because its connection to the GPU service was lost. \
             Your variables are as they were before the cell"
        );
        assert_eq!(error.hint.as_deref(), Some("run the cell again"));
        let error = staff(Some("tia"), None).error(JobKind::Notebook, true);
        assert_eq!(
            error.value,
            "tia stopped this run before its changes could be returned"
        );
        let hint = "ask your course staff before you run it again";
        assert_eq!(error.hint.as_deref(), Some(hint));
    }
}
