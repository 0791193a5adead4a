#![allow(clippy::unwrap_used)]

use super::*;
use baton_broker_queue::{
    AuditEntry, Identity, Write,
    samples::{finish, naming, submit},
};
use baton_broker_store::{Live, PublicFile, StateRow};
use baton_chunks::ChunkDirectory;
use baton_postgres_tests::{Disk, Server};
use baton_protocol::{
    AboutState, Finished, JobEvent, JobId, NumberedEvent, Outcome, SavedState, State,
    api::{self, Action},
};
use std::collections::HashSet;
use tempfile::TempDir;

const MINUTE: i64 = 60_000;
const RETENTION: Retention = Retention {
    chunks: Duration::from_secs(600),
    jobs: Duration::from_secs(3600),
};

struct Place {
    store: Store,
    chunks: Arc<ChunkDirectory>,
    _folder: TempDir,
}

async fn place() -> Place {
    let folder = tempfile::tempdir().unwrap();
    let chunks = ChunkDirectory::open(folder.path().join("chunks"), 1 << 20).unwrap();
    Place {
        store: Store::open(&folder.path().join("broker.db").into())
            .await
            .unwrap(),
        chunks: Arc::new(chunks),
        _folder: folder,
    }
}

impl Place {
    async fn put(&self, text: &str, now_ms: i64) -> ChunkHash {
        let hash = baton_chunks::hash(text.as_bytes());
        self.touch(hash, now_ms).await;
        self.chunks.put(text.as_bytes()).unwrap()
    }

    async fn touch(&self, hash: ChunkHash, now_ms: i64) {
        let (nobody, chunks) = (Account::default(), [(hash, 1)]);
        let touched = self.store.chunks().hold(&nobody, &chunks, now_ms);
        touched.await.unwrap();
    }

    async fn apply(&self, write: Write) {
        self.store.apply(&[write]).await.unwrap();
    }

    /// Returns the number of deleted chunks.
    async fn sweep(&self, now_ms: i64) -> usize {
        self.swept(now_ms).await.chunks
    }

    async fn swept(&self, now_ms: i64) -> Swept {
        let chunks = ChunkStore::Folder(Arc::clone(&self.chunks));
        let swept = sweep(&self.store, &chunks, RETENTION, -MINUTE, now_ms).await;
        swept.unwrap()
    }
}

#[tokio::test]
async fn what_nobody_names_goes_after_its_term() {
    let place = place().await;
    let old = place.put("old", 0).await;
    let young = place.put("young", 5 * MINUTE).await;
    assert_eq!(place.sweep(9 * MINUTE).await, 0);
    assert_eq!(place.sweep(11 * MINUTE).await, 1);
    assert!(!place.chunks.contains(old) && place.chunks.contains(young));
    assert_eq!(place.sweep(16 * MINUTE).await, 1);
    assert_eq!(place.sweep(99 * MINUTE).await, 0);
}

#[tokio::test]
async fn a_touch_gives_another_term() {
    let place = place().await;
    let chunk = place.put("wanted", 0).await;
    place.touch(chunk, 8 * MINUTE).await;
    assert_eq!(place.sweep(17 * MINUTE).await, 0);
    assert_eq!(place.sweep(19 * MINUTE).await, 1);
}

#[tokio::test]
async fn the_state_of_a_waiting_job_stays_until_it_has_run() {
    let place = place().await;
    let chunk = place.put("state", 0).await;
    let job = JobId::random();
    place.apply(submit(job, naming(chunk))).await;
    assert_eq!(place.sweep(600 * MINUTE).await, 0);
    place.apply(finish(job, 601 * MINUTE)).await;
    assert_eq!(place.sweep(602 * MINUTE).await, 1);
}

#[tokio::test]
async fn a_result_stays_until_it_is_home() {
    let place = place().await;
    let chunk = place.put("result", 0).await;
    let (job, other) = (JobId::random(), place.put("input", 0).await);
    place.apply(submit(job, naming(other))).await;
    let end = JobEvent::Finished(Finished {
        state: Some(naming(chunk)),
        ..Finished::without_state(Outcome::Ok, None)
    });
    place
        .apply(Write::Events {
            job,
            acknowledged: Some(1),
            events: vec![NumberedEvent {
                number: 1,
                event: end,
            }],
        })
        .await;
    place.apply(finish(job, MINUTE)).await;
    assert_eq!(place.sweep(100 * MINUTE).await, 1);
    assert!(place.chunks.contains(chunk));
    place.apply(Write::Close { job }).await;
    assert_eq!(place.sweep(101 * MINUTE).await, 1);
    assert!(!place.chunks.contains(chunk));
}

