//! Pages read little, and with connections of their own.

use super::{super::jobs, *};
use futures_util::future::join_all;
use std::time::Duration;
use tempfile::TempDir;
use tokio::time::timeout;

/// So many that no engine prefers to read the whole table.
const JOBS: i64 = 20_000;
const PATIENCE: Duration = Duration::from_secs(60);

#[tokio::test]
async fn a_page_reads_only_jobs_that_its_reader_may_see() {
    let both = Databases::new();
    for database in both.all() {
        let store = Store::open(&database).await.unwrap();
        store.acquire_leadership().await.unwrap();
        fill(&store).await;
        let check = async |statement, indexes: &[&str]| {
            let plan = plan(&store, statement).await;
            let missing = indexes.iter().find(|index| !plan.contains(**index));
            assert_eq!(missing, None, "{plan}");
            let reads_all = ["SCAN jobs", "Seq Scan on jobs"];
            assert!(!reads_all.iter().any(|all| plan.contains(all)), "{plan}");
        };
        let (ada, grace) = (person("ada", &[]), person("grace", &["ml", "physics"]));
        let all = JobFilter::default();
        check(jobs::matching(&ada, &all, 50), &["jobs_of_owner"]).await;
        let of_both = &["jobs_of_owner", "jobs_of_course"];
        check(jobs::matching(&grace, &all, 50), of_both).await;
        check(jobs::finished(&ada, 20), &["jobs_finished_of_owner"]).await;
        let of_both = &["jobs_finished_of_owner", "jobs_finished_of_course"];
        check(jobs::finished(&grace, 20), of_both).await;
        let of_course = JobFilter {
            course: Some("ml".to_owned()),
            ..JobFilter::default()
        };
        let everyone = &Identity::operator();
        check(
            jobs::matching(everyone, &of_course, 50),
            &["jobs_of_course"],
        )
        .await;
        // A quota does not depend on what its person ran before.
        let open = sql("SELECT job FROM jobs WHERE closed = 0 AND owner = ?").bind("ada");
        check(open, &["jobs_open"]).await;
    }
}

#[tokio::test]
async fn staff_see_the_newest_jobs_of_all_their_courses_and_their_own() {
    let both = Databases::new();
    for database in both.all() {
        let store = Store::open(&database).await.unwrap();
        store.acquire_leadership().await.unwrap();
        fill(&store).await;
        let check = async |seen_by: Identity, expected: Vec<i64>| {
            let limit = u32::try_from(expected.len()).unwrap();
            let finished = store.jobs().finished(&seen_by, limit).await.unwrap();
            let matching = store
                .jobs()
                .matching(&seen_by, &JobFilter::default(), limit)
                .await
                .unwrap();
            for rows in [finished, matching] {
                let found: Vec<i64> = rows.iter().map(|row| row.submitted_ms).collect();
                assert_eq!(found, expected);
            }
        };
        let last = JOBS - 1;
        check(Identity::operator(), vec![last, last - 1, last - 2]).await;
        // See `fill`: every hundredth job is hers, and every tenth one is in each course.
        check(person("p99", &[]), vec![last, last - 100]).await;
        check(person("p99", &["c8"]), vec![last, last - 1, last - 11]).await;
        check(
            person("p99", &["c8", "c9"]),
            vec![last, last - 1, last - 10],
        )
        .await;
        check(person("nobody", &[]), vec![]).await;
    }
}

#[tokio::test]
async fn cells_do_not_wait_for_pages() {
    let both = Databases::new();
    for database in both.all() {
        let store = Store::open(&database).await.unwrap();
        store.acquire_leadership().await.unwrap();
        // More rows than are read ahead, so each keeps its connection until it is dropped.
        let long = "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 1000000) SELECT i FROM n";
        let connections = Readers::Pages.connections() as usize;
        let mut pages: Vec<_> = (0..3 * connections)
            .map(|_| store.rows(Readers::Pages, sql(long)))
            .collect();
        let reading = join_all(pages[..connections].iter_mut().map(TryStreamExt::try_next));
        assert!(reading.await.iter().all(Result::is_ok));
        let cell = store.jobs().submission(JobId::random());
        let found = timeout(PATIENCE, cell).await.unwrap().unwrap();
        assert!(found.is_none());
    }
}

