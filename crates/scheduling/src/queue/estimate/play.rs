//! One possible future of the queue.
//!
//! The rules are those of [`crate::queue::plan`], with numbers instead of names, because this runs
//! thousands of times.

use super::{
    alike::link_alike,
    chance::Chance,
    entry::{Entry, Numbering, Person},
    needs::fitting,
    sort_key::{SortKey, Turn},
};
use crate::queue::{
    CourseOutlook, Expected, Job, Outlook, Precedence, SESSION_PATIENCE_MS, Worker, in_order,
    times::Times,
};
use baton_protocol::{JobId, WorkerId};
use std::{cmp::Reverse, collections::BinaryHeap};

/// A play that is longer than any lecture says nothing.
const HORIZON_MS: u64 = 8 * 3_600_000;
/// The most newcomers of a course that one play simulates.
const MOST_NEWCOMERS: u64 = 200;
const RUN: u64 = 1;
const START: u64 = 2;
const PAUSE: u64 = 3;

/// The common start of all plays.
#[derive(Debug, Clone)]
pub(super) struct World {
    outlook: Outlook,
    jobs_per_person: u32,
    workers: Vec<OpenWorker>,
    /// The workers on which each notebook has a warm session.
    warm: Vec<Vec<usize>>,
    /// The worker on which each notebook has a session that holds what no other session can have.
    keeping: Vec<Option<usize>>,
    people: usize,
    waiting: Vec<JobId>,
    /// Each with its worker, if that is connected.
    running: Vec<(Entry, Option<usize>)>,
    /// Those of `waiting` that may be started, in queue order.
    line: Vec<Entry>,
    /// The entries of `line` that no other must start before.
    first: Vec<usize>,
    /// For each entry of `line`, the next one that is like it. It starts later, so it does not compete before.
    next: Vec<Option<usize>>,
    returning: Vec<Person>,
    /// For each job, whether each worker meets its requirements other than time; `None`: all do.
    fits: Vec<Option<Vec<bool>>>,
}

#[derive(Debug, Clone, Copy)]
struct OpenWorker {
    slots: u32,
    busy: u32,
    id: WorkerId,
    /// The time from the beginning after which it takes no more jobs.
    leaves_ms: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Start {
    pub(super) after_ms: u64,
    /// How many started before it that had not been submitted yet.
    pub(super) overtakers: u64,
}

impl OpenWorker {
    fn of(worker: &Worker) -> Self {
        Self {
            slots: worker.slots,
            busy: 0,
            id: worker.worker,
            leaves_ms: worker.leaves_in_ms.unwrap_or(u64::MAX),
        }
    }
}

impl World {
    pub(super) fn new(
        jobs: &[Job],
        workers: &[Worker],
        jobs_per_person: u32,
        outlook: Outlook,
    ) -> Self {
        let open: Vec<&Worker> = workers.iter().filter(|worker| worker.open).collect();
        let mut workers: Vec<OpenWorker> = open.iter().copied().map(OpenWorker::of).collect();
        let mut numbering = Numbering::with_capacity(jobs.len());
        let mut running = Vec::new();
        for (number, job) in jobs.iter().enumerate() {
            let Some(worker) = job.worker else { continue };
            let at = open.iter().position(|other| other.worker == worker);
            if let Some(at) = at {
                workers[at].busy += 1;
            }
            running.push((numbering.entry((number, job), None, &outlook), at));
        }
        let ordered = in_order(jobs);
        let waiting = ordered.iter().map(|(_, job)| job.job).collect();
        let may_start = (0..)
            .zip(ordered)
            .filter(|(_, (_, job))| !job.held && !job.paused);
        let line: Vec<Entry> = may_start
            .map(|(position, numbered)| numbering.entry(numbered, Some(position), &outlook))
            .collect();
        let fits: Vec<_> = jobs.iter().map(|job| fitting(job, &open)).collect();
        let (first, next) = link_alike(&line, &fits);
        let returning = outlook.returning.iter();
        let returning = returning.map(|one| numbering.person(one)).collect();
        let (warm, keeping) = numbering.sessions(&open);
        Self {
            jobs_per_person: jobs_per_person.max(1),
            workers,
            warm,
            keeping,
            people: numbering.owners.0.len(),
            waiting,
            running,
            line,
            returning,
            first,
            next,
            fits,
            outlook,
        }
    }

