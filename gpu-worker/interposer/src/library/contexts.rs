//! The contexts that this library has seen, and what happens when one ends.

use super::{
    Process,
    sys::driver::{self, Code, Context, ONLY_DEVICE, SUCCESS},
};
use std::{
    collections::BTreeSet,
    sync::{MutexGuard, PoisonError, RwLockReadGuard},
};

impl Process {
    /// Takes note of a context that may compute.
    pub(super) fn meet(&self, context: Context) {
        if !context.is_none() {
            self.contexts().insert(context);
        }
    }

    /// The context with which memory that is allocated in this context is freed. For a green context, this is the
    /// primary context: except for kernels, calls do in it what they would do in the primary context
    /// (`cuCtxFromGreenCtx`).
    pub(super) fn owner(&self, context: Context) -> Context {
        let is_green = self.green_contexts().contains(&context);
        let primary = is_green.then(|| driver::primary_context(ONLY_DEVICE));
        primary.flatten().unwrap_or(context)
    }

    pub(super) fn green_contexts(&self) -> MutexGuard<'_, BTreeSet<Context>> {
        self.green_contexts
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls `end`, which may end these contexts; one has ended if `end` succeeds and `is_over` then returns
    /// `true` for it. This library's own objects in the contexts are released first, because a handle from an
    /// ended context may crash the driver.
    pub(super) fn end_contexts(
        &self,
        contexts: &[Context],
        end: impl FnOnce() -> Code,
        is_over: impl Fn(Context) -> bool,
    ) -> Code {
        let agent_uses_none = self.endings.write().unwrap_or_else(PoisonError::into_inner);
        for context in contexts {
            self.windows.forget(*context);
            self.marks().retain(|mark| mark.context() != *context);
            self.memory().prepare_end(*context);
        }
        let code = end();
        if code == SUCCESS {
            let ended = contexts.iter().copied().filter(|one| is_over(*one));
            let ended: Vec<Context> = ended.collect();
            ended.iter().for_each(|one| self.forget_context(*one));
            // The agent may keep captures from beginning while it waits for this.
            drop(agent_uses_none);
            ended.iter().for_each(|one| self.captures.forget(*one));
        }
        code
    }

    fn forget_context(&self, context: Context) {
        self.contexts().remove(&context);
        let mut memory = self.memory();
        let fixed_bytes = memory.fixed_bytes();
        let freed = memory.forget(context);
        self.pools
            .retain(|address| memory.context_of(address).is_some());
        self.report_shrank(freed);
        if memory.fixed_bytes() != fixed_bytes {
            self.report_fixed(&memory);
        }
    }

    /// No context ends while this is held.
    pub(super) fn contexts_stay(&self) -> RwLockReadGuard<'_, ()> {
        self.endings.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn contexts(&self) -> MutexGuard<'_, BTreeSet<Context>> {
        self.contexts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
