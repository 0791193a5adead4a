//! What the driver reports about its GPUs (NVML): their load, whose memory is on them, whether they are still
//! there.
//!
//! In: the driver's library for monitoring, if there is one. Out: the last reading. A separate thread asks, because
//! a driver in trouble takes its time.
//!
//! **Invariant:** asking creates no CUDA context.

use super::Hardware;
use crate::processes;
use baton_protocol::{
    ComputeCapability,
    worker::{GpuLoad, SessionLoad},
};
use nix::unistd::Pid;
use nvml_wrapper::{
    Device, Nvml,
    enums::device::UsedGpuMemory,
    error::NvmlError,
    struct_wrappers::device::{MemoryInfo, ProcessInfo},
};
use std::{
    collections::{BTreeMap, HashMap},
    ffi::{OsStr, OsString},
    thread,
    time::{Duration, SystemTime, UNIX_EPOCH},
};
use tokio::{sync::watch, time::timeout};

/// The name under which the loader finds it.
pub const MONITORING: &str = "libnvidia-ml.so.1";

/// Which GPUs programs see, and in which order: numbers and UUIDs, separated by commas.
pub(crate) const CUDA_VISIBLE_DEVICES: &str = "CUDA_VISIBLE_DEVICES";

const INTERVAL: Duration = Duration::from_secs(1);

/// How long a driver may take to wake its GPUs.
const PATIENCE: Duration = Duration::from_secs(30);

/// How long to wait for a new reading.
const NEW_READING: Duration = Duration::from_secs(10);

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Reading {
    pub gpus: Vec<GpuLoad>,
    /// In the same order.
    pub memory: Vec<ProgramMemory>,
    /// In the same order.
    pub hardware: Vec<Hardware>,
    /// In the same order: the processes that have a context, and how many bytes each has; `None` if the driver does
    /// not report that.
    pub processes: Vec<HashMap<Pid, Option<u64>>>,
    /// In the same order; unknown if the driver does not report it.
    pub capabilities: Vec<Option<ComputeCapability>>,
    /// The driver's version.
    pub driver: Option<String>,
    /// Why a GPU can no longer be used until it is repaired.
    pub lost: Option<String>,
}

/// The memory of a GPU without what the driver keeps for itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProgramMemory {
    pub total_bytes: u64,
    pub free_bytes: u64,
}

/// One GPU, as the monitoring sees it.
#[derive(Debug, Clone)]
pub struct Monitored {
    reading: watch::Receiver<Reading>,
    hardware: Hardware,
}

impl Monitored {
    pub(super) fn name(&self) -> &str {
        &self.hardware.name
    }

    pub(super) fn hardware(&self) -> &Hardware {
        &self.hardware
    }

    /// Whether a process found another GPU than this one. If either UUID is unknown, they are assumed to match.
    pub(super) fn is_another(&self, device: u128) -> bool {
        let own = uuid_of(self.name());
        device != 0 && own.is_some_and(|own| own != device)
    }

    pub(super) fn memory_bytes(&self) -> Option<u64> {
        self.asked(|reading, place| reading.memory.get(place).map(|one| one.total_bytes))
    }

    pub(super) fn free_bytes(&self) -> Option<u64> {
        self.asked(|reading, place| reading.memory.get(place).map(|one| one.free_bytes))
    }

    /// The processes that have a context on it, and how many bytes each has; see [`Reading::processes`].
    pub(super) fn processes(&self) -> HashMap<Pid, Option<u64>> {
        let processes = self.asked(|reading, place| reading.processes.get(place).cloned());
        processes.unwrap_or_default()
    }

    /// Waits for a reading that began after this call.
    pub(super) async fn read_anew(&self) {
        let mut reading = self.reading.clone();
        let two_more = async {
            // The next one may have begun before.
            for _ in 0..2 {
                reading.mark_unchanged();
                let _ = reading.changed().await;
            }
        };
        if timeout(NEW_READING, two_more).await.is_err() {
            tracing::warn!("The driver's monitoring does not answer");
        }
    }

    /// `what` takes a reading and the GPU's place in its lists.
    fn asked<T>(&self, what: impl FnOnce(&Reading, usize) -> Option<T>) -> Option<T> {
        let reading = self.reading.borrow();
        let mut all = reading.hardware.iter();
        let place = all.position(|hardware| *hardware == self.hardware)?;
        what(&reading, place)
    }
}

/// The UUID in the name of a whole GPU.
fn uuid_of(name: &str) -> Option<u128> {
    let uuid: uuid::Uuid = name.strip_prefix("GPU-")?.parse().ok()?;
    Some(uuid.as_u128())
}

