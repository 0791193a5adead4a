//! A scripted proxy and a scripted worker.

use super::{PATIENCE, within};
use baton_protocol::{
    Answer, Cell, FencingNumber, Finished, GroupId, JobEvent, JobId, JobKind, Machine, Manifest,
    NotebookId, NumberedEvent, Outcome, Output, PROTOCOL_VERSION, Piece, Priority, State,
    StateVersion, Submission, TableId, Usage, WorkerId,
    proxy::{FromProxy, ToProxy, WaitingReason},
    worker::{Acknowledged, Device, DeviceKind, FromWorker, ToWorker},
};
use baton_transport::{Connection, Dial, LinkError};
use std::time::Duration;

pub(crate) struct FakeProxy {
    connection: Connection<ToProxy, FromProxy>,
    pub(crate) notebook: NotebookId,
    /// The jobs whose cancellation the broker has confirmed.
    pub(crate) cancelling: Vec<JobId>,
    /// The jobs that the broker has reported as closed.
    pub(crate) closed: Vec<JobId>,
}

impl FakeProxy {
    pub(crate) async fn new(dial: &Dial) -> Self {
        Self::of(dial, NotebookId::random()).await
    }

    pub(crate) async fn in_course(dial: &Dial, course: &str) -> Self {
        Self::enter(dial, NotebookId::random(), Some(course)).await
    }

    pub(crate) async fn of(dial: &Dial, notebook: NotebookId) -> Self {
        Self::enter(dial, notebook, None).await
    }

    pub(crate) async fn of_course(dial: &Dial, notebook: NotebookId, course: &str) -> Self {
        Self::enter(dial, notebook, Some(course)).await
    }

    async fn enter(dial: &Dial, notebook: NotebookId, course: Option<&str>) -> Self {
        let (connection, answer) = Self::greet(dial, notebook, course).await;
        assert!(matches!(answer, ToProxy::Welcome { .. }), "{answer:?}");
        Self {
            connection,
            notebook,
            cancelling: Vec::new(),
            closed: Vec::new(),
        }
    }

    /// Opens a connection, and returns the broker's response to the hello.
    pub(crate) async fn greet(
        dial: &Dial,
        notebook: NotebookId,
        course: Option<&str>,
    ) -> (Connection<ToProxy, FromProxy>, ToProxy) {
        let mut connection: Connection<ToProxy, FromProxy> =
            within("a dial", baton_transport::connect(dial, "/v1/proxy"))
                .await
                .unwrap();
        let hello = FromProxy::Hello {
            protocol_version: PROTOCOL_VERSION,
            notebook,
            owner: "ada".to_owned(),
            course: course.map(str::to_owned),
        };
        connection.send(&hello).await.unwrap();
        let answer = within("an answer", connection.receive()).await.unwrap();
        (
            connection,
            answer.expect("the broker closed the connection"),
        )
    }

    pub(crate) async fn send(&mut self, message: FromProxy) {
        self.connection.send(&message).await.unwrap();
    }

    /// Fails if the broker has closed the connection.
    /// Answers a question of its job. The worker receives the answer.
    pub(crate) async fn answered(
        &mut self,
        worker: &mut FakeWorker,
        job: JobId,
        question: u64,
        answer: Answer,
    ) {
        let message = FromProxy::Answer {
            job,
            question,
            answer: answer.clone(),
        };
        self.send(message).await;
        let forwarded = ToWorker::Answer {
            job,
            question,
            answer,
        };
        assert_eq!(worker.next().await, forwarded);
    }

    pub(crate) async fn try_say(&mut self, message: FromProxy) -> Result<(), LinkError> {
        within("a message", self.connection.send(&message)).await
    }

    pub(crate) async fn submit(&mut self) -> JobId {
        let submission = submission(self.notebook);
        let job = submission.job;
        self.send(FromProxy::Submit(submission)).await;
        job
    }

    /// Submits a job in a group whose id is that of the job.
    pub(crate) async fn submit_alone_in_a_group(&mut self) -> JobId {
        let job = JobId::random();
        self.submit_in(job, GroupId(job.0)).await;
        job
    }

