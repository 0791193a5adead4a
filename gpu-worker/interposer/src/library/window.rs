//! Limits how much work may be outstanding, so that the GPU can be handed over soon.
//!
//! After a certain number of submissions to a stream, a mark is recorded in it. A thread that is two marks ahead of
//! the GPU waits for it. How many submissions lie between two marks depends on how long the GPU takes for them.
//!
//! The limit is no promise: work may wait for what this thread does next, so a thread waits only for a while. No
//! thread waits again before that work has ended.
//!
//! **Invariant:** between marks a submission costs one addition and no lock. A thread waits only for marks in its own
//! stream, and holds no lock meanwhile.

use super::{
    captures::Captures,
    freed::StreamOrder,
    sys::driver::{Context, Event, SUCCESS, Stream, current_context},
};
use std::{
    collections::VecDeque,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};

/// The work between two marks should take this long, half of what may be outstanding.
const AIM: Duration = Duration::from_millis(25);
const FIRST: u32 = 16;
const MOST: u32 = 64;

/// How many marks of a stream may be outstanding.
const AHEAD: usize = 2;

/// How long a thread waits for a mark: longer than most kernels take.
const PATIENCE: Duration = Duration::from_secs(5);

/// The pauses while a thread waits become longer, but stay short compared with the outstanding work.
const FIRST_PAUSE: Duration = Duration::from_micros(20);
const LONGEST_PAUSE: Duration = Duration::from_millis(1);

const COUNT: usize = 64;

/// How many marks a window keeps. Streams that ended may have left some.
const MOST_MARKS: usize = 64;

/// Streams may share a window by chance; then marks in each of them are less regular.
pub(super) struct Windows([Window; COUNT]);

struct Window {
    count: AtomicU32,
    between: AtomicU32,
    marks: Mutex<Marks>,
}

struct Marks {
    outstanding: VecDeque<Mark>,
    /// Marks that were reached, for reuse: creating one takes longer than a launch.
    spare: Vec<Event>,
    /// When a mark was last reached that a thread waited for.
    reached_at: Option<Instant>,
}

struct Mark {
    order: StreamOrder,
    event: Event,
    /// A thread has waited for it in vain.
    is_late: bool,
}

impl Windows {
    pub(super) const fn new() -> Self {
        Self([const { Window::new() }; COUNT])
    }

    #[inline]
    pub(super) fn submitted(&self, stream: Stream, captures: &Captures) {
        let window = &self.0[(stream.0 ^ stream.0 >> 6 ^ stream.0 >> 12) % COUNT];
        let count = window.count.fetch_add(1, Relaxed) + 1;
        if count >= window.between.load(Relaxed) {
            window.mark(stream, captures);
        }
    }

    /// Drops the marks of a context that is about to end.
    pub(super) fn forget(&self, context: Context) {
        for window in &self.0 {
            let mut marks = window.marks();
            let goes_on = |event: &Event| event.context() != context;
            marks.outstanding.retain(|mark| goes_on(&mark.event));
            marks.spare.retain(goes_on);
        }
    }
}

impl Window {
    const fn new() -> Self {
        Self {
            count: AtomicU32::new(0),
            between: AtomicU32::new(FIRST),
            marks: Mutex::new(Marks {
                outstanding: VecDeque::new(),
                spare: Vec::new(),
                reached_at: None,
            }),
        }
    }

    #[cold]
    fn mark(&self, stream: Stream, captures: &Captures) {
        self.count.store(0, Relaxed);
        let Some(context) = current_context() else {
            return;
        };
        let order = StreamOrder::in_context(stream, context);
        // The driver may block here until the stream has room.
        let spare = self.marks().spare.pop();
        if let Some(event) = Event::record_again(spare, stream, context) {
            self.marks().add(order, event);
        }
        let (since, mut pause) = (Instant::now(), Duration::ZERO);
        while self.is_ahead(order, captures, !pause.is_zero()) {
            if since.elapsed() >= PATIENCE {
                return self.marks().note_late(order);
            }
            pause = (pause * 2).clamp(FIRST_PAUSE, LONGEST_PAUSE);
            thread::sleep(pause);
        }
    }

    /// Whether a thread must wait before it submits more. Takes out the marks that were reached.
    fn is_ahead(&self, order: StreamOrder, captures: &Captures, has_waited: bool) -> bool {
        // Another thread may have begun a capture, or begin one while this thread waits. A query would invalidate it.
        let Some(_none) = captures.none() else {
            return false;
        };
        let mut marks = self.marks();
        while let Some(index) = marks.to_wait_for(order) {
            let mark = &marks.outstanding[index];
            let Some(code) = mark.event.outcome() else {
                return !mark.is_late;
            };
            let reached = marks.outstanding.remove(index);
            if !has_waited {
                marks.reached_at = None;
                self.aim(Duration::ZERO);
            } else if let Some(before) = marks.reached_at.replace(Instant::now()) {
                self.aim(before.elapsed());
            }
            // The next call reports an error.
            if code == SUCCESS {
                marks.spare.extend(reached.map(|mark| mark.event));
            }
        }
        false
    }

    fn marks(&self) -> MutexGuard<'_, Marks> {
        self.marks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn aim(&self, took: Duration) {
        self.between
            .store(next(self.between.load(Relaxed), took), Relaxed);
    }
}

impl Marks {
    fn add(&mut self, order: StreamOrder, event: Event) {
        self.outstanding.push_back(Mark {
            order,
            event,
            is_late: false,
        });
        if self.outstanding.len() > MOST_MARKS {
            self.outstanding.pop_front();
        }
    }

    /// The oldest mark of a stream with too many.
    fn to_wait_for(&self, order: StreamOrder) -> Option<usize> {
        let its = |index: &usize| self.outstanding[*index].order == order;
        let mut all = (0..self.outstanding.len()).filter(its);
        let oldest = all.next()?;
        (all.count() >= AHEAD).then_some(oldest)
    }

    /// The oldest mark of the stream was not reached in time.
    fn note_late(&mut self, order: StreamOrder) {
        let its = self.outstanding.iter_mut().find(|mark| mark.order == order);
        if let Some(mark) = its {
            mark.is_late = true;
        }
    }
}

/// After how many submissions the next mark follows, if the GPU took this long for those since the last one.
fn next(between: u32, took: Duration) -> u32 {
    let fitting = f64::from(between) * AIM.as_secs_f64() / took.as_secs_f64().max(1e-9);
    // At most twice as many, because the next one may be the first of many long ones.
    (fitting as u32).clamp(1, MOST.min(between * 2))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_follow_how_long_the_work_takes() {
        assert_eq!(next(16, Duration::from_millis(25)), 16);
        assert_eq!(next(16, Duration::from_millis(400)), 1);
        assert_eq!(next(1, Duration::from_secs(5)), 1);
        assert_eq!(next(16, Duration::ZERO), 32);
        assert_eq!(next(60, Duration::ZERO), MOST);
    }
}
