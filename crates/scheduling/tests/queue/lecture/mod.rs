//! A lecture on a simulated clock: students come, think, and run cells on workers whose sessions
//! take time to start.
//!
//! The order, the estimates and the times at which they are shown are those of the broker.

pub(crate) mod people;
pub(crate) mod score;

use baton_protocol::{CellKey, JobId, NotebookId, WorkerId, api::MovedBack};
use baton_scheduling::queue::{
    Account, History, Job, JobsAhead, Open, Outlook, Precedence, Progress, Run, ShownPosition,
    Spread, StartEstimate, Worker, estimate_starts, in_queue_order, plan,
};
use people::{Habits, Student, longer_than};
use rand::{SeedableRng, rngs::Xoshiro256PlusPlus as Random};
use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    sync::Arc,
};
use uuid::Uuid;

const HALF_LIFE_MS: f64 = 12.0 * 3600.0 * 1000.0;
const TELL_EVERY: u64 = 1000;
const SAME_ESTIMATE_MS: u64 = 2000;

/// What a student saw of a waiting cell at one time.
#[derive(Debug, Clone)]
pub(crate) struct Telling {
    pub(crate) at: u64,
    pub(crate) position: ShownPosition,
    pub(crate) moved_back: Option<MovedBack>,
    /// In absolute times.
    pub(crate) starts: Option<Spread>,
    /// The best possible estimate: from the lecture itself, continued many times from here.
    pub(crate) best: Option<Spread>,
}

/// A cell that waited, with everything that was shown about it.
#[derive(Debug, Clone)]
pub(crate) struct Told {
    pub(crate) tellings: Vec<Telling>,
    pub(crate) started: u64,
}

#[derive(Debug, Clone, Copy)]
enum Doing {
    /// Thinks until the next cell.
    Thinks {
        since: u64,
        until: u64,
        came: bool,
    },
    Waits,
}

#[derive(Debug, Clone, Copy)]
enum Phase {
    Waits,
    Starts {
        worker: usize,
        cold: bool,
        since: u64,
        until: u64,
    },
    Runs {
        worker: usize,
        since: u64,
        until: u64,
    },
}

#[derive(Debug, Clone)]
struct Cell {
    person: usize,
    submitted: u64,
    phase: Phase,
    tellings: Vec<Telling>,
}

#[derive(Debug, Clone)]
struct Person {
    student: Student,
    doing: Doing,
    used_ms: f64,
    used_at: u64,
    notebook: NotebookId,
    owner: Arc<str>,
}

#[derive(Debug, Clone)]
pub(crate) struct Lecture {
    habits: Habits,
    random: Random,
    now: u64,
    people: Vec<Person>,
    cells: BTreeMap<u128, Cell>,
    next: u128,
    /// The warm sessions of each worker, the most recently used last.
    warm: Vec<VecDeque<NotebookId>>,
    history: History,
    /// Whether estimates are shown; not while the lecture is continued to see how it might go.
    tells: bool,
    /// One in this many waiting cells also gets the best possible estimate; zero: none.
    best_each: u128,
    pub(crate) told: Vec<Told>,
}

impl Lecture {
    pub(crate) fn new(seed: u64, best_each: u128) -> Self {
        let mut random = Random::seed_from_u64(seed);
        let habits = Habits::draw(&mut random);
        let people = (0..habits.students).map(|person| Person {
            student: Student::draw(&mut random),
            doing: Doing::Thinks {
                since: 0,
                until: habits.arrival(&mut random),
                came: false,
            },
            used_ms: 0.0,
            used_at: 0,
            notebook: NotebookId(Uuid::from_u128(person as u128)),
            owner: person.to_string().into(),
        });
        Self {
            people: people.collect(),
            now: 0,
            cells: BTreeMap::new(),
            next: 0,
            warm: vec![VecDeque::new(); habits.workers],
            history: History::default(),
            tells: true,
            best_each,
            told: Vec::new(),
            habits,
            random,
        }
    }

    pub(crate) fn run_until(&mut self, end: u64) {
        while self.step(end) {}
    }

    /// Does what happens next; false if that is after the end.
    fn step(&mut self, end: u64) -> bool {
        let comes = |person: &Person| match person.doing {
            Doing::Thinks { until, .. } => Some(until),
            Doing::Waits => None,
        };
        let ends = |cell: &Cell| match cell.phase {
            Phase::Waits => None,
            Phase::Starts { until, .. } | Phase::Runs { until, .. } => Some(until),
        };
        let people = (0..).zip(&self.people);
        let next_person = people.filter_map(|(person, who)| Some((comes(who)?, person)));
        let next_person: Option<(u64, usize)> = next_person.min();
        let cells = self.cells.iter();
        let next_cell = cells.filter_map(|(id, cell)| Some((ends(cell)?, *id)));
        let next_cell: Option<(u64, u128)> = next_cell.min();
        let at = [next_person.map(|next| next.0), next_cell.map(|next| next.0)];
        let Some(at) = at.into_iter().flatten().min().filter(|at| *at <= end) else {
            return false;
        };
        self.now = at;
        match (next_person, next_cell) {
            (Some((time, person)), _) if time == at => self.submit(person),
            (_, Some((_, id))) => self.advance(id),
            _ => {}
        }
        self.settle();
        true
    }

