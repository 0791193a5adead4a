//! Pools whose workers are jobs of a batch system that does not answer.
//!
//! Each job is a FIFO with the name of its worker. The command `status` reads from it, so it ends when
//! the test has answered.

use crate::{
    api::pool_when,
    harness::{Broker, FakeProxy, FakeWorker, Rules, wait_for, wait_until},
};
use baton_broker::{Person, Role};
use baton_postgres_tests::{Disk, Server};
use baton_protocol::{
    api::{Pool, PoolWorkerState},
    worker::{FromWorker, ToWorker},
};
use baton_transport::{Api, LinkError, connect};
use std::{fs, io::ErrorKind, path::Path};
use tempfile::TempDir;
use tokio::net::unix::pipe;

/// The folder of the jobs.
fn jobs() -> TempDir {
    tempfile::tempdir().unwrap()
}

/// A pool in the list of pools. No command reaches its time limit.
fn pool(name: &str, max: u32, jobs: &Path) -> String {
    let jobs = jobs.display();
    format!(
        "{{ name = '{name}', provider = 'command', max = {max}, \
           submit = 'sh -c \"mkfifo {jobs}/{{name}} && echo {{name}}\"', \
           status = 'sh -c \"cat {jobs}/{{id}}; true\"', cancel = 'true', find = '', expected = '', \
           check = '1ms', target_wait = '1s', command_limit = '1h' }}"
    )
}

fn rules(pools: &[String]) -> Rules {
    let courses: std::collections::BTreeMap<_, _> = [("ml".to_owned(), Role::Student)].into();
    let people = ["ada", "ben"]
        .map(|name| Person::new(name.to_owned(), name, false, courses.clone()).entry());
    Rules {
        token: Some("sesame"),
        tcp: true,
        people: Some(people.concat()),
        pools: Some(format!("[{}]", pools.join(", "))),
        ..Rules::default()
    }
}

/// Waits until the pool has so many jobs. Returns the names of their workers, which are also the ids
/// of the jobs.
async fn jobs_of(broker: &Broker, pool: &str, count: usize) -> Vec<String> {
    let has_all = |pool: &Pool| {
        let known = pool.workers.iter().filter(|worker| worker.job.is_some());
        known.count() == count
    };
    let pool = pool_when(broker, pool, has_all).await;
    pool.workers.into_iter().map(|worker| worker.name).collect()
}

/// Waits until a command reads from the FIFO, and holds the command until the result is dropped.
async fn reader(fifo: &Path) -> pipe::Sender {
    wait_for("a command", async || {
        pipe::OpenOptions::new().open_sender(fifo).ok()
    })
    .await
}

/// Waits until the command that reads from the FIFO is killed.
async fn killed(command: &pipe::Sender) {
    wait_until("a killed command", async || {
        command.writable().await.unwrap();
        let written = command.try_write(b"?");
        written.is_err_and(|error| error.kind() == ErrorKind::BrokenPipe)
    })
    .await;
}

fn token_of(broker: &Broker, name: &str) -> String {
    let file = broker.folder.path().join(format!("pools/{name}.token"));
    fs::read_to_string(file).unwrap()
}

async fn worker(broker: &Broker, name: &str) -> FakeWorker {
    FakeWorker::new(&broker.dial_as(&token_of(broker, name))).await
}

fn submitted(jobs: &Path) -> usize {
    fs::read_dir(jobs).unwrap().count()
}

