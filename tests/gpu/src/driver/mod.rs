//! A `libcuda.so.1` that computes in the memory of the host.
//!
//! Not a module of this crate: `build.rs` compiles it separately, for processes that load a driver. It declares
//! the parts of the CUDA interface that it needs itself. It lacks other functions that NVIDIA's libraries call
//! in a real driver.

#![allow(non_snake_case)]

mod card;
mod engine;
mod host;
#[path = "../layout.rs"]
mod layout;
#[path = "../locks.rs"]
mod locks;
mod sys;

use engine::Work;
use std::{
    cell::{Cell, RefCell},
    collections::{BTreeMap, BTreeSet},
    fs::File,
    mem::ManuallyDrop,
    path::Path,
    sync::{
        Arc, LazyLock, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicBool, AtomicI32, AtomicU32, Ordering::SeqCst},
    },
    time::Instant,
};

pub(crate) type Code = i32;
pub(crate) const SUCCESS: Code = 0;
pub(crate) const INVALID_VALUE: Code = 1;
pub(crate) const OUT_OF_MEMORY: Code = 2;
pub(crate) const NOT_INITIALIZED: Code = 3;
/// CUDA_ERROR_DEINITIALIZED: This indicates that the CUDA driver is in the process of shutting down.
pub(crate) const DEINITIALIZED: Code = 4;
pub(crate) const INVALID_DEVICE: Code = 101;
pub(crate) const INVALID_CONTEXT: Code = 201;
pub(crate) const INVALID_HANDLE: Code = 400;
pub(crate) const ILLEGAL_STATE: Code = 401;
pub(crate) const NOT_FOUND: Code = 500;
pub(crate) const NOT_READY: Code = 600;
pub(crate) const ILLEGAL_ADDRESS: Code = 700;
pub(crate) const OPERATING_SYSTEM: Code = 304;
pub(crate) const CONTEXT_IS_DESTROYED: Code = 709;
pub(crate) const NOT_SUPPORTED: Code = 801;
pub(crate) const CAPTURE_UNSUPPORTED: Code = 900;
/// A query of an event in a capture, which is not an error of the GPU.
pub(crate) const CAPTURED_EVENT: Code = 907;
pub(crate) const CAPTURE_INVALIDATED: Code = 901;
pub(crate) const UNKNOWN: Code = 999;

/// The process that initialised the driver; a forked child has another number.
static OWNER: AtomicU32 = AtomicU32::new(0);

/// Set when the process exits.
static HAS_ENDED: AtomicBool = AtomicBool::new(false);

/// The fatal error that every call returns from now on; 0 if there is none.
pub(crate) static STICKY: AtomicI32 = AtomicI32::new(0);

#[unsafe(no_mangle)]
pub extern "C" fn baton_test_gpu_calls() -> u64 {
    CALLS.get()
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
    if !can_name_threads() {
        return OPERATING_SYSTEM;
    }
    match card::open() {
        Ok(()) => {
            sys::notice_forks();
            sys::notice_exit();
            SUCCESS
        }
        Err(_) => 100,
    }
}

/// Seen with version 580 of the driver: it names a thread of its own, and does not start if that fails.
fn can_name_threads() -> bool {
    let thread = std::fs::read_link("/proc/thread-self").unwrap_or_default();
    let number = thread.file_name().unwrap_or_default();
    File::create(Path::new("/proc/self/task").join(number).join("comm")).is_ok()
}

/// Requested faults, from `NAME:N:CODE,…`.
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

