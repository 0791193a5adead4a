//! The simulated broker and its workers, event by event.

use super::{Counted, CountedKind, Fleet, Group, MachineKind, Spread};
use crate::simulation::people::{Usage, job, notebook, person_of};
use baton_protocol::WorkerId;
use baton_scheduling::{
    pools,
    queue::{Job, Worker, plan},
};
use rand::{SeedableRng, rngs::Xoshiro256PlusPlus};
use std::{
    cmp::Reverse,
    collections::{BinaryHeap, HashSet},
    sync::Arc,
    time::Duration,
};
use uuid::Uuid;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Happening {
    Submits(usize),
    Ends(usize),
    Comes(u128),
    /// The machine leaves if it has been idle since that time.
    Leaves(u128, u64),
    /// The machine's time is nearly over.
    Drains(u128),
    /// The broker requests the machines that the pools should have.
    Looks,
}

/// One notebook of a group, with at most one cell.
struct Person {
    group: usize,
    /// The number of the notebook in its group.
    number: usize,
    owner: Arc<str>,
    /// When the last cell was submitted.
    since: f64,
    /// How many cells have begun.
    begun: usize,
    /// When the running cell began, and the machine.
    runs: Option<(f64, u128)>,
    usage: Usage,
}

pub(super) struct Machine {
    id: u128,
    /// Its number among all kinds of the fleet.
    pub(super) kind: usize,
    pub(super) came: bool,
    pub(super) kept: bool,
    pub(super) draining: bool,
    pub(super) running: u32,
    idle_since: f64,
    /// It does not leave before, even if it is idle.
    pub(super) stays_until: f64,
    /// When its cells must have ended; infinite without a walltime.
    cells_end: f64,
}

pub(super) struct World<'fleet> {
    pub(super) fleet: &'fleet Fleet,
    pub(super) kinds: Vec<&'fleet MachineKind>,
    /// For each group and each of the kinds, whether the group's cells can run there.
    pub(super) fits: Vec<Vec<bool>>,
    pub(super) lessons: Vec<pools::Lesson>,
    /// When people come, and after what time they submit no more cells.
    hours: (f64, f64),
    random: Xoshiro256PlusPlus,
    pub(super) now: f64,
    warm_up: f64,
    /// Times are positive, so their bits are in the same order.
    calendar: BinaryHeap<Reverse<(u64, Happening)>>,
    pub(super) jobs: Vec<Job>,
    people: Vec<Person>,
    /// Notebooks that have a cell or will submit one.
    active: usize,
    looks: bool,
    /// Requested or present.
    pub(super) machines: Vec<Machine>,
    /// The machines that have come, as the queue sees them.
    workers: Vec<Worker>,
    asked: u128,
    counted: Counted,
}

impl<'fleet> World<'fleet> {
    pub(super) fn new(fleet: &'fleet Fleet, warm_up: f64, seed: u64) -> Self {
        let people = fleet.groups.iter().enumerate().flat_map(|(group, of)| {
            (0..of.course.notebooks()).map(move |number| Person {
                group,
                number,
                owner: Arc::default(),
                since: 0.0,
                begun: 0,
                runs: None,
                usage: Usage::default(),
            })
        });
        let mut people: Vec<Person> = people.collect();
        for (number, person) in people.iter_mut().enumerate() {
            person.owner = number.to_string().into();
        }
        let kinds: Vec<&MachineKind> = fleet.kinds().collect();
        let fits = |group: &Group| kinds.iter().map(|kind| kind.meets(&group.needs)).collect();
        let mut world = Self {
            fleet,
            fits: fleet.groups.iter().map(fits).collect(),
            lessons: Vec::new(),
            hours: (0.0, f64::INFINITY),
            random: Xoshiro256PlusPlus::seed_from_u64(seed),
            now: 0.0,
            warm_up,
            calendar: BinaryHeap::new(),
            jobs: Vec::new(),
            active: people.len(),
            people,
            looks: false,
            machines: Vec::new(),
            workers: Vec::new(),
            asked: 0,
            counted: Counted {
                seconds: 0.0,
                waits: Spread::new(),
                groups: fleet.groups.iter().map(|_| Spread::new()).collect(),
                kinds: vec![CountedKind::default(); kinds.len()],
            },
            kinds,
        };
        for (kind, machines) in fleet.machines.iter().enumerate() {
            for _ in 0..machines.count {
                let id = world.add_machine(kind, true);
                world.come(id);
            }
        }
        world
    }

    pub(super) fn with_lesson(mut self, lessons: Vec<pools::Lesson>, start: f64, end: f64) -> Self {
        self.lessons = lessons;
        self.hours = (start, end);
        self
    }

    pub(super) fn run(mut self, end: f64) -> Counted {
        let (start, _) = self.hours;
        for person in 0..self.people.len() {
            self.edit(person, start);
        }
        self.happen(Happening::Looks);
        self.look_soon();
        while !self.is_over()
            && let Some(Reverse((at, happening))) = self.calendar.pop()
        {
            let at = f64::from_bits(at);
            self.pass(at.min(end));
            if at > end {
                break;
            }
            self.happen(happening);
            self.place();
            if happening != Happening::Looks || self.now < start {
                self.look_soon();
            }
        }
        self.counted.seconds = self.now - self.warm_up;
        self.counted
    }

