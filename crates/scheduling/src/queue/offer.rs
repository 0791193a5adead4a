//! What a worker offers, and whether it meets a job's requirements.

use baton_protocol::{
    ComputeCapability, Environment, EnvironmentState, Machine, Requirement,
    worker::{Device, DeviceKind},
};

/// The properties of a worker that jobs may require.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Offer {
    pub devices: Vec<Device>,
    pub machine: Machine,
}

impl Offer {
    /// Whether it meets this requirement. How long it stays is not part of an offer.
    ///
    /// A session may get any GPU of the worker, so a worker with different GPUs offers what all of them have.
    #[must_use]
    pub fn meets(&self, requirement: &Requirement) -> bool {
        match requirement {
            Requirement::Gpu { model } => {
                let is_label = self.has_label(model);
                self.every_gpu(|gpu| is_label || is_called(&gpu.model, model))
            }
            Requirement::GpuMemory { bytes } => {
                let most = self.machine.session_gpu_memory_bytes;
                most.is_none_or(|most| most >= *bytes)
                    && self.every_gpu(|gpu| gpu.memory_bytes >= *bytes)
            }
            Requirement::ComputeCapability { at_least } => {
                self.every_gpu(|gpu| gpu.compute_capability.is_some_and(|has| has >= *at_least))
            }
            Requirement::Memory { bytes } => self.machine.memory_bytes >= *bytes,
            Requirement::Label { label } => self.has_label(label),
            Requirement::Environment { name } => self.has_environment(name, Environment::is_ready),
            Requirement::Time { .. } => true,
        }
    }

    /// Whether the worker will meet it once its environments are prepared.
    #[must_use]
    pub fn will_meet(&self, requirement: &Requirement) -> bool {
        match requirement {
            Requirement::Environment { name } => {
                self.has_environment(name, |environment| !environment.has_failed())
            }
            requirement => self.meets(requirement),
        }
    }

    #[must_use]
    pub fn has_gpu(&self) -> bool {
        self.every_gpu(|_| true)
    }

    fn every_gpu(&self, has: impl Fn(&Device) -> bool) -> bool {
        let mut gpus = self
            .devices
            .iter()
            .filter(|device| device.kind == DeviceKind::Cuda)
            .peekable();
        gpus.peek().is_some() && gpus.all(has)
    }

    fn has_environment(&self, name: &str, is_fit: impl Fn(&Environment) -> bool) -> bool {
        let mut environments = self.machine.environments.iter();
        environments.any(|environment| environment.name == name && is_fit(environment))
    }

    fn has_label(&self, label: &str) -> bool {
        let labels = &self.machine.labels;
        labels.iter().any(|own| own.eq_ignore_ascii_case(label))
    }
}

/// What an administrator has declared about workers before any of them has connected. What is left
/// out is unknown.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Declared {
    /// [`NO_GPU`] if they have none.
    pub gpu: Option<String>,
    pub gpu_memory_bytes: Option<u64>,
    pub compute_capability: Option<ComputeCapability>,
    pub memory_bytes: Option<u64>,
    pub labels: Option<Vec<String>>,
    pub environments: Option<Vec<String>>,
}

/// The declaration of workers without a GPU.
pub const NO_GPU: &str = "none";

impl Declared {
    /// Whether nothing that is declared contradicts this requirement.
    #[must_use]
    pub fn may_meet(&self, requirement: &Requirement) -> bool {
        let has_label = |label: &str| {
            let mut labels = self.labels.iter().flatten();
            labels.any(|own| own.eq_ignore_ascii_case(label))
        };
        match requirement {
            Requirement::Gpu { model } => {
                let is_it = |gpu: &String| is_called(gpu, model) || has_label(model);
                self.may_have_gpu() && self.gpu.as_ref().is_none_or(is_it)
            }
            Requirement::GpuMemory { bytes } => {
                self.may_have_gpu() && self.gpu_memory_bytes.is_none_or(|has| has >= *bytes)
            }
            Requirement::ComputeCapability { at_least } => {
                self.may_have_gpu() && self.compute_capability.is_none_or(|has| has >= *at_least)
            }
            Requirement::Memory { bytes } => self.memory_bytes.is_none_or(|has| has >= *bytes),
            Requirement::Label { label } => self.labels.is_none() || has_label(label),
            Requirement::Environment { name } => {
                let environments = self.environments.as_ref();
                environments.is_none_or(|environments| environments.contains(name))
            }
            Requirement::Time { .. } => true,
        }
    }

    /// A worker that has what is declared and nothing else.
    #[must_use]
    pub fn offer(&self) -> Offer {
        let gpu = Device {
            kind: DeviceKind::Cuda,
            model: self.gpu.clone().unwrap_or_default(),
            memory_bytes: self.gpu_memory_bytes.unwrap_or(0),
            compute_capability: self.compute_capability,
        };
        let environments = self.environments.iter().flatten();
        let environments = environments.map(|name| Environment {
            name: name.clone(),
            lock: None,
            python_version: None,
            state: EnvironmentState::Ready {},
        });
        Offer {
            devices: self.may_have_gpu().then_some(gpu).into_iter().collect(),
            machine: Machine {
                memory_bytes: self.memory_bytes.unwrap_or(0),
                labels: self.labels.clone().unwrap_or_default(),
                environments: environments.collect(),
                ..Machine::default()
            },
        }
    }

    #[must_use]
    pub fn may_have_gpu(&self) -> bool {
        self.gpu.as_deref() != Some(NO_GPU)
    }
}

/// Whether all words of `asked` are words of `model`, so that `a10` is not an A100.
fn is_called(model: &str, asked: &str) -> bool {
    let is_in_model = |word: &str| words(model).any(|own| own.eq_ignore_ascii_case(word));
    words(asked).next().is_some() && words(asked).all(is_in_model)
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    let words = text.split(|letter: char| !letter.is_alphanumeric());
    words.filter(|word| !word.is_empty())
}
