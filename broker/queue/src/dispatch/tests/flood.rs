//! A person who submits many cells at once, among others who submit one after the other.

use super::*;
use baton_protocol::Usage;

const RUN_MS: u64 = 200;
const WORKER: ConnectionId = ConnectionId(1);

/// People with one notebook each, and a worker with one slot.
struct Class {
    dispatch: Dispatch,
    start: Instant,
    now_ms: u64,
    submitted: u128,
    running: Option<(JobId, FencingNumber, usize)>,
}

impl Class {
    fn of(people: usize) -> Self {
        let start = Instant::now();
        let now = Now {
            instant: start,
            unix_ms: 0,
        };
        let mut class = Self {
            dispatch: Dispatch::new(Stored::default().load(), GRACES, courses(), now),
            start,
            now_ms: 0,
            submitted: 0,
            running: None,
        };
        let mut batch = class.batch();
        let hello = WorkerHello {
            worker: worker_id(0),
            life: worker_id(0),
            name: "cpu-0".to_owned(),
            offer: Offer::default(),
            slots: 1,
            sessions: Vec::new(),
            keeping: Vec::new(),
            assignments: Vec::new(),
            acknowledged: Vec::new(),
            failing: None,
        };
        class
            .dispatch
            .on_worker_connected(WORKER, hello, &mut batch);
        for person in 0..people {
            let account = Account {
                owner: person.to_string(),
                ..Account::default()
            };
            class.dispatch.on_proxy_connected(
                connection(person),
                notebook_of(person),
                account,
                &mut batch,
            );
        }
        class
    }

    fn batch(&self) -> Batch {
        Batch::new(Now {
            instant: self.start + Duration::from_millis(self.now_ms),
            unix_ms: i64::try_from(self.now_ms).unwrap(),
        })
    }

    fn submit(&mut self, person: usize) {
        self.submitted += 1;
        let id = JobId(Uuid::from_u128(self.submitted));
        let mut submission = submission(id, naming(ChunkHash([0; 32])));
        submission.notebook = notebook_of(person);
        let mut batch = self.batch();
        let submit = FromProxy::Submit(submission);
        self.dispatch
            .on_proxy_message(connection(person), submit, &mut batch);
        self.decide(batch);
    }

    /// Ends the running cell and starts the next one. Returns the person whose cell it was.
    fn run(&mut self) -> usize {
        let (job, fencing, person) = self.running.take().unwrap();
        self.report(
            job,
            fencing,
            1,
            JobEvent::Started {
                worker: String::new(),
            },
        );
        self.now_ms += RUN_MS;
        let usage = Usage {
            run_ms: RUN_MS,
            ..Usage::default()
        };
        let finished = Finished {
            usage,
            ..Finished::without_state(Outcome::Ok, None)
        };
        self.report(job, fencing, 2, JobEvent::Finished(finished));
        person
    }

    fn report(&mut self, job: JobId, fencing: FencingNumber, first: u64, event: JobEvent) {
        let mut batch = self.batch();
        let message = FromWorker::Events {
            job,
            fencing,
            first,
            events: vec![event],
        };
        self.dispatch.on_worker_message(WORKER, message, &mut batch);
        self.decide(batch);
    }

    fn decide(&mut self, mut batch: Batch) {
        self.dispatch.assign_and_notify(&mut batch);
        for action in batch.actions {
            if let Action::Assign(_, assigned) = action {
                let person = assigned.owner.parse().unwrap();
                self.running = Some((assigned.job, assigned.fencing, person));
            }
        }
    }
}

fn connection(person: usize) -> ConnectionId {
    ConnectionId(1000 + person as u64)
}

fn notebook_of(person: usize) -> NotebookId {
    NotebookId(Uuid::from_u128(1000 + person as u128))
}

#[test]
fn many_waiting_cells_bring_no_more_turns_than_one() {
    const PEOPLE: usize = 10;
    let mut class = Class::of(PEOPLE);
    for _ in 0..100 {
        class.submit(0);
    }
    (1..PEOPLE).for_each(|person| class.submit(person));
    let mut turns = [0; PEOPLE];
    for _ in 0..20 * PEOPLE {
        let person = class.run();
        turns[person] += 1;
        if person > 0 {
            class.submit(person);
        }
    }
    assert!(
        turns.iter().all(|turns| (18..=22).contains(turns)),
        "{turns:?}"
    );
}
