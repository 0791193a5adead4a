//! A class on a simulated clock, in which every student submits the next cell as soon as the last
//! one has ended.

use baton_protocol::{JobId, NotebookId, WorkerId};
use baton_scheduling::queue::{Job, Precedence, Worker, plan};
use proptest::{
    prelude::Rng,
    test_runner::{RngAlgorithm, TestRng},
};
use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};
use uuid::Uuid;

pub(crate) const SECOND: u64 = 1000;
pub(crate) const HOUR: u64 = 3600 * SECOND;
const HALF_LIFE_MS: f64 = 12.0 * 3600.0 * 1000.0;
const GPU: WorkerId = WorkerId(Uuid::from_u128(1));

pub(crate) struct Student {
    pub(crate) weight: f64,
    pub(crate) boost: f64,
    pub(crate) low_priority: bool,
    /// The range of run times, in milliseconds.
    pub(crate) runs: (u64, u64),
    pub(crate) used_ms: f64,
    pub(crate) used_at: u64,
    pub(crate) all_ms: u64,
}

pub(crate) fn student(runs: (u64, u64)) -> Student {
    Student {
        weight: 1.0,
        boost: 1.0,
        low_priority: false,
        runs,
        used_ms: 0.0,
        used_at: 0,
        all_ms: 0,
    }
}

impl Student {
    fn used_ms(&self, now: u64) -> f64 {
        self.used_ms * (-((now - self.used_at) as f64) / HALF_LIFE_MS).exp2()
    }

    pub(crate) fn charge(&mut self, run_ms: u64, now: u64) {
        self.used_ms = self.used_ms(now) + run_ms as f64;
        self.used_at = now;
        self.all_ms += run_ms;
    }
}

struct Cell {
    student: usize,
    submitted: u64,
    run_ms: u64,
    /// When it started.
    started: Option<u64>,
}

pub(crate) struct Class {
    pub(crate) students: Vec<Student>,
    cells: HashMap<u128, Cell>,
    slots: u32,
    pub(crate) now: u64,
    next: u128,
    random: TestRng,
}

impl Class {
    pub(crate) fn new(students: Vec<Student>, slots: u32) -> Self {
        let mut class = Self {
            slots,
            cells: HashMap::new(),
            now: 0,
            next: 0,
            random: TestRng::from_seed(RngAlgorithm::ChaCha, &[7; 32]),
            students,
        };
        for student in 0..class.students.len() {
            class.submit(student);
        }
        class
    }

    pub(crate) fn submit(&mut self, student: usize) {
        let (from, to) = self.students[student].runs;
        let cell = Cell {
            student,
            submitted: self.now,
            run_ms: from + self.random.next_u64() % (to - from + 1),
            started: None,
        };
        self.next += 1;
        self.cells.insert(self.next, cell);
    }

    pub(crate) fn run_until(&mut self, end: u64) {
        self.assign();
        while self.now < end {
            let runs = self
                .cells
                .iter()
                .filter_map(|(id, cell)| Some((cell.started? + cell.run_ms, *id)));
            let Some((at, ended)) = runs.min() else { break };
            self.now = at;
            let cell = self.cells.remove(&ended).unwrap();
            self.students[cell.student].charge(cell.run_ms, at);
            self.submit(cell.student);
            self.assign();
        }
    }

    fn assign(&mut self) {
        let mut ids: Vec<u128> = self.cells.keys().copied().collect();
        ids.sort_unstable();
        let jobs: Vec<Job> = ids.iter().map(|id| self.job(*id)).collect();
        let gpu = Worker {
            worker: GPU,
            slots: self.slots,
            warm: HashSet::new(),
            keeping: HashSet::new(),
            open: true,
            offer: Arc::default(),
            leaves_in_ms: None,
        };
        let plan = plan(&jobs, &[gpu], 1);
        for (job, _) in plan.assignments {
            let cell = self.cells.get_mut(&job.0.as_u128()).unwrap();
            cell.started = Some(self.now);
        }
    }

    fn job(&self, id: u128) -> Job {
        let cell = &self.cells[&id];
        let student = &self.students[cell.student];
        Job {
            job: JobId(Uuid::from_u128(id)),
            notebook: NotebookId(Uuid::from_u128(cell.student as u128)),
            owner: cell.student.to_string().into(),
            worker: cell.started.map(|_| GPU),
            precedence: Precedence {
                used_ms: student.used_ms(self.now),
                weight: student.weight,
                boost: student.boost,
                low_priority: student.low_priority,
                waited_ms: self.now - cell.submitted,
                since_run_ms: (student.all_ms > 0).then(|| self.now - student.used_at),
            },
            held: false,
            paused: false,
            front: None,
            needs: Arc::default(),
            takes_ms: None,
        }
    }

    pub(crate) fn shares(&self) -> Vec<f64> {
        self.students
            .iter()
            .map(|student| student.all_ms as f64)
            .collect()
    }
}

/// 1 if all have the same, 1/n if one has everything.
pub(crate) fn jain(shares: &[f64]) -> f64 {
    let sum: f64 = shares.iter().sum();
    let squares: f64 = shares.iter().map(|share| share * share).sum();
    sum * sum / (shares.len() as f64 * squares)
}
