//! A session that cannot access its notebook's folder: it waits while the files that it opens are asked for.

use crate::{
    harness::{Ran, eventually, stream_text},
    real::Real,
};
use baton_gpu_worker::{Config, FilesChoice};
use baton_mirror::small_payload;
use baton_protocol::{
    Answer, CHUNK_BYTES, ChunkHash, JobEvent, JobId, Outcome, Piece, Submission, decode,
    files::{
        Change, Content, Entry, FilesAnswer, FilesWanted, Listing, NoContent, NotebookFolder,
        Payload, RelativePath, Stamp,
    },
    worker::ToWorker,
};
use bytes::Bytes;
use serde::de::DeserializeOwned;
use std::{
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    slice::from_ref,
};
use tokio::sync::OwnedRwLockWriteGuard;

/// Notebook and proxy, as the worker sees them.
struct Home {
    real: Real,
    folder: NotebookFolder,
}

fn path(text: &str) -> RelativePath {
    RelativePath::new(text).unwrap()
}

fn open<Message: DeserializeOwned>(payload: &Payload) -> Message {
    match payload.0.as_slice() {
        [Piece::Inline(bytes)] => decode(bytes).unwrap(),
        pieces => panic!("{pieces:?}"),
    }
}

fn content(text: &'static str) -> Content {
    Content {
        stamp: Some(Stamp(1)),
        bytes: text.len() as u64,
        modified_ns: 1_000_000_000,
        mode: 0o644,
        pieces: vec![Piece::Inline(text.into())],
    }
}

impl Home {
    async fn start() -> Self {
        Self::start_with(|_| {}).await
    }

    async fn start_with(change: impl FnOnce(&mut Config)) -> Self {
        let real = Real::start_with(|config| {
            config.files = FilesChoice::Mirror;
            change(config);
        });
        Self {
            real: real.await,
            folder: NotebookFolder {
                path: "/nowhere/course".to_owned(),
                host: "another".to_owned(),
                device: 1,
                inode: 2,
                listing: None,
            },
        }
    }

    fn cell(&mut self, code: &str) -> Submission {
        let mut submission = self.real.cell(code);
        submission.cell.folder.clone_from(&self.folder.path);
        submission.cell.notebook_folder = Some(Box::new(self.folder.clone()));
        submission
    }

    /// The next question of a job, and all events before it.
    async fn question(&mut self, job: JobId) -> (u64, FilesWanted, Vec<JobEvent>) {
        let is_question = |event: &JobEvent| matches!(event, JobEvent::FilesWanted { .. });
        let mut events = self.real.worker.events_until(job, is_question).await;
        let Some(JobEvent::FilesWanted { question, wanted }) = events.pop() else {
            panic!("something comes after a question: {events:?}");
        };
        (question, open(&wanted), events)
    }

    async fn answer(&mut self, job: JobId, question: u64, answer: &FilesAnswer) {
        let answer = Answer::Files(small_payload(answer));
        self.real.worker.answer(job, question, answer).await;
    }

    /// Assigns a cell and answers that these files exist, each with 5 bytes.
    async fn begin(&mut self, code: &str, files: &[&str]) -> JobId {
        let files: Vec<(&str, u64)> = files.iter().map(|name| (*name, 5)).collect();
        self.begin_with(code, &files).await
    }

    /// The same with files of these sizes.
    async fn begin_with(&mut self, code: &str, files: &[(&str, u64)]) -> JobId {
        let submission = self.cell(code);
        let job = submission.job;
        self.real.worker.assign(submission).await;
        let (question, wanted, _) = self.question(job).await;
        assert_eq!(wanted, FilesWanted::Listing {});
        let file = |bytes: u64| Entry::File {
            stamp: Stamp(1),
            bytes,
            modified_ns: 1_000_000_000,
            mode: 0o644,
        };
        let listing = Listing {
            base: None,
            number: 1,
            changed: files
                .iter()
                .map(|(name, bytes)| (path(name), file(*bytes)))
                .collect(),
            gone: Vec::new(),
            known: Vec::new(),
            cut: false,
            not_applied: false,
        };
        self.answer(job, question, &FilesAnswer::Listing(listing))
            .await;
        job
    }
}

fn wanted(names: &[&str]) -> FilesWanted {
    let paths = names.iter().map(|name| path(name)).collect();
    FilesWanted::Contents { paths }
}

fn not_fetched(ran: &Ran) -> Vec<String> {
    let notes = ran.text("stderr");
    let notes = notes.lines().filter(|note| note.contains("not be fetched"));
    notes.map(str::to_owned).collect()
}

