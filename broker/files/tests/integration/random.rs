//! Whatever cells do in the mirror, home looks as if they had done it there.

use std::ffi::OsString;
use std::fs::{self, File, Permissions};
use std::io::{self, Write as _};
use std::os::unix::ffi::OsStringExt as _;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};

use proptest::collection::vec;
use proptest::prelude::*;
use tempfile::TempDir;

use crate::pair::{Pair, tree};

#[derive(Debug, Clone)]
enum Step {
    Write(PathBuf, usize),
    Append(PathBuf, usize),
    Truncate(PathBuf, u64),
    Replace(PathBuf, usize),
    Remove(PathBuf),
    RemoveTree(PathBuf),
    Rename(PathBuf, PathBuf),
    MakeFolder(PathBuf),
    Mode(PathBuf, u32),
    SymbolicLink(PathBuf, PathBuf),
    HardLink(PathBuf, PathBuf),
    Read(PathBuf),
}

fn paths() -> impl Strategy<Value = PathBuf> {
    let name = prop_oneof![
        Just(OsString::from("a")),
        Just(OsString::from("b")),
        Just(OsString::from("größe 1")),
        Just(OsString::from_vec(vec![b'x', 0xff])),
    ];
    vec(name, 1..3).prop_map(|names| names.into_iter().collect())
}

fn steps() -> impl Strategy<Value = Step> {
    let size = prop_oneof![Just(0_usize), 1_usize..40, Just(20_000)];
    prop_oneof![
        3 => (paths(), size.clone()).prop_map(|(path, size)| Step::Write(path, size)),
        1 => (paths(), size.clone()).prop_map(|(path, size)| Step::Append(path, size)),
        1 => (paths(), 0_u64..50).prop_map(|(path, size)| Step::Truncate(path, size)),
        1 => (paths(), size).prop_map(|(path, size)| Step::Replace(path, size)),
        1 => paths().prop_map(Step::Remove),
        1 => paths().prop_map(Step::RemoveTree),
        3 => (paths(), paths()).prop_map(|(from, to)| Step::Rename(from, to)),
        2 => paths().prop_map(Step::MakeFolder),
        1 => (paths(), prop_oneof![Just(0o600), Just(0o755), Just(0o444)])
            .prop_map(|(path, mode)| Step::Mode(path, mode)),
        1 => (paths(), paths()).prop_map(|(to, path)| Step::SymbolicLink(to, path)),
        1 => (paths(), paths()).prop_map(|(from, to)| Step::HardLink(from, to)),
        2 => paths().prop_map(Step::Read),
    ]
}

/// Does it in a folder; `before_open` is told what is opened, and whether it is emptied.
fn run(
    step: &Step,
    number: usize,
    folder: &Path,
    before_open: &mut dyn FnMut(&Path, bool),
) -> io::Result<Vec<u8>> {
    let bytes =
        |size: usize| format!("{number:4} ").into_bytes().repeat(size / 5 + 1)[..size].to_vec();
    let nothing = |()| Vec::new();
    match step {
        Step::Write(path, size) => {
            let path = folder.join(path);
            before_open(&path, true);
            fs::write(path, bytes(*size)).map(nothing)
        }
        Step::Append(path, size) => {
            let path = folder.join(path);
            before_open(&path, false);
            let mut file = File::options().append(true).create(true).open(path)?;
            file.write_all(&bytes(*size)).map(nothing)
        }
        Step::Truncate(path, size) => {
            let path = folder.join(path);
            before_open(&path, false);
            File::options()
                .write(true)
                .open(path)?
                .set_len(*size)
                .map(nothing)
        }
        Step::Replace(path, size) => {
            let new = folder.join("replacement");
            fs::write(&new, bytes(*size))?;
            fs::rename(&new, folder.join(path))
                .inspect_err(|_| drop(fs::remove_file(&new)))
                .map(nothing)
        }
        Step::Remove(path) => fs::remove_file(folder.join(path)).map(nothing),
        Step::RemoveTree(path) => fs::remove_dir_all(folder.join(path)).map(nothing),
        Step::Rename(from, to) => fs::rename(folder.join(from), folder.join(to)).map(nothing),
        Step::MakeFolder(path) => fs::create_dir(folder.join(path)).map(nothing),
        Step::Mode(path, mode) => {
            let path = folder.join(path);
            match fs::symlink_metadata(&path)?.is_file() {
                true => fs::set_permissions(path, Permissions::from_mode(*mode)).map(nothing),
                false => Ok(Vec::new()),
            }
        }
        Step::SymbolicLink(to, path) => symlink(to, folder.join(path)).map(nothing),
        Step::HardLink(from, to) => match fs::symlink_metadata(folder.join(from))?.is_file() {
            true => fs::hard_link(folder.join(from), folder.join(to)).map(nothing),
            false => Ok(Vec::new()),
        },
        Step::Read(path) => {
            let path = folder.join(path);
            before_open(&path, false);
            fs::read(path)
        }
    }
}

/// Two names of one file are two files on the other side, which a later write tells apart.
fn unlink_twins(folder: &Path) {
    for (path, (what, mode)) in tree(folder) {
        let path = folder.join(path);
        if what.ends_with("bytes") || what.contains("bytes, ") {
            let bytes = fs::read(&path).unwrap();
            let twin = folder.join("twin");
            fs::write(&twin, bytes).unwrap();
            fs::set_permissions(&twin, Permissions::from_mode(mode)).unwrap();
            fs::rename(twin, path).unwrap();
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn home_follows_the_mirror(
        at_first in vec(steps(), 0..10),
        cells in vec((vec(steps(), 0..4), vec(steps(), 0..8)), 1..4),
    ) {
        let mut pair = Pair::new();
        let twin = TempDir::new().unwrap();
        let twin = twin.path();
        let home = pair.home.clone();
        let both = |step: &Step, number| {
            let here = run(step, number, &home, &mut |_, _| ());
            let there = run(step, number, twin, &mut |_, _| ());
            assert_eq!(here.is_ok(), there.is_ok());
        };
        at_first.iter().enumerate().for_each(|(number, step)| both(step, number));
        for (round, (between, cell)) in cells.iter().enumerate() {
            between.iter().enumerate().for_each(|(number, step)| both(step, 100 * round + number));
            unlink_twins(&home);
            unlink_twins(twin);
            let notes = pair.cell(|pair| {
                for (number, step) in cell.iter().enumerate() {
                    let number = 1000 * (round + 1) + number;
                    let expected = run(step, number, twin, &mut |_, _| ());
                    let root = pair.mirror.root().to_owned();
                    let found = run(step, number, &root, &mut |path, emptied| match emptied {
                        true => pair.empty(path),
                        false => pair.fill(path),
                    });
                    assert_eq!(expected.is_ok(), found.is_ok(), "{step:?}: {expected:?}, {found:?}");
                    assert!(expected.ok() == found.ok(), "{step:?} reads something else");
                }
            });
            prop_assert_eq!(notes, Vec::<String>::new());
            prop_assert_eq!(tree(&home), tree(twin));
            unlink_twins(&home);
            unlink_twins(twin);
        }
    }
}
