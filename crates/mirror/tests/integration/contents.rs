//! The bytes of files, and files without their bytes.

use crate::pair::{Before, Pair, tree};
use baton_mirror::{ContentReader, ContentWriter, Handle, Status};
use std::{
    fs::{self, File, FileTimes, Permissions},
    io::{BufRead as _, BufReader, Write as _},
    os::unix::fs::{FileExt as _, MetadataExt as _, PermissionsExt as _},
    path::Path,
    process::{Command, Stdio},
    time::{Duration, SystemTime},
};

fn bytes(count: usize) -> Vec<u8> {
    (0..count)
        .map(|number| (number * 7 + number / 251) as u8)
        .collect()
}

fn is_hole(place: &Path) -> bool {
    fs::read(place).unwrap().iter().all(|byte| *byte == 0)
}

#[test]
fn files_of_every_size_go_there_and_back() {
    let mib = 1 << 20;
    for size in [
        0,
        1,
        16 << 10,
        (16 << 10) + 1,
        mib - 1,
        mib,
        mib + 1,
        3 * mib,
        20 * mib + 5,
    ] {
        let mut pair = Pair::new();
        let home = pair.home.clone();
        fs::write(home.join("data.bin"), bytes(size)).unwrap();
        pair.cell(|pair| {
            let place = pair.at("data.bin");
            assert_eq!(fs::metadata(&place).unwrap().len(), size as u64);
            pair.fill(&place);
            assert!(fs::read(&place).unwrap() == bytes(size), "{size}");
            let file = File::options().write(true).open(&place).unwrap();
            file.write_all_at(b"end", size as u64).unwrap();
        });
        let mut expected = bytes(size);
        expected.extend_from_slice(b"end");
        assert!(
            fs::read(home.join("data.bin")).unwrap() == expected,
            "{size}"
        );
    }
}

#[test]
fn a_placeholder_looks_like_the_file() {
    let mut pair = Pair::new();
    let home = pair.home.join("data.csv");
    fs::write(&home, bytes(5000)).unwrap();
    fs::set_permissions(&home, Permissions::from_mode(0o440)).unwrap();
    pair.sync();
    let (there, here) = (
        fs::metadata(&home).unwrap(),
        fs::metadata(pair.at("data.csv")).unwrap(),
    );
    assert_eq!(here.len(), there.len());
    assert_eq!(here.modified().unwrap(), there.modified().unwrap());
    assert_eq!(here.mode(), there.mode());
    let place = pair.at("data.csv");
    assert!(is_hole(&place));
    pair.fill(&place);
    assert_eq!(fs::read(&place).unwrap(), bytes(5000));
    assert_eq!(fs::metadata(&place).unwrap().mode(), there.mode());
    assert!(pair.commit_home().keep().is_empty());
    assert_eq!(
        fs::metadata(&home).unwrap().modified().unwrap(),
        there.modified().unwrap()
    );
}

#[test]
fn what_was_never_read_is_moved_without_its_bytes() {
    let mut pair = Pair::new();
    let home = pair.home.clone();
    fs::write(home.join("a"), bytes(5000)).unwrap();
    pair.cell(|pair| {
        fs::create_dir(pair.at("folder")).unwrap();
        fs::rename(pair.removing("a"), pair.removing("folder/b")).unwrap();
    });
    assert_eq!(fs::read(home.join("folder/b")).unwrap(), bytes(5000));
    // It is still a placeholder, with its new name.
    pair.cell(|pair| {
        let place = pair.at("folder/b");
        assert!(is_hole(&place));
        pair.fill(&place);
        assert_eq!(fs::read(&place).unwrap(), bytes(5000));
    });
}

#[test]
fn a_touched_placeholder_is_still_one_and_an_emptied_one_is_not() {
    let mut pair = Pair::new();
    for name in ["touched", "emptied"] {
        fs::write(pair.home.join(name), bytes(5000)).unwrap();
    }
    pair.sync();
    let (touched, emptied) = (pair.at("touched"), pair.at("emptied"));
    let now = FileTimes::new().set_modified(SystemTime::now());
    File::options()
        .write(true)
        .open(&touched)
        .unwrap()
        .set_times(now)
        .unwrap();
    pair.fill(&touched);
    assert_eq!(fs::read(&touched).unwrap(), bytes(5000));
    // Like `np.memmap(…, mode="w+")`: the same size as before, and no bytes yet.
    pair.before(&emptied, Before::Emptying);
    File::create(&emptied).unwrap().set_len(5000).unwrap();
    pair.fill(&emptied);
    assert_eq!(fs::read(&emptied).unwrap(), [0; 5000]);
}

