//! Chunks in a folder: damage, limits, a full disk, and other programs that use it at the same time.

use crate::ends::noise;
use baton_chunks::{ChunkDirectory, StateError, hash};
use baton_protocol::{CHUNK_BYTES, ChunkHash};
use std::{
    fs::{self, File},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};
use tempfile::TempDir;

fn path(root: &Path, hash: ChunkHash) -> PathBuf {
    let name = hash.to_string();
    root.join(&name[..2]).join(name)
}

#[test]
fn what_was_put_is_there_also_after_a_restart() {
    let folder = TempDir::new().unwrap();
    let root = folder.path().join("chunks");
    let store = ChunkDirectory::open(root.clone(), 1 << 20).unwrap();
    let name = store.put(b"bytes").unwrap();
    assert_eq!(name, hash(b"bytes"));
    assert!(store.contains(name));
    assert_eq!(store.put(b"bytes").unwrap(), name);
    assert_eq!(store.used_bytes(), 4096);

    let store = ChunkDirectory::open(root.clone(), 1 << 20).unwrap();
    assert_eq!(store.used_bytes(), 4096);
    assert_eq!(store.get(name).unwrap().unwrap(), &b"bytes"[..]);
    assert_eq!(store.list().unwrap()[0].hash, name);
    assert_eq!(
        fs::metadata(&root).unwrap().permissions().mode() & 0o777,
        0o700
    );
    assert_eq!(
        fs::metadata(path(&root, name))
            .unwrap()
            .permissions()
            .mode()
            & 0o777,
        0o600
    );

    store.remove(name).unwrap();
    store.remove(name).unwrap();
    assert!(!store.contains(name));
    assert_eq!(store.get(name).unwrap(), None);
    assert_eq!(store.used_bytes(), 0);
}

#[test]
fn a_damaged_chunk_counts_as_missing_and_can_be_put_again() {
    let folder = TempDir::new().unwrap();
    let store = ChunkDirectory::open(folder.path().into(), 1 << 20).unwrap();
    for damage in [&b"byte"[..], b"", b"other"] {
        let name = store.put(b"bytes").unwrap();
        fs::write(path(folder.path(), name), damage).unwrap();
        assert_eq!(store.get(name).unwrap(), None);
        assert!(!store.contains(name));
        store.put(b"bytes").unwrap();
        assert_eq!(store.get(name).unwrap().unwrap(), &b"bytes"[..]);
    }
}

#[test]
fn a_shorter_chunk_is_written_again() {
    let folder = TempDir::new().unwrap();
    let store = ChunkDirectory::open(folder.path().into(), 1 << 20).unwrap();
    for damage in [&b"byte"[..], b""] {
        let name = store.put(b"bytes").unwrap();
        fs::write(path(folder.path(), name), damage).unwrap();
        store.put(b"bytes").unwrap();
        assert_eq!(store.get(name).unwrap().unwrap(), &b"bytes"[..]);
    }
}

#[test]
fn what_a_cache_cannot_read_counts_as_missing() {
    let folder = TempDir::new().unwrap();
    let cache = ChunkDirectory::open_cache(folder.path().into(), 1 << 20).unwrap();
    let name = cache.put(b"bytes").unwrap();
    fs::remove_file(path(folder.path(), name)).unwrap();
    fs::create_dir(path(folder.path(), name)).unwrap();
    assert_eq!(cache.get(name).unwrap(), None);
    // A store says what is wrong, because nothing else has its chunks.
    let store = ChunkDirectory::open(folder.path().into(), 1 << 20).unwrap();
    store.get(name).unwrap_err();
}

#[test]
fn a_store_refuses_more_than_its_limit_and_a_short_chunk_counts_as_a_block_of_the_disk() {
    let folder = TempDir::new().unwrap();
    let store = ChunkDirectory::open(folder.path().into(), 8191).unwrap();
    let first = store.put(b"12345678").unwrap();
    let error = store.put(b"abc").unwrap_err();
    assert!(
        matches!(
            error,
            StateError::Full {
                limit_bytes: Some(8191),
                ..
            }
        ),
        "{error}"
    );
    assert!(
        error.to_string().contains("its limit is 8191 bytes"),
        "{error}"
    );
    assert_eq!(store.put(b"12345678").unwrap(), first);
    store.remove(first).unwrap();
    store.put(b"abc").unwrap();
}

