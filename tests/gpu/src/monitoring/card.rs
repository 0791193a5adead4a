//! What stands in the file of the card, and which processes have it; see `driver/card.rs`.

use std::ffi::{CStr, OsStr, c_char, c_int, c_void};
use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

pub(crate) struct Card {
    pub(crate) total_bytes: u64,
    /// What it answers everything with; 0: it is there.
    pub(crate) lost: c_int,
    /// Kernels are on it.
    pub(crate) computes: bool,
    /// Process and bytes.
    pub(crate) processes: Vec<(u32, u64)>,
}

const MEMORY: usize = 0;
const LOST: usize = 3;
const FIRST_SLOT: usize = 8;
const SLOTS: usize = 120;
const FIRST_PROCESS: usize = FIRST_SLOT + 2 * SLOTS;
const ALIVE: i64 = (1 << 20) + 100;

impl Card {
    /// As it is now.
    pub(crate) fn open() -> io::Result<Self> {
        let mut file = File::open(beside_this_library()?)?;
        let mut bytes = [0; 4096];
        file.read_exact(&mut bytes)?;
        let (words, _) = bytes.as_chunks::<8>();
        let number = |index: usize| u64::from_le_bytes(words[index]);
        let alive: Vec<usize> = (0..SLOTS).filter(|slot| is_locked(&file, ALIVE + *slot as i64)).collect();
        let process = |slot: &usize| (number(FIRST_PROCESS + slot) as u32, number(FIRST_SLOT + 2 * slot));
        Ok(Self {
            total_bytes: number(MEMORY),
            lost: number(LOST) as c_int,
            computes: alive.iter().any(|slot| number(FIRST_SLOT + 2 * slot + 1) > 0),
            processes: alive.iter().map(process).collect(),
        })
    }
}

#[repr(C)]
struct Symbol {
    library: *const c_char,
    base: *const c_void,
    name: *const c_char,
    address: *const c_void,
}

#[repr(C)]
struct FileLock {
    kind: i16,
    whence: i16,
    start: i64,
    bytes: i64,
    process: i32,
}

const WRITE_LOCK: i16 = 1;
const UNLOCKED: i16 = 2;
const GET: c_int = 36;

unsafe extern "C" {
    fn dladdr(address: *const c_void, symbol: *mut Symbol) -> c_int;
    fn fcntl(file: c_int, command: c_int, ...) -> c_int;
}

fn beside_this_library() -> io::Result<std::path::PathBuf> {
    let nothing = std::ptr::null();
    let mut symbol = Symbol { library: nothing, base: nothing.cast(), name: nothing, address: nothing.cast() };
    let found = unsafe { dladdr(crate::nvmlShutdown as *const c_void, &raw mut symbol) };
    if found == 0 {
        return Err(io::ErrorKind::NotFound.into());
    }
    let library = unsafe { CStr::from_ptr(symbol.library) };
    Ok(Path::new(OsStr::from_bytes(library.to_bytes())).with_file_name("card"))
}

/// By a process that lives.
fn is_locked(file: &File, at: i64) -> bool {
    let mut lock = FileLock { kind: WRITE_LOCK, whence: 0, start: at, bytes: 1, process: 0 };
    unsafe { fcntl(file.as_raw_fd(), GET, &raw mut lock) };
    lock.kind != UNLOCKED
}
