//! One test for both engines: it makes the same changes, calls every query, and compares the answers.
#![allow(clippy::unwrap_used)]

mod readers;

use super::*;
use baton_broker_queue::{
    Account, AuditEntry, Identity, Phase, Role, Spent, StopReason, Write,
    courses::Allowance,
    samples::{finish, naming, submission},
};
use baton_postgres_tests::{Disk, Server};
use baton_protocol::{
    CellKey, ChunkHash, FencingNumber, JobEvent, JobId, Lock, LockFile, LockKind, NumberedEvent,
    Output, Priority, State, Submission, WorkerId,
    api::{self, CourseChange},
    encode,
    worker::{Device, DeviceKind},
};
use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    fmt::Debug,
    sync::Arc,
};

#[tokio::test]
async fn both_engines_keep_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(Disk::NoSync);
    let story = Story::new();
    let path = folder.path().join("broker.db");
    let sqlite = story.answers_of(Database::Sqlite(path)).await;
    let postgres = story.answers_of(Database::named(&server.url())).await;
    for (sqlite, postgres) in sqlite.iter().zip(&postgres) {
        assert_eq!(sqlite, postgres);
    }
    assert_eq!(sqlite.len(), postgres.len());
}

/// The server keeps the session of a closed connection for a while.
#[tokio::test]
async fn a_closed_store_leaves_the_lead_at_once() {
    let server = Server::start(Disk::NoSync);
    let database = Database::named(&server.url());
    for _ in 0..20 {
        let store = Store::open(&database).await.unwrap();
        store.acquire_leadership().await.unwrap();
        store.close().await.unwrap();
    }
}

/// The changes are generated once, so that both engines receive the same jobs.
struct Story {
    ada: Account,
    /// This one runs to its end.
    first: Arc<Submission>,
    /// This one waits.
    second: Arc<Submission>,
    worker: WorkerId,
    /// The state that replaces that of the first one.
    state: State,
}

impl Story {
    fn new() -> Self {
        let named = |name: &str, hash| {
            let mut submission = submission(JobId::random(), naming(ChunkHash([hash; 32])));
            submission.notebook_name = name.to_owned();
            submission.cell_key = Some(CellKey([7; 16]));
            submission.cell.timeout_ms = Some(60_000);
            Arc::new(submission)
        };
        Self {
            ada: account("ada"),
            first: named("größe ?'; ROLLBACK; --\\'' $1.ipynb", 1),
            second: named("b.ipynb", 2),
            worker: WorkerId::random(),
            state: naming(ChunkHash([3; 32])),
        }
    }

    async fn answers_of(&self, database: Database) -> Vec<String> {
        let store = Store::open(&database).await.unwrap();
        store.acquire_leadership().await.unwrap();
        // A second call must do no harm.
        store.acquire_leadership().await.unwrap();
        store.announce("127.0.0.1:1").await.unwrap();
        self.changes(&store).await;
        self.refused_changes(&store).await;
        let mut seen = self.answers(&store).await;
        self.end(&store).await;
        seen.extend(self.answers(&store).await);
        store.close().await.unwrap();

        let store = Store::open(&database).await.unwrap();
        store.acquire_leadership().await.unwrap();
        let again = self.answers(&store).await;
        assert_eq!(again, seen[seen.len() - again.len()..]);
        seen
    }