    fn submit(&mut self, person: usize) {
        self.next += 1;
        self.people[person].doing = Doing::Waits;
        if self.tells {
            let account = self.people[person].account();
            self.history.submitted(&account, self.now as i64);
        }
        let cell = Cell {
            person,
            submitted: self.now,
            phase: Phase::Waits,
            tellings: Vec::new(),
        };
        self.cells.insert(self.next, cell);
    }

    /// The cell's session has started, or the cell has ended.
    fn advance(&mut self, id: u128) {
        let Some(cell) = self.cells.get_mut(&id) else {
            return;
        };
        let person = &mut self.people[cell.person];
        match cell.phase {
            Phase::Waits => {}
            Phase::Starts {
                worker,
                cold,
                since,
                ..
            } => {
                if self.tells {
                    self.history.started(cold, self.now - since);
                    let ranges = cell.tellings.iter().filter_map(|telling| telling.starts);
                    let ranges: Vec<(u64, u64)> =
                        ranges.map(|starts| (starts.lower, starts.upper)).collect();
                    self.history
                        .started_after(&person.account(), &ranges, self.now);
                }
                let run = person.student.runs(&self.habits, &mut self.random);
                cell.phase = Phase::Runs {
                    worker,
                    since: self.now,
                    until: self.now + run,
                };
                if !cell.tellings.is_empty() {
                    self.told.push(Told {
                        tellings: std::mem::take(&mut cell.tellings),
                        started: self.now,
                    });
                }
            }
            Phase::Runs { since, .. } => {
                let run_ms = self.now - since;
                person.used_ms = person.used_ms(self.now) + run_ms as f64;
                person.used_at = self.now;
                if self.tells {
                    self.history.ended(&person.account(), self.now as i64);
                    self.history.add(Run {
                        cell: Some(person.cell_key()),
                        account: person.account(),
                        run_ms,
                    });
                }
                person.student.goes_on(&self.habits, &mut self.random);
                let thinks = person.student.thinks(&self.habits, &mut self.random);
                person.doing = Doing::Thinks {
                    since: self.now,
                    until: self.now + thinks,
                    came: true,
                };
                self.cells.remove(&id);
            }
        }
    }

    fn settle(&mut self) {
        let jobs: Vec<Job> = self.cells.keys().map(|id| self.job(*id)).collect();
        let plan = plan(&jobs, &self.workers(), 1);
        for (job, worker) in plan.assignments {
            self.assign(job.0.as_u128(), worker.0.as_u128() as usize);
        }
        if !self.tells || plan.positions.is_empty() {
            return;
        }
        let jobs: Vec<Job> = self.cells.keys().map(|id| self.job(*id)).collect();
        let said: HashMap<JobId, Option<StartEstimate>> =
            estimate_starts(&jobs, &self.workers(), 1, self.outlook())
                .into_iter()
                .collect();
        let mut ahead = JobsAhead::default();
        for (job, (_, position)) in in_queue_order(&jobs).into_iter().zip(plan.positions) {
            let said = said.get(&job.job).copied().flatten();
            self.show(job, position.position, said, &ahead);
            ahead.add(job);
        }
    }

    fn outlook(&self) -> Outlook {
        let accounts: Vec<Account> = self.people.iter().map(Person::account).collect();
        let open = self.cells.values().map(|cell| Open {
            cell: Some(self.people[cell.person].cell_key()),
            account: &accounts[cell.person],
            progress: match cell.phase {
                Phase::Waits => Progress::Waits,
                Phase::Starts { cold, since, .. } => Progress::Starts {
                    cold,
                    already_ms: self.now - since,
                },
                Phase::Runs { since, .. } => Progress::Runs {
                    already_ms: self.now - since,
                },
            },
            limit_ms: None,
        });
        let open: Vec<Open<'_>> = open.collect();
        self.history.outlook(&open, self.now as i64, |account| {
            let person = account.owner.parse::<usize>().ok();
            let used_ms = person.map_or(0.0, |person| self.people[person].used_ms(self.now));
            precedence(used_ms, 0)
        })
    }

    fn assign(&mut self, id: u128, worker: usize) {
        let Some(cell) = self.cells.get_mut(&id) else {
            return;
        };
        let notebook = self.people[cell.person].notebook;
        let warm = &mut self.warm[worker];
        let cold = !warm.contains(&notebook);
        let took = self.habits.start(cold, &mut self.random);
        cell.phase = Phase::Starts {
            worker,
            cold,
            since: self.now,
            until: self.now + took,
        };
        warm.retain(|other| *other != notebook);
        warm.push_back(notebook);
        if warm.len() > self.habits.warm {
            warm.pop_front();
        }
    }

