//! The interposer: what every process of a session loads before all other libraries.
//!
//! In: calls to the CUDA driver, however the program found it. Out: the same calls, once the session has a
//! lease; and allocations that can leave the GPU while another session needs the room.
//!
//! A process that never initialises the driver pays only for one comparison in each of its look-ups. Without a
//! worker, calls pass unchanged.
//!
//! **Invariant:** it never ends its process, and never initialises the driver by itself.

mod agent;
mod ahead;
mod captures;
mod connection;
mod contexts;
mod drains;
mod exit;
mod freed;
mod gate;
mod heap;
mod memory;
mod monitoring;
mod pools;
mod room;
mod shadows;
mod sys;
mod timers;
mod trims;
mod window;
#[cfg(not(test))]
#[path = "../wire.rs"]
mod wire;

#[cfg(test)]
use crate::wire;
use captures::Captures;
use connection::{Answer, Connection};
use contexts::Contexts;
use drains::Drains;
use exit::DriverUse;
use freed::StreamOrder;
use gate::{Entry, Gate};
use memory::{Freed, Left, Memory, Pieces, Regions};
use pools::Pools;
use std::{
    os::fd::RawFd,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};
use sys::driver::{
    self, CONTEXT_IS_DESTROYED, Code, Context, DEINITIALIZED, Event, INVALID_CONTEXT,
    OUT_OF_MEMORY, Properties, SUCCESS, SYSTEM_NOT_READY, Stream,
};
use timers::Timers;
use trims::Trims;
use window::Windows;
use wire::FromSession;

/// The pause before the driver is asked again for memory that it did not have.
const RETRY: Duration = Duration::from_millis(20);

/// The state of the interposer in this process.
struct Process {
    gate: Gate,
    drains: Drains,
    driver: DriverUse,
    windows: Windows,
    captures: Captures,
    pools: Pools,
    timers: Timers,
    trims: Trims,
    connection: Connection,
    memory: Mutex<Memory>,
    /// Held by the thread that asks for more memory.
    growing: Mutex<()>,
    contexts: Contexts,
    /// Marks behind all work of the contexts, while the agent checks whether that work is done.
    marks: Mutex<Vec<Event>>,
    is_started: AtomicBool,
    has_failed: AtomicBool,
    can_map: AtomicBool,
    cap_bytes: AtomicU64,
    descriptor: AtomicI32,
}

static PROCESS: Process = Process {
    gate: Gate::new(),
    drains: Drains::new(),
    driver: DriverUse::new(),
    windows: Windows::new(),
    captures: Captures::new(),
    pools: Pools::new(),
    timers: Timers::new(),
    trims: Trims::new(),
    connection: Connection::new(),
    memory: Mutex::new(Memory::new()),
    growing: Mutex::new(()),
    contexts: Contexts::new(),
    marks: Mutex::new(Vec::new()),
    is_started: AtomicBool::new(false),
    has_failed: AtomicBool::new(false),
    can_map: AtomicBool::new(false),
    cap_bytes: AtomicU64::new(0),
    descriptor: AtomicI32::new(-1),
};

impl Process {
    /// The driver was initialised.
    fn start(&'static self) {
        if self.is_started.swap(true, Relaxed) {
            return;
        }
        self.can_map.store(driver::can_map_memory(0), Relaxed);
        agent::start(self);
        if self.gate.is_in_use() {
            sys::forget_in_forked_children();
            // The driver has registered its own end before, so that comes after.
            sys::end_at_exit();
        }
    }

    /// The process exits.
    fn end(&self) {
        if self.gate.is_in_use() {
            self.driver.end();
            self.connection.hang_up();
            self.gate.give_up();
        }
    }

    fn welcome(&self, cap_bytes: u64, descriptor: RawFd) {
        self.cap_bytes.store(cap_bytes, Relaxed);
        self.descriptor.store(descriptor, Relaxed);
    }

    /// The connection has ended. Another file may soon get its descriptor.
    fn disconnect(&self) {
        self.descriptor.store(-1, Relaxed);
        self.connection.close();
    }

    // ---- submitting

