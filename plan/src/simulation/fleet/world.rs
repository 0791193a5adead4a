//! The simulated broker and its workers, event by event.

use super::{
    Counted, CountedKind, Fleet, Group, MachineKind, Spread,
    machines::{Machine, MachineSet},
    ms, requests,
};
use crate::simulation::people::{Usage, job, notebook, person_of};
use baton_scheduling::{
    pools::{self, Present, Scaling, Waiting},
    queue::{Job, in_queue_order, plan},
};
use rand::{SeedableRng, rngs::Xoshiro256PlusPlus};
use std::{cmp::Reverse, collections::BinaryHeap, sync::Arc, time::Duration};

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

pub(super) struct World<'fleet> {
    fleet: &'fleet Fleet,
    kinds: Vec<&'fleet MachineKind>,
    /// For each group and each of the kinds, whether the group's cells can run there.
    fits: Vec<Vec<bool>>,
    lessons: Vec<pools::Lesson>,
    /// When people come, and after what time they submit no more cells.
    hours: (f64, f64),
    random: Xoshiro256PlusPlus,
    now: f64,
    warm_up: f64,
    /// Times are positive, so their bits are in the same order.
    calendar: BinaryHeap<Reverse<(u64, Happening)>>,
    jobs: Vec<Job>,
    people: Vec<Person>,
    /// Notebooks that have a cell or will submit one.
    active: usize,
    looks: bool,
    machines: MachineSet,
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
            machines: MachineSet::default(),
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
                let id = world.machines.add(kind, true);
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

    fn is_counted(&self) -> bool {
        self.now >= self.warm_up
    }

    /// Adds up what existed until then.
    fn pass(&mut self, until: f64) {
        let counted = until - self.now.max(self.warm_up).min(until);
        for machine in self.machines.iter() {
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
            Happening::Submits(person) => self.submit(person),
            Happening::Ends(person) => self.end(person),
            Happening::Comes(id) => self.come(id),
            Happening::Drains(id) => {
                self.machines.drain(id);
                self.may_be_idle(id);
            }
            Happening::Looks => {
                self.looks = false;
                self.request();
            }
            Happening::Leaves(id, since) => self.may_leave(id, since),
        }
    }

    fn submit(&mut self, person: usize) {
        let group = &self.fleet.groups[self.people[person].group];
        self.people[person].since = self.now;
        let mut job = job(person, Arc::clone(&self.people[person].owner));
        job.needs = Arc::clone(&group.needs);
        job.takes_ms = Some((group.course.mean_run() * 1e3) as u64);
        self.jobs.push(job);
    }

    fn end(&mut self, person: usize) {
        let is_own = |job: &Job| job.notebook == notebook(person);
        if let Some(place) = self.jobs.iter().position(is_own) {
            self.jobs.remove(place);
        }
        let now = self.now;
        if let Some((begun, id)) = self.people[person].runs.take() {
            self.people[person].usage.add(now - begun, now);
            if let Some(machine) = self.machines.get_mut(id) {
                machine.running -= 1;
            }
            self.may_be_idle(id);
        }
        self.edit(person, now);
    }

    /// Requests the machines that the pools should have.
    fn request(&mut self) {
        self.rank();
        let floors = requests::floors(self.fleet, &self.lessons, ms(self.now));
        let pools: Vec<(Scaling, Present)> = (self.fleet.pools.iter().zip(&floors).enumerate())
            .map(|(number, (pool, floor))| {
                let min = pool.scaling.min.max(floor.workers);
                let scaling = Scaling {
                    min,
                    ..pool.scaling
                };
                let machines = self.machines.of_kind(self.kind_of(number));
                (scaling, requests::present(pool, machines))
            })
            .collect();
        let demands = pools::demands(&self.late(), &pools);
        for (number, (scaling, present)) in pools.iter().enumerate() {
            let kind = self.kind_of(number);
            for _ in 0..pools::to_start(scaling, &demands[number], present) {
                let kept = self.machines.of_kind(kind).filter(|machine| machine.kept);
                let is_kept = kept.count() < self.fleet.pools[number].scaling.min as usize;
                self.start_machine(number, is_kept);
            }
            let floor = floors[number];
            let staying = self.machines.of_kind_mut(kind);
            for machine in staying
                .filter(|machine| !machine.draining)
                .take(floor.workers as usize)
            {
                machine.stays_until = floor.until_ms as f64 / 1e3;
            }
        }
    }

    /// The waiting cells that the present machines do not start in time.
    fn late(&self) -> Vec<Waiting> {
        let open = self.machines.iter();
        let open = open.filter(|machine| machine.came && !machine.draining);
        let open: Vec<usize> = open.map(|machine| machine.kind).collect();
        let waiting = in_queue_order(&self.jobs).into_iter();
        let groups = waiting.map(|job| self.people[person_of(job.notebook)].group);
        requests::late(self.fleet, &self.fits, &open, groups)
    }

    fn start_machine(&mut self, pool: usize, kept: bool) {
        let kind = self.kind_of(pool);
        let id = self.machines.add(kind, kept);
        if self.is_counted() {
            self.counted.kinds[kind].starts += 1;
        }
        let start = self.fleet.pools[pool].start.draw(&mut self.random);
        self.later(start, Happening::Comes(id));
    }

    fn come(&mut self, id: u128) {
        let Some(kind) = self.machines.open(id, &self.kinds) else {
            return;
        };
        self.may_be_idle(id);
        if let Some(walltime) = self.pool_of(kind).and_then(|pool| pool.walltime) {
            let walltime = Duration::from_secs_f64(walltime);
            let step = pools::last_step(walltime);
            let cells_end = self.now + (walltime - step).as_secs_f64();
            if let Some(machine) = self.machines.get_mut(id) {
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

    /// The number of the pool's kind among all kinds of the fleet.
    fn kind_of(&self, pool: usize) -> usize {
        self.fleet.machines.len() + pool
    }

    fn may_be_idle(&mut self, id: u128) {
        let now = self.now;
        let Some(machine) = self.machines.get_mut(id) else {
            return;
        };
        machine.idle_since = now;
        let (kind, runs, draining) = (machine.kind, machine.running > 0, machine.draining);
        if runs {
            return;
        }
        if draining {
            return self.machines.remove(id);
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
            Some(machine) if !machine.kept => self.machines.remove(id),
            _ => {}
        }
    }

    /// Updates what determines the order of the waiting cells.
    fn rank(&mut self) {
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
        let workers = self.machines.workers(self.now);
        for (id, on) in plan(&self.jobs, workers, 1).assignments {
            let Some(job) = self.jobs.iter_mut().find(|job| job.job == id) else {
                continue;
            };
            job.worker = Some(on);
            let notebook = job.notebook;
            self.machines.warm(notebook, on);
            self.start(person_of(notebook), on.0.as_u128());
        }
    }

    fn start(&mut self, person: usize, id: u128) {
        let counts = self.is_counted();
        let Some(machine) = self.machines.get_mut(id) else {
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
