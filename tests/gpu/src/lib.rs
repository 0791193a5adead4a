//! A CUDA driver without a GPU: its memory is the host's, and its kernels are a few functions with known names.
//! Its monitoring library (NVML) is in the same folder.
//!
//! All processes on one card share its memory, its processors and its faults; see `driver/card.rs`.

pub mod layout;
pub mod sys;

use layout::{
    CODE, CONTEXT, COPIED, FIRST_SLOT, HELD, KERNELS, LOST, OVERLAPS, PINNED, SLICES, SLOTS, STALE,
    WAITING, card_at,
};
use std::{
    fs,
    io::{self, Read as _, Seek as _, SeekFrom, Write as _},
    path::{Path, PathBuf},
};

/// The variable that names a process's card.
pub const CARD: &str = "BATON_TEST_GPU";

/// The variable with requested faults, as `NAME:N:CODE` separated by commas: the N-th call of a function fails.
pub const FAULTS: &str = "BATON_TEST_GPU_FAULTS";

/// The variable with the speed of copies, in MB/s.
pub const MEGABYTES_PER_SECOND: &str = "BATON_TEST_GPU_MBPS";

/// A folder that stands for a machine with one or more GPUs.
#[derive(Debug)]
pub struct Machine {
    folder: PathBuf,
}

impl Machine {
    pub fn create(folder: &Path, memory_bytes: u64) -> io::Result<Self> {
        let driver = include_bytes!(concat!(env!("OUT_DIR"), "/libcuda.so.1"));
        fs::write(folder.join("libcuda.so.1"), driver)?;
        let monitoring = include_bytes!(concat!(env!("OUT_DIR"), "/libnvidia-ml.so.1"));
        fs::write(folder.join("libnvidia-ml.so.1"), monitoring)?;
        let machine = Self {
            folder: folder.to_owned(),
        };
        machine.add_card(0, memory_bytes)?;
        Ok(machine)
    }

    /// Adds a card, whose name ends in `number`.
    pub fn add_card(&self, number: usize, memory_bytes: u64) -> io::Result<()> {
        let mut card = vec![0; 4096];
        card[..8].copy_from_slice(&memory_bytes.to_le_bytes());
        fs::write(card_at(&self.card(), number), card)
    }

    /// The folder to add to the loader's path.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The file of the first card.
    #[must_use]
    pub fn card(&self) -> PathBuf {
        self.folder.join("card")
    }

    /// How often a kernel was submitted while another process had kernels on the card.
    pub fn overlaps(&self) -> io::Result<u64> {
        self.number(OVERLAPS)
    }

    pub fn kernels(&self) -> io::Result<u64> {
        self.number(KERNELS)
    }

    /// From now on, the monitoring answers with this code, and the driver with an unspecific error.
    pub fn lose(&self, code: u64) -> io::Result<()> {
        self.set(LOST, code)
    }

    /// Divides the card into slices (MIG), which only the monitoring reports.
    pub fn cut(&self, slices: u64) -> io::Result<()> {
        self.set(SLICES, slices)
    }

    /// From now on, each new context takes this much of the card's memory.
    pub fn charge_contexts(&self, bytes: u64) -> io::Result<()> {
        self.set(CONTEXT, bytes)
    }

    /// From now on, each module takes this much memory, and so does each function when it is first launched.
    pub fn charge_code(&self, bytes: u64) -> io::Result<()> {
        self.set(CODE, bytes)
    }

    /// Kernels of the name `held` do not end until they are released.
    pub fn hold(&self) -> io::Result<()> {
        self.set(HELD, 1)
    }

    pub fn let_go(&self) -> io::Result<()> {
        self.set(HELD, 0)
    }

    /// How many calls wait for the GPU now.
    pub fn waiting(&self) -> io::Result<u64> {
        self.number(WAITING)
    }

    /// How many bytes of pinned memory the system copied because a process forked.
    pub fn copied_at_forks(&self) -> io::Result<u64> {
        self.number(COPIED)
    }

    /// How many bytes of host memory programs have pinned through the driver, including programs that were
    /// killed.
    pub fn pinned(&self) -> io::Result<u64> {
        self.number(PINNED)
    }

    /// How often a call named a context, a stream or an event that had ended. A real driver may crash then.
    pub fn stale_handles(&self) -> io::Result<u64> {
        self.number(STALE)
    }

    /// How much of the card's memory processes have, including processes that have ended.
    pub fn used_bytes(&self) -> io::Result<u64> {
        (0..SLOTS)
            .map(|slot| self.number(FIRST_SLOT + 2 * slot))
            .sum()
    }

    fn set(&self, index: usize, number: u64) -> io::Result<()> {
        let mut card = fs::File::options().write(true).open(self.card())?;
        card.seek(SeekFrom::Start(8 * index as u64))?;
        card.write_all(&number.to_le_bytes())
    }

    fn number(&self, index: usize) -> io::Result<u64> {
        let mut card = fs::File::open(self.card())?;
        card.seek(SeekFrom::Start(8 * index as u64))?;
        let mut number = [0; 8];
        card.read_exact(&mut number)?;
        Ok(u64::from_le_bytes(number))
    }
}