#[tokio::test]
async fn a_batch_system_that_does_not_answer_delays_only_its_own_pool() {
    let (slow, fast) = (jobs(), jobs());
    let pools = [pool("slow", 1, slow.path()), pool("fast", 1, fast.path())];
    let broker = Broker::start_with(rules(&pools)).await;
    let mut ada = FakeProxy::new(&broker.dial_as("ada")).await;
    let mut ben = FakeProxy::new(&broker.dial_as("ben")).await;
    ada.submit().await;
    let [waits] = &jobs_of(&broker, "slow", 1).await[..] else {
        panic!("one job");
    };
    let held = reader(&slow.path().join(waits)).await;

    ben.submit().await;
    let [starts] = &jobs_of(&broker, "fast", 1).await[..] else {
        panic!("one job");
    };
    drop(reader(&fast.path().join(starts)).await);
    pool_when(&broker, "fast", |pool| pool.failures == 1).await;
    let [replaces] = &jobs_of(&broker, "fast", 1).await[..] else {
        panic!("one job");
    };
    let _worker = worker(&broker, replaces).await;
    pool_when(&broker, "fast", |pool| pool.up == 1).await;
    // Requests to the pool that waits are answered, too.
    let api = Api::new(&broker.dial).unwrap();
    let resumed: Pool = api.act("/v1/pools/slow/resume", &()).await.unwrap();
    assert_eq!((resumed.pending, resumed.up), (1, 0));

    broker.stop().await;
    killed(&held).await;
    assert_eq!((submitted(slow.path()), submitted(fast.path())), (1, 2));
}

#[tokio::test]
async fn a_question_without_an_answer_delays_no_start_and_its_late_answer_ends_no_worker() {
    let jobs = jobs();
    let broker = Broker::start_with(rules(&[pool("slow", 2, jobs.path())])).await;
    let mut ada = FakeProxy::new(&broker.dial_as("ada")).await;
    let mut ben = FakeProxy::new(&broker.dial_as("ben")).await;
    ada.submit().await;
    let first = jobs_of(&broker, "slow", 1).await.remove(0);
    let held = reader(&jobs.path().join(&first)).await;
    ben.submit().await;
    let both = jobs_of(&broker, "slow", 2).await;
    let second = both.iter().find(|name| **name != first).unwrap();
    let _worker = worker(&broker, &first).await;
    pool_when(&broker, "slow", |pool| pool.up == 1).await;

    // The answer says that the job has ended. It has been read when the next question is asked.
    drop(held);
    let _held = reader(&jobs.path().join(second)).await;
    let pool = pool_when(&broker, "slow", |pool| pool.up == 1).await;
    assert_eq!((pool.workers.len(), pool.failures), (2, 0));
    assert_eq!(submitted(jobs.path()), 2);
}

#[tokio::test]
async fn a_broker_that_is_not_the_leader_runs_no_command() {
    let mut server = Server::start(Disk::NoSync);
    let jobs = jobs();
    let broker = Broker::start_with(Rules {
        database: Some(server.url()),
        ..rules(&[pool("slow", 1, jobs.path())])
    })
    .await;
    let mut ada = FakeProxy::new(&broker.dial_as("ada")).await;
    ada.submit().await;
    let job = jobs_of(&broker, "slow", 1).await.remove(0);
    let held = reader(&jobs.path().join(&job)).await;
    server.kill();
    killed(&held).await;
    drop(held);

    server.start_again();
    let _held = reader(&jobs.path().join(&job)).await;
    assert_eq!(jobs_of(&broker, "slow", 1).await, [job]);
    assert_eq!(submitted(jobs.path()), 1);
    broker.stop().await;
}

/// The broker ends while it submits the job. At first, the batch system does not answer the next one.
#[tokio::test]
async fn a_job_whose_id_was_not_read_is_found_once_the_batch_system_answers() {
    let (jobs, answers) = (jobs(), tempfile::tempdir().unwrap());
    let [submit, found, asked] = ["submit", "found", "asked"].map(|name| answers.path().join(name));
    let made = std::process::Command::new("mkfifo")
        .args([&submit, &found])
        .status();
    assert!(made.unwrap().success());
    let first = pool("slow", 1, jobs.path())
        .replace("&& echo", &format!("&& cat {} && echo", submit.display()));
    let broker = Broker::start_with(rules(std::slice::from_ref(&first))).await;
    let mut ada = FakeProxy::new(&broker.dial_as("ada")).await;
    ada.submit().await;
    let held = reader(&submit).await;
    let folder = broker.stop().await;

    // A worker without a job ends after its start limit.
    let find = format!(
        "start_limit = '1ms', find = 'sh -c \"echo >> {}; exec cat {}\"'",
        asked.display(),
        found.display()
    );
    let second = first.replace("find = ''", &find).replace("'1h'", "'1s'");
    let broker = Broker::start_in(folder, rules(&[second])).await;
    wait_until("questions", async || {
        let questions = fs::read_to_string(&asked).unwrap_or_default();
        questions.lines().count() >= 3
    })
    .await;
    let known = pool_when(&broker, "slow", |pool| pool.workers.len() == 1).await;
    let (name, answer) = (&known.workers[0].name, answers.path().join("answer"));
    fs::write(&answer, name).unwrap();
    fs::rename(&answer, &found).unwrap();
    assert_eq!(jobs_of(&broker, "slow", 1).await, [name.as_str()]);
    assert_eq!(submitted(jobs.path()), 1);
    broker.stop().await;
    drop(held);
}

