//! Makes each event of a job fit into a message to the broker.
//!
//! In: events with texts that a cell chose. Out: the same events, with long texts cut. States are bounded where they
//! are read, because a session whose state does not fit cannot be used again, and outputs where they are batched.
//!
//! **Invariant:** the broker accepts what leaves this module. If it did not, it would get the same event again over each
//! new connection, and the jobs of all other notebooks would wait.

use baton_humanize::bytes;
use baton_protocol::{Finished, JobEvent, RemoteError};

/// The longest text of an error or a question. Of a longer one, only the beginning and the end remain.
const LONGEST_TEXT: usize = 1 << 20;
/// The most bytes in the names that a cell looks up at once.
const MOST_NAMES_BYTES: usize = 16 << 20;
/// What a text in a list counts besides its own bytes. Limits short names to a quarter of the elements that an event may
/// have, and the lines of a traceback to what a state leaves for the rest of its event.
const ELEMENT_BYTES: usize = 128;

pub(crate) fn fitting(mut event: JobEvent) -> JobEvent {
    match &mut event {
        JobEvent::InputWanted { prompt, .. } => shorten(prompt),
        JobEvent::NamesWanted { names, .. } => {
            let mut left = MOST_NAMES_BYTES;
            names.retain(|name| {
                let rest = left.checked_sub(name.len() + ELEMENT_BYTES);
                left = rest.unwrap_or(left);
                rest.is_some()
            });
        }
        JobEvent::NotStarted { error } => shorten_error(error),
        JobEvent::Finished(Finished { error, .. })
        | JobEvent::DeferredState { error, .. }
        | JobEvent::Salvaged { error, .. } => error.iter_mut().for_each(shorten_error),
        _ => {}
    }
    event
}

fn shorten_error(error: &mut RemoteError) {
    shorten(&mut error.name);
    shorten(&mut error.value);
    error.hint.iter_mut().for_each(shorten);
    let lines = error.traceback.iter();
    if lines.map(|line| line.len() + ELEMENT_BYTES).sum::<usize>() > LONGEST_TEXT {
        let mut text = error.traceback.join("\n");
        shorten(&mut text);
        error.traceback = vec![text];
    }
}

fn shorten(text: &mut String) {
    if text.len() > LONGEST_TEXT {
        let end = text.floor_char_boundary(LONGEST_TEXT / 2);
        let begin = text.ceil_char_boundary(text.len() - LONGEST_TEXT / 2);
        let left_out = bytes((begin - end) as u64);
        text.replace_range(end..begin, &format!("\n[Baton left out {left_out} here]\n"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use baton_protocol::{Bound, Outcome};

    const MANY: usize = 70_000_000;

    fn check_fits(event: JobEvent) -> JobEvent {
        assert!(!Bound::MESSAGE.allows(&event));
        let event = fitting(event);
        assert!(Bound::EVENT.allows(&event));
        event
    }

    #[test]
    fn of_a_long_error_the_beginning_and_the_end_remain() {
        let long = || format!("begin{}end", "ä".repeat(MANY / 2));
        let error = RemoteError {
            name: long(),
            value: long(),
            traceback: vec!["first".to_owned(), long(), "last".to_owned()],
            hint: None,
        };
        let end = Finished::without_state(Outcome::Error, Some(error));
        let JobEvent::Finished(Finished {
            error: Some(error), ..
        }) = check_fits(JobEvent::Finished(end))
        else {
            panic!("the cell has ended with an error");
        };
        for text in [&error.name, &error.value] {
            assert!(text.starts_with("beginä") && text.ends_with("äend"));
            assert!(text.contains("ä\n[Baton left out 65.7 MiB here]\nä"));
        }
        let [traceback] = error.traceback.as_slice() else {
            panic!("the lines are joined");
        };
        assert!(traceback.starts_with("first\nbegin") && traceback.ends_with("end\nlast"));
    }

    #[test]
    fn many_lines_of_a_traceback_become_one_text() {
        let error = RemoteError {
            traceback: vec![String::new(); 1_000_000],
            ..RemoteError::of_baton("ValueError", "x", "y")
        };
        let JobEvent::NotStarted { error } = check_fits(JobEvent::NotStarted { error }) else {
            panic!("it stays the same event");
        };
        assert_eq!(error.traceback, ["\n".repeat(999_999)]);
    }

    #[test]
    fn a_long_question_is_cut() {
        check_fits(JobEvent::InputWanted {
            question: 1,
            prompt: "x".repeat(MANY),
            password: false,
        });
        let names = vec!["x".repeat(MANY), "short".to_owned()];
        let wanted = JobEvent::NamesWanted { question: 1, names };
        let names = vec!["short".to_owned()];
        let expected = JobEvent::NamesWanted { question: 1, names };
        assert_eq!(check_fits(wanted), expected);
        let names = vec![String::new(); MANY / 100];
        check_fits(JobEvent::NamesWanted { question: 1, names });
    }

    #[test]
    fn ordinary_events_stay_as_they_are() {
        let error = RemoteError {
            traceback: vec!["a".to_owned(), "b".to_owned()],
            ..RemoteError::of_baton("ValueError", "x", "y")
        };
        let end = Finished::without_state(Outcome::Error, Some(error));
        let end = JobEvent::Finished(end);
        assert_eq!(fitting(end.clone()), end);
    }
}
