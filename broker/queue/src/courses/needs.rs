//! What a course requires of the workers of its cells: `needs = { gpu = "a100", gpu_memory = "20GiB" }`.

use anyhow::Context;
use baton_protocol::{ComputeCapability, Requirement};

/// `needs` in the courses file.
#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NeedsSection {
    gpu: Option<String>,
    gpu_memory: Option<String>,
    compute_capability: Option<ComputeCapability>,
    memory: Option<String>,
    #[serde(default)]
    labels: Vec<String>,
}

impl NeedsSection {
    /// # Errors
    /// If a size is wrong; the message names the key.
    pub fn read(self) -> anyhow::Result<Vec<Requirement>> {
        let size = |text: Option<String>, key| {
            let bytes = text.map(|text| bytes(&text).context(key));
            bytes.transpose()
        };
        let gpu = self.gpu.map(|model| Requirement::Gpu { model });
        let gpu_memory = size(self.gpu_memory, "gpu_memory")?;
        let memory = size(self.memory, "memory")?;
        let capability = self.compute_capability;
        let labels = self.labels.into_iter();
        Ok(gpu
            .into_iter()
            .chain(gpu_memory.map(|bytes| Requirement::GpuMemory { bytes }))
            .chain(capability.map(|at_least| Requirement::ComputeCapability { at_least }))
            .chain(memory.map(|bytes| Requirement::Memory { bytes }))
            .chain(labels.map(|label| Requirement::Label { label }))
            .collect())
    }
}

/// Parses `500M`, `20G` or `20 GiB`. Units are powers of 1024, as in GPU libraries.
///
/// # Errors
/// If it is not a size.
pub fn bytes(text: &str) -> anyhow::Result<u64> {
    let wrong = || format!("{text:?} is not a size such as 500M or 20G");
    let digits = text.trim_end_matches(|letter: char| !letter.is_ascii_digit());
    let number: u64 = digits.parse().ok().with_context(wrong)?;
    let unit = text[digits.len()..].trim().to_ascii_uppercase();
    let power = match unit
        .strip_suffix("IB")
        .or(unit.strip_suffix('B'))
        .unwrap_or(&unit)
    {
        "M" => 20,
        "G" => 30,
        "T" => 40,
        _ => anyhow::bail!(wrong()),
    };
    let bytes = number.checked_mul(1 << power);
    bytes.filter(|bytes| *bytes > 0).with_context(wrong)
}

#[cfg(test)]
mod tests {
    use super::bytes;

    #[test]
    fn sizes_are_read_in_powers_of_1024() {
        for (text, expected) in [
            ("20G", Some(20 << 30)),
            ("20 GiB", Some(20 << 30)),
            ("500MB", Some(500 << 20)),
            ("1T", Some(1 << 40)),
            ("20", None),
            ("0G", None),
            ("G", None),
            ("1.5G", None),
        ] {
            assert_eq!(bytes(text).ok(), expected, "{text}");
        }
    }
}