#[tokio::test]
async fn what_was_salvaged_stays_until_another_kernel_has_it() {
    let place = place().await;
    let [variables, file] = [place.put("variables", 0).await, place.put("file", 0).await];
    let job = JobId::random();
    place.apply(submit(job, naming(variables))).await;
    let State::Chunks(manifest) = naming(variables) else {
        panic!("it names chunks");
    };
    let event = JobEvent::Salvaged {
        state: Some(Box::new(SavedState {
            about: AboutState::default(),
            manifest,
        })),
        files: vec![file],
        error: None,
    };
    place
        .apply(Write::Events {
            job,
            acknowledged: Some(1),
            events: vec![NumberedEvent { number: 1, event }],
        })
        .await;
    place.apply(finish(job, MINUTE)).await;
    assert_eq!(place.sweep(6000 * MINUTE).await, 0);
    place.apply(Write::Close { job }).await;
    assert_eq!(place.sweep(6001 * MINUTE).await, 2);
}

#[tokio::test]
async fn what_is_public_stays_until_it_is_withdrawn() {
    let place = place().await;
    let [alone, shared] = [place.put("alone", 0).await, place.put("shared", 0).await];
    let act = |action, name: &str, at_ms| AuditEntry {
        at_ms,
        person: None,
        action,
        course: "ml".to_owned(),
        subject: name.to_owned(),
        detail: None,
    };
    for (name, chunks) in [("one", vec![alone, shared]), ("two", vec![shared])] {
        let held: Vec<(ChunkHash, u64)> = chunks.iter().map(|hash| (*hash, 6)).collect();
        let file = PublicFile {
            course: "ml".to_owned(),
            name: name.to_owned(),
            person: None,
            at_ms: 0,
            bytes: 12,
            chunks,
        };
        let publish = act(Action::Publish, name, 0);
        place
            .store
            .public_files()
            .publish(&file, &held, &publish)
            .await
            .unwrap();
    }
    assert_eq!(place.sweep(6000 * MINUTE).await, 0);
    let withdraw = async |name, at_ms| {
        let entry = act(Action::Withdraw, name, at_ms);
        assert!(place.store.public_files().withdraw(&entry).await.unwrap());
    };
    withdraw("one", 6000 * MINUTE).await;
    // It stays for another term without an owner.
    assert_eq!(place.sweep(6009 * MINUTE).await, 0);
    assert_eq!(place.sweep(6011 * MINUTE).await, 1);
    assert!(!place.chunks.contains(alone) && place.chunks.contains(shared));
    withdraw("two", 7000 * MINUTE).await;
    assert_eq!(place.sweep(7011 * MINUTE).await, 1);
    assert!(!place.chunks.contains(shared));
}

#[tokio::test]
async fn what_a_saved_state_names_stays_until_no_state_names_it() {
    let place = place().await;
    let [alone, shared] = [place.put("alone", 0).await, place.put("shared", 0).await];
    let person = Account {
        owner: "ada".to_owned(),
        course: "ml".to_owned(),
    };
    let held = [(alone, 5), (shared, 6)];
    place.store.chunks().hold(&person, &held, 0).await.unwrap();
    let save = async |name: &str, chunks: &[ChunkHash]| {
        let state = StateRow {
            entry: api::SavedState {
                name: name.to_owned(),
                notebook: None,
                saved_ms: 0,
                bytes: 11,
                variables: 1,
            },
            body: Vec::new(),
            chunks: chunks.to_vec(),
        };
        place.store.states().save(&person, &state).await.unwrap();
    };
    let delete = async |name| place.store.states().delete(&person, name).await.unwrap();
    save("one", &[alone, shared]).await;
    save("one", &[shared, alone]).await;
    save("two", &[shared]).await;
    // Only the rows of the other account are deleted. The files stay, because states name both chunks.
    assert_eq!(place.sweep(6000 * MINUTE).await, 0);
    assert!(place.chunks.contains(alone) && place.chunks.contains(shared));
    assert!(delete("one").await);
    assert!(!delete("one").await);
    assert_eq!(place.sweep(6001 * MINUTE).await, 1);
    assert!(!place.chunks.contains(alone) && place.chunks.contains(shared));
    // The new state names no chunk.
    save("two", &[]).await;
    assert_eq!(place.sweep(6002 * MINUTE).await, 1);
    assert!(!place.chunks.contains(shared));
}

#[tokio::test]
async fn a_chunk_that_is_wanted_during_the_sweep_stays() {
    let place = place().await;
    let chunk = place.put("late", 0).await;
    let stale = place
        .store
        .chunks()
        .stale(10 * MINUTE, &Live::new())
        .await
        .unwrap();
    assert_eq!(stale, [(chunk, vec![Account::default()])]);
    place.touch(chunk, 11 * MINUTE).await;
    let deleted = place.store.chunks().delete(&stale, 10 * MINUTE, &|_| true);
    assert_eq!(deleted.await.unwrap(), 0);
}

#[tokio::test]
async fn a_chunk_whose_file_cannot_be_removed_is_tried_again() {
    let place = place().await;
    let chunk = place.put("stuck", 0).await;
    let stale = [(chunk, vec![Account::default()])];
    let stuck = place.store.chunks().delete(&stale, MINUTE, &|_| false);
    assert_eq!(stuck.await.unwrap(), 0);
    assert_eq!(place.sweep(11 * MINUTE).await, 1);
}