/// The command prints no id or does not end, although it has submitted a job. At first, the batch system does not
/// know the job yet.
#[tokio::test]
async fn a_job_is_found_after_a_submission_without_an_answer() {
    for (end, why) in [("true", "no job id"), ("sleep 600", "did not end within")] {
        let (jobs, answers) = (jobs(), tempfile::tempdir().unwrap());
        let find = format!(
            "find = 'sh -c \"mkdir {} && exit; cd {} && ls -d {{name}}\"'",
            answers.path().join("asked").display(),
            jobs.path().display()
        );
        let slow = pool("slow", 1, jobs.path())
            .replace("&& echo {name}", &format!("; {end}"))
            .replace("find = ''", &find)
            .replace("'1h'", "'5s'");
        let broker = Broker::start_with(rules(&[slow])).await;
        let mut ada = FakeProxy::new(&broker.dial_as("ada")).await;
        ada.submit().await;
        let known = pool_when(&broker, "slow", |pool| {
            pool.workers.iter().any(|worker| worker.job.is_some())
        })
        .await;
        let failure = known.last_failure.unwrap();
        assert!(failure.contains(why), "{failure}");
        let name = &known.workers[0].name;
        assert!(known.workers[0].job.as_ref().unwrap().ends_with(name));
        assert_eq!((known.failures, submitted(jobs.path())), (1, 1));
        let _worker = worker(&broker, name).await;
        pool_when(&broker, "slow", |pool| pool.up == 1 && pool.failures == 0).await;
        broker.stop().await;
    }
}

#[tokio::test]
async fn a_submission_without_an_id_ends_if_there_is_no_job_within_its_start_limit() {
    let jobs = jobs();
    let slow = pool("slow", 1, jobs.path())
        .replace("mkfifo", "exit 0; mkfifo")
        .replace("find = ''", "find = 'true', start_limit = '1ms'");
    let broker = Broker::start_with(rules(&[slow])).await;
    let mut ada = FakeProxy::new(&broker.dial_as("ada")).await;
    ada.submit().await;
    let has_ended = |pool: &Pool| pool.paused && pool.workers.is_empty();
    pool_when(&broker, "slow", has_ended).await;
    let tokens = fs::read_dir(broker.folder.path().join("pools")).unwrap();
    assert_eq!(tokens.count(), 0);
}

#[tokio::test]
async fn a_worker_whose_state_stays_unknown_ends_at_its_start_limit() {
    let (shows, ends) = (jobs(), jobs());
    let shown = pool("shows", 1, shows.path()).replace("'1h'", "'1s'");
    let ended = pool("ends", 1, ends.path()).replace("'1h'", "'1s', start_limit = '1ms'");
    let broker = Broker::start_with(rules(&[shown, ended])).await;
    let mut ada = FakeProxy::new(&broker.dial_as("ada")).await;
    let mut ben = FakeProxy::new(&broker.dial_as("ben")).await;
    ada.submit().await;
    ben.submit().await;
    let silent = pool_when(&broker, "shows", |pool| pool.last_failure.is_some()).await;
    let why = silent.last_failure.unwrap();
    let expected = "The batch system does not answer: sh did not end within 1 s";
    assert_eq!((why.as_str(), silent.failures), (expected, 0));
    let failed = pool_when(&broker, "ends", |pool| {
        pool.paused && pool.workers.is_empty()
    })
    .await;
    let why = failed.last_failure.unwrap();
    assert!(
        why.starts_with("The state of its job was unknown for"),
        "{why}"
    );
}