    /// Whether no cell runs or will be submitted, and only machines that are always kept remain.
    fn is_over(&self) -> bool {
        self.active == 0 && self.machines.iter().all(|machine| machine.kept)
    }

    pub(super) fn group_of(&self, job: &Job) -> usize {
        self.people[person_of(job.notebook)].group
    }

    fn is_counted(&self) -> bool {
        self.now >= self.warm_up
    }

    /// Adds up what existed until then.
    fn pass(&mut self, until: f64) {
        let counted = until - self.now.max(self.warm_up).min(until);
        for machine in &self.machines {
            let of_kind = &mut self.counted.kinds[machine.kind];
            of_kind.machine_seconds += counted;
            of_kind.slot_seconds += counted * f64::from(self.kinds[machine.kind].slots);
            of_kind.busy_seconds += counted * f64::from(machine.running);
        }
        self.now = until;
    }

    fn later(&mut self, seconds: f64, happening: Happening) {
        self.enter(self.now + seconds, happening);
    }

    fn enter(&mut self, at: f64, happening: Happening) {
        self.calendar.push(Reverse((at.to_bits(), happening)));
    }

    /// Begins an edit at this time. It ends with the next cell, unless there is none.
    fn edit(&mut self, person: usize, since: f64) {
        let Person {
            group,
            number,
            begun,
            ..
        } = self.people[person];
        let course = &self.fleet.groups[group].course;
        let submits = course
            .edit(number, begun, &mut self.random)
            .map(|edit| since + edit);
        match submits.filter(|at| *at <= self.hours.1) {
            Some(at) => self.enter(at, Happening::Submits(person)),
            None => self.active -= 1,
        }
    }

    /// Schedules the broker's next look at its pools. The broker looks at fixed intervals, and only
    /// events, and the time until a lesson, change anything in between.
    fn look_soon(&mut self) {
        if !self.looks && !self.fleet.pools.is_empty() {
            self.looks = true;
            let step = pools::LOOK_EVERY.as_secs_f64();
            let next = (self.now / step).floor() * step + step;
            self.later(next - self.now, Happening::Looks);
        }
    }

    fn happen(&mut self, happening: Happening) {
        match happening {
            Happening::Submits(person) => {
                let group = self.people[person].group;
                self.people[person].since = self.now;
                let mut job = job(person, Arc::clone(&self.people[person].owner));
                job.needs = Arc::clone(&self.fleet.groups[group].needs);
                job.takes_ms = Some((self.fleet.groups[group].course.mean_run() * 1e3) as u64);
                self.jobs.push(job);
            }
            Happening::Ends(person) => self.end(person),
            Happening::Comes(id) => self.come(id),
            Happening::Drains(id) => {
                for machine in self.machines.iter_mut().filter(|machine| machine.id == id) {
                    machine.draining = true;
                }
                for other in self
                    .workers
                    .iter_mut()
                    .filter(|other| other.worker == worker(id))
                {
                    other.open = false;
                }
                self.may_be_idle(id);
            }
            Happening::Looks => {
                self.looks = false;
                self.request();
            }
            Happening::Leaves(id, since) => self.may_leave(id, since),
        }
    }

    fn end(&mut self, person: usize) {
        let is_own = |job: &Job| job.notebook == notebook(person);
        if let Some(place) = self.jobs.iter().position(is_own) {
            self.jobs.remove(place);
        }
        let now = self.now;
        if let Some((begun, id)) = self.people[person].runs.take() {
            self.people[person].usage.add(now - begun, now);
            for machine in self.machines.iter_mut().filter(|machine| machine.id == id) {
                machine.running -= 1;
            }
            self.may_be_idle(id);
        }
        self.edit(person, now);
    }

    /// Adds a machine that is requested now.
    fn add_machine(&mut self, kind: usize, kept: bool) -> u128 {
        let id = self.asked;
        self.asked += 1;
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

    pub(super) fn start_machine(&mut self, pool: usize, kept: bool) {
        let kind = self.fleet.machines.len() + pool;
        let id = self.add_machine(kind, kept);
        if self.is_counted() {
            self.counted.kinds[kind].starts += 1;
        }
        let start = self.fleet.pools[pool].start.draw(&mut self.random);
        self.later(start, Happening::Comes(id));
    }

    fn come(&mut self, id: u128) {
        let Some(machine) = self.machines.iter_mut().find(|machine| machine.id == id) else {
            return;
        };
        machine.came = true;
        let kind = machine.kind;
        self.workers.push(Worker {
            worker: worker(id),
            slots: self.kinds[kind].slots,
            warm: HashSet::new(),
            keeping: HashSet::new(),
            open: true,
            offer: Arc::clone(&self.kinds[kind].offer),
            leaves_in_ms: None,
        });
        self.may_be_idle(id);
        if let Some(walltime) = self.pool_of(kind).and_then(|pool| pool.walltime) {
            let walltime = Duration::from_secs_f64(walltime);
            let step = pools::last_step(walltime);
            let cells_end = self.now + (walltime - step).as_secs_f64();
            for machine in self.machines.iter_mut().filter(|machine| machine.id == id) {
                machine.cells_end = cells_end;
            }
            self.enter(cells_end - step.as_secs_f64(), Happening::Drains(id));
        }
    }

    /// The pool of this kind; `None` for machines that are always there.
    fn pool_of(&self, kind: usize) -> Option<&'fleet super::Pool> {
        self.fleet
            .pools
            .get(kind.checked_sub(self.fleet.machines.len())?)
    }