    fn show(
        &mut self,
        job: &Job,
        position: u32,
        said: Option<StartEstimate>,
        ahead: &JobsAhead<'_>,
    ) {
        let id = job.job.0.as_u128();
        let Some(cell) = self.cells.get(&id) else {
            return;
        };
        let last = cell.tellings.last();
        let before = last.map(|last| last.position);
        let overtakers = said.map(|said| said.overtakers);
        let position = ShownPosition::next(before, position, overtakers, self.now);
        let starts = said.map(|said| said.starts.map(|ms| ms + self.now));
        match last {
            Some(last) if last.at + TELL_EVERY > self.now => return,
            Some(last) if last.position.is_same(&position) && is_near(last.starts, starts) => {
                return;
            }
            _ => {}
        }
        let wanted = last.is_none() && id.is_multiple_of(self.best_each);
        let telling = Telling {
            at: self.now,
            position,
            moved_back: position.moved_back(job, ahead, self.now),
            starts,
            best: wanted.then(|| self.best(id)).flatten(),
        };
        if let Some(cell) = self.cells.get_mut(&id) {
            cell.tellings.push(telling);
        }
    }

    /// When the cell starts if everything unknowable is drawn again, many times.
    fn best(&self, id: u128) -> Option<Spread> {
        const TIMES: u64 = 99;
        let mut starts: Vec<u64> = (0..TIMES)
            .map(|time| {
                let mut other = self.clone();
                other.tells = false;
                other.random = Random::seed_from_u64(time.wrapping_mul(7919) + id as u64);
                other.forget();
                other.start_of(id)
            })
            .collect();
        starts.sort_unstable();
        Some(Spread {
            lower: starts[9],
            middle: starts[49],
            upper: starts[89],
        })
    }

    fn start_of(&mut self, id: u128) -> u64 {
        let starts = |cell: &Cell| matches!(cell.phase, Phase::Runs { .. });
        while !self.cells.get(&id).is_none_or(starts) {
            if !self.step(u64::MAX) {
                break;
            }
        }
        self.now
    }

    /// Draws everything again that has not happened yet.
    fn forget(&mut self) {
        let (now, habits, random) = (self.now, &self.habits, &mut self.random);
        for person in &mut self.people {
            if let Doing::Thinks { since, until, came } = &mut person.doing {
                let student = &person.student;
                let time = longer_than(now - *since, || match came {
                    true => student.thinks(habits, random),
                    false => habits.arrival(random),
                });
                *until = *since + time;
            }
        }
        for cell in self.cells.values_mut() {
            let student = &self.people[cell.person].student;
            match &mut cell.phase {
                Phase::Waits => {}
                Phase::Starts {
                    cold, since, until, ..
                } => {
                    let cold = *cold;
                    *until = *since + longer_than(now - *since, || habits.start(cold, random));
                }
                Phase::Runs { since, until, .. } => {
                    *until = *since + longer_than(now - *since, || student.runs(habits, random));
                }
            }
        }
    }

    fn workers(&self) -> Vec<Worker> {
        let worker = |(number, warm): (usize, &VecDeque<NotebookId>)| Worker {
            worker: WorkerId(Uuid::from_u128(number as u128)),
            slots: self.habits.slots,
            warm: warm.iter().copied().collect(),
            keeping: std::collections::HashSet::new(),
            open: true,
            offer: Arc::default(),
            leaves_in_ms: None,
        };
        self.warm.iter().enumerate().map(worker).collect()
    }

    fn job(&self, id: u128) -> Job {
        let cell = &self.cells[&id];
        let person = &self.people[cell.person];
        let worker = match cell.phase {
            Phase::Waits => None,
            Phase::Starts { worker, .. } | Phase::Runs { worker, .. } => Some(worker),
        };
        Job {
            job: JobId(Uuid::from_u128(id)),
            notebook: person.notebook,
            owner: Arc::clone(&person.owner),
            worker: worker.map(|worker| WorkerId(Uuid::from_u128(worker as u128))),
            precedence: precedence(person.used_ms(self.now), self.now - cell.submitted),
            held: false,
            paused: false,
            front: None,
            needs: Arc::default(),
            takes_ms: None,
        }
    }
}

fn precedence(used_ms: f64, waited_ms: u64) -> Precedence {
    Precedence {
        used_ms,
        weight: 1.0,
        boost: 1.0,
        low_priority: false,
        waited_ms,
        since_run_ms: None,
    }
}

impl Person {
    fn used_ms(&self, now: u64) -> f64 {
        self.used_ms * (-((now - self.used_at) as f64) / HALF_LIFE_MS).exp2()
    }

    fn account(&self) -> Account {
        Account {
            owner: self.owner.to_string(),
            course: "ml".to_owned(),
        }
    }

    /// The same for the same code of the same person.
    fn cell_key(&self) -> CellKey {
        let (cell, version) = (self.student.cell as u128, u128::from(self.student.version));
        let key = self.notebook.0.as_u128() << 64 | cell << 32 | version;
        CellKey(key.to_be_bytes())
    }
}

fn is_near(one: Option<Spread>, other: Option<Spread>) -> bool {
    let (Some(one), Some(other)) = (one, other) else {
        return one.is_none() && other.is_none();
    };
    let near = |one: u64, other: u64| one.abs_diff(other) <= SAME_ESTIMATE_MS;
    near(one.lower, other.lower) && near(one.middle, other.middle) && near(one.upper, other.upper)
}
