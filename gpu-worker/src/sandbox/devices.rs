//! Which device files of the GPUs' driver a session finds: those of its own GPU or slice, and those that all
//! sessions need.
//!
//! In: the session's hardware, `/dev`, and what the driver reports below `/proc/driver`. Out: names below `/dev`.
//!
//! **Invariant:** a session whose GPU is known finds no file that gives access to another GPU or slice.

use crate::gpu::{Hardware, Slice};
use std::{
    ffi::OsString,
    fs, io,
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering::Relaxed},
};

/// How the names of those device files begin that alone give access to no GPU. Files for displays are not included.
const OF_ALL: &[&str] = &["nvidia-uvm", "nvidiactl"];
/// The device file of a GPU has this name, followed by its number.
const OF_ONE: &str = "nvidia";
/// The folder with the files of slices, and the beginning of their names.
const SLICES: &str = "nvidia-caps";
const OF_SLICE: &str = "nvidia-cap";

#[derive(Debug, thiserror::Error)]
enum UnknownError {
    #[error("the driver does not say to which GPU {name} belongs")]
    NoGpu { name: String },
    #[error("{folder} has no GPU {gpu}")]
    NotThere { folder: PathBuf, gpu: String },
    #[error("{file} has no file of {name}")]
    NoSlice { file: PathBuf, name: String },
    #[error("{file} does not exist")]
    NoFile { file: PathBuf },
    #[error("{file} cannot be read: {source}")]
    Unreadable { file: PathBuf, source: io::Error },
}

#[derive(Debug)]
pub(super) struct Devices {
    /// `/dev`.
    folder: PathBuf,
    /// `/proc/driver`.
    driver: PathBuf,
    /// Whether the log already says that sessions see all GPUs.
    is_said: AtomicBool,
}

impl Devices {
    pub(super) fn of_this_machine() -> Self {
        Self::at("/dev".into(), "/proc/driver".into())
    }

    pub(super) fn at(folder: PathBuf, driver: PathBuf) -> Self {
        Self {
            folder,
            driver,
            is_said: AtomicBool::new(false),
        }
    }

    /// The folder with the device files.
    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    /// The files of all GPUs.
    pub(super) fn all(&self) -> Vec<OsString> {
        let mut names = self.names();
        names.retain(|name| {
            let name = name.to_string_lossy();
            is_of_all(&name) || is_of_one(&name) || name.starts_with(SLICES)
        });
        names
    }

    /// The files that a session with this hardware needs. If the hardware is `None`, or its files cannot be found,
    /// these are the files of all GPUs.
    pub(super) fn of(&self, hardware: Option<&Hardware>) -> Vec<OsString> {
        let Some(hardware) = hardware else {
            return self.all();
        };
        match self.own(hardware) {
            Ok(own) => {
                let names = self.names().into_iter();
                let of_all = names.filter(|name| is_of_all(&name.to_string_lossy()));
                of_all.chain(own).collect()
            }
            Err(error) => {
                if !self.is_said.swap(true, Relaxed) {
                    tracing::warn!(
                        "Each session sees the device files of all GPUs, because those of its own are unknown: {error}"
                    );
                }
                self.all()
            }
        }
    }

    /// The files that give access to this hardware.
    fn own(&self, hardware: &Hardware) -> Result<Vec<OsString>, UnknownError> {
        let name = || hardware.name.clone();
        let gpu = hardware.gpu.as_ref();
        let gpu = gpu.ok_or_else(|| UnknownError::NoGpu { name: name() })?;
        let minor = self.minor(gpu)?;
        let mut own = vec![format!("{OF_ONE}{minor}")];
        if let Some(slice) = hardware.slice {
            let numbers = self.capabilities(minor, slice, &hardware.name)?;
            own.extend(numbers.map(|number| format!("{SLICES}/{OF_SLICE}{number}")));
        }
        for name in &own {
            let file = self.folder.join(name);
            if !file.exists() {
                return Err(UnknownError::NoFile { file });
            }
        }
        Ok(own.into_iter().map(OsString::from).collect())
    }

    /// The number in the name of the GPU's device file. It is the driver's own, not the index that programs use.
    fn minor(&self, gpu: &str) -> Result<u32, UnknownError> {
        let folder = self.driver.join("nvidia/gpus");
        let entries = fs::read_dir(&folder).map_err(|source| UnknownError::Unreadable {
            file: folder.clone(),
            source,
        })?;
        let mut all = entries.flatten().filter_map(|entry| {
            let text = fs::read_to_string(entry.path().join("information")).ok()?;
            (field(&text, "GPU UUID")? == gpu)
                .then(|| field(&text, "Device Minor")?.parse().ok())?
        });
        all.next().ok_or_else(|| UnknownError::NotThere {
            folder: folder.clone(),
            gpu: gpu.to_owned(),
        })
    }

    /// The numbers of the files that permit the use of a slice: those of its GPU instance and of its compute
    /// instance.
    fn capabilities(&self, gpu: u32, slice: Slice, name: &str) -> Result<[u32; 2], UnknownError> {
        let Slice {
            gpu_instance,
            compute_instance,
        } = slice;
        let file = self.driver.join("nvidia-caps/mig-minors");
        let text = fs::read_to_string(&file).map_err(|source| UnknownError::Unreadable {
            file: file.clone(),
            source,
        })?;
        let number = |capability: String| {
            let mut lines = text.lines().filter_map(|line| line.split_once(' '));
            let number = lines.find_map(|(known, number)| {
                (known == capability).then(|| number.trim().parse().ok())?
            });
            number.ok_or_else(|| UnknownError::NoSlice {
                file: file.clone(),
                name: name.to_owned(),
            })
        };
        let of_gpu = format!("gpu{gpu}/gi{gpu_instance}");
        Ok([
            number(format!("{of_gpu}/access"))?,
            number(format!("{of_gpu}/ci{compute_instance}/access"))?,
        ])
    }

