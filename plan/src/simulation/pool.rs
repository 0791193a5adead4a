//! Machines that start and stop: a pool of workers, under the rules by which the broker requests them.
//!
//! Cells are assigned by [`baton_scheduling::queue::plan`], and workers are requested by
//! [`baton_scheduling::pools`], as in the broker and equally often. In place of the broker's
//! estimate of which cells start in time, this uses the number of mean runs ahead of a cell.

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, HashSet},
    sync::Arc,
    time::Duration,
};

use baton_protocol::{NotebookId, WorkerId};
use baton_scheduling::{
    pools::{self, Present, Terms, Waiting},
    queue::{Job, Worker, plan},
};
use rand::{SeedableRng, rngs::Xoshiro256PlusPlus};
use uuid::Uuid;

use super::{
    Course, Length, Runs, Times, each_seed,
    people::{job, notebook},
    statistics::Spread,
};
use crate::simulation::Estimate;

/// People who use a pool, and its terms. Times are in seconds.
#[derive(Debug, Clone)]
pub struct Elastic {
    pub course: Course,
    pub terms: Terms,
    /// The number of cells that one machine runs at once.
    pub slots: u32,
    /// From the request to the machine's first cell.
    pub start: Times,
    /// A machine leaves after this long without a cell.
    pub idle: f64,
    /// Every machine must have left after this long.
    pub walltime: f64,
}

/// The costs and benefits of a pool.
#[derive(Debug)]
pub struct ElasticAnswer {
    pub cells: u64,
    pub wait: Estimate,
    /// The share of cells that do not wait.
    pub at_once: Estimate,
    /// The waits within which 50, 90 and 99 of 100 cells start.
    pub waits: [Estimate; 3],
    /// The mean number of machines. A machine counts from its request on.
    pub machines: Estimate,
    /// The total hours of all machines.
    pub machine_hours: Estimate,
    /// The share of their slots in which a cell runs.
    pub utilisation: Estimate,
    /// Machines started per hour.
    pub starts: Estimate,
}

#[derive(Debug)]
struct Counted {
    seconds: f64,
    waits: Spread,
    machine_seconds: f64,
    busy_seconds: f64,
    starts: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Happening {
    Submits(usize),
    Ends(usize),
    Comes(u128),
    /// The machine leaves if it has been idle since that time.
    Leaves(u128, u64),
    /// The machine's time is nearly over.
    Drains(u128),
    /// The broker requests the machines that the pool should have.
    Looks,
}

struct Machine {
    id: u128,
    came: bool,
    kept: bool,
    draining: bool,
    idle_since: f64,
    /// Notebooks with a session on the machine.
    warm: HashSet<NotebookId>,
}

struct World<'pool> {
    pool: &'pool Elastic,
    random: Xoshiro256PlusPlus,
    now: f64,
    warm_up: f64,
    /// Times are positive, so their bits are in the same order.
    calendar: BinaryHeap<Reverse<(u64, Happening)>>,
    jobs: Vec<Job>,
    /// When each notebook submitted.
    since: Vec<f64>,
    /// How many cells of each notebook have begun.
    begun: Vec<usize>,
    ended: usize,
    looks: bool,
    machines: Vec<Machine>,
    asked: u128,
    counted: Counted,
}

/// Simulates the pool.
#[must_use]
pub fn elastic(pool: &Elastic, length: Length, runs: Runs) -> ElasticAnswer {
    let runs = each_seed(runs, |seed| run(pool, length, seed));
    let estimate = |what: &dyn Fn(&Counted) -> f64| Estimate::of(runs.iter().map(what));
    let slots = f64::from(pool.slots);
    ElasticAnswer {
        cells: runs.iter().map(|run| run.waits.count()).sum(),
        wait: estimate(&|run| run.waits.mean()),
        at_once: estimate(&|run| run.waits.zero()),
        waits: [0.5, 0.9, 0.99].map(|part| estimate(&|run| run.waits.percentile(part))),
        machines: estimate(&|run| run.machine_seconds / run.seconds),
        machine_hours: estimate(&|run| run.machine_seconds / 3600.0),
        utilisation: estimate(&|run| run.busy_seconds / (run.machine_seconds * slots).max(1e-9)),
        starts: estimate(&|run| run.starts as f64 / run.seconds * 3600.0),
    }
}

