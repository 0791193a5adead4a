//! GPUs that are handed over in order of arrival, simulated event by event, with times of any distribution.
//!
//! With exponential times this equals [`crate::shared`].

use super::{Length, Life, Run};
use rand::{RngExt, SeedableRng, rngs::Xoshiro256PlusPlus};
use std::{
    cmp::Reverse,
    collections::{BinaryHeap, VecDeque},
};

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Happening {
    WakesUp(usize),
    FallsAsleep(usize),
    Submits(usize),
    Ends(usize),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Asleep,
    Editing,
    Waiting,
    Running,
}

#[derive(Debug)]
struct Person {
    phase: Phase,
    gpu: Option<usize>,
    since: f64,
}

struct World<'life> {
    life: &'life Life,
    random: Xoshiro256PlusPlus,
    now: f64,
    people: Vec<Person>,
    gpus: usize,
    /// The person who holds each GPU; the other GPUs are free.
    holders: Vec<usize>,
    /// When each of them is handed over; infinite if it is not being handed over.
    hand_overs: Vec<f64>,
    line: VecDeque<usize>,
    /// Times are positive, so their bits are in the same order.
    calendar: BinaryHeap<Reverse<(u64, Happening)>>,
    warm_up: f64,
    run: Run,
}

pub(super) fn run(life: &Life, people: usize, gpus: usize, length: Length, seed: u64) -> Run {
    let mut world = World {
        life,
        random: Xoshiro256PlusPlus::seed_from_u64(seed),
        now: 0.0,
        people: Vec::new(),
        gpus,
        holders: Vec::new(),
        hand_overs: Vec::new(),
        line: VecDeque::new(),
        calendar: BinaryHeap::new(),
        warm_up: length.warm_up,
        run: Run::new(length.measured),
    };
    let asleep = life.away.mean() / (life.away.mean() + life.stay.mean());
    for person in 0..people {
        world.people.push(Person {
            phase: Phase::Editing,
            gpu: None,
            since: 0.0,
        });
        // Start with as many people away as in the long run, so that the queue does not begin with a rush.
        if world.random.random::<f64>() < asleep {
            world.happen(Happening::FallsAsleep(person));
        } else {
            world.edit(person);
        }
    }
    let end = length.warm_up + length.measured;
    while world.simulate_next(end) {}
    world.run
}

impl World<'_> {
    /// Simulates the next event; false if that is after the end.
    fn simulate_next(&mut self, end: f64) -> bool {
        let next = self.calendar.peek().map(|Reverse((time, _))| *time);
        let next = next.map_or(f64::INFINITY, f64::from_bits);
        let (hand_over, gpu) = self.next_hand_over();
        self.now = next.min(hand_over);
        if self.now > end || self.now.is_infinite() {
            return false;
        }
        if hand_over < next {
            self.hand_over(gpu);
        } else if let Some(Reverse((_, happening))) = self.calendar.pop() {
            self.happen(happening);
        }
        true
    }

    /// The time of the next hand-over, and the GPU.
    fn next_hand_over(&self) -> (f64, usize) {
        if self.line.is_empty() {
            return (f64::INFINITY, 0);
        }
        let times = self.hand_overs.iter().copied().zip(0..);
        times.fold((f64::INFINITY, 0), |first, other| {
            if other.0 < first.0 { other } else { first }
        })
    }

    fn happen(&mut self, happening: Happening) {
        match happening {
            Happening::WakesUp(person) => self.edit(person),
            Happening::FallsAsleep(person) => {
                self.people[person].phase = Phase::Asleep;
                let away = self.life.away.draw(&mut self.random);
                self.enter(away, Happening::WakesUp(person));
            }
            Happening::Submits(person) => self.submit(person),
            Happening::Ends(person) => self.end(person),
        }
    }

    /// Begins an edit. It ends with the next cell or with sleep, whichever comes first.
    fn edit(&mut self, person: usize) {
        self.people[person].phase = Phase::Editing;
        let edit = self.life.edit.draw(&mut self.random);
        let stay = self.life.stay.draw(&mut self.random);
        if edit <= stay {
            self.enter(edit, Happening::Submits(person));
        } else {
            self.enter(stay, Happening::FallsAsleep(person));
        }
    }

    fn submit(&mut self, person: usize) {
        self.people[person].since = self.now;
        if let Some(gpu) = self.people[person].gpu {
            self.hand_overs[gpu] = f64::INFINITY;
            self.start(person);
        } else if self.holders.len() < self.gpus {
            self.people[person].gpu = Some(self.holders.len());
            self.holders.push(person);
            self.hand_overs.push(f64::INFINITY);
            self.start(person);
        } else {
            self.people[person].phase = Phase::Waiting;
            self.line.push_back(person);
            if self.line.len() == 1 {
                (0..self.gpus).for_each(|gpu| self.begin_hand_over(gpu));
            }
        }
    }

    fn start(&mut self, person: usize) {
        self.people[person].phase = Phase::Running;
        if self.now > self.warm_up {
            self.run.waits.add(self.now - self.people[person].since);
        }
        let time = self.life.run.draw(&mut self.random);
        let measured =
            (self.now + time).min(self.warm_up + self.run.seconds) - self.now.max(self.warm_up);
        self.run.busy += measured.max(0.0);
        self.enter(time, Happening::Ends(person));
    }

    fn end(&mut self, person: usize) {
        if self.now > self.warm_up {
            self.run.cells += 1;
            self.run.responses.add(self.now - self.people[person].since);
        }
        self.edit(person);
        let gpu = self.people[person].gpu.expect("its cell ran on one");
        if !self.line.is_empty() {
            self.begin_hand_over(gpu);
        }
    }

    /// Begins to hand over a GPU that is held. All are held when a person waits.
    fn begin_hand_over(&mut self, gpu: usize) {
        if self.people[self.holders[gpu]].phase == Phase::Running {
            return;
        }
        self.hand_overs[gpu] = self.now + self.life.hand_over.draw(&mut self.random);
    }

    fn hand_over(&mut self, gpu: usize) {
        let next = self.line.pop_front().expect("hand-overs end with the line");
        let last = std::mem::replace(&mut self.holders[gpu], next);
        self.people[last].gpu = None;
        self.people[next].gpu = Some(gpu);
        self.hand_overs[gpu] = f64::INFINITY;
        if self.line.is_empty() {
            self.hand_overs.fill(f64::INFINITY);
        }
        self.start(next);
    }

    fn enter(&mut self, delay: f64, happening: Happening) {
        if delay.is_finite() {
            self.calendar
                .push(Reverse(((self.now + delay).to_bits(), happening)));
        }
    }
}