/// No command about a job succeeds, as in maintenance of the batch system, which keeps the jobs.
#[tokio::test]
async fn a_worker_that_waits_through_an_outage_of_the_batch_system_still_waits_after_it() {
    let (jobs, answers) = (jobs(), tempfile::tempdir().unwrap());
    let [state, cancelled] = ["state", "cancelled"].map(|name| answers.path().join(name));
    let state_of_all = format!("cat {}", state.display());
    let attempt = format!("echo >> {}", cancelled.display());
    let cancel = format!("cancel = 'sh -c \"{attempt}; exit 1\"', start_limit = '1ms'");
    let down = pool("down", 1, jobs.path())
        .replace(
            &format!("cat {}/{{id}}; true", jobs.path().display()),
            &state_of_all,
        )
        .replace("cancel = 'true'", &cancel);
    let broker = Broker::start_with(rules(&[down])).await;
    let mut ada = FakeProxy::new(&broker.dial_as("ada")).await;
    ada.submit().await;
    let job = jobs_of(&broker, "down", 1).await.remove(0);
    wait_until("attempts to cancel the job", async || {
        let attempts = fs::read_to_string(&cancelled).unwrap_or_default();
        attempts.lines().count() >= 3
    })
    .await;

    let answer = answers.path().join("answer");
    fs::write(&answer, "PENDING").unwrap();
    fs::rename(&answer, &state).unwrap();
    let is_queued = |pool: &Pool| {
        let mut workers = pool.workers.iter();
        workers.any(|worker| worker.state == PoolWorkerState::Queued)
    };
    let pool = pool_when(&broker, "down", is_queued).await;
    assert_eq!((pool.failures, pool.workers.len()), (0, 1));
    assert_eq!(jobs_of(&broker, "down", 1).await, [job]);
    assert_eq!(submitted(jobs.path()), 1);
}

#[tokio::test]
async fn without_its_pool_a_waiting_job_cannot_join_and_a_connected_worker_continues() {
    let jobs = jobs();
    let broker = Broker::start_with(rules(&[pool("slow", 2, jobs.path())])).await;
    let mut ada = FakeProxy::new(&broker.dial_as("ada")).await;
    let mut ben = FakeProxy::new(&broker.dial_as("ben")).await;
    ada.submit().await;
    ben.submit().await;
    let [connects, waits] = &jobs_of(&broker, "slow", 2).await[..] else {
        panic!("two jobs");
    };
    let tokens = [connects, waits].map(|name| token_of(&broker, name));
    drop(worker(&broker, connects).await);

    let folder = broker.stop().await;
    let broker = Broker::start_in(folder, rules(&[])).await;
    let [connected, waiting] = tokens.map(|token| broker.dial_as(&token));
    let refusal = wait_for("a refusal", async || {
        let connected = connect::<ToWorker, FromWorker>(&waiting, "/v1/worker").await;
        connected.err()
    })
    .await;
    assert!(
        matches!(refusal, LinkError::Unauthorized { .. }),
        "{refusal}"
    );
    FakeWorker::new(&connected).await;
    broker.stop().await;
}

#[tokio::test]
async fn without_a_folder_for_tokens_no_job_is_submitted() {
    let jobs = jobs();
    let nowhere = "token_folder = '/dev/null/tokens', check = ";
    let slow = pool("slow", 1, jobs.path()).replace("check = ", nowhere);
    let broker = Broker::start_with(rules(&[slow])).await;
    let mut ada = FakeProxy::new(&broker.dial_as("ada")).await;
    ada.submit().await;
    let paused = pool_when(&broker, "slow", |pool| pool.paused).await;
    let why = paused.last_failure.unwrap();
    assert!(
        why.starts_with("Failed to write a token into /dev/null/tokens: Not a directory"),
        "{why}"
    );
    assert_eq!(submitted(jobs.path()), 0);
}
