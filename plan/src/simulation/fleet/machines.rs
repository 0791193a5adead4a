//! The machines that exist.

use super::MachineKind;
use baton_protocol::{NotebookId, WorkerId};
use baton_scheduling::queue::Worker;
use std::{collections::HashSet, slice, sync::Arc};
use uuid::Uuid;

#[derive(Debug)]
pub(super) struct Machine {
    pub(super) id: u128,
    /// Its number among all kinds of the fleet.
    pub(super) kind: usize,
    pub(super) came: bool,
    pub(super) kept: bool,
    pub(super) draining: bool,
    pub(super) running: u32,
    pub(super) idle_since: f64,
    /// It does not leave before, even if it is idle.
    pub(super) stays_until: f64,
    /// When its cells must have ended; infinite without a walltime.
    pub(super) cells_end: f64,
}

#[derive(Debug, Default)]
pub(super) struct MachineSet {
    /// Requested or present.
    machines: Vec<Machine>,
    /// The machines that have come, as the queue sees them.
    workers: Vec<Worker>,
    added: u128,
}

impl MachineSet {
    pub(super) fn iter(&self) -> slice::Iter<'_, Machine> {
        self.machines.iter()
    }

    pub(super) fn of_kind(&self, kind: usize) -> impl Iterator<Item = &Machine> + Clone {
        self.iter().filter(move |machine| machine.kind == kind)
    }

    pub(super) fn of_kind_mut(&mut self, kind: usize) -> impl Iterator<Item = &mut Machine> {
        let machines = self.machines.iter_mut();
        machines.filter(move |machine| machine.kind == kind)
    }

    pub(super) fn get_mut(&mut self, id: u128) -> Option<&mut Machine> {
        self.machines.iter_mut().find(|machine| machine.id == id)
    }

    /// Adds a machine that is requested now, and returns its id.
    pub(super) fn add(&mut self, kind: usize, kept: bool) -> u128 {
        let id = self.added;
        self.added += 1;
        self.machines.push(Machine {
            id,
            kind,
            came: false,
            kept,
            draining: false,
            running: 0,
            idle_since: f64::INFINITY,
            stays_until: 0.0,
            cells_end: f64::INFINITY,
        });
        id
    }

    /// The machine takes cells from now on. Returns the number of its kind.
    pub(super) fn open(&mut self, id: u128, kinds: &[&MachineKind]) -> Option<usize> {
        let machine = self.get_mut(id)?;
        machine.came = true;
        let kind = machine.kind;
        self.workers.push(Worker {
            worker: worker(id),
            slots: kinds[kind].slots,
            warm: HashSet::new(),
            keeping: HashSet::new(),
            open: true,
            offer: Arc::clone(&kinds[kind].offer),
            leaves_in_ms: None,
        });
        Some(kind)
    }

    /// The machine takes no more cells.
    pub(super) fn drain(&mut self, id: u128) {
        if let Some(machine) = self.get_mut(id) {
            machine.draining = true;
        }
        if let Some(worker) = find(&mut self.workers, id) {
            worker.open = false;
        }
    }

    pub(super) fn remove(&mut self, id: u128) {
        self.machines.retain(|machine| machine.id != id);
        self.workers.retain(|other| other.worker != worker(id));
    }

    pub(super) fn workers(&mut self, now: f64) -> &[Worker] {
        for machine in self.machines.iter().filter(|one| one.cells_end.is_finite()) {
            let left_ms = ((machine.cells_end - now) * 1e3) as u64;
            if let Some(worker) = find(&mut self.workers, machine.id) {
                worker.leaves_in_ms = Some(left_ms);
            }
        }
        &self.workers
    }

    /// The notebook's warm session is on this worker from now on, and nowhere else.
    pub(super) fn warm(&mut self, notebook: NotebookId, on: WorkerId) {
        for other in &mut self.workers {
            other.warm.remove(&notebook);
            if other.worker == on {
                other.warm.insert(notebook);
            }
        }
    }
}

fn find(workers: &mut [Worker], id: u128) -> Option<&mut Worker> {
    workers.iter_mut().find(|one| one.worker == worker(id))
}

fn worker(id: u128) -> WorkerId {
    WorkerId(Uuid::from_u128(id))
}
