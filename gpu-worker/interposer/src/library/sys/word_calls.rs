//! Wrappers of calls that refer to memory, or create what takes some, without giving the GPU work.
//!
//! All arguments are integers and pointers, so a wrapper takes as many words as any of these functions and passes
//! them on. Words that the caller did not pass are passed on unread.
#![allow(non_snake_case)]

use super::{
    super::PROCESS,
    Wrapper,
    context_calls::making,
    driver::{Code, Export, NOT_FOUND, SUCCESS},
    is_in_use,
};
use std::mem::transmute;

#[rustfmt::skip]
type Words = unsafe extern "C" fn(
    usize, usize, usize, usize, usize, usize, usize, usize, usize, usize, usize, usize,
) -> Code;

/// Defines wrappers and their table; `$how` receives the driver's function.
macro_rules! words {
    ($table:ident: $how:expr => $($name:ident)*) => {
        $(#[cfg_attr(not(test), unsafe(no_mangle))]
        #[rustfmt::skip]
        unsafe extern "C" fn $name(
            a: usize, b: usize, c: usize, d: usize, e: usize, f: usize,
            g: usize, h: usize, i: usize, j: usize, k: usize, l: usize,
        ) -> Code {
            static EXPORT: Export = Export::new(concat!(stringify!($name), "\0"));
            let Some(address) = EXPORT.address() else {
                return NOT_FOUND;
            };
            // SAFETY: the driver's function, and the caller's arguments.
            $how(|| unsafe { transmute::<usize, Words>(address)(a, b, c, d, e, f, g, h, i, j, k, l) })
        })*
        pub(super) static $table: &[Wrapper] = &[$(
            Wrapper { name: stringify!($name), address: $name as *const () },
        )*];
    };
}

// The driver checks the pointers of these calls, so they wait until the memory is on the GPU.
words! { ASKED: |driver| PROCESS.ask(driver) =>
    cuGraphAddMemcpyNode cuGraphAddMemsetNode cuGraphExecMemcpyNodeSetParams cuGraphExecMemsetNodeSetParams
    cuGraphExecNodeSetParams cuGraphExecUpdate cuGraphExecUpdate_v2 cuGraphMemcpyNodeSetParams
    cuGraphMemsetNodeSetParams cuGraphNodeSetParams cuGraphNodeSetParams_v2 cuMemAdvise cuMemAdvise_v2 cuMemRangeGetAttribute
    cuMemRangeGetAttributes cuPointerSetAttribute cuTexObjectCreate cuTexRefSetAddress_v2
    cuTexRefSetAddress2D_v2 cuTexRefSetAddress2D_v3
}

// The same, but these may also add memory, which is counted with that of other graphs.
words! { GRAPH_MEMORY: |driver| {
        let code = PROCESS.ask(driver);
        if code == SUCCESS && is_in_use() {
            PROCESS.captures.note_graph();
        }
        code
    } =>
    cuGraphAddMemAllocNode cuGraphAddNode cuGraphAddNode_v2 cuGraphAddNode_v3
}

// These take memory that is in no ledger: others make room if the driver has none.
words! { MADE: making =>
    cuCtxSetLimit cuGreenCtxCreate cuGreenCtxStreamCreate cuStreamCreate cuStreamCreateWithPriority
}

// These take memory as well, and may put the graph on the GPU, so they also wait for the lease.
words! { INSTANTIATED: instantiating =>
    cuGraphInstantiate cuGraphInstantiateWithFlags cuGraphInstantiate_v2
}

fn instantiating(driver: impl Fn() -> Code) -> Code {
    making(|| PROCESS.ask(&driver))
}
