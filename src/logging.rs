//! Logging to stderr.
//!
//! **Invariant:** each event is one line, and nothing in it controls a terminal, because messages and fields contain text
//! of students, such as paths.

use crate::settings::ProcessEnvironment;
use baton_humanize::stays_in_line;
use std::{fmt, io::IsTerminal};
use tracing_subscriber::{
    EnvFilter,
    field::RecordFields,
    fmt::{
        FormatFields, SubscriberBuilder,
        format::{DefaultFields, Format, Writer},
    },
};

/// `BATON_LOG` selects what is logged; `default` applies without it.
pub(crate) fn to_stderr(process: &ProcessEnvironment, default: &str) {
    let said = process.variable("BATON_LOG");
    let filter = said.map(EnvFilter::try_new);
    let wrong = matches!(filter, Some(Err(_)));
    let filter = match filter {
        Some(Ok(filter)) => filter,
        _ => EnvFilter::new(default),
    };
    one_line_per_event()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .init();
    if wrong {
        tracing::warn!("BATON_LOG is not valid; logging at {default}");
    }
}

fn one_line_per_event() -> SubscriberBuilder<OneLine, Format> {
    tracing_subscriber::fmt().fmt_fields(OneLine(DefaultFields::new()))
}

/// Writes the message and the fields of an event or span; what is no text on one line is escaped.
struct OneLine(DefaultFields);

impl<'writer> FormatFields<'writer> for OneLine {
    fn format_fields<Fields: RecordFields>(
        &self,
        mut writer: Writer<'writer>,
        fields: Fields,
    ) -> fmt::Result {
        let mut text = String::new();
        self.0.format_fields(Writer::new(&mut text), fields)?;
        for character in text.chars() {
            match stays_in_line(character) {
                true => writer.write_char(character)?,
                false => write!(writer, "{}", character.escape_default())?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        io,
        sync::{Arc, Mutex, PoisonError},
    };

    #[derive(Clone, Default)]
    struct Log(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Log {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let mut log = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            log.extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn an_event_is_one_line_that_controls_no_terminal() {
        let (log, folder) = (Log::default(), "x\nERROR forged\u{1b}[31m\u{202e}\u{061c}ü");
        let sink = log.clone();
        let subscriber = one_line_per_event()
            .without_time()
            .with_target(false)
            .with_ansi(false)
            .with_writer(move || sink.clone())
            .finish();
        tracing::subscriber::with_default(subscriber, || {
            let span = tracing::error_span!("job", folder);
            let _entered = span.enter();
            tracing::warn!(%folder, quoted = folder, "No folder {folder}");
        });
        let written = log.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let written = String::from_utf8_lossy(&written).into_owned();
        let line = written.strip_suffix('\n').unwrap_or_default();
        assert!(line.chars().all(stays_in_line), "{written:?}");
        assert!(line.contains("No folder x\\nERROR forged"), "{written}");
        assert!(line.contains('ü'), "{written}");
    }
}