    pub(crate) async fn submit_in(&mut self, job: JobId, group: GroupId) {
        let submission = Submission {
            job,
            group: Some(group),
            ..submission(self.notebook)
        };
        self.send(FromProxy::Submit(submission)).await;
    }

    /// The next message, except confirmations of cancellations and closed jobs. These may arrive at
    /// any time and are only recorded.
    pub(crate) async fn next(&mut self) -> ToProxy {
        loop {
            let message = within("a message to the proxy", self.connection.receive())
                .await
                .unwrap()
                .expect("the broker closed the connection");
            match message {
                ToProxy::Cancelling { job } => self.cancelling.push(job),
                ToProxy::Closed { job } => self.closed.push(job),
                message => return message,
            }
        }
    }

    pub(crate) async fn position(&mut self, of: JobId) -> (u32, WaitingReason) {
        match self.next().await {
            ToProxy::QueuePosition {
                job,
                position,
                waiting,
                ..
            } if job == of => (position, waiting),
            other => panic!("expected a position of {of}, got {other:?}"),
        }
    }

    /// The next batch of events of a job.
    pub(crate) async fn batch(&mut self, of: JobId) -> Vec<NumberedEvent> {
        match self.next().await {
            ToProxy::Events { job, events } if job == of => events,
            other => panic!("expected events of {of}, got {other:?}"),
        }
    }

    /// The next event, which must be alone in its batch.
    pub(crate) async fn event(&mut self, of: JobId) -> JobEvent {
        let mut events = self.batch(of).await;
        assert_eq!(events.len(), 1, "{events:?}");
        events.remove(0).event
    }

    /// All events after a number up to the last one. Checks that the numbers have no gaps.
    pub(crate) async fn events_after(&mut self, of: JobId, after: u64) -> Vec<JobEvent> {
        let mut events = Vec::new();
        let mut last = after;
        loop {
            for event in self.batch(of).await {
                last += 1;
                assert_eq!(event.number, last);
                events.push(event.event);
            }
            if events.last().is_some_and(JobEvent::is_last) {
                return events;
            }
        }
    }

    pub(crate) async fn assigned(&mut self, of: JobId) {
        let event = self.event(of).await;
        assert!(matches!(event, JobEvent::Assigned { .. }), "{event:?}");
    }

    /// Waits for any message.
    pub(crate) async fn expect_news(&mut self) {
        self.next().await;
    }

    /// Checks that no other message arrives before the response to a new request.
    pub(crate) async fn expect_silence(&mut self) {
        let job = JobId::random();
        self.send(FromProxy::Resume { job, after: 0 }).await;
        match self.next().await {
            ToProxy::UnknownJob { job: answered } if answered == job => {}
            other => panic!("expected nothing, got {other:?}"),
        }
    }

    pub(crate) async fn expect_closed(&mut self) {
        let end = within("an end", self.connection.receive()).await;
        assert!(matches!(end, Ok(None) | Err(_)), "{end:?}");
    }

    /// Other messages may arrive before the end.
    pub(crate) async fn expect_closed_after_news(&mut self) {
        while let Ok(Some(_)) = within("an end", self.connection.receive()).await {}
    }
}

pub(crate) struct FakeWorker {
    connection: Connection<ToWorker, FromWorker>,
    pub(crate) id: WorkerId,
}

impl FakeWorker {
    pub(crate) async fn new(dial: &Dial) -> Self {
        Self::with_slots(dial, 1).await
    }

    pub(crate) async fn with_slots(dial: &Dial, slots: u32) -> Self {
        Self::of(dial, WorkerId::random(), slots, &[], &[]).await
    }

    pub(crate) async fn back(dial: &Dial, id: WorkerId, held: &[(JobId, FencingNumber)]) -> Self {
        Self::of(dial, id, 1, &[], held).await
    }

    pub(crate) async fn of(
        dial: &Dial,
        id: WorkerId,
        slots: u32,
        sessions: &[NotebookId],
        held: &[(JobId, FencingNumber)],
    ) -> Self {
        Self::knowing(dial, id, slots, sessions, held, &[]).await
    }