    async fn changes(&self, store: &Store) {
        let (first, second) = (self.first.job, self.second.job);
        let mut asked = PoolWorkerRow {
            name: "gpu-2".to_owned(),
            pool: "slurm".to_owned(),
            token_hash: "hash".to_owned(),
            kept: false,
            job: None,
            submitted_ms: 4,
            connected_ms: None,
            ended_ms: None,
        };
        store.pools().keep_worker(&asked).await.unwrap();
        let worker = Write::SeeWorker {
            worker: self.worker,
            name: "gpu-2".to_owned(),
            devices: vec![Device {
                kind: DeviceKind::Cpu,
                model: "Test CPU".to_owned(),
                memory_bytes: 8 << 30,
                compute_capability: None,
            }],
            slots: 2,
            at_ms: 10,
        };
        let seen_again = Write::LoseWorker {
            worker: self.worker,
            at_ms: 11,
        };
        store.apply(&[worker, seen_again]).await.unwrap();
        // The pool had not seen that the worker connected.
        asked.job = Some("101".to_owned());
        store.pools().keep_worker(&asked).await.unwrap();
        let connected_ms = store.pools().worker_connected_ms(&asked.name).await;
        assert_eq!(connected_ms.unwrap(), Some(10));
        let submit = |sequence, submission: &Arc<Submission>| Write::Submit {
            sequence,
            account: self.ada.clone(),
            submission: Arc::clone(submission),
            at_ms: 1000,
        };
        let batch = [
            submit(1, &self.first),
            submit(2, &self.second),
            self.assign(first, 1),
            self.events(first, 1, None, vec![JobEvent::StateWanted { question: 1 }]),
        ];
        store.apply(&batch).await.unwrap();
        let requeue = Write::Requeue {
            job: first,
            fencing: 1,
        };
        let replace = Write::ReplaceState {
            job: first,
            state: Box::new(self.state.clone()),
        };
        store
            .apply(&[requeue, self.assign(first, 2), replace, start(first, 2)])
            .await
            .unwrap();
        let outputs = (0..600).map(|line| output(&line.to_string())).collect();
        store
            .apply(&[self.events(first, 2, Some(600), outputs)])
            .await
            .unwrap();
        let steer = Write::Steer {
            job: second,
            held: Some("the demo is next".to_owned()),
            front_ms: None,
        };
        let cancel = Write::WantCancel {
            job: second,
            stopped: Some(StopReason::Staff {
                person: Some("grace".to_owned()),
                reason: None,
            }),
        };
        let pause = |reason: Option<&str>| Write::ChangeWorker {
            name: "gpu-2".to_owned(),
            paused: reason.map(str::to_owned),
        };
        let course = Write::ChangeCourse {
            course: "ml".to_owned(),
            change: Box::new(CourseChange {
                weight: Some(1.5),
                ..CourseChange::default()
            }),
        };
        let audit = Write::Audit(AuditEntry {
            at_ms: 5,
            person: Some("grace".to_owned()),
            action: api::Action::Hold,
            course: "ml".to_owned(),
            subject: second.to_string(),
            detail: None,
        });
        store
            .apply(&[
                steer,
                cancel,
                pause(Some("dust")),
                pause(None),
                course,
                audit,
                lock("1"),
                lock("2"),
                allow("ada", Some(10), 5),
                allow("", Some(50), 5),
                allow("bob", Some(50), 5),
                allow("cy", Some(50), 20),
                allow("cy", Some(60), 20),
                allow("bob", None, 20),
            ])
            .await
            .unwrap();
        let kept = store.load().await.unwrap().changes.allowances.0;
        let kept = kept.into_iter();
        let kept = kept.map(|(account, allowance)| (account.owner, allowance.until_ms));
        let expected = [(String::new(), 50), ("cy".to_owned(), 60)];
        assert_eq!(kept.collect::<Vec<_>>(), expected);
        for (running, waiting) in [(1, 0), (2, 5)] {
            let look = Look {
                at_ms: 3_600_000,
                running,
                waiting,
                slots: 2,
            };
            store.past().add(look).await.unwrap();
        }
        let chunks = [1, 2, 3].map(|byte| ChunkHash([byte; 32]));
        let chunks = chunks.map(|hash| (hash, 10));
        store.chunks().hold(&self.ada, &chunks, 100).await.unwrap();
        store
            .chunks()
            .hold(&self.ada, &chunks[..1], 200)
            .await
            .unwrap();
        for person in ["bob", "cy", "dee", "eve"] {
            let account = account(person);
            let (old, young) = (&chunks[1..2], &chunks[2..]);
            store.chunks().hold(&account, old, 100).await.unwrap();
            store.chunks().hold(&account, young, 200).await.unwrap();
        }
    }