#[tokio::test]
async fn what_is_opened_is_asked_for_once() {
    let mut home = Home::start().await;
    let code = "import threading\n\
                name, found = 'a' + '.txt', []\n\
                threads = [threading.Thread(target=lambda: found.append(open(name).read())) for _ in range(4)]\n\
                [thread.start() for thread in threads]\n\
                [thread.join() for thread in threads]\n\
                print(found)";
    let job = home.begin(code, &["a.txt", "b.txt"]).await;
    let (question, asked, events) = home.question(job).await;
    assert!(matches!(events[..], [JobEvent::Started { .. }]));
    assert_eq!(asked, wanted(&["a.txt"]));
    home.answer(
        job,
        question,
        &FilesAnswer::Contents(vec![Ok(content("hello"))]),
    )
    .await;
    let ran = home.real.worker.until_finished(job).await.ok();
    assert_eq!(ran.text("stdout"), "['hello', 'hello', 'hello', 'hello']\n");
    assert_eq!(ran.files, None);
}

#[tokio::test]
async fn what_the_code_names_comes_before_it_runs() {
    let mut home = Home::start().await;
    let code = "print(open('a.txt').read())\nwith open('b.txt', 'w') as file: file.write('new')";
    let job = home.begin(code, &["a.txt", "b.txt"]).await;
    let (question, asked, events) = home.question(job).await;
    assert!(events.is_empty());
    assert_eq!(asked, wanted(&["a.txt", "b.txt"]));
    let contents = vec![Ok(content("hello")), Ok(content("other"))];
    home.answer(job, question, &FilesAnswer::Contents(contents))
        .await;
    let ran = home.real.worker.until_finished(job).await.ok();
    assert_eq!(ran.text("stdout"), "hello\n");
    let changes: Vec<Change> = open(&ran.files.unwrap());
    let [
        Change::Written {
            path: of, content, ..
        },
    ] = &changes[..]
    else {
        panic!("{changes:?}");
    };
    assert_eq!(
        (of, &content.pieces),
        (&path("b.txt"), &vec![Piece::Inline("new".into())])
    );
}

#[tokio::test]
async fn a_named_file_above_the_limit_is_not_fetched() {
    let mut home = Home::start_with(|config| config.files_limit_bytes = 9).await;
    let code = "print(open('a.txt').read())\n\
                try: open('b.txt')\n\
                except OSError as error: print(error.strerror)";
    let job = home.begin_with(code, &[("a.txt", 5), ("b.txt", 10)]).await;
    let (question, asked, _) = home.question(job).await;
    assert_eq!(asked, wanted(&["a.txt"]));
    let contents = FilesAnswer::Contents(vec![Ok(content("hello"))]);
    home.answer(job, question, &contents).await;
    let ran = home.real.worker.until_finished(job).await.ok();
    assert_eq!(ran.text("stdout"), "hello\nFile too large\n");
    let note = "'b.txt' (10 bytes) is larger than the limit of 9 bytes";
    assert!(ran.text("stderr").contains(note), "{}", ran.text("stderr"));
}

#[tokio::test]
async fn nothing_is_removed_at_home_while_a_file_is_too_large_to_go_there() {
    let mut home = Home::start_with(|config| config.files_limit_bytes = 9).await;
    let code = "import os\n\
                with open('b.npy', 'w') as file: file.write('x' * 10)\n\
                os.remove('a' + '.csv')";
    let job = home.begin(code, &["a.csv"]).await;
    let ran = home.real.worker.until_finished(job).await.ok();
    assert_eq!(ran.files, None);
    let notes = ran.text("stderr");
    for note in [
        "'b.npy' (10 bytes) stays on the GPU machine",
        "'a.csv' was deleted by the cell, but it remains here",
    ] {
        assert!(notes.contains(note), "{notes}");
    }
}

#[tokio::test]
async fn what_replaced_something_of_another_kind_stays_while_that_is_not_removed() {
    let mut home = Home::start_with(|config| config.files_limit_bytes = 9).await;
    let code = "import os\n\
                with open('large', 'w') as file: file.write('x' * 10)\n\
                folder = 'o' + 'ut'\n\
                os.remove(folder)\n\
                os.mkdir(folder)\n\
                with open(folder + '/new', 'w') as file: file.write('new')";
    let job = home.begin(code, &["out", "other", "third"]).await;
    let ran = home.real.worker.until_finished(job).await.ok();
    assert_eq!(ran.files, None);
    let notes = ran.text("stderr");
    for note in [
        "'out' was deleted by the cell, but it remains here",
        "'out/new' stays on the GPU machine, because what it replaced remains",
    ] {
        assert!(notes.contains(note), "{notes}");
    }
}

