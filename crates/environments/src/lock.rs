//! Locks: the files from which an environment is built the same everywhere.
//!
//! **Invariant:** a lock is complete: it refers to no other local file.

use baton_protocol::{LARGEST_LOCK_BYTES, Lock, LockFile, LockKind, encode};
use std::{
    fs, io,
    path::{Path, PathBuf},
};

const UV_LOCK: &str = "uv.lock";
const PROJECT: &str = "pyproject.toml";
/// The Python version of a uv project, if it gives one.
const PYTHON_VERSION: &str = ".python-version";
/// The file's name in a stored lock, whatever its original name.
pub(crate) const REQUIREMENTS: &str = "requirements.txt";

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LockError {
    #[error("{} cannot be read: {source}", path.display())]
    Read {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error(
        "{} is not a lock\nhint: name a uv.lock, which `uv lock` writes, or a requirements file with hashes, which `uv pip compile --generate-hashes` writes", path.display()
    )]
    Kind { path: PathBuf },
    #[error(
        "{} has no hashes\nhint: write it again with `uv pip compile --generate-hashes`", path.display()
    )]
    NoHashes { path: PathBuf },
    #[error(
        "{} refers to another file or folder: {line}\nhint: write it again with `uv pip compile --generate-hashes`, which puts everything into one file; name folders with their absolute paths", path.display()
    )]
    Refers { path: PathBuf, line: String },
    #[error("The lock {} is larger than {}", path.display(), baton_humanize::bytes(LARGEST_LOCK_BYTES as u64))]
    Large { path: PathBuf },
}

/// Reads the lock at this path: a `uv.lock` beside its `pyproject.toml`, or a requirements file with hashes.
///
/// # Errors
/// If it is not such a file, or refers to other files.
pub fn read_lock(path: &Path) -> Result<Lock, LockError> {
    let name = path.file_name().and_then(|name| name.to_str());
    let lock = match name {
        Some(UV_LOCK) => project(path)?,
        Some(name) if name.ends_with(".txt") => requirements(path)?,
        _ => {
            let path = path.to_owned();
            return Err(LockError::Kind { path });
        }
    };
    if lock.bytes() > LARGEST_LOCK_BYTES {
        let path = path.to_owned();
        return Err(LockError::Large { path });
    }
    Ok(lock)
}

/// The hash by which both ends identify this lock.
#[must_use]
pub fn digest(lock: &Lock) -> String {
    baton_chunks::hash(&encode(lock)).to_string()
}

fn project(path: &Path) -> Result<Lock, LockError> {
    let mut files = vec![LockFile {
        name: UV_LOCK.to_owned(),
        text: text_of(path)?,
    }];
    files.push(LockFile {
        name: PROJECT.to_owned(),
        text: text_of(&path.with_file_name(PROJECT))?,
    });
    let python_version = path.with_file_name(PYTHON_VERSION);
    if python_version.exists() {
        files.push(LockFile {
            name: PYTHON_VERSION.to_owned(),
            text: text_of(&python_version)?,
        });
    }
    Ok(Lock {
        kind: LockKind::Uv,
        files,
    })
}

fn requirements(path: &Path) -> Result<Lock, LockError> {
    let text = text_of(path)?;
    let lines = || text.lines().map(str::trim);
    if let Some(line) = lines().find(|line| refers(line)) {
        return Err(LockError::Refers {
            path: path.to_owned(),
            line: line.to_owned(),
        });
    }
    if !lines().any(|line| line.contains("--hash=")) {
        let path = path.to_owned();
        return Err(LockError::NoHashes { path });
    }
    let name = REQUIREMENTS.to_owned();
    Ok(Lock {
        kind: LockKind::Requirements,
        files: vec![LockFile { name, text }],
    })
}

/// Whether the line refers to something that does not exist under the same path everywhere.
fn refers(line: &str) -> bool {
    let value = |options: &[&str]| {
        options.iter().find_map(|option| {
            let rest = line.strip_prefix(option)?;
            let rest = rest
                .strip_prefix(['=', ' ', '\t'])
                .or_else(|| option.len().eq(&2).then_some(rest));
            rest.map(str::trim)
        })
    };
    let is_relative = |path: &str| !path.starts_with('/') && !path.contains("://");
    value(&[
        "--requirement",
        "-r",
        "--constraint",
        "-c",
        "--editable",
        "-e",
    ])
    .is_some()
        || value(&["--find-links", "-f"]).is_some_and(is_relative)
        || line.starts_with("./")
        || line.starts_with("../")
}

fn text_of(path: &Path) -> Result<String, LockError> {
    fs::read_to_string(path).map_err(|source| LockError::Read {
        path: path.to_owned(),
        source,
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const HASH: &str = "--hash=sha256:00";

    #[track_caller]
    fn check(text: &str, expected: &str) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("course.txt");
        fs::write(&path, text).unwrap();
        let found = match read_lock(&path) {
            Ok(lock) => lock.files[0].name.clone(),
            Err(error) => error.to_string(),
        };
        assert!(found.contains(expected), "{text}: {found}");
    }

    #[test]
    fn a_requirements_file_is_a_lock_if_it_is_whole() {
        check(&format!("numpy==1 \\\n    {HASH}\n"), REQUIREMENTS);
        check(&format!("--find-links /wheels\na==1 {HASH}"), REQUIREMENTS);
        check(
            &format!("--index-url https://a.example\na==1 {HASH}"),
            REQUIREMENTS,
        );
        check("numpy==1\n", "has no hashes");
        for line in [
            "-r other.txt",
            "-rother.txt",
            "--requirement=a.txt",
            "-e .",
            "./a.whl",
            "--find-links wheels",
        ] {
            check(
                &format!("{line}\na==1 {HASH}"),
                &format!("refers to another file or folder: {line}"),
            );
        }
    }

    #[test]
    fn a_project_has_its_two_files_and_the_version_of_its_python() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("uv.lock");
        fs::write(&path, "version = 1\n").unwrap();
        let missing = read_lock(&path).unwrap_err().to_string();
        assert!(
            missing.contains("pyproject.toml cannot be read"),
            "{missing}"
        );
        fs::write(folder.path().join("pyproject.toml"), "[project]\n").unwrap();
        let without = read_lock(&path).unwrap();
        fs::write(folder.path().join(".python-version"), "3.13\n").unwrap();
        let with = read_lock(&path).unwrap();
        assert_eq!((without.files.len(), with.files.len()), (2, 3));
        assert_ne!(digest(&without), digest(&with));
        let other = folder.path().join("poetry.lock");
        let refused = read_lock(&other).unwrap_err().to_string();
        assert!(
            refused.contains("is not a lock\nhint: name a uv.lock"),
            "{refused}"
        );
    }
}
