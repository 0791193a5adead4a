//! A background cell continues after its notebook kernel has ended, and another kernel of the same
//! person attaches it.

use crate::harness::{
    Broker, FakeProxy, FakeWorker, KilledBroker, Rules, finished, output, started, submission,
};
use baton_broker::{Person, Role};
use baton_chunks::hash;
use baton_protocol::{
    AboutState, FencingNumber, Finished, JobEvent, JobId, JobKind, Manifest, NotebookId, Outcome,
    Piece, SavedState, StateVersion, Submission, TableId,
    proxy::{FromProxy, ToProxy},
    worker::ToWorker,
};
use baton_transport::{ChunkClient, states};
use std::time::Duration;

fn salvageable() -> JobEvent {
    let mut end = finished(Outcome::Ok);
    if let JobEvent::Finished(Finished { salvageable, .. }) = &mut end {
        *salvageable = true;
    }
    end
}

fn salvaged() -> JobEvent {
    let manifest = Manifest {
        base: StateVersion {
            table: TableId(uuid::Uuid::nil()),
            messages: 0,
        },
        stream: vec![Piece::Inline("what the cell left".into())],
        segments: Vec::new(),
        dropped_segments: Vec::new(),
    };
    JobEvent::Salvaged {
        state: Some(Box::new(SavedState {
            about: AboutState::default(),
            manifest,
        })),
        files: vec![hash(b"a file")],
        error: None,
    }
}

/// Starts a job that has printed a line.
async fn runs(
    proxy: &mut FakeProxy,
    worker: &mut FakeWorker,
    kind: JobKind,
) -> (JobId, FencingNumber) {
    let mut cell = submission(proxy.notebook);
    cell.cell.kind = kind;
    let Submission { job, .. } = cell;
    proxy.send(FromProxy::Submit(cell)).await;
    let (fencing, _) = worker.assignment().await;
    proxy.assigned(job).await;
    let events = vec![started(), output("begun")];
    worker.report(job, fencing, 1, events).await;
    assert_eq!(proxy.batch(job).await.len(), 2);
    (job, fencing)
}

/// Sends the last event, and waits until the session may end.
async fn salvage(
    worker: &mut FakeWorker,
    notebook: NotebookId,
    job: JobId,
    fencing: FencingNumber,
) {
    worker.send_events(job, fencing, 4, vec![salvaged()]).await;
    assert_eq!(worker.next().await, ToWorker::EndSession { notebook });
    let stored = ToWorker::Acknowledge {
        job,
        fencing,
        number: 4,
    };
    assert_eq!(worker.next().await, stored);
}

/// This many events, in any batches.
async fn heard(proxy: &mut FakeProxy, job: JobId, count: usize) -> Vec<JobEvent> {
    let mut events = Vec::new();
    while events.len() < count {
        let batch = proxy.batch(job).await;
        events.extend(batch.into_iter().map(|numbered| numbered.event));
    }
    assert_eq!(events.len(), count);
    events
}

async fn attachable(broker: &Broker, person: &str) -> Vec<(JobId, Option<Outcome>)> {
    let chunks = ChunkClient::new(&broker.dial_as(person)).unwrap();
    let jobs = states::attachable(&chunks).await.unwrap();
    jobs.into_iter().map(|job| (job.job, job.outcome)).collect()
}

async fn class() -> Broker {
    let person = |name: &str| {
        let courses = [("ml".to_owned(), Role::Student)].into();
        Person::new(name.to_owned(), name, false, courses).entry()
    };
    Broker::start_with(Rules {
        token: Some("sesame"),
        people: Some([person("ada"), person("mallory")].concat()),
        proxy_grace: Duration::ZERO,
        ..Rules::default()
    })
    .await
}

#[tokio::test]
async fn another_kernel_hears_it_from_the_beginning_and_takes_what_it_left() {
    let broker = class().await;
    let mut worker = FakeWorker::new(&broker.dial_as("sesame")).await;
    let mut first = FakeProxy::new(&broker.dial_as("ada")).await;
    let notebook = first.notebook;
    let (job, fencing) = runs(&mut first, &mut worker, JobKind::Background).await;
    assert_eq!(attachable(&broker, "ada").await, []);
    first.send(FromProxy::Goodbye {}).await;
    assert_eq!(worker.next().await, ToWorker::Salvage { job });
    assert_eq!(attachable(&broker, "ada").await, [(job, None)]);
    assert_eq!(attachable(&broker, "mallory").await, []);

    let mut second = FakeProxy::new(&broker.dial_as("ada")).await;
    second.send(FromProxy::Attach { job, after: 0 }).await;
    // The three events include its assignment.
    heard(&mut second, job, 3).await;
    worker.report(job, fencing, 3, vec![salvageable()]).await;
    assert_eq!(second.event(job).await, salvageable());
    salvage(&mut worker, notebook, job, fencing).await;
    assert_eq!(second.event(job).await, salvaged());
    assert_eq!(attachable(&broker, "ada").await, [(job, Some(Outcome::Ok))]);
    second.send(FromProxy::Applied { job }).await;
    second.expect_silence().await;
    assert_eq!(second.closed, [job]);
    assert_eq!(attachable(&broker, "ada").await, []);
}

