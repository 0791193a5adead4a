//! A `libcuda.so.1` that computes in the memory of the host.
//!
//! Not a module of this crate: `build.rs` compiles it alone, for processes that look for a driver. It declares what it
//! needs of the interface itself. What libraries of the vendor ask of a real driver beyond that it does not have.

#![allow(non_snake_case)]

mod card;
mod engine;
#[path = "../layout.rs"]
mod layout;
#[path = "../locks.rs"]
mod locks;
mod sys;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering::SeqCst};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

use engine::Work;

pub(crate) type Code = i32;
pub(crate) const SUCCESS: Code = 0;
pub(crate) const INVALID_VALUE: Code = 1;
pub(crate) const OUT_OF_MEMORY: Code = 2;
pub(crate) const NOT_INITIALIZED: Code = 3;
pub(crate) const INVALID_DEVICE: Code = 101;
pub(crate) const INVALID_CONTEXT: Code = 201;
pub(crate) const INVALID_HANDLE: Code = 400;
pub(crate) const ILLEGAL_STATE: Code = 401;
pub(crate) const NOT_FOUND: Code = 500;
pub(crate) const NOT_READY: Code = 600;
pub(crate) const ILLEGAL_ADDRESS: Code = 700;
pub(crate) const CONTEXT_IS_DESTROYED: Code = 709;
pub(crate) const NOT_SUPPORTED: Code = 801;
pub(crate) const CAPTURE_UNSUPPORTED: Code = 900;
/// Asking for it is no error of the GPU.
pub(crate) const CAPTURED_EVENT: Code = 907;
pub(crate) const CAPTURE_INVALIDATED: Code = 901;
pub(crate) const UNKNOWN: Code = 999;

/// The process that initialised it; a forked child is another one.
static OWNER: AtomicU32 = AtomicU32::new(0);

/// What every call returns from now on.
pub(crate) static STICKY: AtomicI32 = AtomicI32::new(0);

/// How many calls came from this process.
static CALLS: AtomicU64 = AtomicU64::new(0);

#[unsafe(no_mangle)]
pub extern "C" fn baton_test_gpu_calls() -> u64 {
    CALLS.load(SeqCst)
}

pub(crate) fn is_initialized() -> bool {
    OWNER.load(SeqCst) == std::process::id()
}

pub(crate) fn initialize() -> Code {
    match OWNER.load(SeqCst) {
        0 => OWNER.store(std::process::id(), SeqCst),
        owner if owner != std::process::id() => return NOT_INITIALIZED,
        _ => {}
    }
    match card::open() {
        Ok(()) => {
            sys::notice_forks();
            SUCCESS
        }
        Err(_) => 100,
    }
}

/// `NAME:N:CODE,…`
static FAULTS: LazyLock<Mutex<Vec<(String, u32, Code)>>> = LazyLock::new(|| {
    let text = std::env::var("BATON_TEST_GPU_FAULTS").unwrap_or_default();
    let parse = |fault: &str| {
        let mut parts = fault.split(':');
        Some((
            parts.next()?.to_owned(),
            parts.next()?.parse().ok()?,
            parts.next()?.parse().ok()?,
        ))
    };
    Mutex::new(text.split(',').filter_map(parse).collect())
});

/// What a call returns without doing anything, if so; a fault may be that it says it succeeded.
pub(crate) fn refusal(name: &str) -> Option<Code> {
    CALLS.fetch_add(1, SeqCst);
    if !is_initialized() {
        return Some(NOT_INITIALIZED);
    }
    let sticky = STICKY.load(SeqCst);
    if sticky != 0 {
        return Some(sticky);
    }
    card::card().wait_until_unlocked();
    if card::card().is_lost() {
        return Some(UNKNOWN);
    }
    fault(name)
}

/// A function was called that is not here.
pub(crate) fn absent(name: &str) -> Code {
    if std::env::var_os("BATON_TEST_GPU_ABSENT").is_some() {
        eprintln!("The driver in host memory has no {name}");
    }
    NOT_SUPPORTED
}

/// What a call returns that names what has ended.
pub(crate) fn stale() -> Code {
    card::card().stale_handle_comes();
    INVALID_HANDLE
}

fn current() -> Option<usize> {
    CONTEXTS.with_borrow(|stack| stack.last().copied())
}

/// The calling thread's context, which lives.
pub(crate) fn context() -> Result<usize, Code> {
    let context = current().ok_or(INVALID_CONTEXT)?;
    match objects().contexts.contains_key(&context) {
        true => Ok(context),
        false => Err(CONTEXT_IS_DESTROYED),
    }
}