    /// Each is refused, together with everything else in its transaction.
    async fn refused_changes(&self, store: &Store) {
        let (first, second) = (self.first.job, self.second.job);
        let wrong = [
            self.assign(first, 3),
            start(first, 1),
            start(second, 0),
            Write::Close { job: first },
            Write::Requeue {
                job: first,
                fencing: 2,
            },
        ];
        for wrong in wrong {
            let before = self.events(first, 602, Some(601), vec![output("lost")]);
            let refused = store.apply(&[before, wrong]).await;
            assert!(
                matches!(refused, Err(StoreError::Conflict { .. })),
                "{refused:?}"
            );
        }
        assert!(store.events().after(first, 601).await.unwrap().is_empty());
    }

    async fn end(&self, store: &Store) {
        let first = self.first.job;
        let charge = |run_ms| Write::Charge {
            account: self.ada.clone(),
            spent: Spent {
                faded_ms: 0.1 + 0.2,
                at_ms: 3000,
                period_start_ms: 0,
                period_ms: run_ms,
            },
            run_ms,
            at_ms: 3000,
        };
        let batch = [finish(first, 3000), charge(7), charge(8)];
        store.apply(&batch).await.unwrap();
        store.apply(&[Write::Close { job: first }]).await.unwrap();
        let [one, two, three] = [1, 2, 3].map(|byte| ChunkHash([byte; 32]));
        let ada = || self.ada.clone();
        let live = Live::from([(ada(), HashSet::from([three]))]);
        let stale = store.chunks().stale(150, &live).await.unwrap();
        let all = ["ada", "bob", "cy", "dee", "eve"].map(account);
        assert_eq!(stale, [(two, all.to_vec())]);
        let stuck = store.chunks().delete(&stale, 150, &|_| false);
        assert_eq!(stuck.await.unwrap(), 0);
        let free = |hash| hash == two;
        let deleted = store.chunks().delete(&stale, 150, &free);
        assert_eq!(deleted.await.unwrap(), 1);
        // The other accounts still hold it.
        let stale = [(three, vec![ada()]), (one, vec![ada()])];
        let deleted = store.chunks().delete(&stale, 150, &|_| panic!());
        assert_eq!(deleted.await.unwrap(), 0);
        store.jobs().delete_old_outputs(3000).await.unwrap();
        store.jobs().delete_old(2000).await.unwrap();
        store.audit_log().delete_old(0).await.unwrap();
    }

