//! What waiting people read about pools is what these do.

use super::*;
use crate::pools::{PoolLook, PoolState, PoolsPresent};
use baton_protocol::{
    Machine,
    proxy::WaitingReason,
    worker::{Device, DeviceKind},
};
use baton_scheduling::queue::Run;

fn with_gpu(model: &str) -> Offer {
    Offer {
        devices: vec![Device {
            kind: DeviceKind::Cuda,
            model: model.to_owned(),
            memory_bytes: 0,
            compute_capability: None,
        }],
        machine: Machine::default(),
    }
}

/// A pool without workers that starts one for each job that would wait longer.
fn empty_pool(target_wait_ms: u64) -> PoolState {
    PoolState {
        name: "slurm".to_owned(),
        workers: Vec::new(),
        offer: Some(Arc::new(with_gpu("A100"))),
        offer_is_current: false,
        declared: Arc::default(),
        walltime_ms: u64::MAX,
        target_wait_ms,
        ahead_ms: 0,
        can_start: true,
        pending: 0,
        slots: 1,
        usual: None,
        expected_ms: None,
    }
}

impl World {
    /// Cells that take five seconds: two run on the only worker with an A100, and one waits for it.
    /// Another worker is idle.
    fn with_a_busy_gpu() -> Self {
        let mut world = Self::new();
        let mut batch = Batch::new(world.now());
        for run_ms in 5000..5030 {
            world.dispatch.history.add(Run {
                cell: None,
                account: Account::default(),
                run_ms,
            });
        }
        for (number, model) in [(0, "A100"), (1, "T4")] {
            let hello = WorkerHello {
                worker: worker_id(number),
                life: worker_id(number),
                name: model.to_owned(),
                offer: with_gpu(model),
                slots: 2,
                sessions: Vec::new(),
                keeping: Vec::new(),
                assignments: Vec::new(),
                acknowledged: Vec::new(),
                failing: None,
            };
            let connection = ConnectionId(number.into());
            let dispatch = &mut world.dispatch;
            dispatch.on_worker_connected(connection, hello, &mut batch);
        }
        for number in 0..3 {
            let connection = ConnectionId(1000 + u64::from(number));
            let account = Account {
                owner: number.to_string(),
                ..Account::default()
            };
            let mut submission = submission(job_id(number, 0), naming(ChunkHash([0; 32])));
            submission.notebook = notebook(number);
            submission.cell.gpu = Some("A100".to_owned());
            let dispatch = &mut world.dispatch;
            dispatch.on_proxy_connected(connection, notebook(number), account, &mut batch);
            dispatch.on_proxy_message(connection, FromProxy::Submit(submission), &mut batch);
        }
        world.dispatch.assign_and_notify(&mut batch);
        world
    }

    /// The pool hears of the demand, and the waiting cell is shown why it waits.
    fn look(&mut self, pool: PoolState) -> (PoolsPresent, WaitingReason) {
        let mut batch = Batch::new(self.now());
        let look = PoolLook {
            pools: vec![pool],
            stays: HashMap::new(),
        };
        let present = self.dispatch.on_pools(look, &mut batch);
        self.dispatch.assign_and_notify(&mut batch);
        let waiting = self.dispatch.jobs.get(job_id(2, 0)).unwrap();
        (present, waiting.waiting.clone().unwrap().reason)
    }
}

#[test]
fn a_machine_starts_only_for_a_cell_for_which_the_pool_starts_one() {
    let mut world = World::with_a_busy_gpu();
    let (present, reason) = world.look(empty_pool(60_000));
    assert_eq!(present.waiting.len(), 0);
    let is_busy = matches!(reason, WaitingReason::FittingWorkersBusy { .. });
    assert!(is_busy, "{reason:?}");
    let (present, reason) = world.look(empty_pool(1000));
    assert_eq!(present.waiting.len(), 1);
    let starts = matches!(reason, WaitingReason::MachineStarting { .. });
    assert!(starts, "{reason:?}");
}
