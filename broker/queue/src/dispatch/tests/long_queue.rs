//! No decision takes longer because hundreds of jobs wait.

use super::*;
use baton_scheduling::queue::Run;

const CELLS: u128 = 300;
/// The slots of the worker in this test.
const SLOTS: usize = 2;

impl World {
    fn with_a_long_queue() -> Self {
        let mut world = Self::new();
        let mut batch = Batch::new(world.now());
        world.worker_connects(0, &mut batch);
        let dispatch = &mut world.dispatch;
        for run_ms in 5000..5030 {
            dispatch.history.add(Run {
                cell: None,
                account: Account::default(),
                run_ms,
            });
        }
        for number in 0..CELLS {
            let id = Uuid::from_u128(number);
            let mut submission = submission(JobId(id), naming(ChunkHash([0; 32])));
            submission.notebook = NotebookId(id);
            let connection = ConnectionId(1000 + number as u64);
            let account = Account {
                owner: number.to_string(),
                ..Account::default()
            };
            dispatch.on_proxy_connected(connection, NotebookId(id), account, &mut batch);
            dispatch.on_proxy_message(connection, FromProxy::Submit(submission), &mut batch);
        }
        dispatch.assign_and_notify(&mut batch);
        world.perform(batch.actions);
        world
    }

    fn with_estimate(&self) -> usize {
        let jobs = self.dispatch.jobs.iter();
        let waiting = jobs.filter_map(|job| job.waiting.as_ref());
        waiting.filter_map(|waiting| waiting.estimate(0)).count()
    }

    fn running(&self) -> usize {
        self.dispatch.jobs.ids(Job::is_running).len()
    }
}

#[test]
fn an_estimate_for_hundreds_is_made_in_steps_between_decisions() {
    let mut world = World::with_a_long_queue();
    assert_eq!((world.running(), world.with_estimate()), (SLOTS, 0));
    // A cell ends before the estimate is finished; the next one starts without waiting for it.
    world.take(Step::Work(0, 1));
    world.take(Step::Work(0, 4));
    assert_eq!((world.running(), world.with_estimate()), (SLOTS, 0));
    let now = world.now();
    while world.with_estimate() == 0 {
        assert_eq!(world.dispatch.next_deadline(), Some(now.instant));
        world.take(Step::Seconds(0));
    }
    assert_ne!(world.dispatch.next_deadline(), Some(now.instant));
    assert_eq!(world.with_estimate(), CELLS as usize - SLOTS - 1);
}
