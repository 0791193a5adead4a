//! A pool whose workers are started by something else: its desired number, and who may join.

use crate::{
    api::{answer, pool_when, problem, read},
    harness::{
        Broker, FakeProxy, FakeWorker, MONITOR_TOKEN, PATIENCE, POOL_TOKEN, Rules, started,
        wait_for, wait_until,
    },
};
use baton_broker::{Person, Role};
use baton_broker_store::Store;
use baton_protocol::{
    api::{JoinPool, Joined, Pool, Scale},
    proxy::WaitingReason,
    worker::FromWorker,
};
use baton_transport::{Api, LinkError};
use std::{collections::BTreeMap, time::Duration};
use tempfile::TempDir;

async fn broker(pool: &'static str) -> Broker {
    let courses: BTreeMap<_, _> = [("ml".to_owned(), Role::Student)].into();
    let people = ["ada", "ben", "eve"];
    let people =
        people.map(|name| Person::new(name.to_owned(), name, false, courses.clone()).entry());
    let gpu = Person::new_worker("gpu-1".to_owned(), "gpu-1").entry();
    Broker::start_with(Rules {
        token: Some("sesame"),
        tcp: true,
        people: Some(people.concat() + &gpu),
        pool: Some(pool),
        ..Rules::default()
    })
    .await
}

async fn join(broker: &Broker, token: &str, called: &str) -> Result<Joined, LinkError> {
    let called = Some(called.to_owned());
    let api = Api::new(&broker.dial_as(token)).unwrap();
    let join = JoinPool { called };
    wait_for("the pool's numbers", async || {
        match api.act("/v1/pools/kube/workers", &join).await {
            // The broker has just started and does not know the numbers yet.
            Err(LinkError::Status { status: 503, .. }) => None,
            answer => Some(answer),
        }
    })
    .await
}

/// A worker of the pool that has just started.
async fn worker(broker: &Broker, called: &str) -> (Joined, FakeWorker) {
    let joined = join(broker, POOL_TOKEN, called).await.ok().unwrap();
    let worker = FakeWorker::new(&broker.dial_as(&joined.token)).await;
    (joined, worker)
}

