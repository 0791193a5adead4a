//! What this machine offers.
//!
//! In: `/proc`, and what the GPUs' driver reports. Out: the devices as people read them.

use crate::{gpu::Reading, host_memory};
use baton_protocol::worker::{Device, DeviceKind, GpuLoad};
use std::fs;

/// The GPUs, or else the processor; never empty.
pub(crate) fn detect(reading: &Reading) -> Vec<Device> {
    if reading.gpus.is_empty() {
        let cpu_info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        return vec![Device {
            kind: DeviceKind::Cpu,
            model: processor_model(&cpu_info),
            memory_bytes: host_memory::total_bytes(),
            compute_capability: None,
        }];
    }
    let device = |(gpu, capability): (&GpuLoad, &Option<_>)| Device {
        kind: DeviceKind::Cuda,
        model: gpu.name.clone(),
        memory_bytes: gpu.memory_total_bytes,
        compute_capability: *capability,
    };
    let gpus = reading.gpus.iter().zip(&reading.capabilities);
    gpus.map(device).collect()
}

/// Processors other than x86 have no `model name`; their architecture is shown instead.
fn processor_model(cpu_info: &str) -> String {
    let model = cpu_info.lines().find_map(|line| {
        let (field, value) = line.split_once(':')?;
        (field.trim() == "model name").then(|| value.trim().to_owned())
    });
    model
        .filter(|model| !model.is_empty())
        .unwrap_or_else(|| format!("{} processor", std::env::consts::ARCH))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_processor_is_called_by_its_name() {
        let text = "processor\t: 0\nvendor_id\t: X\nmodel name\t: Some Processor 9000\n";
        assert_eq!(processor_model(text), "Some Processor 9000");
        assert!(processor_model("").ends_with(" processor"));
    }

    #[test]
    fn this_machine_has_a_device() {
        let devices = detect(&Reading::default());
        assert_eq!(devices[0].kind, DeviceKind::Cpu);
        assert!(devices[0].memory_bytes > 0);
    }
}