    fn unlike(&self, play: u64) -> Vec<(f64, f64)> {
        let of_course = |(course, number): (&CourseOutlook, u64)| {
            let factor = |what: &str, spread: f64| {
                let chance = Chance::of_name(what).and(number);
                chance.factor_in_play(play, spread)
            };
            let runs = factor("runs", course.unlike_runs);
            (runs, factor("pauses", course.unlike_pauses))
        };
        self.outlook
            .courses
            .iter()
            .zip(0..)
            .map(of_course)
            .collect()
    }

    /// The waiting jobs, in queue order.
    pub(super) fn waiting(&self) -> &[JobId] {
        &self.waiting
    }

    fn expected(&self, entry: &Entry) -> Option<&Expected> {
        entry.job.map(|number| &self.outlook.jobs[number])
    }

    /// Returns when each waiting job starts, if it does.
    pub(super) fn play(&self, number: u64) -> Vec<Option<Start>> {
        let mut play = Play {
            world: self,
            number,
            workers: self.workers.clone(),
            last_worker: vec![None; self.warm.len()],
            busy_notebooks: vec![false; self.warm.len()],
            busy_owners: vec![0; self.people],
            open: vec![0; self.people],
            line: self.first.clone(),
            turns: 0,
            entries: self.line.clone(),
            events: BinaryHeap::new(),
            runs: Vec::new(),
            people: Vec::new(),
            starts: vec![None; self.waiting.len()],
            left: self.line.len(),
            newly_started: 0,
            unlike: self.unlike(number),
        };
        if play.begin() {
            play.run();
        }
        play.starts
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Ends(usize),
    Comes(usize),
}

struct Play<'world> {
    world: &'world World,
    number: u64,
    workers: Vec<OpenWorker>,
    /// Where each notebook ran last in this play.
    last_worker: Vec<Option<usize>>,
    busy_notebooks: Vec<bool>,
    busy_owners: Vec<u32>,
    /// Each person's jobs that wait or run.
    open: Vec<u32>,
    /// Numbers of entries, in queue order: they move often. Of those that are alike, only the first one.
    line: Vec<usize>,
    /// How often jobs joined the queue or had to wait for their next turn.
    turns: u64,
    entries: Vec<Entry>,
    events: BinaryHeap<Reverse<(u64, Event)>>,
    runs: Vec<(Entry, Option<usize>, u64)>,
    people: Vec<Person>,
    starts: Vec<Option<Start>>,
    /// How many of the jobs that wait now have not started.
    left: usize,
    newly_started: u64,
    /// For each course, the factors by which all its runs and pauses are longer than in the past.
    unlike: Vec<(f64, f64)>,
}

impl Play<'_> {
    /// Returns false if a job runs whose duration is unknown.
    fn begin(&mut self) -> bool {
        let world = self.world;
        for entry in &world.line {
            self.open[entry.person.owner] += 1;
        }
        for (entry, worker) in &world.running {
            self.open[entry.person.owner] += 1;
            self.occupy(entry);
            let starting = world.expected(entry).and_then(|job| job.starting.as_ref());
            let starting = self.drawn(starting, entry.chance.and(START));
            if !self.runs(*entry, *worker, starting) {
                return false;
            }
        }
        for person in &world.returning {
            self.comes_back(*person, 0);
        }
        for (number, course) in world.outlook.courses.iter().enumerate() {
            let mut at = 0.0;
            for newcomer in 0..MOST_NEWCOMERS {
                let chance = Chance::of_name("newcomer").and(number as u64).and(newcomer);
                at += -(1.0 - chance.in_play(self.number)).ln() / course.newcomers;
                if at.is_nan() || at > course.newcomers_for_ms as f64 {
                    break;
                }
                let person = Person {
                    owner: self.open.len(),
                    notebook: None,
                    course: number,
                    precedence: course.newcomer,
                    absent_ms: 0,
                    chance,
                };
                self.open.push(0);
                self.busy_owners.push(0);
                self.enter(at as u64, person);
            }
        }
        true
    }

    fn run(&mut self) {
        self.fill(0);
        while self.left > 0
            && let Some(Reverse((now, event))) = self.events.pop()
            && now <= HORIZON_MS
        {
            match event {
                Event::Ends(run) => self.end(run, now),
                Event::Comes(person) => self.submit(person, now),
            }
            let at_once = self.events.peek();
            if at_once.is_some_and(|Reverse((next, _))| *next == now) {
                continue;
            }
            if !self.fill(now) {
                return;
            }
        }
    }