#[tokio::test]
async fn a_file_that_cannot_be_had_fails_as_it_would_at_home() {
    let mut home = Home::start().await;
    let code = "for name in 'abc':\n    \
                    try: open(name + '.txt')\n    \
                    except OSError as error: print(type(error).__name__, error.filename)";
    let job = home.begin(code, &["a.txt", "b.txt", "c.txt"]).await;
    let reason = "the disk is broken".to_owned();
    for why in [
        NoContent::Gone {},
        NoContent::Denied {},
        NoContent::Failed { reason },
    ] {
        let (question, _, _) = home.question(job).await;
        home.answer(job, question, &FilesAnswer::Contents(vec![Err(why)]))
            .await;
    }
    let ran = home.real.worker.until_finished(job).await.ok();
    let expected = "FileNotFoundError a.txt\nPermissionError b.txt\nOSError c.txt\n";
    assert_eq!(ran.text("stdout"), expected);
    let text = "'c.txt' could not be fetched from the notebook's folder: the disk is broken; ";
    let notes = not_fetched(&ran);
    assert!(notes.len() == 1 && notes[0].contains(text), "{notes:?}");
}

#[tokio::test]
async fn a_cell_that_waits_for_a_file_can_be_interrupted() {
    let mut home = Home::start().await;
    let job = home.begin("open('a' + '.txt')", &["a.txt"]).await;
    home.question(job).await;
    home.real.worker.line.send(ToWorker::Cancel { job }).await;
    let ran = home.real.worker.until_finished(job).await;
    assert_eq!(ran.outcome, Outcome::Cancelled);
    // It ended by itself, with its state.
    assert!(ran.state.is_some());
}

#[tokio::test]
async fn a_question_is_asked_again_after_a_cut() {
    let mut home = Home::start().await;
    let job = home
        .begin("print(open('a' + '.txt').read())", &["a.txt"])
        .await;
    let (question, asked, _) = home.question(job).await;
    home.real.worker.line.close().await;
    let (line, _) = home.real.worker.broker.welcome().await;
    home.real.worker.line = line;
    let (again, asked_again, _) = home.question(job).await;
    assert_eq!((again, asked_again), (question, asked));
    for _ in 0..2 {
        home.answer(
            job,
            question,
            &FilesAnswer::Contents(vec![Ok(content("hello"))]),
        )
        .await;
    }
    let ran = home.real.worker.until_finished(job).await.ok();
    assert_eq!(ran.text("stdout"), "hello\n");
}

#[tokio::test]
async fn what_is_opened_between_two_cells_fails_and_does_not_hang() {
    let mut home = Home::start().await;
    let gate = home.real.worker.folder.path().join("gate");
    let code = format!(
        "import os, threading, time\n\
         def late():\n    \
             while not os.path.exists({gate:?}): time.sleep(0.01)\n    \
             try: open('a' + '.txt')\n    \
             except OSError as error: open({gate:?} + '-seen', 'w').write(str(error.errno))\n\
         threading.Thread(target=late).start()"
    );
    let job = home.begin(&code, &["a.txt"]).await;
    home.real.worker.until_finished(job).await.ok();
    let notebook = home.real.notebook.id;
    home.real.worker.until_warm(&[notebook]).await;
    std::fs::write(&gate, "").unwrap();
    let seen = gate.with_file_name("gate-seen");
    eventually(|| std::fs::read_to_string(&seen).is_ok_and(|text| text == "5")).await;
}

/// A file whose first chunk the broker has, with five more bytes in the message itself.
fn in_two_pieces() -> (Content, ChunkHash, Bytes) {
    let chunk = Bytes::from(vec![b'x'; CHUNK_BYTES]);
    let (hash, bytes) = (baton_chunks::hash(&chunk), CHUNK_BYTES as u32);
    let mut content = content("hello");
    content.bytes += u64::from(bytes);
    content.pieces.insert(0, Piece::Stored { hash, bytes });
    (content, hash, chunk)
}