    fn names(&self) -> Vec<OsString> {
        let entries = fs::read_dir(&self.folder).into_iter().flatten().flatten();
        entries.map(|entry| entry.file_name()).collect()
    }
}

fn is_of_all(name: &str) -> bool {
    OF_ALL.iter().any(|beginning| name.starts_with(beginning))
}

fn is_of_one(name: &str) -> bool {
    let number = name.strip_prefix(OF_ONE).unwrap_or_default();
    !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit())
}

/// The value in a line such as `GPU UUID: \t GPU-...`.
fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines().find_map(|line| {
        let (found, value) = line.split_once(':')?;
        (found.trim() == name).then(|| value.trim())
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
pub(super) mod tests {
    use super::*;

    const GPU: &str = "GPU-6f1c2d3e-0000-4000-8000-00000000000";

    /// `/dev` and `/proc/driver` of a machine with two GPUs; the first one has slices. The driver numbers them in
    /// another order than the bus does.
    pub(in crate::sandbox) fn machine(folder: &Path) -> Devices {
        let files = [
            ("dev/nvidia0", ""),
            ("dev/nvidia1", ""),
            ("dev/nvidiactl", ""),
            ("dev/nvidia-modeset", ""),
            ("dev/nvidia-uvm", ""),
            ("dev/nvidia-uvm-tools", ""),
            ("dev/nvidia-caps/nvidia-cap1", ""),
            ("dev/nvidia-caps/nvidia-cap2", ""),
            ("dev/nvidia-caps/nvidia-cap66", ""),
            ("dev/nvidia-caps/nvidia-cap67", ""),
            ("dev/nvidia-caps/nvidia-cap75", ""),
            ("dev/nvidia-caps/nvidia-cap76", ""),
            ("dev/sda", ""),
            (
                "driver/nvidia-caps/mig-minors",
                "config 1\nmonitor 2\ngpu0/gi7/access 66\ngpu0/gi7/ci0/access 67\ngpu0/gi8/access 75\n\
                 gpu0/gi8/ci0/access 76\ngpu1/gi7/access 200\n",
            ),
        ];
        let gpus = [1, 0].map(|minor| {
            let place = format!("driver/nvidia/gpus/0000:{}:00.0/information", 9 - minor);
            let text = format!(
                "Model: \t\t NVIDIA H100\nIRQ:   \t\t 44\nGPU UUID: \t {GPU}{minor}\nBus Location: \t 0000:0{}:00.0\n\
                 Device Minor: \t {minor}\n",
                9 - minor
            );
            (place, text)
        });
        let gpus = gpus.iter().map(|(place, text)| (&**place, &**text));
        for (place, text) in files.into_iter().chain(gpus) {
            let file = folder.join(place);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, text).unwrap();
        }
        Devices::at(folder.join("dev"), folder.join("driver"))
    }

    pub(in crate::sandbox) fn gpu(minor: u32) -> Hardware {
        let name = format!("{GPU}{minor}");
        Hardware {
            gpu: Some(name.clone()),
            name,
            slice: None,
        }
    }

    pub(in crate::sandbox) fn slice(gpu_instance: u32) -> Hardware {
        Hardware {
            name: "MIG-1".to_owned(),
            gpu: Some(format!("{GPU}0")),
            slice: Some(Slice {
                gpu_instance,
                compute_instance: 0,
            }),
        }
    }

    #[test]
    fn a_session_finds_the_files_of_its_own_gpu_or_slice() {
        let folder = tempfile::tempdir().unwrap();
        let devices = machine(folder.path());
        let check = |hardware: Option<&Hardware>, own: &[&str]| {
            let mut expected = vec!["nvidia-uvm", "nvidia-uvm-tools", "nvidiactl"];
            expected.extend(own);
            expected.sort_unstable();
            let mut found = devices.of(hardware);
            found.sort_unstable();
            assert_eq!(found, expected, "{hardware:?}");
        };
        check(Some(&gpu(0)), &["nvidia0"]);
        check(Some(&gpu(1)), &["nvidia1"]);
        let own = [
            "nvidia-caps/nvidia-cap75",
            "nvidia-caps/nvidia-cap76",
            "nvidia0",
        ];
        check(Some(&slice(8)), &own);
        let all = ["nvidia-caps", "nvidia0", "nvidia1"];
        check(None, &all);
        // The files of these are not found.
        check(Some(&gpu(7)), &all);
        check(Some(&slice(9)), &all);
        let unknown = Hardware {
            gpu: None,
            ..slice(8)
        };
        check(Some(&unknown), &all);
        fs::remove_file(folder.path().join("dev/nvidia1")).unwrap();
        check(Some(&gpu(1)), &["nvidia-caps", "nvidia0"]);
    }

    #[test]
    fn a_machine_without_gpus_has_no_files() {
        let folder = tempfile::tempdir().unwrap();
        let devices = Devices::at(folder.path().join("dev"), folder.path().join("driver"));
        assert!(devices.of(None).is_empty());
        assert!(devices.of(Some(&gpu(0))).is_empty());
    }
}