    /// A worker that knows which events of its assignments are stored.
    pub(crate) async fn knowing(
        dial: &Dial,
        id: WorkerId,
        slots: u32,
        sessions: &[NotebookId],
        held: &[(JobId, FencingNumber)],
        acknowledged: &[Acknowledged],
    ) -> Self {
        let hello = FromWorker::Hello {
            protocol_version: PROTOCOL_VERSION,
            worker: id,
            name: String::new(),
            devices: devices(),
            machine: Machine::default(),
            slots,
            sessions: sessions.to_vec(),
            keeping: Vec::new(),
            assignments: held.to_vec(),
            acknowledged: acknowledged.to_vec(),
            failing: None,
        };
        Self::enter(dial, id, hello).await
    }

    pub(crate) async fn named(dial: &Dial, name: &str, slots: u32) -> Self {
        let id = WorkerId::random();
        let hello = FromWorker::Hello {
            protocol_version: PROTOCOL_VERSION,
            worker: id,
            name: name.to_owned(),
            devices: devices(),
            machine: Machine::default(),
            slots,
            sessions: Vec::new(),
            keeping: Vec::new(),
            assignments: Vec::new(),
            acknowledged: Vec::new(),
            failing: None,
        };
        Self::enter(dial, id, hello).await
    }

    pub(crate) async fn offering(
        dial: &Dial,
        name: &str,
        devices: Vec<Device>,
        machine: Machine,
    ) -> Self {
        let id = WorkerId::random();
        let hello = FromWorker::Hello {
            protocol_version: PROTOCOL_VERSION,
            worker: id,
            name: name.to_owned(),
            devices,
            machine,
            slots: 1,
            sessions: Vec::new(),
            keeping: Vec::new(),
            assignments: Vec::new(),
            acknowledged: Vec::new(),
            failing: None,
        };
        Self::enter(dial, id, hello).await
    }

    /// A worker on which sessions do not start.
    pub(crate) async fn failing(dial: &Dial, why: &str) -> Self {
        let id = WorkerId::random();
        let hello = FromWorker::Hello {
            protocol_version: PROTOCOL_VERSION,
            worker: id,
            name: String::new(),
            devices: devices(),
            machine: Machine::default(),
            slots: 1,
            sessions: Vec::new(),
            keeping: Vec::new(),
            assignments: Vec::new(),
            acknowledged: Vec::new(),
            failing: Some(why.to_owned()),
        };
        Self::enter(dial, id, hello).await
    }

    async fn enter(dial: &Dial, id: WorkerId, hello: FromWorker) -> Self {
        let mut connection = within("a dial", baton_transport::connect(dial, "/v1/worker"))
            .await
            .unwrap();
        connection.send(&hello).await.unwrap();
        let mut worker = Self { connection, id };
        assert!(matches!(worker.next().await, ToWorker::Welcome { .. }));
        worker
    }

    pub(crate) async fn send(&mut self, message: FromWorker) {
        self.connection.send(&message).await.unwrap();
    }

    pub(crate) async fn next(&mut self) -> ToWorker {
        within("a message to the worker", self.connection.receive())
            .await
            .unwrap()
            .expect("the broker closed the connection")
    }

    pub(crate) async fn assignment(&mut self) -> (FencingNumber, Submission) {
        match self.next().await {
            ToWorker::Assign {
                fencing,
                submission,
                ..
            } => (fencing, submission),
            other => panic!("expected an assignment, got {other:?}"),
        }
    }

    /// Sends events and waits until they are stored. Waits for the run time that the end claims.
    pub(crate) async fn report(
        &mut self,
        job: JobId,
        fencing: FencingNumber,
        first: u64,
        mut events: Vec<JobEvent>,
    ) {
        let run_ms = |event: &JobEvent| match event {
            JobEvent::Finished(Finished { usage, .. }) => Some(usage.run_ms),
            _ => None,
        };
        let Some(run_ms) = events.last().and_then(run_ms) else {
            return self.claim(job, fencing, first, events).await;
        };
        let end = events.split_off(events.len() - 1);
        let last = first + events.len() as u64;
        if !events.is_empty() {
            self.claim(job, fencing, first, events).await;
        }
        tokio::time::sleep(Duration::from_millis(run_ms)).await;
        self.claim(job, fencing, last, end).await;
    }

