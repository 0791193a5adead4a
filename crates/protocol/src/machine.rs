//! What a worker's machine offers, and what a job requires.

use crate::Environment;
use baton_humanize::{bytes as bytes_of, duration};
use serde::{Deserialize, Serialize};
use std::{fmt, str::FromStr, time::Duration};

/// What a worker reports about its machine, besides its devices.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Machine {
    /// The version of the GPU driver; absent without a GPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub driver: Option<String>,
    /// Main memory of the host, in bytes.
    pub memory_bytes: u64,
    /// The GPU memory that one session may have there, if that is less than the whole device.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_gpu_memory_bytes: Option<u64>,
    /// Labels that the administrator gave it (`worker.labels`).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub labels: Vec<String>,
    /// Environments that it offers in addition to its own Python.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub environments: Vec<Environment>,
    /// When running cells must have ended because the machine's time is over, in milliseconds since
    /// 1970; absent without such a time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leaves_at_ms: Option<i64>,
}

/// The version of a GPU's instruction set in CUDA's numbering: major and minor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct ComputeCapability {
    pub major: u32,
    pub minor: u32,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a compute capability such as 8.0")]
pub struct ComputeCapabilityError(String);

impl fmt::Display for ComputeCapability {
    fn fmt(&self, text: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(text, "{}.{}", self.major, self.minor)
    }
}

impl FromStr for ComputeCapability {
    type Err = ComputeCapabilityError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let parts = text.split_once('.');
        let numbers = parts.and_then(|(major, minor)| {
            let (major, minor) = (major.parse().ok()?, minor.parse().ok()?);
            Some(Self { major, minor })
        });
        numbers.ok_or_else(|| ComputeCapabilityError(text.to_owned()))
    }
}

impl From<ComputeCapability> for String {
    fn from(capability: ComputeCapability) -> Self {
        capability.to_string()
    }
}

impl TryFrom<String> for ComputeCapability {
    type Error = ComputeCapabilityError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

/// One thing that a job requires of the worker that runs it.
///
/// Displayed, it completes "a worker …".
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Requirement {
    /// Words of the GPU's model, such as `a100`, or a label of a worker with a GPU.
    Gpu {
        model: String,
    },
    /// At least this much memory on the GPU.
    GpuMemory {
        bytes: u64,
    },
    ComputeCapability {
        at_least: ComputeCapability,
    },
    /// At least this much main memory.
    Memory {
        bytes: u64,
    },
    Label {
        label: String,
    },
    /// A named environment, in which the job runs.
    Environment {
        name: String,
    },
    /// The worker stays for as long as the job may run.
    Time {
        ms: u64,
    },
}

impl fmt::Display for Requirement {
    fn fmt(&self, text: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Gpu { model } => write!(text, "with the GPU {model}"),
            Self::GpuMemory { bytes } => write!(text, "with {} of GPU memory", bytes_of(*bytes)),
            Self::ComputeCapability { at_least } => {
                write!(text, "with compute capability {at_least} or higher")
            }
            Self::Memory { bytes } => write!(text, "with {} of main memory", bytes_of(*bytes)),
            Self::Label { label } => write!(text, "with the label {label}"),
            Self::Environment { name } => write!(text, "that offers the environment {name}"),
            Self::Time { ms } => write!(
                text,
                "that stays for {}",
                duration(Duration::from_millis(*ms))
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requirements_complete_a_sentence() {
        let at_least = ComputeCapability { major: 8, minor: 0 };
        for (requirement, expected) in [
            (
                Requirement::Gpu {
                    model: "a100".to_owned(),
                },
                "with the GPU a100",
            ),
            (
                Requirement::GpuMemory { bytes: 20 << 30 },
                "with 20 GiB of GPU memory",
            ),
            (
                Requirement::ComputeCapability { at_least },
                "with compute capability 8.0 or higher",
            ),
            (
                Requirement::Memory { bytes: 500 << 20 },
                "with 500 MiB of main memory",
            ),
            (
                Requirement::Environment {
                    name: "ml101".to_owned(),
                },
                "that offers the environment ml101",
            ),
            (
                Requirement::Time { ms: 5_430_000 },
                "that stays for 1 h 30 min",
            ),
        ] {
            assert_eq!(requirement.to_string(), expected);
        }
    }

    #[test]
    fn compute_capabilities_compare_as_numbers() {
        let read = |text: &str| text.parse::<ComputeCapability>().ok();
        assert!(read("10.0") > read("9.0"));
        assert!(read("8.6") > read("8.0"));
        assert!(read("8").is_none() && read("a.0").is_none());
    }
}