    pub(super) fn machines_of(&self, pool: usize) -> impl Iterator<Item = &Machine> + Clone {
        let kind = self.fleet.machines.len() + pool;
        self.machines
            .iter()
            .filter(move |machine| machine.kind == kind)
    }

    pub(super) fn machines_of_mut(&mut self, pool: usize) -> impl Iterator<Item = &mut Machine> {
        let kind = self.fleet.machines.len() + pool;
        self.machines
            .iter_mut()
            .filter(move |machine| machine.kind == kind)
    }

    fn may_be_idle(&mut self, id: u128) {
        let now = self.now;
        let Some(machine) = self.machines.iter_mut().find(|machine| machine.id == id) else {
            return;
        };
        machine.idle_since = now;
        let (kind, runs, draining) = (machine.kind, machine.running > 0, machine.draining);
        if runs {
            return;
        }
        if draining {
            return self.leave(id);
        }
        if let Some(pool) = self.pool_of(kind)
            && let Some(idle) = pool.idle
        {
            let usual_ms = (pool.start.mean() * 1e3) as u64;
            let idle_ms = pools::idle_ms((idle * 1e3) as u64, Some(usual_ms));
            self.later(idle_ms as f64 / 1e3, Happening::Leaves(id, now.to_bits()));
        }
    }

    fn may_leave(&mut self, id: u128, since: u64) {
        let now = self.now;
        let is_meant = |machine: &&Machine| {
            machine.id == id && machine.idle_since.to_bits() == since && machine.running == 0
        };
        match self.machines.iter().find(is_meant) {
            Some(machine) if machine.stays_until > now => {
                self.enter(machine.stays_until, Happening::Leaves(id, since));
            }
            Some(machine) if !machine.kept => self.leave(id),
            _ => {}
        }
    }

    fn leave(&mut self, id: u128) {
        self.machines.retain(|machine| machine.id != id);
        self.workers.retain(|other| other.worker != worker(id));
    }

    /// Updates what determines the order of the waiting cells.
    pub(super) fn rank(&mut self) {
        for job in self.jobs.iter_mut().filter(|job| job.worker.is_none()) {
            let person = &self.people[person_of(job.notebook)];
            job.precedence.waited_ms = ((self.now - person.since) * 1e3) as u64;
            job.precedence.used_ms = person.usage.ms(self.now);
        }
    }

    /// Starts the cells for which there is a slot.
    fn place(&mut self) {
        let has_room = |machine: &Machine| {
            machine.came && !machine.draining && machine.running < self.kinds[machine.kind].slots
        };
        let running: u32 = self.machines.iter().map(|machine| machine.running).sum();
        if self.jobs.len() == running as usize || !self.machines.iter().any(has_room) {
            return;
        }
        self.rank();
        for machine in self.machines.iter().filter(|one| one.cells_end.is_finite()) {
            let left_ms = ((machine.cells_end - self.now) * 1e3) as u64;
            let of_machine = |other: &&mut Worker| other.worker == worker(machine.id);
            if let Some(other) = self.workers.iter_mut().find(of_machine) {
                other.leaves_in_ms = Some(left_ms);
            }
        }
        for (id, on) in plan(&self.jobs, &self.workers, 1).assignments {
            let Some(job) = self.jobs.iter_mut().find(|job| job.job == id) else {
                continue;
            };
            job.worker = Some(on);
            let notebook = job.notebook;
            for other in &mut self.workers {
                other.warm.remove(&notebook);
                if other.worker == on {
                    other.warm.insert(notebook);
                }
            }
            self.start(person_of(notebook), on.0.as_u128());
        }
    }

    fn start(&mut self, person: usize, id: u128) {
        let counts = self.is_counted();
        let Some(machine) = self.machines.iter_mut().find(|machine| machine.id == id) else {
            return;
        };
        // Whatever its state was before, it is no longer idle.
        machine.idle_since = f64::INFINITY;
        machine.running += 1;
        let kind = machine.kind;
        let one = &mut self.people[person];
        let (group, cell) = (one.group, one.begun);
        one.begun += 1;
        one.runs = Some((self.now, id));
        if counts {
            let wait = self.now - one.since;
            self.counted.waits.add(wait);
            self.counted.groups[group].add(wait);
            self.counted.kinds[kind].cells += 1;
        }
        let course = &self.fleet.groups[group].course;
        let run = course.run(one.number, cell, &mut self.random) / self.kinds[kind].speed;
        self.later(run, Happening::Ends(person));
    }
}

fn worker(id: u128) -> WorkerId {
    WorkerId(Uuid::from_u128(id))
}
