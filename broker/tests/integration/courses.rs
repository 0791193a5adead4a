//! What courses permit, what runs are charged, and what waiting people see.

use crate::harness::{
    Broker, FakeProxy, FakeWorker, Rules, finished, output, started, submission, within,
    write_private,
};
use baton_protocol::{
    BudgetLeft, CellKey, FencingNumber, Finished, GpuUsage, JobEvent, JobId, JobKind, NotebookId,
    Outcome, Period, Priority, RemoteError, Submission, Usage,
    proxy::{Estimate, FromProxy, ToProxy, WaitingReason},
};
use std::{fs, path::Path};

async fn broker(courses: &str) -> Broker {
    Broker::start_with(Rules {
        courses: Some(courses.to_owned()),
        ..Rules::default()
    })
    .await
}

/// A notebook in the course `ml`, of the person that [`FakeProxy`] names.
async fn notebook(broker: &Broker) -> FakeProxy {
    FakeProxy::in_course(&broker.dial, "ml").await
}

async fn submit(proxy: &mut FakeProxy, timeout_ms: Option<u64>) -> JobId {
    let mut sent = submission(proxy.notebook);
    sent.cell.timeout_ms = timeout_ms;
    let job = sent.job;
    proxy.send(FromProxy::Submit(sent)).await;
    job
}

fn ended_after(run_ms: u64, held_ms: u64) -> JobEvent {
    JobEvent::Finished(Finished {
        usage: Usage {
            run_ms,
            gpu: Some(GpuUsage {
                held_ms,
                ..GpuUsage::default()
            }),
            ..Usage::default()
        },
        ..Finished::without_state(Outcome::Ok, None)
    })
}

/// A cell that ended.
struct Ran {
    broker: Broker,
    worker: FakeWorker,
    proxy: FakeProxy,
    events: Vec<JobEvent>,
    granted_ms: Option<u64>,
}

/// The slots of a worker of programs.
const SLOTS: u32 = 8;

/// The cell holds a GPU for a quarter of its time.
async fn run_for(
    broker: Broker,
    worker: FakeWorker,
    course: &str,
    sent: Submission,
    run_ms: u64,
) -> Ran {
    run_and_hold(broker, worker, course, sent, (run_ms, run_ms / 4)).await
}

/// The cell takes `run_ms` by the worker's clock and by the broker's: while no broker runs, its start is moved back in
/// the database.
async fn run_and_hold(
    broker: Broker,
    mut worker: FakeWorker,
    course: &str,
    sent: Submission,
    (run_ms, held_ms): (u64, u64),
) -> Ran {
    let (notebook, job) = (sent.notebook, sent.job);
    let slots = if sent.cell.kind.is_program() {
        SLOTS
    } else {
        1
    };
    let mut proxy = FakeProxy::of_course(&broker.dial, notebook, course).await;
    proxy.send(FromProxy::Submit(sent)).await;
    let (fencing, given) = worker.assignment().await;
    assert_eq!(given.job, job);
    worker.report(job, fencing, 1, vec![started()]).await;
    let rules = Rules {
        courses: fs::read_to_string(broker.folder.path().join("courses.toml")).ok(),
        ..Rules::default()
    };
    let folder = broker.stop().await;
    began_earlier(folder.path(), i64::try_from(run_ms).unwrap());

    let broker = Broker::start_in(folder, rules).await;
    let mut proxy = FakeProxy::of_course(&broker.dial, notebook, course).await;
    proxy.send(FromProxy::Resume { job, after: 0 }).await;
    let held = [(job, fencing)];
    let mut worker = FakeWorker::of(&broker.dial, worker.id, slots, &[], &held).await;
    worker.next().await;
    let end = vec![ended_after(run_ms, held_ms)];
    worker.claim(job, fencing, 2, end).await;
    let events = proxy.events_after(job, 0).await;
    proxy.send(FromProxy::Applied { job }).await;
    Ran {
        broker,
        worker,
        proxy,
        events,
        granted_ms: given.cell.timeout_ms,
    }
}

