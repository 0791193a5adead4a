//! Words that depend on what a job runs, for messages to its owner.
//!
//! In: the kind of a job. Out: words and sentences. Every program writes its messages with these, so that a person
//! without cells never reads about one.
//!
//! **Invariant:** pure.

use crate::JobKind;

/// How an option of a job of this kind is written.
#[must_use]
pub fn option(name: &str, kind: JobKind) -> String {
    match kind {
        JobKind::Block | JobKind::Call | JobKind::Map => format!("{name}="),
        JobKind::Cell | JobKind::Background | JobKind::Notebook | JobKind::Script => {
            format!("--{name}")
        }
    }
}

/// An option with its value, as it is written in a job of this kind.
#[must_use]
pub fn option_with(name: &str, value: &str, kind: JobKind) -> String {
    match kind {
        JobKind::Block | JobKind::Call | JobKind::Map => format!("gpu({name}=\"{value}\")"),
        JobKind::Cell | JobKind::Background => format!("%%gpu --{name} {value}"),
        JobKind::Notebook | JobKind::Script => format!("--{name} {value}"),
    }
}

/// What the owner of a job of this kind can do if it did not end by itself.
#[must_use]
pub fn run_again(kind: JobKind) -> String {
    match kind.is_program() {
        true => "start the run again".to_owned(),
        false => format!("run the {} again", kind.noun()),
    }
}

/// The same if the job had started, and may have acted on the outside world.
#[must_use]
pub fn check_and_run_again(kind: JobKind) -> String {
    let (noun, again) = (kind.noun(), run_again(kind));
    format!("check what the {noun} wrote or sent, then {again}")
}

/// A message about a job that changed no variables of its notebook. A run has no variables.
#[must_use]
pub fn with_safety(what: &str, kind: JobKind) -> String {
    match kind.is_program() {
        true => what.to_owned(),
        false => format!("{what}. {}", baton_humanize::safe(kind.noun())),
    }
}

/// Like [`with_safety`], if cells that need no GPU service are not affected.
#[must_use]
pub fn with_ordinary_cells(what: &str, kind: JobKind) -> String {
    let message = with_safety(what, kind);
    match kind {
        JobKind::Cell | JobKind::Background => format!("{message}; ordinary cells work"),
        _ => message,
    }
}

/// What a job is called in the queue that a job of this kind waits in.
#[must_use]
pub fn queued_noun(kind: JobKind) -> &'static str {
    match kind {
        JobKind::Cell | JobKind::Background => "cell",
        _ => "job",
    }
}

/// The next job that continues in the session of one of this kind.
#[must_use]
pub fn next_one(kind: JobKind) -> String {
    match kind {
        JobKind::Cell | JobKind::Background => "next %%gpu cell".to_owned(),
        kind => format!("next {}", kind.noun()),
    }
}

/// The folder in which the kernel of a job of this kind started.
#[must_use]
pub fn folder(kind: JobKind) -> &'static str {
    match kind {
        JobKind::Cell | JobKind::Background | JobKind::Notebook => "the notebook's folder",
        JobKind::Block | JobKind::Call | JobKind::Map | JobKind::Script => "the current folder",
    }
}

/// What to do about a file that a job of this kind cannot open.
#[must_use]
pub fn read_elsewhere(kind: JobKind) -> String {
    match kind {
        JobKind::Cell | JobKind::Background => {
            "read it in an ordinary cell, and use what you need of it".to_owned()
        }
        JobKind::Block | JobKind::Call | JobKind::Map => {
            let noun = kind.noun();
            format!("read it before the {noun}, and use what you need of it")
        }
        JobKind::Notebook | JobKind::Script => {
            "make it smaller, or ask your course staff to raise the limit".to_owned()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_cells_are_told_about_cells_and_a_run_has_no_variables() {
        let is_cell = |kind: &JobKind| matches!(kind, JobKind::Cell | JobKind::Background);
        for kind in JobKind::ALL.into_iter().filter(|kind| !is_cell(kind)) {
            let sentences = [
                option("timeout", kind),
                option_with("timeout", "1h", kind),
                run_again(kind),
                check_and_run_again(kind),
                with_safety("It failed", kind),
                with_ordinary_cells("It failed", kind),
                queued_noun(kind).to_owned(),
                next_one(kind),
                folder(kind).to_owned(),
                read_elsewhere(kind),
            ];
            for sentence in sentences {
                assert!(!sentence.contains("cell"), "{sentence}");
                let is_run = matches!(kind, JobKind::Notebook | JobKind::Script);
                assert!(!(is_run && sentence.contains("variables")), "{sentence}");
            }
        }
        let check = check_and_run_again(JobKind::Script);
        assert_eq!(
            check,
            "check what the run wrote or sent, then start the run again"
        );
    }
}