impl Home {
    /// Begins a cell that opens `a.txt`, and returns when that file has some of its bytes. The others arrive when the
    /// guard is dropped.
    async fn begin_to_fetch(&mut self, code: &str) -> (JobId, OwnedRwLockWriteGuard<()>) {
        let (content, hash, chunk) = in_two_pieces();
        let broker = self.real.worker.broker.clone();
        broker.chunks.lock().unwrap().insert(hash, chunk);
        let withheld = broker.gate.clone().write_owned().await;
        let job = self.begin_with(code, &[("a.txt", content.bytes)]).await;
        let (question, ..) = self.question(job).await;
        let contents = FilesAnswer::Contents(vec![Ok(content)]);
        self.answer(job, question, &contents).await;
        eventually(|| *broker.fetched.lock().unwrap() > 0).await;
        assert_ne!(self.mirrored("a.txt").metadata().unwrap().blocks(), 0);
        (job, withheld)
    }

    /// The path of a file in the mirror.
    fn mirrored(&self, name: &str) -> PathBuf {
        let mirrors = self.real.worker.folder.path().join("mirrors");
        let mut mirrors = std::fs::read_dir(mirrors).unwrap();
        let paths = mirrors.by_ref().map(|mirror| mirror.unwrap().path());
        let mut paths = paths.map(|mirror| mirror.join("mirror/course").join(name));
        paths.find(|path| path.exists()).unwrap()
    }
}

#[tokio::test]
async fn a_file_that_is_partly_fetched_when_its_cell_is_stopped_does_not_go_home() {
    let mut home = Home::start().await;
    let (job, _withheld) = home.begin_to_fetch("open('a' + '.txt')").await;
    home.real.worker.line.send(ToWorker::Cancel { job }).await;
    let ran = home.real.worker.until_finished(job).await;
    assert_eq!((ran.outcome, ran.files), (Outcome::Cancelled, None));
    // The next cell finds a file that has no bytes yet.
    let mirrored = home.mirrored("a.txt");
    eventually(|| mirrored.metadata().unwrap().blocks() == 0).await;
}

#[tokio::test]
async fn a_file_whose_bytes_do_not_all_arrive_is_asked_for_again() {
    let mut home = Home::start().await;
    let (content, hash, chunk) = in_two_pieces();
    let code = "name = 'a' + '.txt'\n\
                try: open(name)\n\
                except OSError as error: print(error.errno)\n\
                print(open(name).read().strip('x'))";
    let job = home.begin_with(code, &[("a.txt", content.bytes)]).await;
    let (question, ..) = home.question(job).await;
    let contents = FilesAnswer::Contents(vec![Ok(content)]);
    home.answer(job, question, &contents).await;
    let (question, asked, _) = home.question(job).await;
    assert_eq!(asked, wanted(&["a.txt"]));
    let broker = home.real.worker.broker.clone();
    broker.chunks.lock().unwrap().insert(hash, chunk);
    home.answer(job, question, &contents).await;
    let ran = home.real.worker.until_finished(job).await.ok();
    assert_eq!(ran.text("stdout"), "5\nhello\n");
    assert_eq!((not_fetched(&ran), ran.files), (Vec::new(), None));
}

#[tokio::test]
async fn every_call_that_opens_a_file_waits_for_all_its_bytes() {
    let mut home = Home::start().await;
    let gate = home.real.worker.folder.path().join("gate");
    let code = format!(
        "import os, threading, time\n\
         found = []\n\
         def read(): found.append(open('a' + '.txt', 'rb').read().strip(b'x'))\n\
         threads = [threading.Thread(target=read) for _ in range(2)]\n\
         threads[0].start()\n\
         while not os.path.exists({gate:?}): time.sleep(0.01)\n\
         threads[1].start()\n\
         threads[1].join(0.2)\n\
         print(found, flush=True)\n\
         for thread in threads: thread.join()\n\
         print(found)"
    );
    let (job, withheld) = home.begin_to_fetch(&code).await;
    std::fs::write(&gate, "").unwrap();
    let is_line = |event: &JobEvent| stream_text(from_ref(event), "stdout").ends_with('\n');
    let events = home.real.worker.events_until(job, is_line).await;
    assert_eq!(stream_text(&events, "stdout"), "[]\n");
    drop(withheld);
    let ran = home.real.worker.until_finished(job).await.ok();
    assert_eq!(ran.text("stdout"), "[b'hello', b'hello']\n");
}

/// The folder also contains packages that cells install.
fn has_mirror(folder: &Path) -> bool {
    let mut entries = std::fs::read_dir(folder).unwrap();
    entries.any(|entry| {
        entry
            .unwrap()
            .file_name()
            .to_string_lossy()
            .contains("mirror")
    })
}