fn began_earlier(folder: &Path, by_ms: i64) {
    let database = rusqlite::Connection::open(folder.join("broker.db")).unwrap();
    let earlier = "UPDATE jobs SET started_ms = started_ms - ? WHERE state = 'started'";
    assert_eq!(database.execute(earlier, [by_ms]).unwrap(), 1);
}

async fn refusal(proxy: &mut FakeProxy, job: JobId) -> RemoteError {
    match proxy.events_after(job, 0).await.pop() {
        Some(JobEvent::Finished(Finished {
            outcome: Outcome::Refused,
            error: Some(error),
            ..
        })) => error,
        other => panic!("expected a refusal, got {other:?}"),
    }
}

#[tokio::test]
async fn a_cell_runs_as_long_as_its_course_allows() {
    let broker = broker("[course.ml]\ntime_limit = \"5m\"\nlongest_time_limit = \"30m\"").await;
    let mut worker = FakeWorker::new(&broker.dial).await;
    let mut proxy = notebook(&broker).await;
    for (asked, granted) in [
        (None, 300_000),
        (Some(1000), 1000),
        (Some(1_800_000), 1_800_000),
    ] {
        let job = submit(&mut proxy, asked).await;
        let (fencing, given) = worker.assignment().await;
        assert_eq!(given.cell.timeout_ms, Some(granted));
        assert_eq!(given.cell.longest_timeout_ms, Some(1_800_000));
        let assigned = JobEvent::Assigned {
            worker: "cpu-0".to_owned(),
            gpu: false,
            timeout_ms: Some(granted),
        };
        assert_eq!(proxy.event(job).await, assigned);
        worker
            .report(job, fencing, 1, vec![started(), finished(Outcome::Ok)])
            .await;
        proxy.events_after(job, 1).await;
    }
    let job = submit(&mut proxy, Some(3_600_000)).await;
    let error = refusal(&mut proxy, job).await;
    assert!(
        error
            .value
            .contains("asks for 1 h, but ml allows at most 30 min"),
        "{error:?}"
    );
    assert!(
        error.value.contains("Your variables are as they were"),
        "{error:?}"
    );
    assert!(error.hint.unwrap().contains("%%gpu --timeout 30m"));
}

#[tokio::test]
async fn the_longest_time_limit_alone_is_that_of_every_cell() {
    let broker = broker("[course.ml]\nlongest_time_limit = \"30m\"").await;
    let mut worker = FakeWorker::new(&broker.dial).await;
    let mut proxy = notebook(&broker).await;
    submit(&mut proxy, None).await;
    let (_, given) = worker.assignment().await;
    assert_eq!(given.cell.timeout_ms, Some(1_800_000));
}

const BUDGET: &str = "[course.ml]\nbudget = { gpu_time = \"10m\", reset = \"Mon 04:00\" }";

fn left(left_ms: u64) -> JobEvent {
    JobEvent::Charged(BudgetLeft {
        left_ms,
        of_ms: 600_000,
        granted_ms: 0,
        period: Period::Week,
    })
}

#[tokio::test]
async fn a_whole_program_is_charged_for_the_gpu_that_it_had() {
    let broker = broker(BUDGET).await;
    let worker = FakeWorker::new(&broker.dial).await;
    let mut program = submission(NotebookId::random());
    program.cell.kind = JobKind::Notebook;
    let ran = run_for(broker, worker, "ml", program, 240_000).await;
    assert!(ran.events.contains(&left(540_000)));
}

/// The notebook says what is a program, so a slot is never free of charge.
#[tokio::test]
async fn a_program_that_held_no_gpu_is_charged_its_share_of_the_worker() {
    let broker = broker(BUDGET).await;
    let worker = FakeWorker::new(&broker.dial).await;
    let mut program = submission(NotebookId::random());
    program.cell.kind = JobKind::Script;
    let ran = run_and_hold(broker, worker, "ml", program, (240_000, 0)).await;
    assert!(ran.events.contains(&left(600_000 - 240_000 / 8)));
}

