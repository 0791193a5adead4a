//! Whatever cells do in the mirror, home looks as if they had done it there. Whatever else happens
//! to the mirror, only the cell's changes reach home.

use crate::{
    faults::{Fault, with_faults},
    pair::{Before, Pair, tree},
};
use baton_mirror::{FilesError, Scan};
use nix::errno::Errno;
use proptest::{collection::vec, prelude::*, test_runner::TestRunner};
use std::{
    collections::BTreeSet,
    ffi::OsString,
    fs::{self, File, Permissions},
    io::{self, Write as _},
    os::unix::{
        ffi::OsStringExt as _,
        fs::{PermissionsExt as _, symlink},
    },
    path::{Path, PathBuf},
    process::Command,
};
use tempfile::TempDir;

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

/// Does the step in a folder, and calls `before` about each file first.
fn run(
    step: &Step,
    number: usize,
    folder: &Path,
    before: &mut dyn FnMut(&Path, Before),
) -> io::Result<Vec<u8>> {
    let bytes =
        |size: usize| format!("{number:4} ").into_bytes().repeat(size / 5 + 1)[..size].to_vec();
    let nothing = |()| Vec::new();
    let removing = |before: &mut dyn FnMut(&Path, Before), paths: &[&PathBuf]| {
        for path in paths {
            before(&folder.join(path), Before::Removing);
        }
    };
    match step {
        Step::Write(path, size) => {
            let path = folder.join(path);
            before(&path, Before::Emptying);
            fs::write(path, bytes(*size)).map(nothing)
        }
        Step::Append(path, size) => {
            let path = folder.join(path);
            before(&path, Before::Opening);
            let mut file = File::options().append(true).create(true).open(path)?;
            file.write_all(&bytes(*size)).map(nothing)
        }
        Step::Truncate(path, size) => {
            let path = folder.join(path);
            before(&path, Before::Opening);
            File::options()
                .write(true)
                .open(path)?
                .set_len(*size)
                .map(nothing)
        }
        Step::Replace(path, size) => {
            let new = folder.join("replacement");
            fs::write(&new, bytes(*size))?;
            removing(before, &[path]);
            fs::rename(&new, folder.join(path))
                .inspect_err(|_| drop(fs::remove_file(&new)))
                .map(nothing)
        }
        Step::Remove(path) => {
            removing(before, &[path]);
            fs::remove_file(folder.join(path)).map(nothing)
        }
        Step::RemoveTree(path) => {
            removing(before, &[path]);
            fs::remove_dir_all(folder.join(path)).map(nothing)
        }
        Step::Rename(from, to) => {
            removing(before, &[from, to]);
            fs::rename(folder.join(from), folder.join(to)).map(nothing)
        }
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
            before(&path, Before::Opening);
            fs::read(path)
        }
    }
}

/// Two names of one file become two files on the other side; a later write would make them differ.
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

/// What else happens to the mirror.
#[derive(Debug, Clone)]
enum Accident {
    None,
    /// During the scan after the cell.
    Fault(Fault),
    Gone,
    Replaced,
    /// Something other than the cell removes this.
    Removed(PathBuf),
    /// Its file system is suddenly another one. (Only possible if the test runs as root.)
    Covered(PathBuf),
}

fn accidents() -> impl Strategy<Value = Accident> {
    let error = prop_oneof![Just(Errno::EIO), Just(Errno::EMFILE), Just(Errno::ESTALE)];
    let fault = (error, 0..40_u32, any::<bool>()).prop_map(|(error, after, sticky)| Fault {
        error,
        after,
        sticky,
    });
    prop_oneof![
        6 => Just(Accident::None),
        4 => fault.prop_map(Accident::Fault),
        1 => Just(Accident::Gone),
        1 => Just(Accident::Replaced),
        2 => paths().prop_map(Accident::Removed),
        1 => paths().prop_map(Accident::Covered),
    ]
}

impl Accident {
    /// What the worker finds after the cell.
    fn then_scan(&self, pair: &Pair) -> Result<Scan, FilesError> {
        let root = pair.mirror.root();
        match self {
            Self::None => pair.mirror.scan(usize::MAX),
            Self::Fault(fault) => fault.during(|| pair.mirror.scan(usize::MAX)),
            Self::Gone => {
                fs::remove_dir_all(root).unwrap();
                pair.mirror.scan(usize::MAX)
            }
            Self::Replaced => {
                fs::remove_dir_all(root).unwrap();
                fs::create_dir(root).unwrap();
                pair.mirror.scan(usize::MAX)
            }
            Self::Removed(path) => {
                let path = root.join(path);
                let _ = fs::remove_dir_all(&path).or_else(|_| fs::remove_file(&path));
                pair.mirror.scan(usize::MAX)
            }
            Self::Covered(path) => {
                let path = root.join(path);
                let is_folder = fs::symlink_metadata(&path).is_ok_and(|there| there.is_dir());
                if !is_folder || !mount(&path) {
                    return pair.mirror.scan(usize::MAX);
                }
                let scan = pair.mirror.scan(usize::MAX);
                assert!(
                    Command::new("umount")
                        .arg(&path)
                        .status()
                        .unwrap()
                        .success()
                );
                scan
            }
        }
    }
}

