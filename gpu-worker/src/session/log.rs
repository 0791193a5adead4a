//! The standard output and error of a session's processes.
//!
//! In: bytes of both pipes. Out: lines in the trace at debug level, and the last of them for an error's text.
//!
//! **Invariant:** holds at most [`LINES`] lines of at most [`LINE_BYTES`] bytes.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, PoisonError},
};
use tokio::io::{AsyncRead, AsyncReadExt};

const LINES: usize = 60;
const LINE_BYTES: usize = 1000;

/// Shared by the tasks that read the pipes and the code that reports why a session ended.
#[derive(Clone, Default)]
pub(crate) struct SessionLog(Arc<Mutex<VecDeque<String>>>);

impl SessionLog {
    /// Reads the pipe in a separate task until it closes, which happens when the session's last process ends.
    pub(super) fn follow(&self, kernel: u32, pipe: impl AsyncRead + Send + Unpin + 'static) {
        let log = self.clone();
        tokio::spawn(async move { log.read(kernel, pipe).await });
    }

    async fn read(self, kernel: u32, mut pipe: impl AsyncRead + Unpin) {
        let mut lines = Lines::default();
        let mut buffer = [0; 4096];
        while let Ok(bytes @ 1..) = pipe.read(&mut buffer).await {
            for line in lines.push(&buffer[..bytes]) {
                self.add(kernel, line);
            }
        }
        if let Some(line) = lines.finish() {
            self.add(kernel, line);
        }
    }

    fn add(&self, kernel: u32, line: String) {
        tracing::debug!(session.pid = kernel, "Session {kernel}: {line}");
        let mut lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if lines.len() == LINES {
            lines.pop_front();
        }
        lines.push_back(line);
    }

    /// The last `count` lines.
    pub(crate) fn last_lines(&self, count: usize) -> Vec<String> {
        let lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        lines
            .iter()
            .skip(lines.len().saturating_sub(count))
            .cloned()
            .collect()
    }
}

/// Splits bytes into lines, and cuts lines that are too long.
#[derive(Default)]
struct Lines {
    open: Vec<u8>,
}

impl Lines {
    fn push(&mut self, bytes: &[u8]) -> Vec<String> {
        let mut complete = Vec::new();
        let mut parts = bytes.split(|byte| *byte == b'\n').peekable();
        while let Some(part) = parts.next() {
            let room = LINE_BYTES.saturating_sub(self.open.len());
            self.open.extend_from_slice(&part[..part.len().min(room)]);
            if parts.peek().is_some() {
                complete.extend(self.finish());
            }
        }
        complete
    }

    /// The line so far, without white space at its end; `None` if nothing else is left.
    fn finish(&mut self) -> Option<String> {
        let line = String::from_utf8_lossy(&std::mem::take(&mut self.open))
            .trim_end()
            .to_owned();
        (!line.is_empty()).then_some(line)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_in_pieces_are_put_together() {
        let mut lines = Lines::default();
        assert_eq!(lines.push(b"one\ntw"), ["one"]);
        assert_eq!(lines.push(b"o\n\n"), ["two"]);
        assert_eq!(lines.push(b"three"), Vec::<String>::new());
        assert_eq!(lines.finish().as_deref(), Some("three"));
        assert_eq!(lines.finish(), None);
    }

    #[test]
    fn an_endless_line_takes_bounded_room() {
        let mut lines = Lines::default();
        for _ in 0..100 {
            assert!(lines.push(&[b'x'; 1000]).is_empty());
        }
        assert_eq!(lines.push(b"\n")[0].len(), LINE_BYTES);
    }

    #[test]
    fn the_last_lines_are_kept() {
        let log = SessionLog::default();
        for number in 0..2 * LINES {
            log.add(1, number.to_string());
        }
        assert_eq!(log.last_lines(2), ["118", "119"]);
        assert_eq!(log.last_lines(1000).len(), LINES);
    }
}