    /// Passes a call to the driver when the session has a lease. If the call finds no room, others make some:
    /// code is loaded when it is first launched.
    #[inline]
    fn submit(&self, stream: Option<Stream>, call: impl Fn() -> Code) -> Code {
        match self.submit_once(stream, &call) {
            OUT_OF_MEMORY => self.submit_with_room(|| self.submit_once(stream, &call)),
            code => code,
        }
    }

    #[cold]
    fn submit_with_room(&self, submit: impl Fn() -> Code) -> Code {
        match self.gate.is_in_use() && !self.captures.any() {
            true => room::with_room(self, submit),
            false => OUT_OF_MEMORY,
        }
    }

    #[inline]
    fn submit_once(&self, stream: Option<Stream>, call: impl FnOnce() -> Code) -> Code {
        match self.gate.enter(|| self.want()) {
            Entry::NotInUse => return call(),
            Entry::Refused => return SYSTEM_NOT_READY,
            Entry::Counted => {}
        }
        let code = call();
        if code != SUCCESS {
            self.look_at(code);
        } else if let Some(stream) = stream
            && !self.captures.any()
        {
            self.windows.submitted(stream, &self.captures);
        }
        self.gate.leave();
        code
    }

    /// Passes a call that is no work but needs a lease: the driver checks memory, or notes the time.
    fn ask(&self, call: impl FnOnce() -> Code) -> Code {
        match self.gate.enter(|| self.want()) {
            Entry::NotInUse => return call(),
            Entry::Refused => return SYSTEM_NOT_READY,
            Entry::Counted => {}
        }
        let code = call();
        self.gate.turn_back();
        code
    }

    /// Asks for a lease. Also takes note of the thread's context, which this library may not have seen before.
    fn want(&self) {
        if let Ok((context, _)) = driver::current() {
            self.contexts.meet(context);
        }
        self.connection.send(&FromSession::Want);
    }

    fn look_at(&self, code: Code) {
        if driver::is_sticky(code) {
            self.report_fault(code);
        }
    }

    /// The memory on the GPU is lost. From now on all calls fail, even if the driver no longer reports its
    /// error.
    fn lose_memory(&self, code: Code) {
        if code == DEINITIALIZED {
            // The process exits, and nothing will use the memory.
            return self.gate.give_up();
        }
        self.gate.break_down();
        if !driver::is_sticky(code) {
            eprintln!(
                "Baton: the memory on the GPU could not be moved to the host (CUDA error {code}) and is lost"
            );
        }
        self.report_fault(code);
    }

    fn report_fault(&self, code: Code) {
        if !self.has_failed.swap(true, Relaxed) {
            let code = code.cast_unsigned();
            self.connection.send(&FromSession::Fault { code });
        }
    }

    /// Moves at least this many bytes off the GPU.
    fn swap_out(&self, bytes: u64) -> Left {
        let held = self.contexts.stay();
        let left = |bytes| self.connection.send(&FromSession::Left { bytes });
        let left = self.memory().swap_out(bytes, left);
        drop(held);
        if left.code != SUCCESS {
            self.lose_memory(left.code);
        }
        left
    }

    /// Waits until the GPU has no work of this process. `false` if a capture does not permit that.
    fn synchronize(&self) -> bool {
        let _held = self.contexts.stay();
        let mut is_idle = true;
        for context in self.contexts.all() {
            match context.with(driver::synchronize) {
                Ok(()) => {}
                Err(code) if driver::is_about_captures(code) => is_idle = false,
                Err(CONTEXT_IS_DESTROYED | INVALID_CONTEXT) => self.contexts.forget(context),
                Err(code) => self.look_at(code),
            }
        }
        is_idle
    }

    fn marks(&self) -> MutexGuard<'_, Vec<Event>> {
        self.marks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Announces that the session can free memory that its libraries hold without using it. Returns a
    /// descriptor that is readable while a trim is requested; -1 if no worker will request one.
    fn trims(&self) -> RawFd {
        if !self.gate.is_in_use() {
            return -1;
        }
        let descriptor = self.trims.begin();
        self.connection.send(&FromSession::CanTrim);
        descriptor
    }

    /// The session has freed that memory, as requested.
    fn trimmed(&self) {
        self.trims.answer();
        self.connection.send(&FromSession::Trimmed);
    }

    // ---- memory

    /// Whether the driver can put memory behind addresses that were reserved.
    fn can_move(&self) -> bool {
        self.can_map.load(Relaxed)
    }

