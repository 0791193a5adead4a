//! Real errors of the operating system at every access to a folder.

use nix::{
    errno::Errno,
    unistd::{AccessFlags, access},
};
use std::{path::Path, process::Command};

const LOADED: &str = "BATON_TEST_FAULTS";

/// Runs `test`, whose name in this program is `name`, in a process in which [`Fault`]s are possible.
pub(crate) fn with_faults(name: &str, test: impl FnOnce()) {
    if std::env::var_os(LOADED).is_some() {
        return test();
    }
    let said = run_again(&["--exact", name], &[]);
    assert!(said.contains("1 passed"), "{said}");
}

/// All tests of this program also pass if the system lacks `openat2`.
#[test]
fn without_openat2() {
    if std::env::var_os(LOADED).is_none() {
        let said = run_again(
            &[
                "--test-threads=1",
                "--skip",
                "without_openat2",
                "--skip",
                "random::",
            ],
            &[("BATON_TEST_NO_OPENAT2", "1")],
        );
        assert!(said.contains(" passed"), "{said}");
    }
}

/// Files are filled also on a file system that counts a block for a file without bytes.
#[test]
fn with_an_extra_block() {
    if std::env::var_os(LOADED).is_none() {
        let said = run_again(&["contents::"], &[("BATON_TEST_EXTRA_BLOCK", "1")]);
        assert!(said.contains(" passed"), "{said}");
    }
}

/// Runs this program with these arguments where faults are possible. Returns its output.
fn run_again(arguments: &[&str], environment: &[(&str, &str)]) -> String {
    let folder = tempfile::tempdir().unwrap();
    let library = folder.path().join("faults.so");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/integration/faults.c");
    let built = Command::new("cc")
        .args(["-shared", "-fPIC", "-o"])
        .args([&library, &source])
        .status();
    assert!(built.unwrap().success());
    let ran = Command::new(std::env::current_exe().unwrap())
        .args(arguments)
        .env("LD_PRELOAD", &library)
        .env(LOADED, "1")
        .envs(environment.iter().copied())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&ran.stdout).into_owned();
    assert!(ran.status.success(), "{said}");
    said
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Fault {
    pub(crate) error: Errno,
    /// How many calls succeed first.
    pub(crate) after: u32,
    /// Whether all calls fail from then on, or only one.
    pub(crate) sticky: bool,
}

impl Fault {
    /// Returns the result of `work`, during which this fault happens.
    pub(crate) fn during<T>(self, work: impl FnOnce() -> T) -> T {
        arm(self.error as i32, self.after, self.sticky);
        let done = work();
        arm(0, 0, false);
        done
    }
}

/// Returns the result of `work`, during which no file can be moved into a folder "mounted" or out of it.
pub(crate) fn with_border<T>(error: Errno, work: impl FnOnce() -> T) -> T {
    with_setting("border", error, work)
}

/// Returns the result of `work`, during which no file gets a time or permissions.
pub(crate) fn without_times_and_permissions<T>(error: Errno, work: impl FnOnce() -> T) -> T {
    with_setting("plain", error, work)
}

fn with_setting<T>(name: &str, error: Errno, work: impl FnOnce() -> T) -> T {
    let set = |error: i32| access(format!("/baton-{name}/{error}").as_str(), AccessFlags::F_OK);
    set(error as i32).unwrap();
    let done = work();
    set(0).unwrap();
    done
}

fn arm(error: i32, after: u32, sticky: bool) {
    let path = format!("/baton-faults/{error}/{after}/{}", u8::from(sticky));
    access(path.as_str(), AccessFlags::F_OK).unwrap();
}

/// More calls than one listing of a few files makes.
pub(crate) const CALLS: u32 = 60;

pub(crate) fn faults() -> impl Iterator<Item = Fault> {
    let errors = [Errno::EIO, Errno::EMFILE, Errno::ESTALE];
    (0..CALLS).flat_map(move |after| {
        let of = move |sticky| {
            errors.map(|error| Fault {
                error,
                after,
                sticky,
            })
        };
        [of(false), of(true)].into_iter().flatten()
    })
}
