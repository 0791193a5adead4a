//! The card that processes share: a file with the size of its memory, and how much of it each process has.
//!
//! Locks on the open file protect it. The system releases them when their process ends for any reason, so the
//! memory of a dead process is noticed and reclaimed.

use crate::{
    Code, ILLEGAL_STATE, INVALID_VALUE, NOT_READY, OPERATING_SYSTEM, OUT_OF_MEMORY, host,
    layout::{
        ALIVE, CHECKPOINTED, CODE, CONTEXT, COPIED, FIRST_PROCESS, FIRST_SLOT, FIRST_STATE, HELD,
        KERNELS, LEDGER, LOCKED, LOST, MEMORY, NOT_RESTORED, OVERLAPS, PINNED, PROCESSORS, RUNNING, SLOTS, STALE,
        UUID, WAITING, card_at,
    },
    lock,
    locks::{self, LockKind},
};
use std::{
    fs::File,
    io,
    os::fd::AsRawFd as _,
    sync::{
        Mutex, MutexGuard, OnceLock,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
    time::{Duration, Instant},
};

pub(crate) struct Card {
    file: File,
    number: usize,
    numbers: &'static [AtomicU64],
    slot: usize,
    /// File locks belong to the process, so this mutex excludes its threads from each other.
    ledger: Mutex<()>,
    processors: Mutex<()>,
}

static CARD: OnceLock<Card> = OnceLock::new();

pub(crate) fn card() -> &'static Card {
    CARD.get()
        .expect("it was opened when the driver was initialised")
}

pub(crate) fn open() -> io::Result<()> {
    if CARD.get().is_some() {
        return Ok(());
    }
    let first = std::env::var_os("BATON_TEST_GPU").ok_or(io::ErrorKind::NotFound)?;
    let visible = std::env::var("CUDA_VISIBLE_DEVICES").ok();
    let number = number_of(visible.as_deref()).ok_or(io::ErrorKind::NotFound)?;
    let file = File::options()
        .read(true)
        .write(true)
        .open(card_at(first.as_ref(), number))?;
    let numbers = host::map_numbers(&file)?;
    let slot = (0..SLOTS)
        .find(|slot| locks::lock(file.as_raw_fd(), ALIVE + *slot as i64, LockKind::Try).is_ok());
    let slot = slot.ok_or(io::ErrorKind::QuotaExceeded)?;
    let card = Card {
        file,
        number,
        numbers,
        slot,
        ledger: Mutex::new(()),
        processors: Mutex::new(()),
    };
    card.own(0).store(0, SeqCst);
    card.own(1).store(0, SeqCst);
    card.numbers[FIRST_STATE + slot].store(RUNNING, SeqCst);
    card.numbers[FIRST_PROCESS + slot].store(std::process::id().into(), SeqCst);
    let _ = CARD.set(card);
    Ok(())
}

/// The first card in `visible`, because a program has only one. `None` if the list is empty or begins with an
/// invalid name such as -1 (CUDA's programming guide: only devices before an invalid index are visible). Slices
/// belong to the first card.
fn number_of(visible: Option<&str>) -> Option<usize> {
    let Some(visible) = visible else {
        return Some(0);
    };
    let name = visible.split(',').next().unwrap_or_default();
    match name.starts_with("MIG-") {
        true => Some(0),
        false => name.strip_prefix(UUID).unwrap_or(name).parse().ok(),
    }
}

impl Card {
    /// The UUID that its name contains.
    pub(crate) fn uuid(&self) -> [u8; 16] {
        (self.number as u128).to_be_bytes()
    }

    pub(crate) fn total_bytes(&self) -> u64 {
        self.numbers[MEMORY].load(SeqCst)
    }

    /// Whether it has fallen off the bus.
    pub(crate) fn is_lost(&self) -> bool {
        self.numbers[LOST].load(SeqCst) != 0
    }

    pub(crate) fn context_bytes(&self) -> u64 {
        self.numbers[CONTEXT].load(SeqCst)
    }

    /// Returns `false` if it has no room for code.
    pub(crate) fn load_code(&self) -> bool {
        self.take(self.numbers[CODE].load(SeqCst))
    }

    pub(crate) fn free_bytes(&self) -> u64 {
        let _held = self.hold(&self.ledger, LEDGER);
        self.total_bytes().saturating_sub(self.used_bytes())
    }

    pub(crate) fn take(&self, bytes: u64) -> bool {
        let _held = self.hold(&self.ledger, LEDGER);
        let fits = self.used_bytes() + bytes <= self.total_bytes();
        if fits {
            self.own(0).fetch_add(bytes, SeqCst);
        }
        fits
    }

    pub(crate) fn give(&self, bytes: u64) {
        let _held = self.hold(&self.ledger, LEDGER);
        self.own(0).fetch_sub(bytes, SeqCst);
    }