    fn end(&mut self, run: usize, now: u64) {
        let (entry, worker, run_ms) = self.runs[run];
        let mut person = entry.person;
        if let Some(notebook) = person.notebook {
            self.busy_notebooks[notebook] = false;
            self.last_worker[notebook] = worker;
        }
        self.busy_owners[person.owner] -= 1;
        self.open[person.owner] -= 1;
        if let Some(worker) = worker {
            self.workers[worker].busy -= 1;
        }
        if self.open[person.owner] == 0 {
            person.precedence.used_ms += run_ms as f64;
            person.precedence.low_priority = false;
            person.precedence.waited_ms = 0;
            person.absent_ms = 0;
            person.chance = person.chance.and(PAUSE);
            self.comes_back(person, now);
        } else {
            self.charge(&person, run_ms, now);
        }
    }

    /// Charges the account's waiting jobs with its run, after which they wait for its next turn.
    fn charge(&mut self, person: &Person, run_ms: u64, now: u64) {
        let entries = &self.entries;
        let is_own = |number: &usize| {
            let other = &entries[*number].person;
            (other.owner, other.course) == (person.owner, person.course)
        };
        let own: Vec<usize> = self.line.extract_if(.., |number| is_own(number)).collect();
        let since = self.next_turn();
        for number in own {
            let entry = &mut self.entries[number];
            let precedence = &mut entry.person.precedence;
            precedence.used_ms += run_ms as f64;
            precedence.since_run_ms = Some(0);
            let turn = Turn { since, number };
            entry.key = SortKey::of(entry.key.front(), precedence, now, turn);
            self.enqueue(number);
        }
    }

    fn next_turn(&mut self) -> u64 {
        self.turns += 1;
        self.turns
    }

    /// Lets the job compete that is like the one that starts, and was charged like it.
    fn follow(&mut self, started: usize) {
        let Some(next) = self.world.next.get(started).copied().flatten() else {
            return;
        };
        let started = self.entries[started];
        let entry = &mut self.entries[next];
        entry.key = started.key.of_alike(entry.key);
        entry.person.precedence = Precedence {
            waited_ms: entry.person.precedence.waited_ms,
            ..started.person.precedence
        };
        self.enqueue(next);
    }

    fn enqueue(&mut self, number: usize) {
        let key = self.entries[number].key;
        let position = self
            .line
            .partition_point(|other| self.entries[*other].key.is_before(&key));
        self.line.insert(position, number);
    }

    /// Simulates the person's return. Some people never return.
    fn comes_back(&mut self, person: Person, now: u64) {
        let pauses = &self.world.outlook.courses[person.course].pauses;
        let (_, lazier) = self.unlike[person.course];
        let away = person.absent_ms as f64 / 1000.0;
        let left = 1.0 - person.chance.in_play(self.number);
        let part = 1.0 - pauses.longer_than(away) * left;
        if let Some(pause) = pauses.percentile(part) {
            self.enter(
                now + ((pause - away).max(0.0) * 1000.0 * lazier) as u64,
                person,
            );
        }
    }

    fn enter(&mut self, at: u64, person: Person) {
        self.events
            .push(Reverse((at, Event::Comes(self.people.len()))));
        self.people.push(person);
    }

    fn submit(&mut self, person: usize, now: u64) {
        let person = self.people[person];
        self.open[person.owner] += 1;
        let turn = Turn {
            since: self.next_turn(),
            number: self.entries.len(),
        };
        let entry = Entry {
            key: SortKey::of(None, &person.precedence, now, turn),
            waiting: None,
            person,
            job: None,
            limit_ms: 0,
            takes_ms: 0,
            chance: person.chance.and(now),
        };
        self.entries.push(entry);
        self.enqueue(self.entries.len() - 1);
    }