    /// The session's free memory. Memory of its other processes counts, too.
    fn free_bytes(&self) -> u64 {
        let of_others = monitoring::own_use().map_or(0, |own| own.bytes_of_others());
        let memory = self.memory();
        let used = memory.bytes() + memory.fixed_bytes() + of_others;
        self.total_bytes().saturating_sub(used)
    }

    /// The memory that all processes of the session together may have.
    fn total_bytes(&self) -> u64 {
        self.cap_bytes.load(Relaxed)
    }

    /// Allocates from a movable pool in the order of a stream. Memory that was freed in that order is reused at once.
    fn allocate_in_order(&self, bytes: u64, pool: usize, stream: Stream) -> Result<u64, Code> {
        let reused = StreamOrder::of(stream).and_then(|order| self.memory().reuse(bytes, order));
        let address = reused.map_or_else(|| self.allocate(bytes), Ok)?;
        self.pools.allocated(pool, address, bytes);
        Ok(address)
    }

    /// Allocates for the calling thread's context. Errors are the driver's codes.
    fn allocate(&self, bytes: u64) -> Result<u64, Code> {
        let (context, device) = driver::current()?;
        self.contexts.meet(context);
        let context = self.contexts.owner(context);
        // Querying an event would invalidate a capture.
        if let Some(_none) = self.captures.none() {
            self.reap(false);
            self.memory().mark_freed();
        }
        let _one_at_a_time = self.growing.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            match self.try_to_allocate(bytes, (context, device)) {
                Ok(Some(address)) => return Ok(address),
                // Either the worker makes room meanwhile, or it refuses the next request.
                Ok(None) => std::thread::sleep(RETRY),
                Err(OUT_OF_MEMORY) if self.finish_frees() => {}
                Err(code) => return Err(code),
            }
        }
    }

    /// Allocates memory without an address for the program, and returns its handle.
    fn create_piece(&self, bytes: u64, properties: Properties) -> Result<u64, Code> {
        let address = driver::in_some_context(|| self.allocate(bytes))?;
        Ok(self.pieces(|pieces, _| pieces.add(address, properties)))
    }

    fn pieces<T>(&self, action: impl FnOnce(&mut Pieces, &mut Regions) -> T) -> T {
        self.change(|memory| memory.change_pieces(action))
    }

    /// `None` if the driver does not yet have the memory that the worker has granted, or the grant is out of
    /// date.
    fn try_to_allocate(&self, bytes: u64, place: (Context, i32)) -> Result<Option<u64>, Code> {
        let mut memory = self.memory();
        if let Some(address) = memory.place(bytes, place.0) {
            return Ok(Some(address));
        }
        let region_bytes = memory.region_for(bytes, place.0);
        let after = (memory.bytes() + memory.fixed_bytes()).saturating_add(region_bytes);
        drop(memory);
        if after > self.cap_bytes.load(Relaxed) {
            return Err(OUT_OF_MEMORY);
        }
        let request = FromSession::Grew {
            bytes: region_bytes,
        };
        let Answer::Yes { generation } = self.connection.ask_to_grow(&request) else {
            return Err(OUT_OF_MEMORY);
        };
        let mut memory = self.memory();
        if self.connection.generation() != generation {
            return Ok(None);
        }
        let grown = match memory.region_for(bytes, place.0) == region_bytes {
            true => memory.grow(bytes, place).map(Some),
            false => Ok(None),
        };
        match grown {
            Err(OUT_OF_MEMORY) => {
                self.report_not_grown(&memory, region_bytes);
                Ok(None)
            }
            Ok(Some(address)) => Ok(Some(address)),
            nothing => {
                self.report_not_used(&memory, region_bytes);
                nothing
            }
        }
    }

    /// Reports a granted allocation for which the driver had no room.
    fn report_not_grown(&self, memory: &Memory, bytes: u64) {
        let free_bytes = match driver::current() {
            Ok((context, _)) => driver::free_bytes(context),
            Err(_) => memory.free_bytes(),
        };
        self.connection.send(&FromSession::NotGrown {
            bytes,
            away_bytes: memory.away_part(bytes),
            free_bytes,
        });
    }

    /// Waits until memory that was freed in order can be released. `false` if there is none.
    fn finish_frees(&self) -> bool {
        if self.captures.any() || !self.memory().has_freed() {
            return false;
        }
        let is_idle = self.synchronize();
        if is_idle {
            self.reap(true);
        }
        is_idle
    }

    /// Frees an allocation that nothing uses any more, as the driver does: after all that was submitted. `None` for an
    /// address that is none of this process' allocations.
    fn free(&self, address: u64) -> Option<Code> {
        let mut memory = self.memory();
        let context = match memory.begin_free(address)? {
            Ok(context) => context,
            Err(code) => return Some(code),
        };
        self.pools.freed(address);
        if self.captures.any() {
            memory.free_later(address);
            return Some(SUCCESS);
        }
        // No work on the GPU uses memory that has left it. Otherwise the GPU may be at work even behind a
        // closed gate, and unmapping does not wait for that.
        if !memory.is_away() {
            drop(memory);
            let synchronized = context.with(driver::synchronize);
            memory = self.memory();
            // Another thread may have begun a capture. After any other error, the next call reports it.
            if synchronized.is_err() {
                memory.free_later(address);
                return Some(SUCCESS);
            }
        }
        let freed = memory.free(address);
        self.report_shrank(freed.unwrap_or_default());
        Some(SUCCESS)
    }

    /// Frees the allocation after the work that was submitted to the stream. `None` as in [`Process::free`].
    fn free_in_order(&self, address: u64, stream: Stream) -> Option<Code> {
        // In a capture only memory of the graph can be freed, and the driver manages that.
        if self.captures.has(stream) {
            return None;
        }
        let order = StreamOrder::of(stream);
        let mut memory = self.memory();
        if let Err(code) = memory.begin_free(address)? {
            return Some(code);
        }
        self.pools.freed(address);
        match order {
            Some(order) => memory.free_in_order(address, order),
            None => memory.free_later(address),
        }
        Some(SUCCESS)
    }

    /// Calls `end`, which ends the stream if it succeeds.
    fn end_stream(&self, stream: Stream, end: impl FnOnce() -> Code) -> Code {
        // Recording a mark would invalidate a capture; without one, freed memory waits for the end of the
        // lease.
        if let Some(_none) = self.captures.none() {
            self.memory().mark_freed();
        }
        self.memory().forget_stream(stream);
        let code = end();
        if code == SUCCESS {
            self.captures.end(stream);
        }
        code
    }

    fn reap(&self, is_drained: bool) {
        let mut memory = self.memory();
        let freed = memory.reap(is_drained);
        self.report_shrank(freed);
    }

    /// Changes the memory, and reports what `action` has freed or fixed.
    fn change<T>(&self, action: impl FnOnce(&mut Memory) -> (Freed, T)) -> T {
        let mut memory = self.memory();
        let fixed_bytes = memory.fixed_bytes();
        let (freed, result) = action(&mut memory);
        self.report_shrank(freed);
        if memory.fixed_bytes() != fixed_bytes {
            self.report_fixed(&memory);
        }
        result
    }

    /// Must be called while the memory is locked, so that a hello never counts these bytes twice.
    fn report_shrank(&self, Freed { bytes, away_bytes }: Freed) {
        if bytes > 0 {
            self.connection
                .send(&FromSession::Shrank { bytes, away_bytes });
        }
    }

    /// Reports a granted allocation that was not made.
    fn report_not_used(&self, memory: &Memory, bytes: u64) {
        self.report_shrank(Freed {
            bytes,
            away_bytes: memory.away_part(bytes),
        });
    }

    fn forget_fixed(&self, key: u64) {
        let mut memory = self.memory();
        if memory.unfix(key) {
            self.report_fixed(&memory);
        }
    }

    /// Counts the memory of graphs, which is allocated without a request.
    fn count_graphs(&self) {
        if self.captures.have_been() {
            let bytes = driver::graph_bytes(0);
            let mut memory = self.memory();
            if memory.set_graph_bytes(bytes) {
                self.report_fixed(&memory);
            }
        }
    }

    fn report_fixed(&self, memory: &Memory) {
        let bytes = memory.fixed_bytes();
        self.connection.send(&FromSession::Fixed { bytes });
    }

    fn memory(&self) -> MutexGuard<'_, Memory> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
