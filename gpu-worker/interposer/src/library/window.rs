//! Limits how much work may be outstanding, so that the GPU can be handed over soon.
//!
//! After a certain number of submissions to a stream, a mark is recorded in it. A thread that is two marks ahead of
//! the GPU waits for it. How many submissions lie between two marks depends on how long the GPU takes for them.
//!
//! **Invariant:** between marks a submission costs one addition and no lock.

use super::{
    captures::Captures,
    sys::driver::{self, Context, Event, Stream},
};
use std::{
    collections::VecDeque,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

/// The work between two marks should take this long, half of what may be outstanding.
const AIM: Duration = Duration::from_millis(25);
const FIRST: u32 = 16;
const MOST: u32 = 64;

const COUNT: usize = 64;

/// Streams may share a window by chance; that only makes marks more frequent.
pub(super) struct Windows([Window; COUNT]);

struct Window {
    count: AtomicU32,
    between: AtomicU32,
    marks: Mutex<Marks>,
}

struct Marks {
    outstanding: VecDeque<Event>,
    /// Marks that were reached, for reuse: creating one takes longer than a launch.
    spare: Vec<Event>,
    /// When the GPU was last waited for.
    reached_at: Option<Instant>,
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
            marks.outstanding.retain(|event| event.context() != context);
            marks.spare.retain(|event| event.context() != context);
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
        let mut marks = self.marks();
        self.count.store(0, Relaxed);
        let spare = marks.spare.pop();
        if let Some(event) = Event::record_again(spare, stream) {
            marks.outstanding.push_back(event);
        }
        while marks.outstanding.len() > 2 {
            // Another thread may have begun a capture, or begin one while this thread waits.
            let Some(none) = captures.none() else { return };
            let oldest = marks.outstanding.pop_front().expect("there are three");
            let is_reached = oldest.is_reached();
            drop(none);
            if is_reached {
                marks.reached_at = None;
                self.aim(Duration::ZERO);
            } else {
                // The next call reports the same error.
                let waited = driver::beside_captures(|| oldest.wait());
                let now = Instant::now();
                if let Some(before) = marks.reached_at.replace(now) {
                    self.aim(now - before);
                }
                if waited.is_err() {
                    continue;
                }
            }
            marks.spare.push(oldest);
        }
    }

    fn marks(&self) -> MutexGuard<'_, Marks> {
        self.marks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn aim(&self, took: Duration) {
        self.between
            .store(next(self.between.load(Relaxed), took), Relaxed);
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