    /// Waits while another process has locked this one.
    pub(crate) fn wait_until_unlocked(&self) {
        while self.numbers[FIRST_STATE + self.slot].load(SeqCst) != RUNNING {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// The slot of a process on this card.
    fn slot_of(&self, process: u64) -> Option<usize> {
        let is_its = |slot: &usize| {
            self.numbers[FIRST_PROCESS + slot].load(SeqCst) == process && self.is_alive(*slot)
        };
        (0..SLOTS).find(is_its)
    }

    /// Makes the process's calls wait, and waits until its submitted work has ended.
    pub(crate) fn lock_process(&self, process: u64, until: Instant) -> Result<(), Code> {
        let slot = self.slot_of(process).ok_or(INVALID_VALUE)?;
        self.change(slot, RUNNING, LOCKED)?;
        while self.numbers[FIRST_SLOT + 2 * slot + 1].load(SeqCst) > 0 {
            if Instant::now() > until {
                self.numbers[FIRST_STATE + slot].store(RUNNING, SeqCst);
                return Err(NOT_READY);
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    pub(crate) fn unlock_process(&self, process: u64) -> Result<(), Code> {
        let slot = self.slot_of(process).ok_or(INVALID_VALUE)?;
        self.change(slot, LOCKED, RUNNING)
    }

    /// From now on, the process's memory counts as moved to the host, where it always is in fact.
    pub(crate) fn checkpoint_process(&self, process: u64) -> Result<(), Code> {
        let slot = self.slot_of(process).ok_or(INVALID_VALUE)?;
        let _held = self.hold(&self.ledger, LEDGER);
        self.change(slot, LOCKED, CHECKPOINTED)
    }

    pub(crate) fn restore_process(&self, process: u64) -> Result<(), Code> {
        let slot = self.slot_of(process).ok_or(INVALID_VALUE)?;
        let _held = self.hold(&self.ledger, LEDGER);
        let bytes = self.numbers[FIRST_SLOT + 2 * slot].load(SeqCst);
        let state = &self.numbers[FIRST_STATE + slot];
        // Seen with version 580 of the driver: after a restore that found no room, no other succeeds.
        if state.load(SeqCst) == NOT_RESTORED {
            return Err(OPERATING_SYSTEM);
        }
        if self.used_bytes() + bytes > self.total_bytes() {
            state.store(NOT_RESTORED, SeqCst);
            return Err(OUT_OF_MEMORY);
        }
        self.change(slot, CHECKPOINTED, LOCKED)
    }

    pub(crate) fn state_of(&self, process: u64) -> Result<u64, Code> {
        let slot = self.slot_of(process).ok_or(INVALID_VALUE)?;
        match self.numbers[FIRST_STATE + slot].load(SeqCst) {
            NOT_RESTORED => Ok(CHECKPOINTED),
            state => Ok(state),
        }
    }

    fn change(&self, slot: usize, from: u64, to: u64) -> Result<(), Code> {
        let state = &self.numbers[FIRST_STATE + slot];
        let changed = state.compare_exchange(from, to, SeqCst, SeqCst);
        changed.map(|_| ()).map_err(|_| ILLEGAL_STATE)
    }

    /// Runs `work`, which only one process at a time may do.
    pub(crate) fn compute(&self, work: impl FnOnce()) {
        let _held = self.hold(&self.processors, PROCESSORS);
        work();
    }

    /// Counts a kernel that was submitted. It is an overlap if another process has kernels on the card.
    pub(crate) fn kernel_comes(&self) {
        self.numbers[KERNELS].fetch_add(1, SeqCst);
        self.own(1).fetch_add(1, SeqCst);
        let others = (0..SLOTS).filter(|slot| *slot != self.slot);
        let is_busy = |slot: &usize| {
            self.numbers[FIRST_SLOT + 2 * slot + 1].load(SeqCst) > 0 && self.is_alive(*slot)
        };
        if others.into_iter().any(|slot| is_busy(&slot)) {
            self.numbers[OVERLAPS].fetch_add(1, SeqCst);
        }
    }

    pub(crate) fn kernel_ends(&self) {
        self.own(1).fetch_sub(1, SeqCst);
    }

    pub(crate) fn is_held(&self) -> bool {
        self.numbers[HELD].load(SeqCst) != 0
    }

    /// Runs `wait`, and counts it as waiting for the GPU.
    pub(crate) fn while_waiting(&self, wait: impl FnOnce()) {
        self.numbers[WAITING].fetch_add(1, SeqCst);
        wait();
        self.numbers[WAITING].fetch_sub(1, SeqCst);
    }

    pub(crate) fn copied_at_fork(&self, bytes: u64) {
        self.numbers[COPIED].fetch_add(bytes, SeqCst);
    }

    pub(crate) fn pinned(&self, bytes: u64) {
        self.numbers[PINNED].fetch_add(bytes, SeqCst);
    }

    pub(crate) fn unpinned(&self, bytes: u64) {
        self.numbers[PINNED].fetch_sub(bytes, SeqCst);
    }

    pub(crate) fn stale_handle_comes(&self) {
        self.numbers[STALE].fetch_add(1, SeqCst);
    }

    /// Memory that live processes use.
    fn used_bytes(&self) -> u64 {
        let is_off = |slot: usize| {
            matches!(self.numbers[FIRST_STATE + slot].load(SeqCst), CHECKPOINTED | NOT_RESTORED)
        };
        let has = |slot: usize| match self.numbers[FIRST_SLOT + 2 * slot].load(SeqCst) {
            0 => 0,
            _ if is_off(slot) => 0,
            bytes if slot == self.slot || self.is_alive(slot) => bytes,
            _ => 0,
        };
        (0..SLOTS).map(has).sum()
    }

    fn is_alive(&self, slot: usize) -> bool {
        locks::is_locked(self.file.as_raw_fd(), ALIVE + slot as i64)
    }

    /// This process's own number: 0 is its bytes, 1 its kernels.
    fn own(&self, what: usize) -> &AtomicU64 {
        &self.numbers[FIRST_SLOT + 2 * self.slot + what]
    }

    fn hold<'a>(&'a self, mutex: &'a Mutex<()>, at: i64) -> Held<'a> {
        let guard = lock(mutex);
        let file = self.file.as_raw_fd();
        locks::lock(file, at, LockKind::Wait).expect("the card can be locked");
        Held {
            file,
            at,
            _guard: guard,
        }
    }
}

struct Held<'a> {
    file: i32,
    at: i64,
    _guard: MutexGuard<'a, ()>,
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        let _ = locks::lock(self.file, self.at, LockKind::Unlock);
    }
}
