//! GPUs that are passed on in order of arrival, event by event, with times of any distribution.
//!
//! With exponential times this is [`crate::shared`].

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, VecDeque},
};

use rand::{RngExt, SeedableRng, rngs::Xoshiro256PlusPlus};

use super::{Length, Life, Run};

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Happening {
    WakesUp(usize),
    FallsAsleep(usize),
    Submits(usize),
    Ends(usize),
    /// A GPU, and the number of the hand-over: of no effect when another began since.
    HandsOver(usize, u32),
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

#[derive(Debug, Default)]
struct Gpu {
    holder: Option<usize>,
    hand_over: u32,
    is_handing_over: bool,
}

struct World<'life> {
    life: &'life Life,
    random: Xoshiro256PlusPlus,
    now: f64,
    people: Vec<Person>,
    gpus: Vec<Gpu>,
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
        gpus: (0..gpus).map(|_| Gpu::default()).collect(),
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
        // As many are away as in the long run, so that nobody has to recover from a rush.
        if world.random.random::<f64>() < asleep {
            world.happen(Happening::FallsAsleep(person));
        } else {
            world.edit(person);
        }
    }
    let end = length.warm_up + length.measured;
    while let Some(Reverse((time, happening))) = world.calendar.pop() {
        world.now = f64::from_bits(time);
        if world.now > end {
            break;
        }
        world.happen(happening);
    }
    world.run
}

impl World<'_> {
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
            Happening::HandsOver(gpu, number) => {
                if self.gpus[gpu].is_handing_over && self.gpus[gpu].hand_over == number {
                    self.hand_over(gpu);
                }
            }
        }
    }

    /// Whichever comes first: the next cell, or sleep.
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
            self.gpus[gpu].is_handing_over = false;
            self.start(person);
        } else if let Some(gpu) = self.gpus.iter().position(|gpu| gpu.holder.is_none()) {
            self.gpus[gpu].holder = Some(person);
            self.people[person].gpu = Some(gpu);
            self.start(person);
        } else {
            self.people[person].phase = Phase::Waiting;
            self.line.push_back(person);
            if self.line.len() == 1 {
                (0..self.gpus.len()).for_each(|gpu| self.begin_hand_over(gpu));
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

    fn begin_hand_over(&mut self, gpu: usize) {
        let holder = self.gpus[gpu]
            .holder
            .expect("all are held when somebody waits");
        if self.people[holder].phase == Phase::Running {
            return;
        }
        self.gpus[gpu].hand_over += 1;
        self.gpus[gpu].is_handing_over = true;
        let time = self.life.hand_over.draw(&mut self.random);
        self.enter(time, Happening::HandsOver(gpu, self.gpus[gpu].hand_over));
    }

    fn hand_over(&mut self, gpu: usize) {
        let next = self.line.pop_front().expect("hand-overs end with the line");
        let last = self.gpus[gpu].holder.replace(next);
        self.people[last.expect("it was held")].gpu = None;
        self.people[next].gpu = Some(gpu);
        self.gpus[gpu].is_handing_over = false;
        if self.line.is_empty() {
            for other in &mut self.gpus {
                other.is_handing_over = false;
            }
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