/// Each GPU in `reading`.
#[must_use]
pub fn each(reading: &watch::Receiver<Reading>) -> Vec<Monitored> {
    let all = reading.borrow().hardware.clone();
    let one = |hardware| Monitored {
        reading: reading.clone(),
        hardware,
    };
    all.into_iter().map(one).collect()
}

/// Asks `library` once a second about the GPUs that are `visible` (`None`: all). The reading is empty if there are
/// none.
pub async fn monitor(library: &OsStr, visible: Option<String>) -> watch::Receiver<Reading> {
    let (readings, mut reading) = watch::channel(Reading::default());
    let library = library.to_owned();
    thread::spawn(move || ask(library, visible.as_deref(), &readings));
    if timeout(PATIENCE, reading.wait_for(Reading::is_known))
        .await
        .is_err()
    {
        tracing::warn!("NVML reports no GPU information");
    }
    reading
}

/// Waits until the GPUs can no longer be used. Returns the reason, as their driver reports it or as sessions found
/// it when they started.
pub(crate) async fn lost(
    reading: &mut watch::Receiver<Reading>,
    start: &mut watch::Receiver<Option<String>>,
) -> String {
    tokio::select! {
        reason = first(reading, |reading| reading.lost.clone()) => reason,
        reason = first(start, Option::clone) => reason,
    }
}

async fn first<T>(
    values: &mut watch::Receiver<T>,
    reason: impl Fn(&T) -> Option<String>,
) -> String {
    let value = values.wait_for(|value| reason(value).is_some()).await;
    match value.ok().and_then(|value| reason(&value)) {
        Some(reason) => reason,
        None => std::future::pending().await,
    }
}

impl Reading {
    fn is_known(&self) -> bool {
        !self.gpus.is_empty() || self.lost.is_some()
    }
}

/// Runs until no receiver is left, or until there is nothing to report.
fn ask(library: OsString, visible: Option<&str>, readings: &watch::Sender<Reading>) {
    let nvml = match Nvml::builder().lib_path(&library).init() {
        Ok(nvml) => nvml,
        Err(error) => return tracing::debug!("No GPU is monitored: {error}"),
    };
    let mut reading = read(&nvml, &library, visible);
    while reading.is_known() && !readings.is_closed() {
        readings.send_replace(reading);
        thread::sleep(INTERVAL);
        reading = read(&nvml, &library, visible);
    }
    // An old reading must not stay visible.
    readings.send_replace(Reading::default());
}

/// The GPUs that are `visible` (`None`: all).
#[must_use]
pub fn gpus(library: &OsStr, visible: Option<&str>) -> Vec<Hardware> {
    hardware(library, visible, |device| {
        vec![Hardware::of(device, library)]
    })
}

/// The slices (MIG) of those GPUs, and the slices that are `visible` themselves.
#[must_use]
pub fn slices(library: &OsStr, visible: Option<&str>) -> Vec<Hardware> {
    hardware(library, visible, |device| {
        if device.mig_is_mig_device_handle().unwrap_or(false) {
            return vec![Hardware::of(device, library)];
        }
        let most = device.mig_device_count().unwrap_or(0);
        let slices = (0..most).map(|index| device.mig_device_by_index(index));
        slices.map(|slice| Hardware::of(&slice?, library)).collect()
    })
}

/// The memory of the smallest of those slices, in bytes.
#[must_use]
pub fn smallest_slice(library: &OsStr, visible: Option<&str>) -> Option<u64> {
    let nvml = Nvml::builder().lib_path(library).init().ok()?;
    let slices = slices(library, visible).into_iter();
    let memory =
        slices.filter_map(|slice| nvml.device_by_uuid(slice.name).ok()?.memory_info().ok());
    memory.map(|memory| memory.total).min()
}