    /// The answers to all queries.
    async fn answers(&self, store: &Store) -> Vec<String> {
        let (first, everybody) = (self.first.job, &Identity::operator());
        let mut seen = Vec::new();
        fn note<T: Debug, E: Debug>(seen: &mut Vec<String>, answer: Result<T, E>) {
            seen.push(format!("{:?}", answer.unwrap()));
        }
        note(&mut seen, store.answers().await);
        note(&mut seen, store.load().await);
        note(&mut seen, store.jobs().submission(first).await);
        note(&mut seen, store.jobs().submission(JobId::random()).await);
        let live = store.live_chunks().await;
        let sorted = |(account, chunks)| (account, BTreeSet::from_iter(chunks));
        note(
            &mut seen,
            live.map(|live| BTreeMap::from_iter(live.into_iter().map(sorted))),
        );
        for person in ["ada", "bob", "zoe", ""] {
            let chunks = [1, 2, 3, 4].map(|byte| ChunkHash([byte; 32]));
            let held = store.chunks().held(&account(person), &chunks).await;
            note(&mut seen, held.map(BTreeMap::from_iter));
            note(&mut seen, store.accounts().held_bytes(person).await);
        }
        for worker in [None, Some(WorkerId::random())] {
            let served = store.accounts().served(self.first.notebook, worker).await;
            note(&mut seen, served);
        }
        for after in [0, 256, 512] {
            note(&mut seen, store.events().after(first, after).await);
        }
        note(
            &mut seen,
            store
                .events()
                .last_outputs(first, 9)
                .try_collect::<Vec<_>>()
                .await,
        );
        note(&mut seen, store.jobs().detail(everybody, first).await);
        note(&mut seen, store.jobs().finished(everybody, 9).await);
        note(&mut seen, store.jobs().newest_ms(0).await);
        note(&mut seen, store.jobs().newest_ms(i64::MAX).await);
        note(
            &mut seen,
            store.past().waits(everybody, Some("ml"), 0).await,
        );
        note(&mut seen, store.past().last_day(3_700_000).await);
        note(&mut seen, store.pools().all().await);
        note(&mut seen, store.environments().locks().await);
        note(&mut seen, store.environments().lock("ml101").await);
        note(&mut seen, store.environments().lock("other").await);
        note(
            &mut seen,
            store
                .audit_log()
                .entries(everybody, Some("ml"), Some(9), 5)
                .await,
        );
        let digits = first.to_string();
        let jobs = [
            JobFilter::default(),
            JobFilter {
                phases: vec![Phase::Queued, Phase::Finished],
                person: Some("ada".to_owned()),
                course: Some("ml".to_owned()),
                ends_with: Some(digits[digits.len() - 5..].to_owned()),
                group: None,
                before: Some(2),
            },
            JobFilter {
                ends_with: Some(digits),
                ..JobFilter::default()
            },
        ];
        for filter in jobs {
            let found = store.jobs().matching(everybody, &filter, 10).await.unwrap();
            assert!(found.iter().any(|row| row.job == first) || filter.before.is_some());
            seen.push(format!("{found:?}"));
        }
        let usage = UsageFilter {
            from: Some(0),
            to: Some(1),
            person: Some("ada".to_owned()),
            course: Some("ml".to_owned()),
            after: Some((0, Account::default())),
        };
        note(
            &mut seen,
            store.accounts().usage(everybody, &usage, 10).await,
        );
        note(
            &mut seen,
            store.accounts().usage_sums(everybody, &usage).await,
        );
        let history = HistoryFilter {
            courses: Some(vec!["ml".to_owned(), "physics".to_owned()]),
            since_ms: 0,
        };
        note(&mut seen, store.past().jobs(&history, 10).await);
        seen
    }

    fn assign(&self, job: JobId, fencing: FencingNumber) -> Write {
        Write::Assign {
            job,
            worker: self.worker,
            worker_name: "gpu-2".to_owned(),
            fencing,
            timeout_ms: Some(5),
            at_ms: 1500,
        }
    }

    fn events(
        &self,
        job: JobId,
        first: u64,
        acknowledged: Option<u64>,
        events: Vec<JobEvent>,
    ) -> Write {
        let numbered = |(number, event)| NumberedEvent { number, event };
        Write::Events {
            job,
            acknowledged,
            events: (first..).zip(events).map(numbered).collect(),
        }
    }
}

fn account(owner: &str) -> Account {
    Account {
        owner: owner.to_owned(),
        course: "ml".to_owned(),
    }
}

/// An allowance until this time, or its end, at a time.
fn allow(owner: &str, until_ms: Option<i64>, at_ms: i64) -> Write {
    let by = Some("grace".to_owned());
    Write::Allow {
        account: account(owner),
        allowance: until_ms.map(|until_ms| Allowance {
            extra_ms: 3_600_000,
            until_ms,
            by,
        }),
        at_ms,
    }
}

fn lock(version: &str) -> Write {
    Write::KeepLock {
        environment: "ml101".to_owned(),
        digest: version.to_owned(),
        lock: Lock {
            kind: LockKind::Uv,
            files: vec![LockFile {
                name: "uv.lock".to_owned(),
                text: version.to_owned(),
            }],
        },
        at_ms: 7,
    }
}

fn start(job: JobId, fencing: FencingNumber) -> Write {
    Write::Start {
        job,
        fencing,
        at_ms: 2000,
    }
}

fn output(text: &str) -> JobEvent {
    JobEvent::Output(Output {
        kind: "stream".to_owned(),
        content: text.to_owned().into(),
        metadata: "{}".into(),
        buffers: Vec::new(),
    })
}
