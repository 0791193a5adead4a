//! A class on a simulated clock: who gets how much, whether everybody's turn comes, and whether estimates hold.

use baton_order::{Job, Spread, Standing, Worker, plan};
use baton_protocol::{JobId, NotebookId, WorkerId};
use proptest::{
    prelude::Rng,
    test_runner::{RngAlgorithm, TestRng},
};
use std::collections::{HashMap, HashSet};
use uuid::Uuid;

const SECOND: u64 = 1000;
const HOUR: u64 = 3600 * SECOND;
const HALF_LIFE_MS: f64 = 12.0 * 3600.0 * 1000.0;
const GPU: WorkerId = WorkerId(Uuid::from_u128(1));

struct Student {
    weight: f64,
    boost: f64,
    low_priority: bool,
    /// Of a run, in milliseconds: from, to.
    runs: (u64, u64),
    used_ms: f64,
    used_at: u64,
    all_ms: u64,
}

fn student(runs: (u64, u64)) -> Student {
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

    fn charge(&mut self, run_ms: u64, now: u64) {
        self.used_ms = self.used_ms(now) + run_ms as f64;
        self.used_at = now;
        self.all_ms += run_ms;
    }
}

struct Cell {
    student: usize,
    submitted: u64,
    run_ms: u64,
    /// Since when it runs.
    started: Option<u64>,
    /// What was said about the start at the time of submission.
    said: Option<Option<(u64, u64)>>,
}

/// Every student submits the next cell as soon as the last one has ended.
struct Class {
    students: Vec<Student>,
    cells: HashMap<u128, Cell>,
    slots: u32,
    now: u64,
    next: u128,
    random: TestRng,
    longest_wait: u64,
    /// Whether each range held the truth.
    held: Vec<bool>,
}

impl Class {
    fn new(students: Vec<Student>, slots: u32) -> Self {
        let mut class = Self {
            slots,
            cells: HashMap::new(),
            now: 0,
            next: 0,
            random: TestRng::from_seed(RngAlgorithm::ChaCha, &[7; 32]),
            longest_wait: 0,
            held: Vec::new(),
            students,
        };
        for student in 0..class.students.len() {
            class.submit(student);
        }
        class
    }

    fn submit(&mut self, student: usize) {
        let (from, to) = self.students[student].runs;
        let cell = Cell {
            student,
            submitted: self.now,
            run_ms: from + self.random.next_u64() % (to - from + 1),
            started: None,
            said: None,
        };
        self.next += 1;
        self.cells.insert(self.next, cell);
    }

    fn run_until(&mut self, end: u64) {
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
            open: true,
        };
        let plan = plan(&jobs, &[gpu], 1);
        for (job, place) in plan.places {
            let cell = self.cells.get_mut(&job.0.as_u128()).unwrap();
            let now = self.now;
            let range = place
                .starts_in
                .map(|starts| (now + starts.lower, now + starts.upper));
            cell.said.get_or_insert(range);
        }
        for (job, _) in plan.assignments {
            let cell = self.cells.get_mut(&job.0.as_u128()).unwrap();
            cell.started = Some(self.now);
            self.longest_wait = self.longest_wait.max(self.now - cell.submitted);
            if let Some(Some((lower, upper))) = cell.said {
                self.held.push((lower..=upper).contains(&self.now));
            }
        }
    }

    fn job(&self, id: u128) -> Job {
        let cell = &self.cells[&id];
        let student = &self.students[cell.student];
        let already = cell.started.map_or(0, |started| self.now - started);
        // Runs are spread evenly, so nine of ten of those that go on are within these.
        let (from, to) = student.runs;
        let from = from.max(already);
        let at = |tenths: u64| from + (to.max(from) - from) * tenths / 10 - already;
        Job {
            job: JobId(Uuid::from_u128(id)),
            notebook: NotebookId(Uuid::from_u128(cell.student as u128)),
            owner: cell.student.to_string().into(),
            worker: cell.started.map(|_| GPU),
            standing: Standing {
                used_ms: student.used_ms(self.now),
                weight: student.weight,
                boost: student.boost,
                low_priority: student.low_priority,
                waited_ms: self.now - cell.submitted,
            },
            held: false,
            paused: false,
            front: None,
            takes: Some(Spread {
                lower: at(1),
                middle: at(5),
                upper: at(9),
            }),
        }
    }

    fn shares(&self) -> Vec<f64> {
        self.students
            .iter()
            .map(|student| student.all_ms as f64)
            .collect()
    }
}