/// Waits until the numbers are as expected.
async fn until(broker: &Broker, wanted: u32, processes: u32) {
    let mut last = String::new();
    let reached = async {
        loop {
            let response = answer(broker, MONITOR_TOKEN, "/v1/scale/kube").await;
            if response.status() == 200 {
                let scale: Scale = read(response).await;
                last = format!("{scale:?}");
                if (scale.wanted, scale.processes) == (wanted, processes) {
                    return;
                }
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let reached = tokio::time::timeout(PATIENCE, reached).await;
    assert!(reached.is_ok(), "expected {wanted} and {processes}: {last}");
}

#[tokio::test]
async fn a_worker_that_was_connected_before_a_restart_is_gone_until_it_connects_again() {
    let gone = async |folder: &TempDir| {
        let database = folder.path().join("broker.db").into();
        let store = Store::open(&database).await.unwrap();
        let absent = store.pools().absent(i64::MAX).await.unwrap();
        store.close().await.unwrap();
        absent.into_iter().map(|row| row.name).collect::<Vec<_>>()
    };
    let broker = broker("max = 1").await;
    let (joined, _worker) = worker(&broker, "one").await;
    let folder = broker.stop().await;
    assert!(gone(&folder).await.is_empty());
    let folder = Broker::start_in(folder, Rules::default())
        .await
        .stop()
        .await;
    assert_eq!(gone(&folder).await, [joined.name]);
}

#[tokio::test]
async fn waiting_cells_want_workers_which_join_and_run_them() {
    let broker = broker("max = 3, idle = '7m', walltime = '1h'").await;
    until(&broker, 0, 0).await;
    let mut ada = FakeProxy::new(&broker.dial_as("ada")).await;
    let job = ada.submit().await;
    // The pool has not requested it yet.
    let first = ada.position(job).await;
    let is_told = matches!(first, (1, WaitingReason::MachineStarting { .. }));
    assert!(is_told, "{first:?}");
    until(&broker, 1, 1).await;
    pool_when(&broker, "kube", |pool| (pool.up, pool.pending) == (0, 1)).await;
    let (joined, mut worker) = worker(&broker, "baton-worker-x7f2q").await;
    assert!(joined.name.starts_with("kube-"), "{}", joined.name);
    assert_eq!(joined.idle_exit_ms, Some(7 * 60_000));
    assert_eq!(joined.leaves_in_ms, Some(3_600_000));
    assert_eq!(worker.run_to_end().await, job);
    ada.events_after(job, 0).await;
    until(&broker, 0, 0).await;
    let seen = pool_when(&broker, "kube", |pool| (pool.up, pool.pending) == (1, 0)).await;
    assert_eq!(seen.workers[0].name, joined.name);
    assert_eq!(seen.workers[0].job.as_deref(), Some("baton-worker-x7f2q"));
    assert!(seen.start.is_some(), "how long a start takes is known");
}

#[tokio::test]
async fn a_cell_behind_a_busy_worker_is_told_of_the_worker_that_starts_for_it() {
    let broker = broker("max = 2").await;
    let mut ada = FakeProxy::new(&broker.dial_as("ada")).await;
    let mut ben = FakeProxy::new(&broker.dial_as("ben")).await;
    let mut eve = FakeProxy::new(&broker.dial_as("eve")).await;
    ada.submit().await;
    let (_, mut busy) = worker(&broker, "one").await;
    busy.assignment().await;
    let waits = ben.submit().await;
    while !matches!(
        ben.position(waits).await,
        (1, WaitingReason::MachineStarting { .. })
    ) {}
    // The pool may have no more workers, so this one must wait for one of the others.
    let last = eve.submit().await;
    assert_eq!(eve.position(last).await, (2, WaitingReason::JobsAhead));
}

/// The number of processes must not drop for a worker that is leaving but still occupies its machine.
#[tokio::test]
async fn a_worker_that_leaves_counts_as_a_process_until_it_has_left() {
    let broker = broker("max = 3, min = 1").await;
    until(&broker, 1, 1).await;
    let (joined, mut leaving) = worker(&broker, "one").await;
    assert_eq!(joined.idle_exit_ms, None, "the pool keeps one worker");
    let mut ada = FakeProxy::new(&broker.dial_as("ada")).await;
    let job = ada.submit().await;
    let (fencing, _) = leaving.assignment().await;
    ada.assigned(job).await;
    leaving.report(job, fencing, 1, vec![started()]).await;
    leaving.send(FromWorker::Drain {}).await;
    until(&broker, 1, 2).await;
    let (next, _next) = worker(&broker, "two").await;
    assert_eq!(next.idle_exit_ms, Some(5 * 60_000));
    drop(leaving);
    until(&broker, 1, 1).await;
}

#[tokio::test]
async fn no_more_workers_join_than_the_pool_may_have() {
    let broker = broker("max = 1").await;
    let (_, first) = worker(&broker, "one").await;
    let Err(LinkError::Refused { problem }) = join(&broker, POOL_TOKEN, "two").await else {
        panic!("the pool is full");
    };
    assert_eq!(problem.kind, "urn:baton:pool-full");
    assert_eq!(problem.status, 409);
    assert!(
        problem.detail.contains("its maximum is 1"),
        "{}",
        problem.detail
    );
    // A worker that is gone does not block its replacement.
    drop(first);
    wait_until("a place", async || {
        join(&broker, POOL_TOKEN, "two").await.is_ok()
    })
    .await;
}

#[tokio::test]
async fn each_token_opens_what_it_is_for_and_nothing_else() {
    let broker = broker("max = 3").await;
    let (joined, _worker) = worker(&broker, "one").await;
    let ask = async |token: &str, path: &str| {
        let response = answer(&broker, token, path).await;
        match response.status().as_u16() {
            200 => "200".to_owned(),
            _ => problem(response).await.kind,
        }
    };
    for path in ["/metrics", "/v1/scale/kube"] {
        assert_eq!(ask(MONITOR_TOKEN, path).await, "200");
        assert_eq!(ask("sesame", path).await, "200");
        assert_eq!(ask("ada", path).await, "urn:baton:forbidden");
        assert_eq!(ask("gpu-1", path).await, "urn:baton:not-a-person");
        assert_eq!(ask(&joined.token, path).await, "urn:baton:not-a-person");
        assert_eq!(ask(POOL_TOKEN, path).await, "urn:baton:forbidden");
    }
    for path in ["/v1/jobs", "/v1/pools", "/v1/states", "/v1/history"] {
        assert_eq!(ask(MONITOR_TOKEN, path).await, "urn:baton:forbidden");
        assert_eq!(ask(POOL_TOKEN, path).await, "urn:baton:forbidden");
    }
    for token in [MONITOR_TOKEN, POOL_TOKEN] {
        assert_eq!(ask(token, "/v1/worker").await, "urn:baton:not-a-worker");
        assert_eq!(ask(token, "/").await, ask(token, "/v1/jobs").await);
    }
    for token in ["ada", "gpu-1", MONITOR_TOKEN, &joined.token] {
        let refused = join(&broker, token, "mallory").await;
        assert!(refused.is_err(), "{token}");
    }
    assert_eq!(
        ask(MONITOR_TOKEN, "/v1/scale/other").await,
        "urn:baton:unknown-pool"
    );
    let metrics = broker.get_as(MONITOR_TOKEN, "/metrics").await;
    assert!(metrics.contains("baton_pool_wanted_workers{pool=\"kube\"} 0"));
}

#[tokio::test]
async fn what_a_worker_is_called_is_never_more_than_a_name() {
    let broker = broker("max = 8").await;
    let texts = ["", "a b", "<b>", "../x", &"x".repeat(254)];
    for called in texts {
        join(&broker, POOL_TOKEN, called).await.ok().unwrap();
    }
    let seen = pool_when(&broker, "kube", |pool| pool.workers.len() == texts.len()).await;
    assert!(seen.workers.iter().all(|worker| worker.job.is_none()));
}

/// A container that is restarted again and again, for example because its sandbox does not work.
#[tokio::test]
async fn a_worker_that_joins_again_takes_no_second_place_and_counts_as_failed() {
    let broker = broker("max = 1, idle = 'never'").await;
    for _ in 0..4 {
        let joined = join(&broker, POOL_TOKEN, "pod-1").await.ok().unwrap();
        assert_eq!(joined.idle_exit_ms, None);
    }
    let paused = pool_when(&broker, "kube", |pool| pool.paused).await;
    assert_eq!((paused.failures, paused.workers.len()), (3, 1));
    let why = paused.last_failure.unwrap_or_default();
    assert!(why.contains("pod-1 joined but ended before"), "{why}");
    // A worker that had connected does not count as failed.
    let (_, came) = worker(&broker, "pod-1").await;
    pool_when(&broker, "kube", |pool| pool.up == 1).await;
    drop(came);
    wait_until("a place", async || {
        join(&broker, POOL_TOKEN, "pod-1").await.is_ok()
    })
    .await;
    let seen = pool_when(&broker, "kube", |pool| pool.workers.len() == 2).await;
    assert_eq!(seen.failures, 4);
}

/// For example, if pods cannot reach the broker's WebSocket, or if nothing starts pods.
#[tokio::test]
async fn workers_on_which_no_session_starts_pause_the_pool() {
    let broker = broker("max = 3").await;
    let mut workers = Vec::new();
    for called in ["a", "b", "c"] {
        let joined = join(&broker, POOL_TOKEN, called).await.ok().unwrap();
        workers.push(FakeWorker::failing(&broker.dial_as(&joined.token), "no disk").await);
    }
    let paused = pool_when(&broker, "kube", |pool| pool.paused).await;
    assert_eq!(paused.failures, 3);
    let why = paused.last_failure.unwrap_or_default();
    assert_eq!(why, "Sessions cannot start there: no disk");
}

#[tokio::test]
async fn workers_that_do_not_come_are_told_of_and_pause_the_pool() {
    let broker = broker("max = 8, start_limit = '1s'").await;
    let mut ada = FakeProxy::new(&broker.dial_as("ada")).await;
    ada.submit().await;
    let late = pool_when(&broker, "kube", |pool| pool.last_failure.is_some()).await;
    let why = late.last_failure.unwrap_or_default();
    assert!(why.contains("needed for 1 s, but none has joined"), "{why}");
    assert_eq!(late.failures, 0);

    let joined = join(&broker, POOL_TOKEN, "pod-1").await.ok().unwrap();
    for called in ["pod-2", "pod-3"] {
        join(&broker, POOL_TOKEN, called).await.ok().unwrap();
    }
    let paused = pool_when(&broker, "kube", |pool| pool.paused).await;
    let why = paused.last_failure.unwrap_or_default();
    assert!(why.contains("joined but did not connect"), "{why}");
    assert_eq!(paused.workers, []);
    until(&broker, 0, 0).await;
    let response = answer(&broker, &joined.token, "/v1/worker").await;
    assert_eq!(response.status(), 401, "its life is over");
    let api = Api::new(&broker.dial).unwrap();
    let _: Pool = api.act("/v1/pools/kube/resume", &()).await.unwrap();
    until(&broker, 1, 1).await;
}