#[tokio::test]
async fn a_folder_that_this_machine_sees_has_to_be_proven() {
    #[derive(Clone, Copy, PartialEq)]
    enum Proxy {
        Makes,
        Cannot,
        Lies,
        Links,
    }
    for proxy in [Proxy::Makes, Proxy::Cannot, Proxy::Lies, Proxy::Links] {
        let mut home = Home::start_seeing().await;
        let place = PathBuf::from(&home.folder.path);
        let submission = home.cell("import os; print(os.path.realpath('.'), flush=True)");
        let job = submission.job;
        home.real.worker.assign(submission).await;
        let (question, asked, _) = home.question(job).await;
        let FilesWanted::Proof { name } = asked else {
            panic!("{asked:?}");
        };
        let file = place.join(&name);
        // The worker must not write into a folder that a proxy names.
        assert!(is_empty(&place));
        match proxy {
            Proxy::Makes => std::fs::write(&file, "").unwrap(),
            Proxy::Links => std::os::unix::fs::symlink("/etc/hostname", &file).unwrap(),
            Proxy::Cannot | Proxy::Lies => {}
        }
        let seen = proxy != Proxy::Cannot;
        home.answer(job, question, &FilesAnswer::Proof { seen })
            .await;
        if seen {
            let (question, asked, _) = home.question(job).await;
            assert_eq!(asked, FilesWanted::ProofSeen {});
            let _ = std::fs::remove_file(&file);
            home.answer(job, question, &FilesAnswer::Proof { seen: false })
                .await;
        }
        let is_proven = proxy == Proxy::Makes;
        if !is_proven {
            let (question, asked, _) = home.question(job).await;
            assert_eq!(asked, FilesWanted::Listing {});
            home.answer(job, question, &FilesAnswer::Listing(empty()))
                .await;
        }
        let ran = home.real.worker.until_finished(job).await.ok();
        // A mirror has the path of the notebook's folder.
        assert_eq!(ran.text("stdout"), format!("{}\n", place.display()));
        let mirrors = home.real.worker.folder.path().join("mirrors");
        assert_eq!(has_mirror(&mirrors), !is_proven);
        assert!(is_empty(&place));
    }
}

#[tokio::test]
async fn a_session_starts_below_its_mirror_whatever_a_proxy_says() {
    let mut home = Home::start().await;
    let mut submission = home.cell("import os; print(os.getcwd(), flush=True)");
    submission.cell.folder = "/nowhere/course/../../made".to_owned();
    let job = submission.job;
    home.real.worker.assign(submission).await;
    let (question, asked, _) = home.question(job).await;
    assert_eq!(asked, FilesWanted::Listing {});
    home.answer(job, question, &FilesAnswer::Listing(empty()))
        .await;
    home.real.worker.until_finished(job).await.ok();
    let mirrors = home.real.worker.folder.path().join("mirrors");
    let made = std::fs::read_dir(&mirrors)
        .unwrap()
        .any(|mirror| mirror.unwrap().path().join("made").exists());
    assert!(!made);
}

impl Home {
    /// The folder exists and has the right inode, but the machine has another name.
    async fn start_seeing() -> Self {
        use std::os::unix::fs::MetadataExt as _;
        let mut home = Self::start().await;
        home.real = Real::start_with(|config| config.files = FilesChoice::Auto).await;
        let place = home.real.worker.folder.path().join("course");
        std::fs::create_dir(&place).unwrap();
        home.folder.inode = std::fs::metadata(&place).unwrap().ino();
        home.folder.path = place.to_str().unwrap().to_owned();
        home
    }
}

fn empty() -> Listing {
    Listing {
        base: None,
        number: 1,
        changed: Vec::new(),
        gone: Vec::new(),
        known: Vec::new(),
        cut: false,
        not_applied: false,
    }
}

fn is_empty(folder: &Path) -> bool {
    std::fs::read_dir(folder).map_or(true, |mut entries| entries.next().is_none())
}

#[tokio::test]
async fn the_end_of_a_session_is_the_end_of_its_mirror() {
    let mut home = Home::start().await;
    let job = home.begin("print(1)", &["a.txt"]).await;
    let events = home.real.worker.until_finished(job).await.events;
    assert_eq!(stream_text(&events, "stdout"), "1\n");
    let mirrors = home.real.worker.folder.path().join("mirrors");
    assert!(!is_empty(&mirrors));
    let notebook = home.real.notebook.id;
    home.real
        .worker
        .line
        .send(ToWorker::EndSession { notebook })
        .await;
    eventually(|| is_empty(&mirrors)).await;
}