#[tokio::test]
async fn a_budget_is_charged_by_use_and_outlives_the_broker() {
    let cell = || submission(NotebookId::random());
    let broker = broker(BUDGET).await;
    let worker = FakeWorker::new(&broker.dial).await;
    let ran = run_for(broker, worker, "ml", cell(), 240_000).await;
    assert_eq!(ran.granted_ms, Some(600_000));
    assert!(ran.events.contains(&left(360_000)));
    // The rest of the budget limits the cell's time, but a shorter cell is charged only for the
    // time that it took.
    let ran = run_for(ran.broker, ran.worker, "ml", cell(), 1000).await;
    assert_eq!(ran.granted_ms, Some(360_000));
    assert!(ran.events.contains(&left(359_000)));
    let ran = run_for(ran.broker, ran.worker, "ml", cell(), 360_000).await;
    assert!(ran.events.contains(&left(0)));

    let Ran {
        broker,
        mut worker,
        mut proxy,
        ..
    } = ran;
    let job = submit(&mut proxy, None).await;
    let error = refusal(&mut proxy, job).await;
    assert!(
        error.value.contains("used up: 10 min of 10 min this week"),
        "{error:?}"
    );
    assert!(error.value.contains("Monday 04:00"), "{error:?}");
    assert!(error.value.ends_with("before the cell"), "{error:?}");
    let mut script = submission(proxy.notebook);
    script.cell.kind = JobKind::Script;
    let job = script.job;
    proxy.send(FromProxy::Submit(script)).await;
    let error = refusal(&mut proxy, job).await;
    assert!(error.value.ends_with("Monday 04:00"), "{error:?}");
    assert!(!error.hint.unwrap().contains("cells"));
    // Another course has no budget.
    let mut other = FakeProxy::in_course(&broker.dial, "vision").await;
    let job = other.submit().await;
    assert_eq!(worker.run_to_end().await, job);
}

#[tokio::test]
async fn a_run_on_a_lost_worker_is_charged_too() {
    let broker = broker(BUDGET).await;
    let mut worker = FakeWorker::new(&broker.dial).await;
    let mut proxy = notebook(&broker).await;
    let job = proxy.submit().await;
    let (fencing, _) = worker.assignment().await;
    worker
        .report(job, fencing, 1, vec![started(), output("still here")])
        .await;
    drop(worker);
    let events = proxy.events_after(job, 0).await;
    let charged = events.iter().find_map(|event| match event {
        JobEvent::Charged(left) => Some(left.left_ms),
        _ => None,
    });
    assert!(
        charged.is_some_and(|left_ms| left_ms <= 600_000),
        "{events:?}"
    );
    match events.last() {
        Some(JobEvent::Finished(Finished {
            outcome: Outcome::WorkerLost,
            usage,
            ..
        })) => assert_eq!(600_000 - usage.run_ms, charged.unwrap()),
        other => panic!("{other:?}"),
    }
}

/// Waits for this reason, and returns the estimate and message that arrive with it.
async fn told(
    proxy: &mut FakeProxy,
    of: JobId,
    wanted: WaitingReason,
) -> (Option<Estimate>, Option<String>) {
    let hear = async {
        loop {
            if let ToProxy::QueuePosition {
                job,
                waiting,
                estimate,
                message,
                ..
            } = proxy.next().await
                && job == of
                && waiting == wanted
            {
                return (estimate, message);
            }
        }
    };
    within("a reason", hear).await
}

