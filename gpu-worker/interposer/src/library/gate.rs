//! The gate: whether calls may reach the driver, and how many are there now.
//!
//! A call that enters is in flight until it leaves. Once the gate is closed and nothing is in flight, nothing more
//! reaches the driver. While the gate is not in use, calls pass and are not counted.
//!
//! **Invariant:** a call that passes an open gate takes no lock.

use std::{
    sync::{
        Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU32, AtomicU64, Ordering::SeqCst},
    },
    time::Duration,
};

pub(super) struct Gate {
    state: AtomicU32,
    /// The lower half counts the calls in flight, the upper half all calls that ever entered.
    calls: AtomicU64,
    waiting: AtomicU32,
    lock: Mutex<()>,
    changed: Condvar,
}

const NOT_IN_USE: u32 = 0;
const OPEN: u32 = 1;
const CLOSED: u32 = 2;
/// It is never opened again.
const BROKEN: u32 = 3;
/// Calls pass, and it is never closed again.
const GIVEN_UP: u32 = 4;

const ONE_CALL: u64 = 1 << 32 | 1;
const IN_FLIGHT: u64 = u32::MAX as u64;

/// How often a waiting thread repeats its request.
const PATIENCE: Duration = Duration::from_secs(1);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Entry {
    /// [`Gate::leave`] must follow.
    Counted,
    NotInUse,
    Refused,
}

impl Gate {
    pub(super) const fn new() -> Self {
        Self {
            state: AtomicU32::new(NOT_IN_USE),
            calls: AtomicU64::new(0),
            waiting: AtomicU32::new(0),
            lock: Mutex::new(()),
            changed: Condvar::new(),
        }
    }

    /// Waits until the gate is open, and lets the call in. `want` asks for it to be opened.
    #[inline]
    pub(super) fn enter(&self, want: impl Fn()) -> Entry {
        loop {
            match self.state.load(SeqCst) {
                NOT_IN_USE | GIVEN_UP => return Entry::NotInUse,
                BROKEN => return Entry::Refused,
                _ => {}
            }
            self.calls.fetch_add(ONE_CALL, SeqCst);
            if self.state.load(SeqCst) == OPEN {
                return Entry::Counted;
            }
            self.turn_back();
            self.wait(&want);
        }
    }

    #[inline]
    pub(super) fn leave(&self) {
        self.one_less(1);
    }

    /// Undoes an entry: the call submitted nothing.
    #[cold]
    pub(super) fn turn_back(&self) {
        self.one_less(ONE_CALL);
    }

    #[inline]
    fn one_less(&self, call: u64) {
        let before = self.calls.fetch_sub(call, SeqCst);
        if before & IN_FLIGHT == 1 && self.state.load(SeqCst) != OPEN {
            self.notify();
        }
    }

    #[cold]
    fn wait(&self, want: &impl Fn()) {
        self.waiting.fetch_add(1, SeqCst);
        let mut guard = self.guard();
        while self.state.load(SeqCst) == CLOSED {
            drop(guard);
            want();
            guard = self.guard();
            if self.state.load(SeqCst) == CLOSED {
                let (held, _) = (self.changed.wait_timeout(guard, PATIENCE))
                    .unwrap_or_else(PoisonError::into_inner);
                guard = held;
            }
        }
        self.waiting.fetch_sub(1, SeqCst);
    }

    pub(super) fn open(&self) {
        self.set(OPEN);
    }

    /// Calls wait from now on; those in flight continue.
    pub(super) fn close(&self) {
        self.set(CLOSED);
    }

    pub(super) fn wait_until_nothing_is_in_flight(&self) {
        let mut guard = self.guard();
        while self.in_flight() > 0 {
            guard = (self.changed.wait(guard)).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// All calls fail from now on, even if the gate is opened or closed later.
    pub(super) fn break_down(&self) {
        self.set(BROKEN);
    }

    /// Calls pass from now on, even if the gate is closed later.
    pub(super) fn give_up(&self) {
        self.state.store(GIVEN_UP, SeqCst);
    }

    pub(super) fn is_in_use(&self) -> bool {
        !matches!(self.state.load(SeqCst), NOT_IN_USE | GIVEN_UP)
    }

    pub(super) fn in_flight(&self) -> u64 {
        self.calls.load(SeqCst) & IN_FLIGHT
    }

    pub(super) fn somebody_waits(&self) -> bool {
        self.waiting.load(SeqCst) > 0
    }

    /// How many calls ever entered, modulo 2^32.
    pub(super) fn submissions(&self) -> u32 {
        (self.calls.load(SeqCst) >> 32) as u32
    }

    fn set(&self, state: u32) {
        let guard = self.guard();
        let set = |now| (!matches!(now, BROKEN | GIVEN_UP)).then_some(state);
        let _ = self.state.fetch_update(SeqCst, SeqCst, set);
        drop(guard);
        self.changed.notify_all();
    }

    #[cold]
    fn notify(&self) {
        drop(self.guard());
        self.changed.notify_all();
    }

    fn guard(&self) -> MutexGuard<'_, ()> {
        self.lock.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;

    #[test]
    fn nothing_passes_a_closed_gate() {
        let (gate, is_closed, over) = (Gate::new(), AtomicBool::new(true), AtomicBool::new(false));
        gate.close();
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    while !over.load(SeqCst) {
                        assert_eq!(gate.enter(|| {}), Entry::Counted);
                        assert!(!is_closed.load(SeqCst), "a call passed the closed gate");
                        gate.leave();
                    }
                });
            }
            for _ in 0..2_000 {
                is_closed.store(false, SeqCst);
                gate.open();
                std::thread::yield_now();
                gate.close();
                gate.wait_until_nothing_is_in_flight();
                is_closed.store(true, SeqCst);
            }
            over.store(true, SeqCst);
            is_closed.store(false, SeqCst);
            gate.open();
        });
        assert_eq!(gate.in_flight(), 0);
    }

    #[test]
    fn only_calls_that_pass_are_counted() {
        let gate = Gate::new();
        gate.close();
        assert_eq!(gate.enter(|| gate.open()), Entry::Counted);
        assert_eq!((gate.in_flight(), gate.submissions()), (1, 1));
        gate.leave();
        assert_eq!((gate.in_flight(), gate.submissions()), (0, 1));
    }

    #[test]
    fn a_gate_that_is_not_in_use_stops_nobody_and_a_broken_one_all() {
        let gate = Gate::new();
        assert_eq!(gate.enter(|| {}), Entry::NotInUse);
        gate.break_down();
        gate.open();
        assert_eq!(gate.enter(|| {}), Entry::Refused);
        gate.give_up();
        gate.close();
        assert!(!gate.is_in_use());
        assert_eq!(gate.enter(|| {}), Entry::NotInUse);
    }
}
