//! What a cell itself requires of its worker.

use baton_protocol::{Cell, Requirement};

/// The longest GPU model in a cell's requirement, in characters.
const LONGEST_MODEL: usize = 100;

/// The requirements of the cell itself.
pub fn of_cell(cell: &Cell) -> Vec<Requirement> {
    let model = cell.gpu.as_ref().map(|model| Requirement::Gpu {
        model: model.chars().take(LONGEST_MODEL).collect(),
    });
    let memory = cell.gpu_memory_bytes;
    let memory = memory.map(|bytes| Requirement::GpuMemory { bytes });
    let environment = cell.environment.clone();
    let environment = environment.map(|name| Requirement::Environment { name });
    model.into_iter().chain(memory).chain(environment).collect()
}