#[tokio::test]
async fn a_paused_course_waits_and_goes_on() {
    let paused = "[course.ml]\npaused = \"back at two\"\nmessage = \"the exam is near\"";
    let broker = broker(paused).await;
    let mut worker = FakeWorker::new(&broker.dial).await;
    let mut proxy = notebook(&broker).await;
    let job = proxy.submit().await;
    let reason = WaitingReason::CoursePaused {
        why: "back at two".to_owned(),
    };
    let (estimate, message) = told(&mut proxy, job, reason).await;
    assert_eq!(
        (estimate, message.as_deref()),
        (None, Some("the exam is near"))
    );
    // Nobody else is blocked.
    let mut other = FakeProxy::in_course(&broker.dial, "vision").await;
    let runs = other.submit().await;
    assert_eq!(worker.run_to_end().await, runs);
    write_private(&broker.folder.path().join("courses.toml"), "");
    assert_eq!(worker.run_to_end().await, job);
}

#[tokio::test]
async fn a_paused_worker_takes_nothing() {
    let broker = broker("[worker.cpu-0]\npaused = \"a new fan\"").await;
    let mut worker = FakeWorker::new(&broker.dial).await;
    let mut proxy = notebook(&broker).await;
    let job = proxy.submit().await;
    let why = Some("a new fan".to_owned());
    told(&mut proxy, job, WaitingReason::WorkersPaused { why }).await;
    assert!(broker.get("/").await.contains("drained: a new fan"));
    write_private(&broker.folder.path().join("courses.toml"), "");
    assert_eq!(worker.run_to_end().await, job);
}

#[tokio::test]
async fn a_person_runs_as_many_cells_as_the_rule_says() {
    let broker = broker("jobs_per_person = 1").await;
    let mut worker = FakeWorker::with_slots(&broker.dial, 4).await;
    let mut first = notebook(&broker).await;
    let mut second = notebook(&broker).await;
    let runs = first.submit().await;
    let (fencing, _) = worker.assignment().await;
    let waits = second.submit().await;
    let notebook = "lesson.ipynb".to_owned();
    told(&mut second, waits, WaitingReason::OwnJobRuns { notebook }).await;
    worker
        .report(runs, fencing, 1, vec![started(), finished(Outcome::Ok)])
        .await;
    assert_eq!(worker.run_to_end().await, waits);
}

/// Occupies the only slot, so that a queue forms.
async fn occupy(broker: &Broker, worker: &mut FakeWorker) -> (FakeProxy, JobId, FencingNumber) {
    let mut proxy = FakeProxy::in_course(&broker.dial, "other").await;
    let job = proxy.submit().await;
    let (fencing, _) = worker.assignment().await;
    worker.report(job, fencing, 1, vec![started()]).await;
    (proxy, job, fencing)
}

#[tokio::test]
async fn who_used_less_goes_first_and_low_priority_last() {
    let broker = broker("jobs_per_person = 9").await;
    let worker = FakeWorker::new(&broker.dial).await;
    let cell = submission(NotebookId::random());
    let Ran {
        broker,
        mut worker,
        proxy: mut much,
        ..
    } = run_for(broker, worker, "much", cell, 600_000).await;
    let (_proxy, first, fencing) = occupy(&broker, &mut worker).await;
    let much_waits = much.submit().await;
    let mut low = FakeProxy::in_course(&broker.dial, "low").await;
    let mut batch = submission(low.notebook);
    batch.priority = Priority::Low;
    let low_waits = batch.job;
    low.send(FromProxy::Submit(batch)).await;
    let mut new = FakeProxy::in_course(&broker.dial, "new").await;
    let new_waits = new.submit().await;
    assert_eq!(new.position(new_waits).await, (1, WaitingReason::JobsAhead));
    worker
        .report(first, fencing, 2, vec![finished(Outcome::Ok)])
        .await;
    let order = [
        worker.run_to_end().await,
        worker.run_to_end().await,
        worker.run_to_end().await,
    ];
    assert_eq!(order, [new_waits, much_waits, low_waits]);
}