/// A row may have many megabytes, so only what is read of it may be kept.
#[tokio::test]
async fn each_row_is_read_before_the_next_one_is_fetched() {
    let both = Databases::new();
    for database in both.all() {
        let store = Store::open(&database).await.unwrap();
        store.acquire_leadership().await.unwrap();
        let fails = match store {
            Store::Sqlite(_) => "abs(-9223372036854775807 - i)",
            Store::Postgres(_) => "i / (i - 1)",
        };
        let second_fails = sql(format!(
            "WITH RECURSIVE n (i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < 1) SELECT {fails} AS i FROM n"
        ));
        let what = "the first row";
        let read = |_: &Row| Err::<(), _>(StoreError::Damaged { what });
        let list = store.list::<_, Vec<_>>(second_fails.clone(), read).await;
        let mut writer = store.writer().await.unwrap();
        let of_writer = writer.list(second_fails, move |row| read(&row)).await;
        for list in [list, of_writer] {
            let failed = list.unwrap_err();
            assert!(
                matches!(
                    failed,
                    StoreError::Damaged {
                        what: "the first row"
                    }
                ),
                "{failed}"
            );
        }
    }
}

#[tokio::test]
async fn a_new_leader_knows_the_minute_in_which_a_broker_last_ran() {
    let both = Databases::new();
    for database in both.all() {
        let store = Store::open(&database).await.unwrap();
        store.acquire_leadership().await.unwrap();
        let last_alive_ms = async || store.load().await.unwrap().last_alive_ms;
        assert_eq!(last_alive_ms().await, None);
        for at_ms in [90_000, 61_000] {
            let look = Look {
                at_ms,
                running: 0,
                waiting: 0,
                slots: 0,
            };
            store.past().add(look).await.unwrap();
        }
        assert_eq!(last_alive_ms().await, Some(120_000));
    }
}

/// A broker with many jobs reads for longer, and must still become the leader.
#[tokio::test]
async fn a_long_answer_of_the_server_is_read_to_its_end() {
    let server = Server::start(Disk::NoSync);
    let store = Store::open(&Database::named(&server.url())).await.unwrap();
    store.acquire_leadership().await.unwrap();
    let mut writer = store.writer().await.unwrap();
    // 12 s in all. The server sends a row when it has computed the next one.
    let slow = "SELECT repeat('x', 100000) AS text, CAST(pg_sleep(3) AS TEXT) AS slept FROM generate_series(1, 4)";
    let texts = writer.list(sql(slow), |row| row.get::<String>("text"));
    assert_eq!(texts.await.unwrap().len(), 4);
}

/// An empty database of each engine.
struct Databases {
    folder: TempDir,
    server: Server,
}

impl Databases {
    fn new() -> Self {
        Self {
            folder: tempfile::tempdir().unwrap(),
            server: Server::start(Disk::NoSync),
        }
    }

    fn all(&self) -> [Database; 2] {
        let sqlite = Database::Sqlite(self.folder.path().join("broker.db"));
        [sqlite, Database::named(&self.server.url())]
    }
}

fn person(name: &str, staffed: &[&str]) -> Identity {
    let courses = staffed
        .iter()
        .map(|course| ((*course).to_owned(), Role::Staff));
    Identity::of_person(name.to_owned(), false, courses.collect())
}

/// Finished jobs of a hundred people, `p0` to `p99`, in ten courses, `c0` to `c9`, submitted one each millisecond.
async fn fill(store: &Store) {
    let identifier = match store {
        Store::Sqlite(_) => "randomblob(16)",
        Store::Postgres(_) => "uuid_send(gen_random_uuid())",
    };
    let insert = sql(format!(
        "WITH RECURSIVE n (i) AS (SELECT CAST(0 AS BIGINT) UNION ALL SELECT i + 1 FROM n WHERE i < {JOBS} - 1)
         INSERT INTO jobs (job, sequence, notebook, notebook_name, owner, course, state, closed, priority,
         submitted_ms, started_ms, finished_ms, job_kind)
         SELECT {identifier}, i, {identifier}, 'a.ipynb', 'p' || (i % 100), 'c' || (i % 10), 'finished', 1, ?, i, i, i, 'cell' FROM n"
    ))
    .bind(encode(&Priority::Normal));
    let writer = store.writer().await.unwrap();
    writer.apply(vec![insert, sql("ANALYZE")]).await.unwrap();
}

async fn plan(store: &Store, statement: Statement) -> String {
    let (explain, column) = match store {
        Store::Sqlite(_) => ("EXPLAIN QUERY PLAN ", "detail"),
        Store::Postgres(_) => ("EXPLAIN ", "QUERY PLAN"),
    };
    let mut query = sql(explain);
    query.push_statement(&statement);
    let line = |row: &Row| row.get::<String>(column);
    let lines: Vec<String> = store.list(query, line).await.unwrap();
    lines.join("\n")
}