#[test]
fn a_cache_makes_room_by_what_was_not_used_for_longest() {
    let folder = TempDir::new().unwrap();
    let cache = ChunkDirectory::open_cache(folder.path().into(), 100_000).unwrap();
    let names: Vec<ChunkHash> = (0..10)
        .map(|seed| cache.put(&noise(10_000, seed)).unwrap())
        .collect();
    for (age, name) in names.iter().enumerate() {
        let used = SystemTime::now() - Duration::from_secs(100 - age as u64);
        let file = File::open(path(folder.path(), *name)).unwrap();
        file.set_modified(used).unwrap();
    }
    assert!(cache.get(names[0]).unwrap().is_some());
    cache.put(&noise(10_000, 99)).unwrap();
    assert!(cache.used_bytes() <= 100_000);
    assert!(cache.contains(names[0]), "it was used a moment ago");
    assert!(!cache.contains(names[1]));
    assert!(cache.contains(names[9]));

    let error = ChunkDirectory::open_cache(folder.path().into(), 10)
        .unwrap()
        .put(&noise(11, 1))
        .unwrap_err();
    assert!(matches!(error, StateError::Full { .. }), "{error}");
}

#[test]
fn a_folder_that_cannot_be_used_is_named() {
    let folder = TempDir::new().unwrap();
    let store = ChunkDirectory::open(folder.path().into(), 1 << 30).unwrap();
    fs::remove_dir(folder.path().join("unfinished")).unwrap();
    let error = store.put(b"bytes").unwrap_err();
    assert!(matches!(error, StateError::Directory { .. }), "{error}");
    let root = folder.path().to_str().unwrap();
    assert!(error.to_string().contains(root), "{error}");
}

#[test]
fn what_a_killed_program_left_is_removed_later() {
    let folder = TempDir::new().unwrap();
    let unfinished = folder.path().join("unfinished");
    fs::create_dir(&unfinished).unwrap();
    let (old, new) = (unfinished.join("old"), unfinished.join("new"));
    fs::write(&new, b"half").unwrap();
    fs::write(&old, b"half").unwrap();
    let long_ago = SystemTime::now() - Duration::from_secs(100_000);
    File::open(&old).unwrap().set_modified(long_ago).unwrap();
    let store = ChunkDirectory::open(folder.path().into(), 100).unwrap();
    assert!(!old.exists());
    assert!(new.exists());
    assert!(store.list().unwrap().is_empty());
}

#[test]
fn a_chunk_has_a_largest_size() {
    let folder = TempDir::new().unwrap();
    let store = ChunkDirectory::open(folder.path().into(), 1 << 30).unwrap();
    let error = store.put(&vec![0; CHUNK_BYTES + 1]).unwrap_err();
    assert!(matches!(error, StateError::TooLarge { .. }), "{error}");
}

#[test]
fn many_may_put_the_same_at_once() {
    let folder = TempDir::new().unwrap();
    let store = ChunkDirectory::open(folder.path().into(), 1 << 30).unwrap();
    let barrier = std::sync::Barrier::new(8);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                barrier.wait();
                for seed in 0..20 {
                    store.put(&noise(5000, seed)).unwrap();
                }
            });
        }
    });
    assert_eq!(store.used_bytes(), 100_000);
    assert_eq!(store.list().unwrap().len(), 20);
    assert_eq!(
        fs::read_dir(folder.path().join("unfinished"))
            .unwrap()
            .count(),
        0
    );
}

#[test]
fn only_chunks_that_exist_are_written_to_the_disk() {
    let folder = TempDir::new().unwrap();
    let store = ChunkDirectory::open(folder.path().into(), 1 << 20).unwrap();
    let names = [store.put(b"one").unwrap(), store.put(b"two").unwrap()];
    store.sync(&names).unwrap();
    store.remove(names[1]).unwrap();
    assert!(store.sync(&names).is_err());
}
