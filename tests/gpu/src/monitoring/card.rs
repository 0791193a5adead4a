//! Reads the file of a card, and which processes use the card; see `driver/card.rs`.

use crate::{
    layout::{
        ALIVE, CHECKPOINTED, FIRST_PROCESS, FIRST_SLOT, FIRST_STATE, LOST, MEMORY, NOT_RESTORED, SLICES, SLOTS,
        card_at,
    },
    locks::is_locked,
};
use std::{
    ffi::{CStr, OsStr, c_char, c_int, c_void},
    fs::File,
    io::{self, Read as _},
    os::{fd::AsRawFd as _, unix::ffi::OsStrExt as _},
    path::Path,
};

pub(crate) struct Card {
    pub(crate) total_bytes: u64,
    /// The error with which a lost card answers every call; 0 if it is not lost.
    pub(crate) lost: c_int,
    /// How many slices (MIG) it was divided into.
    pub(crate) slices: u64,
    pub(crate) processes: Vec<Process>,
}

pub(crate) struct Process {
    pub(crate) number: u32,
    pub(crate) bytes: u64,
    /// Whether it has kernels on the card.
    pub(crate) computes: bool,
}

impl Card {
    /// Reads the card's current state.
    pub(crate) fn open(number: usize) -> io::Result<Self> {
        let mut file = File::open(card_at(&beside_this_library()?, number))?;
        let mut bytes = [0; 4096];
        file.read_exact(&mut bytes)?;
        let (words, _) = bytes.as_chunks::<8>();
        let number = |index: usize| u64::from_le_bytes(words[index]);
        let alive: Vec<usize> = (0..SLOTS)
            .filter(|slot| is_locked(file.as_raw_fd(), ALIVE + *slot as i64))
            .collect();
        let process = |slot: &usize| Process {
            number: number(FIRST_PROCESS + slot) as u32,
            bytes: number(FIRST_SLOT + 2 * slot),
            computes: number(FIRST_SLOT + 2 * slot + 1) > 0,
        };
        let is_there =
            |slot: &&usize| !matches!(number(FIRST_STATE + **slot), CHECKPOINTED | NOT_RESTORED);
        Ok(Self {
            total_bytes: number(MEMORY),
            lost: number(LOST) as c_int,
            slices: number(SLICES),
            processes: alive.iter().filter(is_there).map(process).collect(),
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

unsafe extern "C" {
    fn dladdr(address: *const c_void, symbol: *mut Symbol) -> c_int;
}

fn beside_this_library() -> io::Result<std::path::PathBuf> {
    let nothing = std::ptr::null();
    let mut symbol = Symbol {
        library: nothing,
        base: nothing.cast(),
        name: nothing,
        address: nothing.cast(),
    };
    let found = unsafe { dladdr(crate::nvmlShutdown as *const c_void, &raw mut symbol) };
    if found == 0 {
        return Err(io::ErrorKind::NotFound.into());
    }
    let library = unsafe { CStr::from_ptr(symbol.library) };
    Ok(Path::new(OsStr::from_bytes(library.to_bytes())).with_file_name("card"))
}