/// Returns `false` if this process has no permission.
fn mount(path: &Path) -> bool {
    let mount = Command::new("mount")
        .args(["-t", "tmpfs", "none"])
        .arg(path)
        .output();
    let mounted = mount.is_ok_and(|mounted| mounted.status.success());
    if !mounted {
        eprintln!("NOT TESTED: this process may not mount a file system over a folder of a mirror");
    }
    mounted
}

/// What happens at home before the cell, the cell, what happens to its mirror, and whether its changes can be
/// applied at home.
type Cells = Vec<(Vec<Step>, Vec<Step>, Accident, bool)>;

fn home_follows(at_first: &[Step], cells: &Cells) -> Result<(), TestCaseError> {
    let mut pair = Pair::new();
    let twin = TempDir::new().unwrap();
    let twin = twin.path();
    let home = pair.home.clone();
    let both = |step: &Step, number| {
        let here = run(step, number, &home, &mut |_, _| ());
        let there = run(step, number, twin, &mut |_, _| ());
        assert_eq!(here.is_ok(), there.is_ok());
    };
    at_first
        .iter()
        .enumerate()
        .for_each(|(number, step)| both(step, number));
    // Whether changes of earlier cells are in the mirror only.
    let mut some_wait = false;
    for (round, (between, cell, accident, fits)) in cells.iter().enumerate() {
        if !some_wait {
            between
                .iter()
                .enumerate()
                .for_each(|(number, step)| both(step, 100 * round + number));
            unlink_twins(&home);
            unlink_twins(twin);
        }
        let before = tree(&home);
        pair.sync();
        let mut tried = BTreeSet::new();
        for (number, step) in cell.iter().enumerate() {
            let number = 1000 * (round + 1) + number;
            let expected = run(step, number, twin, &mut |_, _| ());
            let root = pair.mirror.root().to_owned();
            let found = run(step, number, &root, &mut |path, what| {
                if let Before::Removing = what {
                    tried.insert(path.strip_prefix(&root).unwrap().to_owned());
                }
                pair.before(path, what);
            });
            assert_eq!(
                expected.is_ok(),
                found.is_ok(),
                "{step:?}: {expected:?}, {found:?}"
            );
            assert!(expected.ok() == found.ok(), "{step:?} reads something else");
        }
        if !fits && matches!(accident, Accident::None) {
            let scan = pair.mirror.scan(usize::MAX).unwrap();
            pair.lose(scan);
            prop_assert_eq!(&tree(&home), &before);
            some_wait = true;
            continue;
        }
        some_wait = false;
        let whole = match accident.then_scan(&pair) {
            Ok(scan) => {
                let notes = pair.commit(scan).keep();
                let untouched = !matches!(accident, Accident::Removed(_));
                prop_assert!(notes.is_empty() || !untouched, "{notes:?}");
                untouched
            }
            Err(_) => {
                prop_assert!(!matches!(accident, Accident::None));
                prop_assert_eq!(&tree(&home), &before);
                false
            }
        };
        let (now, done) = (tree(&home), tree(twin));
        if whole {
            prop_assert_eq!(now, done);
        } else {
            for path in before.keys().chain(done.keys()).chain(now.keys()) {
                let is = now.get(path);
                // A failed removal by the cell also proves a removal of the same name.
                let was_tried = is.is_none() && path.ancestors().any(|path| tried.contains(path));
                let of_cell = is == done.get(path) || was_tried;
                prop_assert!(of_cell || is == before.get(path), "{path:?}");
            }
            pair.begin_again();
            fs::remove_dir_all(twin).unwrap();
            let copied = Command::new("cp").arg("-a").args([&home, twin]).status();
            prop_assert!(copied.unwrap().success());
        }
        unlink_twins(&home);
        unlink_twins(twin);
    }
    Ok(())
}

#[test]
fn home_follows_the_mirror_or_nothing_happens() {
    with_faults("random::home_follows_the_mirror_or_nothing_happens", || {
        let config = ProptestConfig {
            cases: 300,
            failure_persistence: None,
            ..ProptestConfig::default()
        };
        let cells = vec(
            (
                vec(steps(), 0..4),
                vec(steps(), 0..8),
                accidents(),
                prop::bool::weighted(0.7),
            ),
            1..5,
        );
        let tried = TestRunner::new(config).run(&(vec(steps(), 0..10), cells), |(first, cells)| {
            home_follows(&first, &cells)
        });
        if let Err(error) = tried {
            panic!("{error}");
        }
    });
}
