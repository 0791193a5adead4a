//! The work that a process submits to its GPU: one thread does it, in order.

use crate::{Mark, STICKY, card::card, host, lock};
use std::{
    collections::VecDeque,
    sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock},
    time::{Duration, Instant},
};

#[derive(Clone, Debug)]
pub(crate) enum Work {
    Kernel(Kernel),
    Copy {
        to: u64,
        from: u64,
        bytes: usize,
    },
    Fill {
        to: u64,
        value: Vec<u8>,
        count: usize,
    },
    /// Waits until the number at this address is at least `value`.
    Wait {
        address: u64,
        value: u64,
    },
    Call {
        function: host::HostFunction,
        data: usize,
    },
}

#[derive(Clone, Debug)]
pub(crate) enum Kernel {
    Nothing,
    Sleep(Duration),
    /// Adds `value` to each of `count` numbers.
    Add {
        to: u64,
        count: u64,
        value: u64,
    },
    /// Puts the driver into a fatal error state.
    Fail(i32),
    Forever,
    /// Runs until the card no longer holds kernels.
    Held,
}

impl Work {
    /// Whether it reads or writes this range.
    fn uses(&self, from: u64, bytes: u64) -> bool {
        let overlaps = |start: u64, length: u64| start < from + bytes && from < start + length;
        match self {
            Self::Kernel(Kernel::Add { to, count, .. }) => overlaps(*to, 8 * count),
            Self::Kernel(_) => false,
            Self::Copy { to, from, bytes } => {
                overlaps(*to, *bytes as u64) || overlaps(*from, *bytes as u64)
            }
            Self::Fill { to, value, count } => overlaps(*to, (value.len() * count) as u64),
            Self::Wait { address, .. } => overlaps(*address, 8),
            Self::Call { .. } => false,
        }
    }
}

struct Queue {
    /// The first one is being done.
    works: VecDeque<Work>,
    submitted: u64,
    done: u64,
    /// Marks of events that are not reached.
    marks: Vec<Mark>,
}

impl Queue {
    fn reach_marks(&mut self) {
        let now = Instant::now();
        let done = self.done;
        self.marks.retain(|mark| {
            let is_reached = mark.last <= done;
            if is_reached {
                let _ = mark.reached.set(now);
            }
            !is_reached
        });
    }
}

static QUEUE: Mutex<Queue> = Mutex::new(Queue {
    works: VecDeque::new(),
    submitted: 0,
    done: 0,
    marks: Vec::new(),
});
static CHANGED: Condvar = Condvar::new();
static THREAD: OnceLock<()> = OnceLock::new();

/// Returns the number of the work.
pub(crate) fn submit(work: Work) -> u64 {
    THREAD.get_or_init(|| {
        std::thread::spawn(run);
    });
    if matches!(work, Work::Kernel(_)) {
        card().kernel_comes();
    }
    let mut queue = lock(&QUEUE);
    queue.works.push_back(work);
    queue.submitted += 1;
    CHANGED.notify_all();
    queue.submitted
}

pub(crate) fn submitted() -> u64 {
    lock(&QUEUE).submitted
}

pub(crate) fn is_done(number: u64) -> bool {
    lock(&QUEUE).done >= number
}

/// Marks the end of the work of this number.
pub(crate) fn mark(last: u64) -> Mark {
    let mark = Mark {
        last,
        reached: Arc::default(),
    };
    let mut queue = lock(&QUEUE);
    queue.marks.push(mark.clone());
    queue.reach_marks();
    mark
}

pub(crate) fn wait_for(number: u64) {
    if is_done(number) {
        return;
    }
    card().while_waiting(|| {
        let mut queue = lock(&QUEUE);
        while queue.done < number {
            queue = wait(queue);
        }
    });
}

/// Whether work that is not done yet reads or writes this range.
pub(crate) fn uses(from: u64, bytes: u64) -> bool {
    lock(&QUEUE).works.iter().any(|work| work.uses(from, bytes))
}

fn wait(queue: MutexGuard<'_, Queue>) -> MutexGuard<'_, Queue> {
    CHANGED
        .wait(queue)
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}

fn run() {
    loop {
        let mut queue = lock(&QUEUE);
        let work = loop {
            match queue.works.front() {
                Some(work) => break work.clone(),
                None => queue = wait(queue),
            }
        };
        drop(queue);
        do_it(work);
        let mut queue = lock(&QUEUE);
        queue.works.pop_front();
        queue.done += 1;
        queue.reach_marks();
        drop(queue);
        CHANGED.notify_all();
    }
}

/// After a fatal error, work ends without any effect.
fn do_it(work: Work) {
    let is_dead = STICKY.load(std::sync::atomic::Ordering::SeqCst) != 0;
    match work {
        Work::Kernel(_) if is_dead => card().kernel_ends(),
        _ if is_dead => {}
        Work::Kernel(kernel) => {
            match kernel {
                Kernel::Nothing => {}
                kernel => card().compute(|| compute(kernel)),
            }
            card().kernel_ends();
        }
        Work::Copy { to, from, bytes } => {
            host::copy(to, from, bytes);
            if let Some(speed) = megabytes_per_second() {
                std::thread::sleep(Duration::from_secs_f64(bytes as f64 / 1e6 / speed));
            }
        }
        Work::Fill { to, value, count } => host::fill(to, &value, count),
        Work::Wait { address, value } => {
            while host::number_at(address) < value {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        Work::Call { function, data } => host::call(function, data),
    }
}

fn compute(kernel: Kernel) {
    match kernel {
        Kernel::Nothing => {}
        Kernel::Sleep(time) => std::thread::sleep(time),
        Kernel::Add { to, count, value } => host::add(to, count, value),
        Kernel::Fail(code) => STICKY.store(code, std::sync::atomic::Ordering::SeqCst),
        Kernel::Forever => loop {
            std::thread::park();
        },
        Kernel::Held => {
            while card().is_held() {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }
}

fn megabytes_per_second() -> Option<f64> {
    static SPEED: OnceLock<Option<f64>> = OnceLock::new();
    let read = || std::env::var("BATON_TEST_GPU_MBPS").ok()?.parse().ok();
    *SPEED.get_or_init(read)
}