fn hardware(
    library: &OsStr,
    visible: Option<&str>,
    of: impl Fn(&Device<'_>) -> Vec<Result<Hardware, NvmlError>>,
) -> Vec<Hardware> {
    let nvml = match Nvml::builder().lib_path(library).init() {
        Ok(nvml) => nvml,
        Err(error) => {
            tracing::warn!("NVML reports no GPU information: {error}");
            return Vec::new();
        }
    };
    let devices = devices(&nvml, visible).into_iter().flatten();
    devices.flat_map(|device| of(&device)).flatten().collect()
}

fn read(nvml: &Nvml, library: &OsStr, visible: Option<&str>) -> Reading {
    let mut reading = Reading {
        driver: nvml.sys_driver_version().ok(),
        ..Reading::default()
    };
    for (index, device) in (0..).zip(devices(nvml, visible)) {
        let asked = device.and_then(|device| {
            let hardware = Hardware::of(&device, library)?;
            let memory = device.memory_info()?;
            Ok((
                hardware,
                with_context(&device),
                capability(&device),
                load(index, &device, &memory)?,
                ProgramMemory {
                    total_bytes: memory.total.saturating_sub(memory.reserved),
                    free_bytes: memory.free,
                },
            ))
        });
        match asked {
            Ok((hardware, processes, capability, gpu, memory)) => {
                reading.hardware.push(hardware);
                reading.processes.push(processes);
                reading.capabilities.push(capability);
                reading.gpus.push(gpu);
                reading.memory.push(memory);
            }
            Err(error) if is_loss(&error) => reading.lost = Some(format!("GPU {index}: {error}")),
            // This worker may not be permitted to use it.
            Err(error) => tracing::debug!("GPU {index} is not monitored: {error}"),
        }
    }
    reading
}

fn devices<'nvml>(
    nvml: &'nvml Nvml,
    visible: Option<&str>,
) -> Vec<Result<Device<'nvml>, NvmlError>> {
    let Some(visible) = visible else {
        let count = nvml.device_count().unwrap_or_default();
        return (0..count)
            .map(|index| nvml.device_by_index(index))
            .collect();
    };
    let names = visible.split(',').map(str::trim);
    names
        .filter(|name| !name.is_empty())
        .map(|name| match name.parse() {
            Ok(index) => nvml.device_by_index(index),
            Err(_) => nvml.device_by_uuid(name),
        })
        .collect()
}

fn capability(device: &Device<'_>) -> Option<ComputeCapability> {
    let reported = device.cuda_compute_capability().ok()?;
    Some(ComputeCapability {
        major: u32::try_from(reported.major).ok()?,
        minor: u32::try_from(reported.minor).ok()?,
    })
}

fn load(index: u32, device: &Device<'_>, memory: &MemoryInfo) -> Result<GpuLoad, NvmlError> {
    let rates = device.utilization_rates();
    Ok(GpuLoad {
        index,
        name: device.name()?,
        utilisation_percent: rates.ok().map(|rates| rates.gpu),
        memory_used_bytes: memory.used,
        memory_total_bytes: memory.total,
        sessions: sessions(device),
    })
}

/// The driver does not report processes in other namespaces.
fn with_context(device: &Device<'_>) -> HashMap<Pid, Option<u64>> {
    let all = device.running_compute_processes().unwrap_or_default();
    let one = |process: ProcessInfo| {
        let bytes = match process.used_gpu_memory {
            UsedGpuMemory::Used(bytes) => Some(bytes),
            UsedGpuMemory::Unavailable => None,
        };
        (Pid::from_raw(process.pid.cast_signed()), bytes)
    };
    all.into_iter().map(one).collect()
}

/// Memory and load of the processes of this worker's sessions. The driver does not report processes in other
/// namespaces.
fn sessions(device: &Device<'_>) -> Vec<SessionLoad> {
    let mut sessions = BTreeMap::new();
    let utilisation = utilisation(device);
    for process in device.running_compute_processes().unwrap_or_default() {
        if let UsedGpuMemory::Used(bytes) = process.used_gpu_memory
            && let Some(notebook) = processes::notebook_of(process.pid)
        {
            let load = sessions.entry(notebook).or_insert(SessionLoad {
                notebook,
                memory_bytes: 0,
                utilisation_percent: utilisation.as_ref().map(|_| 0),
            });
            load.memory_bytes += bytes;
            if let Some(percent) = &mut load.utilisation_percent
                && let Some((_, more)) = utilisation.as_ref().and_then(|all| all.get(&process.pid))
            {
                *percent = (*percent + more).min(100);
            }
        }
    }
    sessions.into_values().collect()
}

/// By process: when the driver last measured, and for how much of the time before that the process computed. For a
/// slice (MIG) the driver does not report this.
fn utilisation(device: &Device<'_>) -> Option<HashMap<u32, (u64, u32)>> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).ok()?;
    let since = u64::try_from((now - INTERVAL).as_micros()).ok()?;
    let samples = match device.process_utilization_stats(since) {
        // No process has computed.
        Err(NvmlError::NotFound) => Vec::new(),
        samples => samples.ok()?,
    };
    let mut last = HashMap::new();
    for sample in samples {
        let seen = last.entry(sample.pid).or_insert((0, 0));
        *seen = (*seen).max((sample.timestamp, sample.sm_util));
    }
    Some(last)
}

fn is_loss(error: &NvmlError) -> bool {
    matches!(
        error,
        NvmlError::GpuLost
            | NvmlError::ResetRequired
            | NvmlError::DriverNotLoaded
            | NvmlError::LibRmVersionMismatch
    )
}
