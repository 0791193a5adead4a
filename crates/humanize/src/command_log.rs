//! What a command wrote to its log as it ended.

/// Begins the error with which a command ends.
pub const ERROR_PREFIX: &str = "Error: ";

/// The error that a command logged last, after the first `before` bytes of its log. A command that
/// empties a long log makes it shorter than before. The error begins at the start of a line, and may
/// have several lines.
#[must_use]
pub fn last_error(log: &[u8], before: u64) -> Option<String> {
    let own = usize::try_from(before)
        .ok()
        .and_then(|before| log.get(before..));
    let log = String::from_utf8_lossy(own.unwrap_or(log));
    let start = log
        .rfind(&format!("\n{ERROR_PREFIX}"))
        .map_or(0, |newline| newline + 1);
    let error = log[start..].strip_prefix(ERROR_PREFIX)?;
    Some(error.trim_end().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_error_is_whole() {
        assert_eq!(last_error(b"", 0), None);
        assert_eq!(last_error(b"INFO begins\n", 0), None);
        let said = "No session starts\n  because: ImportError: No module named 'x'";
        for before in ["", "INFO begins\n", "Error: an earlier one\n"] {
            let log = format!("{before}Error: {said}\n");
            assert_eq!(last_error(log.as_bytes(), 0).as_deref(), Some(said));
        }
    }

    #[test]
    fn an_error_from_before_does_not_count() {
        let log = b"Error: an earlier one\nINFO begins\n";
        assert_eq!(last_error(log, 22), None);
        assert_eq!(last_error(b"Error: new\n", 500).as_deref(), Some("new"));
    }
}