/// The code of the fault that this call has.
pub(crate) fn fault(name: &str) -> Option<Code> {
    let mut faults = lock(&FAULTS);
    for (of, left, code) in faults.iter_mut().filter(|(of, left, _)| of == name && *left > 0) {
        *left -= 1;
        if *left == 0 {
            return Some(*code);
        }
    }
    None
}

thread_local! {
    /// Also there while a thread ends, when libraries still give back what they have.
    pub(crate) static CONTEXTS: RefCell<ManuallyDrop<Vec<usize>>> = const { RefCell::new(ManuallyDrop::new(Vec::new())) };
    /// 0: a capture anywhere forbids unsafe calls; 1: one of this thread; 2: none.
    pub(crate) static CAPTURE_MODE: Cell<i32> = const { Cell::new(0) };
}

pub(crate) const PRIMARY: usize = 0x1000;

/// A module whose kernels compute nothing, because they are a library's.
pub(crate) const LIBRARY: usize = 0x101;

pub(crate) struct Objects {
    pub(crate) last: usize,
    pub(crate) primary_holds: u32,
    /// Those that live.
    pub(crate) contexts: BTreeMap<usize, Context>,
    /// By stream: what was submitted while it is captured, and whether that is spoilt.
    pub(crate) captures: BTreeMap<usize, (Vec<Work>, bool)>,
    /// Streams that joined the capture of another by waiting for its event (programming guide, cross-stream
    /// dependencies), and events that were recorded in a capture.
    pub(crate) joined: BTreeMap<usize, usize>,
    pub(crate) captured_events: BTreeMap<usize, usize>,
    pub(crate) graphs: BTreeMap<usize, Vec<Work>>,
    pub(crate) streams: BTreeMap<usize, Stream>,
    pub(crate) events: BTreeMap<usize, Stream>,
    pub(crate) functions: BTreeMap<usize, String>,
    /// Of those: their code is on the card.
    pub(crate) loaded: BTreeSet<usize>,
}

pub(crate) struct Context {
    /// Of the card.
    pub(crate) bytes: u64,
    /// The number of its last work.
    pub(crate) last: u64,
}

/// A stream or an event; it ends with its context (`cuCtxDestroy`: all resources of the context are cleaned up).
#[derive(Clone, Copy)]
pub(crate) struct Stream {
    pub(crate) context: usize,
    /// The number of the work that it waits for.
    pub(crate) last: u64,
}

/// Each context has these, which nobody makes.
pub(crate) fn is_default(stream: usize) -> bool {
    stream <= 2
}

static OBJECTS: Mutex<Objects> = Mutex::new(Objects {
    last: 0x2000,
    primary_holds: 0,
    contexts: BTreeMap::new(),
    captures: BTreeMap::new(),
    joined: BTreeMap::new(),
    captured_events: BTreeMap::new(),
    graphs: BTreeMap::new(),
    streams: BTreeMap::new(),
    events: BTreeMap::new(),
    functions: BTreeMap::new(),
    loaded: BTreeSet::new(),
});

pub(crate) fn objects() -> MutexGuard<'static, Objects> {
    lock(&OBJECTS)
}

impl Objects {
    pub(crate) fn number(&mut self) -> usize {
        self.last += 16;
        self.last
    }

    /// The stream whose capture this stream is a part of.
    pub(crate) fn capture_of(&self, stream: usize) -> Option<usize> {
        let origin = self.joined.get(&stream).copied().unwrap_or(stream);
        self.captures.contains_key(&origin).then_some(origin)
    }

    /// A context ended, and what was in it.
    pub(crate) fn end(&mut self, context: usize) -> Option<Context> {
        self.streams.retain(|_, stream| stream.context != context);
        self.events.retain(|_, event| event.context != context);
        self.contexts.remove(&context)
    }
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Work for a stream: now, or with its graph later.
pub(crate) fn submit(stream: usize, work: Work) -> Code {
    let mut objects = objects();
    if let Some(origin) = objects.capture_of(stream) {
        objects.captures.entry(origin).or_default().0.push(work);
        return SUCCESS;
    }
    let known = objects.streams.get(&stream).map(|known| known.context);
    let Some(context) = known.or(current().filter(|_| is_default(stream))) else {
        drop(objects);
        return stale();
    };
    let last = engine::submit(work);
    objects.streams.insert(stream, Stream { context, last });
    if let Some(context) = objects.contexts.get_mut(&context) {
        context.last = last;
    }
    SUCCESS
}

/// A call that a capture forbids spoils it.
pub(crate) fn spoils_captures(also_relaxed: bool) -> bool {
    let mut objects = objects();
    let is_relaxed = CAPTURE_MODE.get() == 2 && !also_relaxed;
    if objects.captures.is_empty() || is_relaxed {
        return false;
    }
    for (_, is_spoilt) in objects.captures.values_mut() {
        *is_spoilt = true;
    }
    true
}
