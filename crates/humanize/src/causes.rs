//! Errors and what caused them.

use std::error::Error;

/// An error and its causes, in one line. A transparent error says the same as its cause, so this is said once.
#[must_use]
pub fn with_causes(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let part = error.to_string();
        if !text.ends_with(&part) {
            text.push_str(": ");
            text.push_str(&part);
        }
        cause = error.source();
    }
    text
}

/// The error that caused all the others, or the error itself.
#[must_use]
pub fn root_cause<'error>(error: &'error (dyn Error + 'static)) -> &'error (dyn Error + 'static) {
    let mut cause = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    cause
}

#[cfg(test)]
mod tests {
    use std::fmt;

    use super::*;

    #[derive(Debug)]
    struct Failed(&'static str, Option<Box<Failed>>);

    impl fmt::Display for Failed {
        fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
            formatter.write_str(self.0)
        }
    }

    impl Error for Failed {
        fn source(&self) -> Option<&(dyn Error + 'static)> {
            let source: &Failed = self.1.as_deref()?;
            Some(source)
        }
    }

    fn chain(texts: &[&'static str]) -> Failed {
        let (text, causes) = texts.split_first().unwrap_or((&"", &[]));
        let cause = (!causes.is_empty()).then(|| Box::new(chain(causes)));
        Failed(text, cause)
    }

    #[test]
    fn causes_follow_and_none_is_repeated() {
        for (texts, expected) in [
            (&["no answer"][..], "no answer"),
            (&["no answer", "refused"], "no answer: refused"),
            (&["refused", "refused"], "refused"),
            (&["a", "a", "b", "b", "c"], "a: b: c"),
            (&["not sent: refused", "refused"], "not sent: refused"),
        ] {
            assert_eq!(with_causes(&chain(texts)), expected);
        }
    }

    #[test]
    fn the_root_has_no_cause() {
        assert_eq!(root_cause(&chain(&["a", "b", "c"])).to_string(), "c");
        assert_eq!(root_cause(&chain(&["a"])).to_string(), "a");
    }
}