/// 1 when all have the same, 1/n when one has all.
fn jain(shares: &[f64]) -> f64 {
    let sum: f64 = shares.iter().sum();
    let squares: f64 = shares.iter().map(|share| share * share).sum();
    sum * sum / (shares.len() as f64 * squares)
}

#[test]
fn equal_students_get_equal_shares_of_a_saturated_hour() {
    let students = (0..60)
        .map(|_| student((10 * SECOND, 90 * SECOND)))
        .collect();
    let mut class = Class::new(students, 4);
    class.run_until(HOUR);
    let index = jain(&class.shares());
    assert!(index >= 0.95, "{index}");
}

/// Long cells are no way to a larger share, and short ones no loss.
#[test]
fn the_length_of_cells_does_not_buy_a_larger_share() {
    let lengths = [(5, 10), (20, 60), (60, 240)];
    let students = (0..30).map(|number| {
        let (from, to) = lengths[number % 3];
        student((from * SECOND, to * SECOND))
    });
    let mut class = Class::new(students.collect(), 4);
    class.run_until(6 * HOUR);
    let index = jain(&class.shares());
    assert!(index >= 0.9, "{index} {:?}", class.shares());
}

#[test]
fn a_course_gets_its_weight_and_a_deadline_its_boost() {
    let of = |weight, boost| Student {
        weight,
        boost,
        ..student((20 * SECOND, 40 * SECOND))
    };
    let students =
        (0..30).map(|number| [of(1.0, 1.0), of(2.0, 1.0), of(1.0, 3.0)][number % 3].clone_fresh());
    let mut class = Class::new(students.collect(), 3);
    class.run_until(8 * HOUR);
    let shares = class.shares();
    let of_kind = |kind: usize| shares.iter().skip(kind).step_by(3).sum::<f64>();
    let (one, two, boosted) = (of_kind(0), of_kind(1), of_kind(2));
    assert!((1.6..2.2).contains(&(two / one)), "{}", two / one);
    assert!((2.0..3.3).contains(&(boosted / one)), "{}", boosted / one);
}

impl Student {
    fn clone_fresh(&self) -> Self {
        Self {
            weight: self.weight,
            boost: self.boost,
            low_priority: self.low_priority,
            ..student(self.runs)
        }
    }
}

/// Somebody who has used a day of GPU time asks for little, at low priority, while others with a weight, a deadline
/// and nothing used so far never stop coming.
#[test]
fn nobody_starves() {
    let mut victim = Student {
        low_priority: true,
        ..student((SECOND, SECOND))
    };
    victim.charge(12 * HOUR, 0);
    let mut students = vec![victim];
    let fresh = || Student {
        weight: 4.0,
        boost: 3.0,
        ..student((5 * SECOND, 10 * SECOND))
    };
    students.extend((0..4).map(|_| fresh()));
    let mut class = Class::new(students, 2);
    let mut last = 0;
    while class.students[0].all_ms == 12 * HOUR {
        assert!(class.now < 60 * HOUR, "the turn does not come");
        class.run_until(class.now + 60 * SECOND);
        assert!(class.now > last);
        last = class.now;
        // New people all the time: whatever these have used is forgotten.
        for student in &mut class.students[1..] {
            student.used_ms = 0.0;
        }
    }
}

#[test]
fn four_of_five_ranges_hold_the_truth() {
    let students = (0..24)
        .map(|_| student((10 * SECOND, 120 * SECOND)))
        .collect();
    let mut class = Class::new(students, 3);
    class.run_until(4 * HOUR);
    let held = class.held.iter().filter(|held| **held).count();
    assert!(class.held.len() > 200, "{}", class.held.len());
    let part = held as f64 / class.held.len() as f64;
    assert!(part >= 0.8, "{part}");
}
