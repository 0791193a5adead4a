//! Text as a terminal shows it, where the last line can still be overwritten.

/// Adds text to a stream's output. A carriage return starts the line again and a backspace removes a letter, as
/// JupyterLab and nbclient (`coalesce_streams`) store it, so a progress bar is one line.
pub(crate) fn append(shown: &mut String, text: &str) {
    if !text.contains(['\r', '\u{8}']) && !shown.ends_with('\r') {
        shown.push_str(text);
        return;
    }
    let mut letters = text.chars().peekable();
    if shown.ends_with('\r')
        && letters
            .peek()
            .is_some_and(|next| *next != '\n' && *next != '\r')
    {
        start_anew(shown);
    }
    while let Some(letter) = letters.next() {
        match letter {
            '\u{8}' => {
                if shown.ends_with(|last| last != '\n') {
                    shown.pop();
                }
            }
            // The next letter decides: before a line end it has no effect, and at the end of the
            // text the next letter is still unknown.
            '\r' => match letters.peek() {
                None | Some('\n') => shown.push('\r'),
                Some(_) => start_anew(shown),
            },
            letter => shown.push(letter),
        }
    }
}

fn start_anew(shown: &mut String) {
    let line = shown.rfind('\n').map_or(0, |end| end + 1);
    shown.truncate(line);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(parts: &[&str], expected: &str) {
        let mut shown = String::new();
        for part in parts {
            append(&mut shown, part);
        }
        assert_eq!(shown, expected, "{parts:?}");
    }

    #[test]
    fn a_line_may_be_written_over() {
        check(&["a\nb", "c\n"], "a\nbc\n");
        check(&["1%\r2%\r3%"], "3%");
        check(&["start\n1%", "\r2%", "\r3%\n", "end"], "start\n3%\nend");
        check(&["1%\r", "2%"], "2%");
        check(&["line\r\n", "next"], "line\r\nnext");
        check(&["line\r", "\n"], "line\r\n");
        check(&["abc\u{8}\u{8}d"], "ad");
        check(&["a\n\u{8}b"], "a\nb");
        check(&["a\r\r\rb"], "b");
    }
}