#[tokio::test]
async fn no_other_person_attaches_or_discards_it() {
    let broker = class().await;
    let mut worker = FakeWorker::new(&broker.dial_as("sesame")).await;
    let mut ada = FakeProxy::new(&broker.dial_as("ada")).await;
    let (job, fencing) = runs(&mut ada, &mut worker, JobKind::Background).await;
    let mut mallory = FakeProxy::new(&broker.dial_as("mallory")).await;
    let refuses = async |mallory: &mut FakeProxy| {
        mallory.send(FromProxy::Attach { job, after: 0 }).await;
        assert_eq!(mallory.next().await, ToProxy::UnknownJob { job });
        let chunks = ChunkClient::new(&broker.dial_as("mallory")).unwrap();
        assert!(states::discard(&chunks, job).await.is_err());
    };
    refuses(&mut mallory).await;
    ada.send(FromProxy::Goodbye {}).await;
    assert_eq!(worker.next().await, ToWorker::Salvage { job });
    refuses(&mut mallory).await;
    worker.report(job, fencing, 3, vec![salvageable()]).await;
    mallory.expect_silence().await;
    let chunks = ChunkClient::new(&broker.dial_as("ada")).unwrap();
    states::discard(&chunks, job).await.unwrap();
    assert_eq!(worker.next().await, ToWorker::Revoke { job, fencing });
}

#[tokio::test]
async fn a_kernel_that_was_only_cut_off_has_its_cell_again() {
    let broker = class().await;
    let mut worker = FakeWorker::new(&broker.dial_as("sesame")).await;
    let dial = broker.dial_as("ada");
    let mut proxy = FakeProxy::new(&dial).await;
    let notebook = proxy.notebook;
    let (job, fencing) = runs(&mut proxy, &mut worker, JobKind::Background).await;
    drop(proxy);
    assert_eq!(worker.next().await, ToWorker::Salvage { job });
    let mut proxy = FakeProxy::of(&dial, notebook).await;
    proxy.send(FromProxy::Resume { job, after: 3 }).await;
    assert_eq!(worker.next().await, ToWorker::Adopted { job });
    worker.report(job, fencing, 3, vec![salvageable()]).await;
    assert_eq!(proxy.event(job).await, salvageable());
    assert_eq!(attachable(&broker, "ada").await, []);
    // Its changes do not fit any more, so this kernel attaches it like any other. A repeated message changes nothing.
    proxy.send(FromProxy::Detach { job }).await;
    proxy.send(FromProxy::Detach { job }).await;
    assert_eq!(worker.next().await, ToWorker::Salvage { job });
    assert_eq!(attachable(&broker, "ada").await, [(job, Some(Outcome::Ok))]);
    proxy.send(FromProxy::Attach { job, after: 4 }).await;
    worker.send_events(job, fencing, 4, vec![salvaged()]).await;
    assert_eq!(proxy.event(job).await, salvaged());
    proxy.send(FromProxy::Applied { job }).await;
    proxy.expect_silence().await;
    assert_eq!(proxy.closed, [job, job, job]);
}

#[tokio::test]
async fn any_other_cell_ends_with_its_kernel() {
    let broker = class().await;
    let mut worker = FakeWorker::new(&broker.dial_as("sesame")).await;
    for kind in [JobKind::Cell, JobKind::Block, JobKind::Call] {
        let mut proxy = FakeProxy::new(&broker.dial_as("ada")).await;
        let notebook = proxy.notebook;
        let (job, fencing) = runs(&mut proxy, &mut worker, kind).await;
        proxy.send(FromProxy::Goodbye {}).await;
        assert_eq!(worker.next().await, ToWorker::Cancel { job });
        assert_eq!(worker.next().await, ToWorker::EndSession { notebook });
        let end = vec![finished(Outcome::Cancelled)];
        worker.report(job, fencing, 3, end).await;
    }
    assert_eq!(attachable(&broker, "ada").await, []);
}