#[tokio::test]
async fn a_deadline_goes_first_and_says_so() {
    let broker = broker(
        "jobs_per_person = 9\n[[course.due.deadline]]\nuntil = \"2999-01-01T00:00\"\nweight = 8\nbefore = \"9000000h\"",
    )
    .await;
    let worker = FakeWorker::new(&broker.dial).await;
    let cell = || submission(NotebookId::random());
    let ran = run_for(broker, worker, "due", cell(), 600_000).await;
    let Ran {
        broker,
        mut worker,
        proxy: mut plain,
        ..
    } = run_for(ran.broker, ran.worker, "ml", cell(), 600_000).await;
    let mut due = FakeProxy::in_course(&broker.dial, "due").await;
    let (_proxy, first, fencing) = occupy(&broker, &mut worker).await;
    let plain_waits = plain.submit().await;
    assert_eq!(
        plain.position(plain_waits).await,
        (1, WaitingReason::JobsAhead)
    );
    let due_waits = due.submit().await;
    let course = "due".to_owned();
    told(
        &mut plain,
        plain_waits,
        WaitingReason::BehindDeadline { course },
    )
    .await;
    worker
        .report(first, fencing, 2, vec![finished(Outcome::Ok)])
        .await;
    assert_eq!(worker.run_to_end().await, due_waits);
    assert_eq!(worker.run_to_end().await, plain_waits);
}

#[tokio::test]
async fn an_estimate_comes_from_earlier_runs_also_after_a_restart() {
    let mut first = broker("").await;
    let mut worker = FakeWorker::new(&first.dial).await;
    let keyed = |notebook: NotebookId| {
        let mut sent = submission(notebook);
        sent.cell_key = Some(CellKey([9; 16]));
        sent
    };
    for run_ms in [600_000, 650_000, 700_000, 750_000, 800_000] {
        let sent = keyed(NotebookId::random());
        let mut ran = run_for(first, worker, "ml", sent, run_ms).await;
        ran.proxy.expect_silence().await;
        (first, worker) = (ran.broker, ran.worker);
    }
    let folder = first.stop().await;

    let second = Broker::start_in(
        folder,
        Rules {
            courses: Some("jobs_per_person = 9".to_owned()),
            ..Rules::default()
        },
    )
    .await;
    let mut worker = FakeWorker::new(&second.dial).await;
    let mut runs = FakeProxy::in_course(&second.dial, "strange").await;
    let sent = keyed(runs.notebook);
    runs.send(FromProxy::Submit(sent)).await;
    worker.assignment().await;
    let mut waits = FakeProxy::in_course(&second.dial, "ml").await;
    let job = waits.submit().await;
    let estimate = loop {
        let (estimate, _) = told(&mut waits, job, WaitingReason::JobsAhead).await;
        if let Some(estimate) = estimate {
            break estimate;
        }
    };
    let Estimate {
        lower_ms,
        middle_ms,
        upper_ms,
    } = estimate;
    assert!((250_000..600_000).contains(&lower_ms), "{estimate:?}");
    assert!((600_000..800_000).contains(&middle_ms), "{estimate:?}");
    assert!((800_000..2_000_000).contains(&upper_ms), "{estimate:?}");
    let page = second.get("/").await;
    assert!(
        page.contains("Starts in") && (page.contains(" s to ") || page.contains(" min to ")),
        "{page}"
    );
}

#[tokio::test]
async fn behind_a_new_course_nothing_is_guessed() {
    let broker = broker("").await;
    let mut worker = FakeWorker::new(&broker.dial).await;
    let (_proxy, ..) = occupy(&broker, &mut worker).await;
    let mut waits = FakeProxy::in_course(&broker.dial, "ml").await;
    let job = waits.submit().await;
    let reason = WaitingReason::OwnJobRuns {
        notebook: "lesson.ipynb".to_owned(),
    };
    assert_eq!(told(&mut waits, job, reason).await, (None, None));
}
