//! What this machine offers.
//!
//! In: `/proc`, and what the GPUs' driver says. Out: the devices as people read them, and how much memory the machine
//! has and uses.

use std::fs;

use baton_protocol::worker::{Device, DeviceKind, GpuLoad};

/// The GPUs, or else the processor; never empty.
pub(crate) fn detect(gpus: &[GpuLoad]) -> Vec<Device> {
    if gpus.is_empty() {
        let cpu_info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        return vec![Device {
            kind: DeviceKind::Cpu,
            model: processor_model(&cpu_info),
            memory_bytes: memory().total_bytes,
        }];
    }
    let device = |gpu: &GpuLoad| Device {
        kind: DeviceKind::Cuda,
        model: gpu.name.clone(),
        memory_bytes: gpu.memory_total_bytes,
    };
    gpus.iter().map(device).collect()
}

/// How a worker is called that got no name.
pub(crate) fn default_name(devices: &[Device]) -> String {
    let kind = match devices.first().map(|device| device.kind) {
        Some(DeviceKind::Cuda) => "gpu",
        Some(DeviceKind::Cpu) | None => "cpu",
    };
    format!("{kind}-0")
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Memory {
    pub(crate) used_bytes: u64,
    pub(crate) total_bytes: u64,
}

pub(crate) fn memory() -> Memory {
    memory_of(&fs::read_to_string("/proc/meminfo").unwrap_or_default())
}

fn memory_of(meminfo: &str) -> Memory {
    let bytes = |field: &str| -> u64 {
        let line = meminfo.lines().find_map(|line| line.strip_prefix(field));
        let kib = line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
        kib.unwrap_or(0) << 10
    };
    let total_bytes = bytes("MemTotal:");
    Memory {
        used_bytes: total_bytes.saturating_sub(bytes("MemAvailable:")),
        total_bytes,
    }
}

/// Processors other than x86 have no `model name`; then the architecture says at least something true.
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
    fn used_memory_is_what_is_not_available() {
        let text = "MemTotal:       1000 kB\nMemFree: 1 kB\nMemAvailable:    400 kB\n";
        let expected = Memory {
            used_bytes: 600 << 10,
            total_bytes: 1000 << 10,
        };
        assert_eq!(memory_of(text), expected);
        assert_eq!(memory_of("nonsense"), Memory::default());
    }

    #[test]
    fn this_machine_has_a_device() {
        let devices = detect(&[]);
        assert_eq!(default_name(&devices), "cpu-0");
        assert!(devices[0].memory_bytes > 0);
    }
}
