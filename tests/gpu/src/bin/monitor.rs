//! Prints what the driver's monitoring reports about the first GPU to a program that does not use the GPU, such
//! as `nvidia-smi`.
//!
//! It is one line: total, used and free bytes, then the id and the bytes of each process.

use nvml_wrapper::{Nvml, enums::device::UsedGpuMemory, error::NvmlError};

fn main() -> Result<(), NvmlError> {
    let nvml = Nvml::builder()
        .lib_path("libnvidia-ml.so.1".as_ref())
        .init()?;
    let gpu = nvml.device_by_index(0)?;
    let memory = gpu.memory_info()?;
    print!("{} {} {}", memory.total, memory.used, memory.free);
    for process in gpu.running_compute_processes()? {
        if let UsedGpuMemory::Used(bytes) = process.used_gpu_memory {
            print!(" {} {bytes}", process.pid);
        }
    }
    println!();
    Ok(())
}