#[tokio::test]
async fn the_newest_kernel_that_attaches_it_counts() {
    let broker = class().await;
    let mut worker = FakeWorker::new(&broker.dial_as("sesame")).await;
    let mut first = FakeProxy::new(&broker.dial_as("ada")).await;
    let (job, fencing) = runs(&mut first, &mut worker, JobKind::Background).await;
    first.send(FromProxy::Goodbye {}).await;
    let mut second = FakeProxy::new(&broker.dial_as("ada")).await;
    let mut third = FakeProxy::new(&broker.dial_as("ada")).await;
    for proxy in [&mut second, &mut third] {
        proxy.send(FromProxy::Attach { job, after: 0 }).await;
        heard(proxy, job, 3).await;
    }
    assert_eq!(second.next().await, ToProxy::UnknownJob { job });
    assert_eq!(worker.next().await, ToWorker::Salvage { job });
    worker.report(job, fencing, 3, vec![output("on")]).await;
    assert_eq!(third.event(job).await, output("on"));
    // This notebook stops following the job, and the job continues.
    third.send(FromProxy::Detach { job }).await;
    third.send(FromProxy::Cancel { job }).await;
    assert_eq!(third.next().await, ToProxy::UnknownJob { job });
    worker.report(job, fencing, 4, vec![output("and on")]).await;
    third.expect_silence().await;
    second.send(FromProxy::Attach { job, after: 4 }).await;
    assert_eq!(second.event(job).await, output("and on"));
}

#[tokio::test]
async fn a_killed_broker_remembers_it() {
    let folder = tempfile::tempdir().unwrap();
    let broker = KilledBroker::start(folder.path()).await;
    let mut worker = FakeWorker::new(&broker.dial).await;
    let mut proxy = FakeProxy::new(&broker.dial).await;
    let (id, notebook) = (worker.id, proxy.notebook);
    let (job, fencing) = runs(&mut proxy, &mut worker, JobKind::Background).await;
    proxy.send(FromProxy::Goodbye {}).await;
    assert_eq!(worker.next().await, ToWorker::Salvage { job });

    let broker = broker.kill_and_restart().await;
    let mut worker = FakeWorker::back(&broker.dial, id, &[(job, fencing)]).await;
    let number = 2;
    let stored = ToWorker::Acknowledge {
        job,
        fencing,
        number,
    };
    assert_eq!(worker.next().await, stored);
    assert_eq!(worker.next().await, ToWorker::Salvage { job });
    worker.report(job, fencing, 3, vec![salvageable()]).await;
    salvage(&mut worker, notebook, job, fencing).await;

    let broker = broker.kill_and_restart().await;
    let mut proxy = FakeProxy::new(&broker.dial).await;
    proxy.send(FromProxy::Attach { job, after: 0 }).await;
    let events = heard(&mut proxy, job, 5).await;
    assert_eq!(events.last(), Some(&salvaged()));
    proxy.send(FromProxy::Applied { job }).await;
    proxy.expect_silence().await;
    assert_eq!(proxy.closed, [job]);
}

#[tokio::test]
async fn what_a_lost_worker_had_of_it_is_lost() {
    let broker = Broker::start_with(Rules {
        worker_grace: Duration::ZERO,
        proxy_grace: Duration::ZERO,
        ..Rules::default()
    })
    .await;
    let mut worker = FakeWorker::new(&broker.dial).await;
    let mut proxy = FakeProxy::new(&broker.dial).await;
    let (job, fencing) = runs(&mut proxy, &mut worker, JobKind::Background).await;
    proxy.send(FromProxy::Goodbye {}).await;
    assert_eq!(worker.next().await, ToWorker::Salvage { job });
    worker.report(job, fencing, 3, vec![salvageable()]).await;
    let mut proxy = FakeProxy::new(&broker.dial).await;
    proxy.send(FromProxy::Attach { job, after: 0 }).await;
    heard(&mut proxy, job, 4).await;
    drop(worker);
    let JobEvent::Salvaged { state, error, .. } = proxy.event(job).await else {
        panic!("a last event was due");
    };
    assert!(state.is_none() && error.unwrap().value.contains("was lost"));
}

#[tokio::test]
async fn so_many_of_one_person_wait_and_the_oldest_makes_way() {
    let broker = class().await;
    let mut worker = FakeWorker::new(&broker.dial_as("sesame")).await;
    let mut jobs = Vec::new();
    for _ in 0..22 {
        let mut proxy = FakeProxy::new(&broker.dial_as("ada")).await;
        let (job, fencing) = runs(&mut proxy, &mut worker, JobKind::Background).await;
        proxy.send(FromProxy::Goodbye {}).await;
        assert_eq!(worker.next().await, ToWorker::Salvage { job });
        // Its session has died.
        worker
            .send_events(job, fencing, 3, vec![finished(Outcome::Cancelled)])
            .await;
        while !matches!(worker.next().await, ToWorker::Acknowledge { .. }) {}
        jobs.push((job, Some(Outcome::Cancelled)));
    }
    assert_eq!(attachable(&broker, "ada").await, jobs[2..]);
}