fn run(pool: &Elastic, length: Length, seed: u64) -> Counted {
    let mut world = World {
        pool,
        random: Xoshiro256PlusPlus::seed_from_u64(seed),
        now: 0.0,
        warm_up: length.warm_up,
        calendar: BinaryHeap::new(),
        jobs: Vec::new(),
        since: vec![0.0; pool.course.notebooks()],
        begun: vec![0; pool.course.notebooks()],
        ended: 0,
        looks: false,
        machines: Vec::new(),
        asked: 0,
        counted: Counted {
            seconds: 0.0,
            waits: Spread::new(),
            machine_seconds: 0.0,
            busy_seconds: 0.0,
            starts: 0,
        },
    };
    for notebook in 0..pool.course.notebooks() {
        world.edits(notebook);
    }
    world.happens(Happening::Looks);
    let end = length.warm_up + length.measured;
    while !world.is_over()
        && let Some(Reverse((at, happening))) = world.calendar.pop()
    {
        let at = f64::from_bits(at);
        world.pass(at.min(end));
        if at > end {
            break;
        }
        world.happens(happening);
        world.place();
        if happening != Happening::Looks {
            world.look_soon();
        }
    }
    world.counted.seconds = world.now - world.warm_up;
    world.counted
}

impl World<'_> {
    /// Adds up what existed until then.
    fn pass(&mut self, until: f64) {
        let counted = until - self.now.max(self.warm_up).min(until);
        let running = self.jobs.iter().filter(|job| job.worker.is_some()).count();
        self.counted.machine_seconds += counted * self.machines.len() as f64;
        self.counted.busy_seconds += counted * running as f64;
        self.now = until;
    }

    fn later(&mut self, seconds: f64, happening: Happening) {
        let at = (self.now + seconds).to_bits();
        self.calendar.push(Reverse((at, happening)));
    }

    /// Whether every cell has ended and only machines that are always kept remain.
    fn is_over(&self) -> bool {
        self.pool.course.cells() == Some(self.ended)
            && self.machines.iter().all(|machine| machine.kept)
    }

    fn edits(&mut self, person: usize) {
        let edit = self
            .pool
            .course
            .edit(person, self.begun[person], &mut self.random);
        if let Some(edit) = edit {
            self.later(edit, Happening::Submits(person));
        }
    }

    /// Schedules the broker's next look at its pools. The broker looks at fixed intervals, and only
    /// events change anything in between.
    fn look_soon(&mut self) {
        if !self.looks {
            self.looks = true;
            let step = pools::LOOK_EVERY.as_secs_f64();
            let next = (self.now / step).floor() * step + step;
            self.later(next - self.now, Happening::Looks);
        }
    }

    fn happens(&mut self, happening: Happening) {
        match happening {
            Happening::Submits(person) => {
                self.since[person] = self.now;
                self.jobs.push(job(person, person.to_string().into()));
            }
            Happening::Ends(person) => {
                let is_own = |job: &Job| job.notebook == notebook(person);
                if let Some(place) = self.jobs.iter().position(is_own) {
                    let ended = self.jobs.remove(place);
                    self.ended += 1;
                    self.may_be_idle(ended.worker);
                }
                self.edits(person);
            }
            Happening::Comes(id) => {
                for machine in self.machines.iter_mut().filter(|machine| machine.id == id) {
                    machine.came = true;
                }
                self.may_be_idle(Some(worker(id)));
                let walltime = Duration::from_secs_f64(self.pool.walltime);
                let takes_cells = walltime - 2 * pools::last_step(walltime);
                self.later(takes_cells.as_secs_f64(), Happening::Drains(id));
            }
            Happening::Drains(id) => {
                for machine in self.machines.iter_mut().filter(|machine| machine.id == id) {
                    machine.draining = true;
                }
                self.may_be_idle(Some(worker(id)));
            }
            Happening::Looks => {
                self.looks = false;
                self.ask();
            }
            Happening::Leaves(id, since) => {
                let runs = self.jobs.iter().any(|job| job.worker == Some(worker(id)));
                self.machines.retain(|machine| {
                    let is_meant = machine.id == id && machine.idle_since.to_bits() == since;
                    runs || !is_meant || machine.kept
                });
            }
        }
    }

    fn may_be_idle(&mut self, of: Option<WorkerId>) {
        let (now, runs) = (self.now, self.jobs.iter().any(|job| job.worker == of));
        let is_meant = |machine: &Machine| Some(worker(machine.id)) == of;
        if !runs {
            self.machines
                .retain(|machine| !(is_meant(machine) && machine.draining));
        }
        let Some(machine) = self.machines.iter_mut().find(|machine| is_meant(machine)) else {
            return;
        };
        machine.idle_since = now;
        if !runs {
            let leaves = Happening::Leaves(machine.id, now.to_bits());
            let usual_ms = (self.pool.start.mean() * 1e3) as u64;
            let idle_ms = pools::idle_ms((self.pool.idle * 1e3) as u64, Some(usual_ms));
            self.later(idle_ms as f64 / 1e3, leaves);
        }
    }

    /// Starts the cells for which there is a slot.
    fn place(&mut self) {
        let came = self.machines.iter().filter(|machine| machine.came);
        let workers: Vec<Worker> = came
            .map(|machine| Worker {
                worker: worker(machine.id),
                slots: self.pool.slots,
                warm: machine.warm.clone(),
                keeping: HashSet::new(),
                open: !machine.draining,
                offer: Arc::default(),
                leaves_in_ms: None,
            })
            .collect();
        for job in &mut self.jobs {
            let waited = self.now - self.since[number(job.notebook)];
            job.precedence.waited_ms = (waited * 1e3) as u64;
        }
        for (id, worker) in plan(&self.jobs, &workers, 1).assignments {
            let Some(job) = self.jobs.iter_mut().find(|job| job.job == id) else {
                continue;
            };
            job.worker = Some(worker);
            let person = number(job.notebook);
            // Whatever its state was before, it is no longer idle.
            for machine in &mut self.machines {
                machine.warm.remove(&job.notebook);
                if self::worker(machine.id) == worker {
                    machine.idle_since = f64::INFINITY;
                    machine.warm.insert(job.notebook);
                }
            }
            if self.now >= self.warm_up {
                self.counted.waits.add(self.now - self.since[person]);
            }
            let cell = self.begun[person];
            self.begun[person] += 1;
            let run = self.pool.course.run(person, cell, &mut self.random);
            self.later(run, Happening::Ends(person));
        }
    }

    /// Requests the machines that the pool should have.
    fn ask(&mut self) {
        let came = self.machines.iter().filter(|machine| machine.came);
        let pending = self.machines.len() - came.clone().count();
        let up = came.filter(|machine| !machine.draining).count();
        let slots = up as f64 * f64::from(self.pool.slots);
        let run = self.pool.course.mean_run();
        let waiting = self.jobs.iter().filter(|job| job.worker.is_none());
        let starts_after = |ahead: usize| (ahead + 1) as f64 * run / slots;
        let late = waiting.enumerate().filter(|(ahead, _)| {
            up == 0 || starts_after(*ahead) * 1e3 > self.pool.terms.target_wait_ms as f64
        });
        let late = late.map(|_| Waiting {
            work_ms: (run * 1e3) as u64,
            pools: vec![0],
        });
        let present = Present {
            running: count(self.jobs.iter().filter(|job| job.worker.is_some()).count()),
            up: count(up),
            pending: count(pending),
            slots: self.pool.slots,
            failures: 0,
        };
        let late: Vec<Waiting> = late.collect();
        let demands = pools::demands(&late, &[(self.pool.terms, present)]);
        for _ in 0..pools::to_start(&self.pool.terms, &demands[0], &present) {
            let kept = self.machines.iter().filter(|machine| machine.kept).count();
            let id = self.asked;
            self.asked += 1;
            self.machines.push(Machine {
                id,
                came: false,
                kept: kept < self.pool.terms.min as usize,
                draining: false,
                warm: HashSet::new(),
                idle_since: f64::INFINITY,
            });
            if self.now >= self.warm_up {
                self.counted.starts += 1;
            }
            let start = self.pool.start.draw(&mut self.random);
            self.later(start, Happening::Comes(id));
        }
    }
}

fn worker(id: u128) -> WorkerId {
    WorkerId(Uuid::from_u128(id))
}

fn number(notebook: NotebookId) -> usize {
    notebook.0.as_u128() as usize
}

fn count(of: usize) -> u32 {
    u32::try_from(of).unwrap_or(u32::MAX)
}