#[tokio::test]
async fn rows_of_jobs_go_after_their_term_and_never_while_somebody_waits() {
    let place = place().await;
    // More than are deleted in one transaction.
    let jobs: Vec<JobId> = (0..200).map(|_| JobId::random()).collect();
    for (number, job) in (1..).zip(jobs.iter().copied()) {
        let mut submitted = submit(job, naming(ChunkHash([0; 32])));
        if let Write::Submit { sequence, .. } = &mut submitted {
            *sequence = number;
        }
        place.apply(submitted).await;
        place.apply(finish(job, 0)).await;
    }
    assert_eq!(place.swept(600 * MINUTE).await.jobs, []);
    assert_eq!(place.store.load().await.unwrap().jobs.len(), jobs.len());
    for job in &jobs {
        place.apply(Write::Close { job: *job }).await;
    }
    let deleted: HashSet<JobId> = place.swept(601 * MINUTE).await.jobs.into_iter().collect();
    assert_eq!(deleted, jobs.into_iter().collect());
    let left = place.store.load().await.unwrap();
    assert!(left.jobs.is_empty() && left.closed.is_empty());
}

#[tokio::test]
async fn the_audit_log_goes_back_a_year() {
    const DAY: i64 = 24 * 60 * MINUTE;
    let place = place().await;
    for (subject, day) in [("one", 0), ("two", 1)] {
        let entry = AuditEntry {
            at_ms: day * DAY,
            person: None,
            action: Action::Cancel,
            course: String::new(),
            subject: subject.to_owned(),
            detail: None,
        };
        place.apply(Write::Audit(entry)).await;
    }
    let mut left = Vec::new();
    for day in [365, 367, 368] {
        place.sweep(day * DAY).await;
        let log = place.store.audit_log();
        let entries = log.entries(&Identity::operator(), None, None, 9).await;
        left.push(entries.unwrap().len());
    }
    assert_eq!(left, [2, 1, 0]);
}

#[tokio::test]
async fn files_that_a_restored_database_does_not_know_go_as_well() {
    let place = place().await;
    let known = place.put("known", 0).await;
    let unknown = place.chunks.put(b"unknown").unwrap();
    assert_eq!(place.sweep(11 * MINUTE).await, 1);
    adopt(
        &place.store,
        &ChunkStore::Folder(Arc::clone(&place.chunks)),
        12 * MINUTE,
    )
    .await
    .unwrap();
    assert_eq!(place.sweep(13 * MINUTE).await, 0);
    assert!(!place.chunks.contains(known) && place.chunks.contains(unknown));
    assert_eq!(place.sweep(23 * MINUTE).await, 1);
    assert!(!place.chunks.contains(unknown));
}

/// A table of millions of rows takes longer to change than the database may take to answer.
#[tokio::test]
async fn who_takes_the_lead_keeps_all_chunks_for_a_term_and_changes_no_row_of_theirs() {
    let place = place().await;
    let chunk = place.chunks.put(b"ada's").unwrap();
    let ada = Account {
        owner: "ada".to_owned(),
        ..Account::default()
    };
    let held = [(chunk, 5)];
    place.store.chunks().hold(&ada, &held, 0).await.unwrap();
    let chunks = ChunkStore::Folder(Arc::clone(&place.chunks));
    let mut adopted_ms = None;
    for (minute, is_kept) in [(100, true), (109, true), (111, false)] {
        let now_ms = minute * MINUTE;
        round(&place.store, &chunks, RETENTION, &mut adopted_ms, now_ms).await;
        assert_eq!(place.chunks.contains(chunk), is_kept, "{minute}");
        let live = Live::new();
        let stale = place.store.chunks().stale(MINUTE, &live);
        let untouched = vec![(chunk, vec![ada.clone()])];
        let expected = if is_kept { untouched } else { Vec::new() };
        assert_eq!(stale.await.unwrap(), expected, "{minute}");
    }
}

#[tokio::test]
async fn who_takes_the_lead_counts_the_files_in_before_anything_is_swept() {
    let server = Server::start(Disk::NoSync);
    let database = crate::Database::named(&server.url());
    let (leader, other) = (
        Store::open(&database).await.unwrap(),
        Store::open(&database).await.unwrap(),
    );
    let place = place().await;
    let unknown = place.chunks.put(b"unknown").unwrap();
    leader.acquire_leadership().await.unwrap();
    let (mut adopted_ms, mut now_ms) = (None, 0);
    let mut round = async |minutes: i64| {
        now_ms += minutes * MINUTE;
        round(
            &other,
            &ChunkStore::Folder(Arc::clone(&place.chunks)),
            RETENTION,
            &mut adopted_ms,
            now_ms,
        )
        .await;
        (adopted_ms.is_some(), place.chunks.contains(unknown))
    };
    assert_eq!(round(1).await, (false, true));
    leader.close().await.unwrap();
    other.acquire_leadership().await.unwrap();
    assert_eq!(round(1).await, (true, true));
    assert_eq!(round(9).await, (true, true));
    assert_eq!(round(2).await, (true, false));
}