#[test]
fn a_file_without_all_its_bytes_is_a_placeholder_whatever_it_looks_like() {
    let mut pair = Pair::new();
    let mib = 1 << 20;
    fs::write(pair.home.join("a"), bytes(mib + 5)).unwrap();
    pair.sync();
    let place = pair.at("a");
    let made = fs::metadata(&place).unwrap();
    let (filling, content) = pair.begin_to_fill(&place).unwrap();
    // The last five bytes are in the message itself and arrive first.
    let writer = ContentWriter::new(filling, &content).unwrap();
    assert!(!is_hole(&place));
    let scan = pair.mirror.scan(usize::MAX).unwrap();
    assert!(scan.differences.is_empty(), "{:?}", scan.differences);
    let status = Status::from(&fs::metadata(&place).unwrap());
    let placeholders = pair.mirror.placeholders();
    assert!(!placeholders.may_be_emptied(&status));
    assert!(pair.begin_to_fill(&place).is_some());

    drop(writer);
    assert!(is_hole(&place));
    let left = fs::metadata(&place).unwrap();
    assert_eq!(
        (left.len(), left.modified().unwrap()),
        (made.len(), made.modified().unwrap())
    );
    assert!(pair.commit_home().keep().is_empty());
    assert_eq!(fs::read(pair.home.join("a")).unwrap(), bytes(mib + 5));
    pair.fill(&place);
    assert_eq!(fs::read(&place).unwrap(), bytes(mib + 5));
}

#[test]
fn what_a_cell_wrote_while_bytes_were_on_their_way_stays() {
    let mut pair = Pair::new();
    let home = pair.home.join("a");
    fs::write(&home, bytes(5000)).unwrap();
    pair.cell(|pair| {
        let place = pair.at("a");
        let handle = Handle::find(&place).unwrap();
        let placeholders = pair.mirror.placeholders();
        let (file, _) = placeholders.open(&handle).unwrap().unwrap();
        pair.before(&place, Before::Emptying);
        fs::write(&place, "new").unwrap();
        assert!(placeholders.fill(file).unwrap().is_none());
    });
    assert_eq!(fs::read_to_string(&home).unwrap(), "new");
}

#[test]
fn a_write_without_a_new_time_is_seen() {
    let mut pair = Pair::new();
    let home = pair.home.clone();
    pair.cell(|pair| fs::write(pair.at("a"), "one").unwrap());
    let before = fs::metadata(pair.at("a")).unwrap().modified().unwrap();
    pair.cell(|pair| {
        let file = File::options().write(true).open(pair.at("a")).unwrap();
        file.write_all_at(b"two", 0).unwrap();
        file.set_modified(before).unwrap();
    });
    assert_eq!(fs::read_to_string(home.join("a")).unwrap(), "two");
    assert_eq!(tree(&home).len(), 1);
}

/// Maps a file into its memory, and writes each line of its input to the beginning of the file.
const MAPPER: &str = r"
import mmap, sys
with open(sys.argv[1], 'r+b') as file:
    mapped = mmap.mmap(file.fileno(), 0)
for line in sys.stdin:
    mapped[:3] = line[:3].encode()
    print(flush=True)
";

#[test]
fn what_cells_write_through_a_mapping_goes_home() {
    let mut pair = Pair::new();
    let (home, place) = (pair.home.join("a"), pair.at("a"));
    fs::write(&place, "old").unwrap();
    pair.mapped.insert(fs::metadata(&place).unwrap().ino());
    let mut mapper = Command::new("python3")
        .args(["-c", MAPPER])
        .arg(&place)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = mapper.stdin.take().unwrap();
    let mut output = BufReader::new(mapper.stdout.take().unwrap()).lines();
    for text in ["one", "two", "six"] {
        pair.cell(|pair| {
            writeln!(input, "{text}").unwrap();
            output.next().unwrap().unwrap();
            // Later, a time alone would say that the file is the same.
            while age_of(&pair.at("a")) < Duration::from_millis(50) {
                std::thread::sleep(Duration::from_millis(5));
            }
        });
        assert_eq!(fs::read_to_string(&home).unwrap(), text);
    }
    drop(input);
    mapper.wait().unwrap();
}

fn age_of(place: &Path) -> Duration {
    let modified = fs::metadata(place).unwrap().modified().unwrap();
    modified.elapsed().unwrap_or_default()
}

#[test]
fn permissions_that_a_cell_gives_go_home_whenever_the_file_is_read() {
    let mut pair = Pair::new();
    let home = pair.home.clone();
    let set = |place: &Path| fs::set_permissions(place, Permissions::from_mode(0o600)).unwrap();
    for name in ["never", "before", "after"] {
        fs::write(home.join(name), "text").unwrap();
    }
    pair.cell(|pair| {
        set(&pair.at("never"));
        pair.fill(&pair.at("before"));
        set(&pair.at("before"));
        set(&pair.at("after"));
        pair.fill(&pair.at("after"));
    });
    for name in ["never", "before", "after"] {
        let metadata = fs::metadata(home.join(name)).unwrap();
        assert_eq!(metadata.mode() & 0o777, 0o600, "{name}");
        assert_eq!(fs::read_to_string(home.join(name)).unwrap(), "text");
    }
}

#[test]
fn what_is_appended_while_a_file_is_read_is_left_for_later() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("log");
    for size in [0, 5, 1 << 20, (1 << 20) + 5] {
        fs::write(&path, bytes(size + (3 << 20))).unwrap();
        let mut reader = ContentReader::new(File::open(&path).unwrap(), size as u64);
        while !reader.next_batch().unwrap().is_empty() {}
        assert_eq!(reader.finish().unwrap().bytes, size as u64);
    }
}
