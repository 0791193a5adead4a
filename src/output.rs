//! What commands print to the terminal, a file or another program.
//!
//! **Invariant:** no command ends because its reader has ended. `baton run … | head -1` runs to its end, and so does
//! a service whose terminal has been closed.

use anyhow::Context;
use std::{
    fmt::Arguments,
    io::{self, ErrorKind, Write},
    process::ExitCode,
    sync::{Mutex, PoisonError},
};

/// Why output is missing although it has a reader: for example because the disk is full.
static MISSING: Mutex<Option<io::Error>> = Mutex::new(None);

/// As `print!`.
macro_rules! out {
    ($($text:tt)*) => { $crate::output::to_stdout(format_args!($($text)*)) };
}

/// As `println!`.
macro_rules! outln {
    ($($text:tt)*) => { $crate::output::to_stdout(format_args!("{}\n", format_args!($($text)*))) };
}

/// As `eprint!`.
macro_rules! err {
    ($($text:tt)*) => { $crate::output::to_stderr(format_args!($($text)*)) };
}

/// As `eprintln!`.
macro_rules! errln {
    () => { $crate::output::to_stderr(format_args!("\n")) };
    ($($text:tt)*) => { $crate::output::to_stderr(format_args!("{}\n", format_args!($($text)*))) };
}

pub(crate) fn to_stdout(text: Arguments<'_>) {
    let mut stdout = io::stdout().lock();
    note(stdout.write_fmt(text).and_then(|()| stdout.flush()));
}

/// Error messages have nowhere else to go.
pub(crate) fn to_stderr(text: Arguments<'_>) {
    let _ = io::stderr().lock().write_fmt(text);
}

/// Returns whether the reader may read more of it.
pub(crate) fn bytes_to_stdout(bytes: &[u8]) -> bool {
    bytes_to(io::stdout().lock(), bytes)
}

/// For the output of a program, which is not about this program's own errors.
pub(crate) fn bytes_to_stderr(bytes: &[u8]) {
    bytes_to(io::stderr().lock(), bytes);
}

fn bytes_to(mut stream: impl Write, bytes: &[u8]) -> bool {
    let written = stream.write_all(bytes).and_then(|()| stream.flush());
    let is_read = !written.as_ref().is_err_and(has_no_reader);
    note(written);
    is_read
}

/// The result of a command, unless output that has a reader could not be written.
pub(crate) fn or_missing(result: anyhow::Result<ExitCode>) -> anyhow::Result<ExitCode> {
    let code = result?;
    let mut missing = MISSING.lock().unwrap_or_else(PoisonError::into_inner);
    match missing.take() {
        None => Ok(code),
        Some(error) => Err(error).context("The output could not be written"),
    }
}

fn note(written: io::Result<()>) {
    if let Err(error) = written
        && !has_no_reader(&error)
    {
        let mut missing = MISSING.lock().unwrap_or_else(PoisonError::into_inner);
        missing.get_or_insert(error);
    }
}

/// The other program has ended, or the terminal is closed.
fn has_no_reader(error: &io::Error) -> bool {
    error.kind() == ErrorKind::BrokenPipe
        || error.raw_os_error() == Some(nix::errno::Errno::EIO as i32)
}
