//! Finding the program that installs packages.

use std::{fs, path::PathBuf};

const PROGRAM: &str = "uv";

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "The program uv, which builds environments, is missing\nhint: install it beside baton (`pip install uv`) or on PATH"
)]
pub struct UvMissing;

/// Finds `uv` beside this program, where `pip install` puts both, or else on `PATH`.
///
/// # Errors
/// If it is in neither place.
pub fn find_uv() -> Result<PathBuf, UvMissing> {
    let own = std::env::current_exe().ok();
    let beside = own.and_then(|program| program.parent().map(PathBuf::from));
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = beside.into_iter().chain(std::env::split_paths(&path));
    let mut programs = folders.map(|folder| folder.join(PROGRAM));
    programs
        .find(|program| fs::metadata(program).is_ok_and(|found| found.is_file()))
        .ok_or(UvMissing)
}
