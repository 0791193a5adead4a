//! The contexts that this library has seen, and what happens when one ends.

use super::{
    Process,
    sys::driver::{self, Code, Context, ONLY_DEVICE, SUCCESS},
};
use std::{
    collections::BTreeSet,
    sync::{Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard},
};

pub(super) struct Contexts {
    met: Mutex<BTreeSet<Context>>,
    /// Those of them that are parts of the primary context.
    green: Mutex<BTreeSet<Context>>,
    /// Held by a thread that ends a context, and shared by threads that use other threads' contexts.
    endings: RwLock<()>,
}

impl Contexts {
    pub(super) const fn new() -> Self {
        Self {
            met: Mutex::new(BTreeSet::new()),
            green: Mutex::new(BTreeSet::new()),
            endings: RwLock::new(()),
        }
    }

    /// Takes note of a context that may compute.
    pub(super) fn meet(&self, context: Context) {
        if !context.is_none() {
            self.met().insert(context);
        }
    }

    /// All that may compute.
    pub(super) fn all(&self) -> Vec<Context> {
        self.met().iter().copied().collect()
    }

    /// The context is gone.
    pub(super) fn forget(&self, context: Context) {
        self.met().remove(&context);
    }

    /// The context with which memory that is allocated in this context is freed. For a green context, this is the
    /// primary context: except for kernels, calls do in it what they would do in the primary context
    /// (`cuCtxFromGreenCtx`).
    pub(super) fn owner(&self, context: Context) -> Context {
        let is_green = self.green().contains(&context);
        let primary = is_green.then(|| driver::primary_context(ONLY_DEVICE));
        primary.flatten().unwrap_or(context)
    }

    pub(super) fn green(&self) -> MutexGuard<'_, BTreeSet<Context>> {
        self.green.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// No context ends while this is held.
    pub(super) fn stay(&self) -> RwLockReadGuard<'_, ()> {
        self.endings.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn met(&self) -> MutexGuard<'_, BTreeSet<Context>> {
        self.met.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Calls `end`, which may end these contexts; one has ended if `end` succeeds and `is_over` then returns `true` for
/// it. This library's own objects in the contexts are released first, because a handle from an ended context may
/// crash the driver. Memory that outlives its context must be on the GPU then, because nothing can move it back later.
pub(super) fn end(
    process: &Process,
    contexts: &[Context],
    end: impl FnOnce() -> Code,
    is_over: impl Fn(Context) -> bool,
) -> Code {
    let agent_uses_none = loop {
        let agent_uses_none = process.contexts.endings.write();
        let agent_uses_none = agent_uses_none.unwrap_or_else(PoisonError::into_inner);
        if !has_away_that_stays(process, contexts) {
            break agent_uses_none;
        }
        drop(agent_uses_none);
        let code = process.ask(|| SUCCESS);
        if code != SUCCESS {
            return code;
        }
    };
    for context in contexts {
        process.windows.forget(*context);
        process.marks().retain(|mark| mark.context() != *context);
        process.memory().prepare_end(*context);
    }
    let code = end();
    if code == SUCCESS {
        let ended = contexts.iter().copied().filter(|one| is_over(*one));
        let ended: Vec<Context> = ended.collect();
        ended.iter().for_each(|one| forget(process, *one));
        // The agent may keep captures from beginning while it waits for this.
        drop(agent_uses_none);
        ended.iter().for_each(|one| process.captures.forget(*one));
    }
    code
}

/// Whether memory is on the host that outlives one of these contexts.
fn has_away_that_stays(process: &Process, contexts: &[Context]) -> bool {
    let memory = process.memory();
    let is_away = process.gate.is_in_use() && memory.is_away();
    is_away && contexts.iter().any(|one| memory.has_pieces_in(*one))
}

fn forget(process: &Process, context: Context) {
    process.contexts.forget(context);
    process.change(|memory| {
        let freed = memory.forget(context);
        process
            .pools
            .retain(|address| memory.context_of(address).is_some());
        (freed, ())
    });
}