    /// Starts all jobs that can start. Returns false if the duration of one of them is unknown.
    fn fill(&mut self, now: u64) -> bool {
        let mut position = 0;
        while position < self.line.len() && self.has_room(now) {
            let number = self.line[position];
            let entry = self.entries[number];
            let person = entry.person;
            let is_busy = person
                .notebook
                .is_some_and(|notebook| self.busy_notebooks[notebook]);
            if is_busy
                || self.busy_owners[person.owner] >= self.world.jobs_per_person
                || self.waits_for_session(&entry, now)
            {
                position += 1;
                continue;
            }
            let Some((worker, is_warm)) = self.choose_worker(&entry, now) else {
                position += 1;
                continue;
            };
            self.line.remove(position);
            self.follow(number);
            self.occupy(&entry);
            self.workers[worker].busy += 1;
            let outlook = &self.world.outlook;
            let (one, other) = match is_warm {
                true => (&outlook.warm, &outlook.cold),
                false => (&outlook.cold, &outlook.warm),
            };
            let starting = one.as_ref().or(other.as_ref());
            let start = now + self.drawn(starting, entry.chance.and(START));
            match entry.waiting {
                Some(number) => {
                    self.left -= 1;
                    self.starts[number] = Some(Start {
                        after_ms: start,
                        overtakers: self.newly_started,
                    });
                }
                None => self.newly_started += 1,
            }
            if !self.runs(entry, Some(worker), start) {
                return false;
            }
        }
        true
    }

    fn runs(&mut self, entry: Entry, worker: Option<usize>, start: u64) -> bool {
        let world = self.world;
        let (takes, of_its_own) = match world.expected(&entry) {
            Some(expected) => (&expected.takes, expected.of_its_own),
            None => (&world.outlook.courses[entry.person.course].takes, 0.0),
        };
        let Some(takes) = takes else {
            return false;
        };
        let usual_ms = takes.at(entry.chance.and(RUN).in_play(self.number));
        let (slower, _) = self.unlike[entry.person.course];
        let run_ms = (usual_ms as f64 * slower.powf(1.0 - of_its_own)) as u64;
        let end = start.saturating_add(run_ms);
        self.events
            .push(Reverse((end, Event::Ends(self.runs.len()))));
        self.runs.push((entry, worker, run_ms));
        true
    }

    fn drawn(&self, times: Option<&Times>, chance: Chance) -> u64 {
        times.map_or(0, |times| times.at(chance.in_play(self.number)))
    }

    fn occupy(&mut self, entry: &Entry) {
        if let Some(notebook) = entry.person.notebook {
            self.busy_notebooks[notebook] = true;
        }
        self.busy_owners[entry.person.owner] += 1;
    }

    fn has_room(&self, now: u64) -> bool {
        let mut workers = self.workers.iter();
        workers.any(|worker| worker.busy < worker.slots && worker.leaves_ms > now)
    }

    fn fits(&self, entry: &Entry, at: usize, now: u64) -> bool {
        let fits = entry.job.and_then(|job| self.world.fits[job].as_ref());
        fits.is_none_or(|fits| fits[at])
            && now.saturating_add(entry.limit_ms) <= self.workers[at].leaves_ms
    }

    fn waits_for_session(&self, entry: &Entry, now: u64) -> bool {
        let person = &entry.person;
        let keeping = person
            .notebook
            .and_then(|notebook| self.world.keeping[notebook])
            .filter(|at| self.fits(entry, *at, now));
        keeping.is_some_and(|at| self.workers[at].busy >= self.workers[at].slots)
            && person.precedence.waited_ms + now < SESSION_PATIENCE_MS
    }

    /// Prefers the worker whose session cannot move, then those that stay long enough, then the one with the warm
    /// session, then the least loaded one. Also returns whether the session is warm.
    fn choose_worker(&self, entry: &Entry, now: u64) -> Option<(usize, bool)> {
        let notebook = entry.person.notebook;
        let is_warm = |at: usize| {
            notebook.is_none_or(|notebook| {
                self.last_worker[notebook] == Some(at) || self.world.warm[notebook].contains(&at)
            })
        };
        let free = self.workers.iter().enumerate();
        let free = free.filter(|(at, worker)| {
            worker.busy < worker.slots && worker.leaves_ms > now && self.fits(entry, *at, now)
        });
        let keeping = notebook.and_then(|notebook| self.world.keeping[notebook]);
        let chosen = free.min_by_key(|(at, worker)| {
            let early = worker.leaves_ms < now.saturating_add(entry.takes_ms);
            let load_per_million = u64::from(worker.busy) * 1_000_000 / u64::from(worker.slots);
            let moves = keeping != Some(*at);
            (moves, early, !is_warm(*at), load_per_million, worker.id)
        });
        chosen.map(|(at, _)| (at, is_warm(at)))
    }
}

#[cfg(test)]
mod tests;
