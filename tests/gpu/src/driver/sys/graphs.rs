//! Graphs whose nodes programs add themselves. The nodes run in the order in which they were added.

use super::{
    api,
    memory::{allocate_in_graph, is_known},
    put,
    structures::{Allocation, Copy, Set, Side},
};
use crate::{
    Code, Graph, INVALID_HANDLE, INVALID_VALUE, NOT_SUPPORTED, SUCCESS, engine::Work, objects,
};
use std::ffi::c_uint;

impl Side {
    /// The address, if the driver knows the memory there. `cuMemcpy3D`, which the reference of
    /// `cuGraphAddMemcpyNode` names for restrictions, returns `CUDA_ERROR_INVALID_VALUE` otherwise. The documentation
    /// does not say whether a real driver already checks this when the node is added; this one does.
    fn address(&self) -> Option<u64> {
        const ON_HOST: c_uint = 1;
        match self.kind {
            ON_HOST => Some(self.host + self.x as u64),
            _ => Some(self.device + self.x as u64).filter(|address| is_known(*address)),
        }
    }

    fn is_flat(&self) -> bool {
        (self.y, self.z) == (0, 0)
    }
}

unsafe fn add(node: *mut usize, graph: usize, change: impl FnOnce(&mut Graph)) -> Code {
    let mut objects = objects();
    let number = objects.number();
    let Some(nodes) = objects.graphs.get_mut(&graph) else {
        return INVALID_HANDLE;
    };
    change(nodes);
    unsafe { put(node, number) }
}

api! {
    fn cuGraphCreate(graph: *mut usize, _flags: c_uint) {
        let mut objects = objects();
        let number = objects.number();
        objects.graphs.insert(number, Graph::default());
        put(graph, number)
    }

    fn cuGraphAddMemsetNode(
        node: *mut usize, graph: usize, _after: *const usize, _count: usize, set: *const Set, _context: usize,
    ) {
        let Some(&Set { to, value, element_bytes, width, height, .. }) = set.as_ref() else { return INVALID_VALUE };
        if height > 1 {
            return NOT_SUPPORTED;
        }
        if !is_known(to) {
            return INVALID_VALUE;
        }
        let value = value.to_ne_bytes()[..element_bytes as usize].to_vec();
        add(node, graph, |graph| graph.works.push(Work::Fill { to, value, count: width }))
    }

    fn cuGraphAddMemcpyNode(
        node: *mut usize, graph: usize, _after: *const usize, _count: usize, copy: *const Copy, _context: usize,
    ) {
        let Some(Copy { from, to, width, height, depth }) = copy.as_ref() else { return INVALID_VALUE };
        if *height > 1 || *depth > 1 || !from.is_flat() || !to.is_flat() {
            return NOT_SUPPORTED;
        }
        let (Some(from), Some(to)) = (from.address(), to.address()) else { return INVALID_VALUE };
        add(node, graph, |graph| graph.works.push(Work::Copy { to, from, bytes: *width }))
    }

    fn cuGraphAddMemAllocNode(
        node: *mut usize, graph: usize, _after: *const usize, _count: usize, allocation: *mut Allocation,
    ) {
        let Some(Allocation { bytes, address, .. }) = allocation.as_mut() else { return INVALID_VALUE };
        match add(node, graph, |graph| graph.bytes += *bytes as u64) {
            SUCCESS => allocate_in_graph(address, *bytes),
            code => code,
        }
    }

    // The memory stays with the graph.
    fn cuGraphAddMemFreeNode(node: *mut usize, graph: usize, _after: *const usize, _count: usize, address: u64) {
        if is_known(address) { add(node, graph, |_| ()) } else { INVALID_VALUE }
    }
}