    /// Does the same without waiting for the claimed run time.
    pub(crate) async fn claim(
        &mut self,
        job: JobId,
        fencing: FencingNumber,
        first: u64,
        events: Vec<JobEvent>,
    ) {
        let last = first + events.len() as u64 - 1;
        self.send_events(job, fencing, first, events).await;
        assert_eq!(self.next().await, acknowledged(job, fencing, last));
    }

    /// Sends events without waiting for an answer.
    pub(crate) async fn send_events(
        &mut self,
        job: JobId,
        fencing: FencingNumber,
        first: u64,
        events: Vec<JobEvent>,
    ) {
        self.send(FromWorker::Events {
            job,
            fencing,
            first,
            events,
        })
        .await;
    }

    pub(crate) async fn run_to_end(&mut self) -> JobId {
        let (fencing, submission) = self.assignment().await;
        let job = submission.job;
        self.report(job, fencing, 1, vec![started(), finished(Outcome::Ok)])
            .await;
        job
    }

    pub(crate) async fn expect_closed(&mut self) {
        let end = tokio::time::timeout(PATIENCE, self.connection.receive()).await;
        assert!(matches!(end, Ok(Ok(None) | Err(_))), "{end:?}");
    }
}

fn devices() -> Vec<Device> {
    vec![Device {
        kind: DeviceKind::Cpu,
        model: "Test CPU".to_owned(),
        memory_bytes: 8 << 30,
        compute_capability: None,
    }]
}

fn acknowledged(job: JobId, fencing: FencingNumber, number: u64) -> ToWorker {
    ToWorker::Acknowledge {
        job,
        fencing,
        number,
    }
}

pub(crate) fn submission(notebook: NotebookId) -> Submission {
    Submission {
        job: JobId::random(),
        notebook,
        notebook_name: "lesson.ipynb".to_owned(),
        cell_key: None,
        priority: Priority::Normal,
        group: None,
        cell: Cell {
            code: "print(1)".to_owned(),
            message_id: "message".to_owned(),
            execution_count: 1,
            kind: JobKind::Cell,
            silent: false,
            timeout_ms: None,
            longest_timeout_ms: None,
            gpu_memory_bytes: None,
            gpu: None,
            environment: None,
            allow_stdin: true,
            python: "/usr/bin/python3".to_owned(),
            python_version: "3.13".to_owned(),
            folder: "/home/ada".to_owned(),
            notebook_folder: None,
        },
        state: state("the stream"),
    }
}

pub(crate) fn state(stream: &'static str) -> State {
    State::Chunks(Manifest {
        base: StateVersion {
            table: TableId(uuid::Uuid::nil()),
            messages: 0,
        },
        stream: vec![Piece::Inline(stream.into())],
        segments: Vec::new(),
        dropped_segments: Vec::new(),
    })
}

pub(crate) fn started() -> JobEvent {
    JobEvent::Started {
        worker: "cpu-0".to_owned(),
    }
}

pub(crate) fn output(text: &str) -> JobEvent {
    JobEvent::Output(Output {
        kind: "stream".to_owned(),
        content: text.to_owned().into(),
        metadata: "{}".into(),
        buffers: Vec::new(),
    })
}

/// The texts of the outputs among events.
pub(crate) fn outputs(events: &[JobEvent]) -> Vec<String> {
    events
        .iter()
        .filter_map(|event| match event {
            JobEvent::Output(output) => Some(String::from_utf8_lossy(&output.content).into_owned()),
            _ => None,
        })
        .collect()
}

pub(crate) fn finished(outcome: Outcome) -> JobEvent {
    JobEvent::Finished(Finished {
        state: (outcome == Outcome::Ok).then(|| state("the result")),
        usage: Usage {
            run_ms: 5,
            peak_memory_bytes: 6,
            gpu: None,
        },
        ..Finished::without_state(outcome, None)
    })
}
