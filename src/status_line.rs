//! The last line of the terminal, which the next status replaces.
//!
//! **Invariant:** it takes one row, however narrow the terminal is, because only a single row can be replaced.

use baton_humanize::one_line;
use std::io::{self, IsTerminal as _, Write as _};
use terminal_size::{Width, terminal_size_of};

const CLEAR: &str = "\r\x1b[2K";

/// On standard error. Nothing is shown if that is no terminal.
pub(crate) struct StatusLine {
    is_possible: bool,
    is_shown: bool,
}

impl StatusLine {
    pub(crate) fn new(is_quiet: bool) -> Self {
        Self {
            is_possible: !is_quiet && io::stderr().is_terminal(),
            is_shown: false,
        }
    }

    pub(crate) fn show(&mut self, text: &str) {
        if self.is_possible {
            let mut terminal = io::stderr().lock();
            let width = terminal_size_of(&terminal).map(|(Width(width), _)| usize::from(width));
            let _ = write!(terminal, "{CLEAR}{}", row(text, width));
            let _ = terminal.flush();
            self.is_shown = true;
        }
    }

    /// Other output may follow.
    pub(crate) fn clear(&mut self) {
        if std::mem::take(&mut self.is_shown) {
            let _ = write!(io::stderr(), "{CLEAR}");
        }
    }
}

impl Drop for StatusLine {
    fn drop(&mut self) {
        self.clear();
    }
}

/// As much of the text as fits into one row. The last column stays free, because some terminals wrap after it.
fn row(text: &str, width: Option<usize>) -> String {
    let text = one_line(&text.replace('\n', " "));
    match width {
        Some(width) if width > 1 && text.chars().map(most_columns).sum::<usize>() >= width => {
            let mut left = width - 2;
            let fits = |letter: &char| {
                let rest = left.checked_sub(most_columns(*letter));
                left = rest.unwrap_or_default();
                rest.is_some()
            };
            let start: String = text.chars().take_while(fits).collect();
            format!("{start}…")
        }
        _ => text,
    }
}

/// The most columns that a terminal gives a character: those of East Asia and emoji may take two.
fn most_columns(letter: char) -> usize {
    const FIRST_WIDE: char = '\u{1100}';
    if letter < FIRST_WIDE { 1 } else { 2 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_as_wide_as_the_terminal_allows() {
        for (width, row_of_text) in [
            (None, "cell 1 of 2"),
            (Some(12), "cell 1 of 2"),
            (Some(11), "cell 1 of…"),
            (Some(2), "…"),
            (Some(0), "cell 1 of 2"),
        ] {
            assert_eq!(row("cell 1\nof 2", width), row_of_text);
        }
    }

    #[test]
    fn wide_characters_take_two_columns() {
        for (width, row_of_text) in [(10, "日本 🎓 ü"), (9, "日本 🎓…"), (8, "日本 …"), (3, "…")]
        {
            assert_eq!(row("日本 🎓 ü", Some(width)), row_of_text);
        }
    }

    #[test]
    fn nothing_moves_the_cursor() {
        assert_eq!(
            row("a\tb\x1b[2Ac\r", None),
            "a\u{fffd}b\u{fffd}[2Ac\u{fffd}"
        );
    }
}