/// The code that a call returns without doing anything, if any; a requested fault may be a false success.
pub(crate) fn refusal(name: &str) -> Option<Code> {
    CALLS.set(CALLS.get() + 1);
    if !is_initialized() {
        return Some(NOT_INITIALIZED);
    }
    if HAS_ENDED.load(SeqCst) {
        return Some(DEINITIALIZED);
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

/// Called for each function that is not implemented here.
pub(crate) fn absent(name: &str) -> Code {
    if std::env::var_os("BATON_TEST_GPU_ABSENT").is_some() {
        eprintln!("The driver in host memory has no {name}");
    }
    NOT_SUPPORTED
}

/// Counts a call that names an object that has ended, and returns its error (`CUDA_ERROR_INVALID_HANDLE`: "a resource
/// handle passed to the API call was not valid. Resource handles are opaque types like CUstream and CUevent"; driver
/// API, "Data types used by CUDA driver"). A real driver may also crash.
pub(crate) fn stale() -> Code {
    card::card().stale_handle_comes();
    INVALID_HANDLE
}

fn current() -> Option<usize> {
    CONTEXTS.with_borrow(|stack| stack.last().copied())
}

/// The calling thread's context, if it has not ended.
pub(crate) fn context() -> Result<usize, Code> {
    let context = current().ok_or(INVALID_CONTEXT)?;
    match objects().contexts.contains_key(&context) {
        true => Ok(context),
        false => Err(CONTEXT_IS_DESTROYED),
    }
}

/// The code of the fault requested for this call, if any.
pub(crate) fn fault(name: &str) -> Option<Code> {
    let mut faults = lock(&FAULTS);
    for (of, left, code) in faults
        .iter_mut()
        .filter(|(of, left, _)| of == name && *left > 0)
    {
        *left -= 1;
        if *left == 0 {
            return Some(*code);
        }
    }
    None
}

thread_local! {
    /// How many calls this thread has made.
    static CALLS: Cell<u64> = const { Cell::new(0) };
    /// Never dropped, because libraries still free their objects while a thread ends.
    pub(crate) static CONTEXTS: RefCell<ManuallyDrop<Vec<usize>>> = const { RefCell::new(ManuallyDrop::new(Vec::new())) };
    /// 0: a capture in any thread forbids unsafe calls; 1: only one in this thread does; 2: none does.
    pub(crate) static CAPTURE_MODE: Cell<i32> = const { Cell::new(0) };
}

pub(crate) const PRIMARY: usize = 0x1000;

/// A library's module; its kernels compute nothing.
pub(crate) const LIBRARY: usize = 0x101;

pub(crate) struct Objects {
    pub(crate) last: usize,
    pub(crate) primary_holds: u32,
    /// Contexts that have not ended.
    pub(crate) contexts: BTreeMap<usize, Context>,
    /// The contexts of green contexts, by their handles.
    pub(crate) green: BTreeMap<usize, usize>,
    /// By stream, see [`captured`].
    pub(crate) captures: BTreeMap<usize, Capture>,
    /// Streams that joined another stream's capture by waiting for its event (programming guide, cross-stream
    /// dependencies).
    pub(crate) joined: BTreeMap<usize, usize>,
    /// Events that were recorded in a capture.
    pub(crate) captured_events: BTreeMap<usize, usize>,
    pub(crate) graphs: BTreeMap<usize, Graph>,
    pub(crate) streams: BTreeMap<usize, Stream>,
    /// The handle of the stream that was destroyed last: the next stream's handle.
    pub(crate) ended_stream: Option<usize>,
    pub(crate) events: BTreeMap<usize, Event>,
    pub(crate) functions: BTreeMap<usize, String>,
    /// The functions whose code is on the card.
    pub(crate) loaded: BTreeSet<usize>,
}

#[derive(Default)]
pub(crate) struct Capture {
    /// The handle of its graph.
    pub(crate) graph: usize,
    pub(crate) nodes: Graph,
    pub(crate) is_invalid: bool,
}

#[derive(Clone, Default)]
pub(crate) struct Graph {
    pub(crate) works: Vec<Work>,
    /// The memory that was allocated in it. It takes the card's memory once the graph is instantiated.
    pub(crate) bytes: u64,
}

pub(crate) struct Context {
    /// How much of the card's memory it takes.
    pub(crate) bytes: u64,
    /// The number of its last work.
    pub(crate) last: u64,
    /// How often it must be detached until it ends.
    pub(crate) holds: u32,
}

/// Streams and events end with their context (`cuCtxDestroy`: all resources of the context are cleaned up).
#[derive(Clone, Copy)]
pub(crate) struct Stream {
    pub(crate) context: usize,
    /// The number of the work that it waits for.
    pub(crate) last: u64,
}

pub(crate) struct Event {
    pub(crate) context: usize,
    /// What it was last recorded after.
    pub(crate) mark: Option<Mark>,
}

/// The number of the work that an event waits for, and when it was reached.
#[derive(Clone)]
pub(crate) struct Mark {
    pub(crate) last: u64,
    pub(crate) reached: Arc<OnceLock<Instant>>,
}

const PER_THREAD: usize = 2;

/// By what the capture of a stream is known: the default streams of all threads have the same handle.
pub(crate) fn captured(stream: usize) -> usize {
    thread_local! { static OWN: u8 = const { 0 } }
    match stream {
        PER_THREAD => OWN.with(|own| std::ptr::from_ref(own) as usize),
        stream => stream,
    }
}

/// Whether this is one of the default streams, which every context has.
pub(crate) fn is_default(stream: usize) -> bool {
    stream <= PER_THREAD
}

static OBJECTS: Mutex<Objects> = Mutex::new(Objects {
    last: 0x2000,
    primary_holds: 0,
    contexts: BTreeMap::new(),
    green: BTreeMap::new(),
    captures: BTreeMap::new(),
    joined: BTreeMap::new(),
    captured_events: BTreeMap::new(),
    graphs: BTreeMap::new(),
    streams: BTreeMap::new(),
    ended_stream: None,
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
        let origin = self.joined.get(&stream).copied().unwrap_or(captured(stream));
        self.captures.contains_key(&origin).then_some(origin)
    }

    /// The number of a context's last work. Work of green contexts is also that of the primary context
    /// (`cuCtxSynchronize`: "If the current context is the primary context, green contexts that have been created will
    /// also be synchronized").
    pub(crate) fn last_in(&self, context: usize) -> Option<u64> {
        let own = self.contexts.get(&context)?.last;
        let green = self.green.values().filter(|_| context == PRIMARY);
        let green = green.filter_map(|one| self.contexts.get(one));
        Some(green.map(|one| one.last).fold(own, u64::max))
    }

    /// Removes a context that has ended, with its streams, their captures and its events.
    pub(crate) fn end(&mut self, context: usize) -> Option<Context> {
        let goes_on = |stream: &usize| {
            let known = self.streams.get(stream);
            known.is_none_or(|known| known.context != context)
        };
        self.captures.retain(|stream, _| goes_on(stream));
        self.streams.retain(|_, stream| stream.context != context);
        self.events.retain(|_, event| event.context != context);
        self.contexts.remove(&context)
    }
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Submits work to a stream, or adds it to the stream's capture.
pub(crate) fn submit(stream: usize, work: Work) -> Code {
    let mut objects = objects();
    if let Some(origin) = objects.capture_of(stream) {
        objects
            .captures
            .entry(origin)
            .or_default()
            .nodes
            .works
            .push(work);
        return SUCCESS;
    }
    // Each context has default streams of its own.
    let context = match is_default(stream) {
        true => current(),
        false => objects.streams.get(&stream).map(|known| known.context),
    };
    let Some(context) = context else {
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

/// Invalidates all captures if they forbid the current call, and returns whether they do.
pub(crate) fn spoils_captures(also_relaxed: bool) -> bool {
    let mut objects = objects();
    let is_relaxed = CAPTURE_MODE.get() == 2 && !also_relaxed;
    if objects.captures.is_empty() || is_relaxed {
        return false;
    }
    for capture in objects.captures.values_mut() {
        capture.is_invalid = true;
    }
    true
}
