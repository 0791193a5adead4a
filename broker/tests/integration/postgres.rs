//! Brokers on PostgreSQL: one is the leader, the others are followers. Each of them and the
//! database may die.

use crate::harness::{
    Broker, FakeProxy, FakeWorker, KilledBroker, Rules, finished, output, started, wait_until,
    within,
};
use baton_broker::{Config, Database, Listen};
use baton_postgres_tests::{Disk, Server};
use baton_protocol::{
    JobEvent, Outcome,
    proxy::{FromProxy, WaitingReason},
    worker::ToWorker,
};
use baton_transport::Api;
use std::{net::SocketAddr, path::Path};

/// The leader is killed after every event. Worker and proxy reconnect to the other broker.
#[tokio::test]
async fn two_brokers_lose_and_double_nothing() {
    let server = Server::start(Disk::NoSync);
    let url = server.url();
    let folder = tempfile::tempdir().unwrap();
    let mut leader = KilledBroker::start_on(&url, folder.path(), "a").await;
    let mut other = KilledBroker::start_on(&url, folder.path(), "b").await;
    // Both brokers serve every peer, whichever of them is the leader.
    let mut worker = FakeWorker::new(&other.dial).await;
    let mut proxy = FakeProxy::new(&leader.dial).await;
    let (notebook, id) = (proxy.notebook, worker.id);
    let job = proxy.submit().await;
    let (fencing, _) = worker.assignment().await;
    let events = [started(), output("1"), finished(Outcome::Ok)];
    for (number, event) in (1..).zip(&events) {
        worker
            .report(job, fencing, number, vec![event.clone()])
            .await;
        leader.kill();
        worker.expect_closed().await;
        other.ready().await;
        leader = other;
        let name = if number % 2 == 1 { "a" } else { "b" };
        other = KilledBroker::start_on(&url, folder.path(), name).await;
        worker = FakeWorker::back(&other.dial, id, &[(job, fencing)]).await;
        assert!(matches!(worker.next().await, ToWorker::Acknowledge { .. }));
        // As far as the worker knows, the event was not stored.
        worker
            .report(job, fencing, number, vec![event.clone()])
            .await;
    }
    for broker in [&leader, &other] {
        let mut proxy = FakeProxy::of(&broker.dial, notebook).await;
        proxy.send(FromProxy::Resume { job, after: 0 }).await;
        let heard = proxy.events_after(job, 0).await;
        assert!(matches!(heard[0], JobEvent::Assigned { .. }));
        assert_eq!(heard[1..], events);
    }
}

#[tokio::test]
async fn a_broker_outlives_its_database() {
    let mut server = Server::start(Disk::NoSync);
    let rules = Rules {
        database: Some(server.url()),
        ..Rules::default()
    };
    let broker = Broker::start_with(rules).await;
    let mut proxy = FakeProxy::new(&broker.dial).await;
    let job = proxy.submit().await;
    assert_eq!(proxy.position(job).await, (1, WaitingReason::NoWorker));

    server.kill();
    // A message that cannot be stored gets no response, and its sender must reconnect.
    proxy.submit().await;
    proxy.expect_closed().await;
    let api = Api::new(&broker.dial).unwrap();
    assert!(api.get("/health/ready").await.is_err());
    api.get("/health/live").await.unwrap();

    server.start_again();
    wait_until("a database", async || {
        api.get("/health/ready").await.is_ok()
    })
    .await;
    let mut proxy = FakeProxy::of(&broker.dial, proxy.notebook).await;
    proxy.send(FromProxy::Resume { job, after: 0 }).await;
    assert_eq!(proxy.position(job).await, (1, WaitingReason::NoWorker));
    let mut worker = FakeWorker::new(&broker.dial).await;
    assert_eq!(worker.run_to_end().await, job);
    broker.stop().await;
}

/// The server accepts only encrypted connections.
#[tokio::test]
async fn the_way_to_the_database_is_encrypted_when_it_can_be() {
    let server = Server::start_encrypted();
    let certificate = server.certificate().display().to_string();
    let trusted = format!("sslmode=verify-full&sslrootcert={certificate}");
    for options in ["", "sslmode=require", &trusted] {
        let rules = Rules {
            database: Some(server.encrypted_url(options)),
            ..Rules::default()
        };
        let broker = Broker::start_with(rules).await;
        let mut proxy = FakeProxy::new(&broker.dial).await;
        let job = proxy.submit().await;
        let mut worker = FakeWorker::new(&broker.dial).await;
        assert_eq!(worker.run_to_end().await, job);
        broker.stop().await;
    }
    let folder = tempfile::tempdir().unwrap();
    for (options, words) in [
        ("sslmode=disable", "no encryption"),
        ("sslmode=verify-full", "invalid peer certificate"),
    ] {
        let refusal = refusal(folder.path(), None, &server.encrypted_url(options)).await;
        assert!(refusal.contains(words), "{refusal}");
    }
}

#[tokio::test]
async fn what_a_person_must_mend_is_said_at_the_start_and_without_the_password() {
    let server = Server::start(Disk::NoSync);
    let folder = tempfile::tempdir().unwrap();
    let start = async |url: &str| refusal(folder.path(), None, url).await;
    let unknown = start(&server.url().replace("/postgres", "/nothing")).await;
    assert!(unknown.contains("\"nothing\" does not exist"), "{unknown}");
    let wrong = start("postgres://ada:secret@[/baton").await;
    assert!(wrong.contains("postgres://USER:PASSWORD@HOST"), "{wrong}");
    assert!(!wrong.contains("secret"), "{wrong}");
    let everywhere = Listen::Tcp(SocketAddr::from(([0, 0, 0, 0], 0)));
    let unreachable = refusal(folder.path(), Some(everywhere), &server.url()).await;
    assert!(
        unreachable.contains("set broker.advertise"),
        "{unreachable}"
    );
}

/// The error of a broker on this database. By default it listens on a socket in the folder.
async fn refusal(folder: &Path, listen: Option<Listen>, url: &str) -> String {
    let socket = || Listen::Unix(folder.join("broker.sock"));
    let listen = listen.unwrap_or_else(socket);
    let mut config = Config::new(listen, Database::named(url), folder.join("chunks"));
    config.token = Some("a token".to_owned());
    config.behind_tls_proxy = true;
    let run = baton_broker::run(config, drop, std::future::pending());
    let error = within("a refusal", run).await.unwrap_err();
    format!("{error:#}")
}
