//! Finds pages of a process that are still those of the file that they were mapped from.
//!
//! A kernel maps received segments privately, so a page that was never written to still belongs to
//! the sealed file, whose content both ends know. The operating system distinguishes such pages
//! from written ones, so they need not be read.
//!
//! **Invariant:** in doubt, a page counts as touched.

use crate::sealed;
use baton_protocol::memory::BLOCK_BYTES;
use nix::unistd::{SysconfVar, sysconf};
use std::{fs::File, ops::Range, os::unix::fs::FileExt};

/// This only works if pages have the size of blocks.
const PAGE_BYTES: u64 = BLOCK_BYTES as u64;

/// Bits of an entry of `/proc/PID/pagemap`, see `Documentation/admin-guide/mm/pagemap.rst` of Linux.
const PRESENT: u64 = 1 << 63;
const SWAPPED: u64 = 1 << 62;
const OF_FILE: u64 = 1 << 61;

const ENTRY_BYTES: usize = size_of::<u64>();

#[derive(Default)]
pub(crate) struct Untouched {
    /// Private mappings of received files, sorted by address.
    mappings: Vec<Range<u64>>,
    pages: Option<File>,
}

impl Untouched {
    /// The pages of process `pid`; none if the operating system does not report them.
    pub(crate) fn of(pid: i32) -> Self {
        let page_bytes = sysconf(SysconfVar::PAGE_SIZE).ok().flatten();
        if page_bytes.and_then(|bytes| u64::try_from(bytes).ok()) != Some(PAGE_BYTES) {
            return Self::default();
        }
        let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
        let mappings: Vec<Range<u64>> = maps.lines().filter_map(received).collect();
        let pages = match mappings.is_empty() {
            true => None,
            false => File::open(format!("/proc/{pid}/pagemap")).ok(),
        };
        Self { mappings, pages }
    }

    /// For each page of a range, whether it is untouched; `None` if all may be touched.
    pub(crate) fn pages(&self, addresses: Range<u64>) -> Option<Vec<bool>> {
        let pages = self.pages.as_ref()?;
        let after = self
            .mappings
            .partition_point(|mapping| mapping.start <= addresses.start);
        let mapping = self.mappings.get(after.checked_sub(1)?)?;
        if addresses.end > mapping.end || !addresses.start.is_multiple_of(PAGE_BYTES) {
            return None;
        }
        let first = addresses.start / PAGE_BYTES;
        let count = usize::try_from(addresses.end.div_ceil(PAGE_BYTES) - first).ok()?;
        let mut entries = vec![0; count * ENTRY_BYTES];
        pages
            .read_exact_at(&mut entries, first * ENTRY_BYTES as u64)
            .ok()?;
        let (entries, _) = entries.as_chunks::<ENTRY_BYTES>();
        Some(
            entries
                .iter()
                .map(|entry| is_untouched(u64::from_le_bytes(*entry)))
                .collect(),
        )
    }
}

/// A page that is absent has never been accessed. A present page of a file has only been read.
fn is_untouched(entry: u64) -> bool {
    match entry & (PRESENT | SWAPPED) {
        0 => true,
        _ => entry & OF_FILE != 0,
    }
}

/// The addresses in a line of `/proc/PID/maps`, if it is a private mapping of a received file.
fn received(line: &str) -> Option<Range<u64>> {
    let mut fields = line.split_ascii_whitespace();
    let (start, end) = fields.next()?.split_once('-')?;
    let private = fields.next()?.ends_with('p');
    let path = fields.nth(3)?;
    let number = |text| u64::from_str_radix(text, 16).ok();
    (private && path == sealed::PATH).then_some(number(start)?..number(end)?)
}
