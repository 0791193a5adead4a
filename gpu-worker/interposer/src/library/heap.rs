//! Where a session's allocations lie: each large one has its own region of addresses, small ones share regions.
//!
//! In: sizes and owners. Out: addresses, and which regions to create and release. It does not know what is behind the
//! addresses, nor whether that is on the GPU now. All memory of an owner may be released at once, so owners share no
//! regions.
//!
//! **Invariant:** pure; addresses that are handed out do not overlap.

use std::collections::BTreeMap;

/// The unit in which the driver maps memory.
pub(super) const GRANULE_BYTES: u64 = 2 << 20;

/// The alignment that the driver promises.
const ALIGNMENT: u64 = 512;

/// From this size on, an allocation has its own region.
const LARGE_BYTES: u64 = 1 << 20;

const LARGEST_SHARED_BYTES: u64 = 32 << 20;

#[derive(Debug)]
pub(super) struct Heap<Owner> {
    regions: BTreeMap<u64, Region>,
    /// The owners of regions that small allocations share, by their addresses.
    shared: BTreeMap<u64, Owner>,
}

#[derive(Debug)]
struct Region {
    bytes: u64,
    /// By address.
    used: BTreeMap<u64, Allocation>,
    holes: BTreeMap<u64, u64>,
}

#[derive(Debug)]
struct Allocation {
    bytes: u64,
    /// The program has freed it, and may not free it again.
    is_freed: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Range {
    pub(super) address: u64,
    pub(super) bytes: u64,
}

impl Range {
    pub(super) fn contains(self, address: u64) -> bool {
        address >= self.address && address - self.address < self.bytes
    }

    /// What lies in both.
    pub(super) fn common(self, other: Self) -> Option<Self> {
        let address = self.address.max(other.address);
        let end = (self.address + self.bytes).min(other.address + other.bytes);
        (address < end).then(|| Self {
            address,
            bytes: end - address,
        })
    }
}

impl<Owner: Copy + PartialEq> Heap<Owner> {
    pub(super) const fn empty() -> Self {
        Self {
            regions: BTreeMap::new(),
            shared: BTreeMap::new(),
        }
    }

    /// Places an allocation in an existing region, if one has room.
    pub(super) fn place(&mut self, bytes: u64, owner: Owner) -> Option<u64> {
        if bytes >= LARGE_BYTES {
            return None;
        }
        let regions = &mut self.regions;
        let mut shared = self.shared.iter().filter(|(_, its)| **its == owner);
        shared.find_map(|(address, _)| regions.get_mut(address)?.place(bytes))
    }

    /// The size of the region to create for an allocation for which no region has room.
    pub(super) fn region_for(&self, bytes: u64, owner: Owner) -> u64 {
        if bytes >= LARGE_BYTES {
            return in_granules(bytes);
        }
        let shared = self.shared.iter().filter(|(_, its)| **its == owner);
        let shared = shared.filter_map(|(address, _)| self.regions.get(address));
        let so_far: u64 = shared.map(|region| region.bytes).sum();
        so_far.clamp(GRANULE_BYTES, LARGEST_SHARED_BYTES)
    }

    /// How much room an allocation takes. Allocations with the same room can replace each other.
    pub(super) fn room_for(&self, bytes: u64) -> u64 {
        match bytes >= LARGE_BYTES {
            true => in_granules(bytes),
            false => in_units(bytes),
        }
    }

    /// The room of an existing allocation.
    pub(super) fn room(&self, address: u64) -> u64 {
        self.find(address)
            .map_or(0, |range| self.room_for(range.bytes))
    }

    /// An allocation replaces another one that has the same room.
    pub(super) fn renew(&mut self, address: u64, bytes: u64) {
        let Some((_, region)) = self.regions.range_mut(..=address).next_back() else {
            return;
        };
        if let Some(before) = region.used.remove(&address) {
            region.leave_hole(address, before.bytes);
            region.take(address, in_units(bytes));
        }
    }

    /// Adds a region of the size [`Heap::region_for`], and places the allocation in it for which it was created.
    pub(super) fn add(&mut self, region: Range, bytes: u64, owner: Owner) -> u64 {
        let mut added = Region {
            bytes: region.bytes,
            used: BTreeMap::new(),
            holes: BTreeMap::from([(region.address, region.bytes)]),
        };
        if bytes < LARGE_BYTES {
            self.shared.insert(region.address, owner);
        }
        let address = added.place(bytes).expect("it was made for that");
        self.regions.insert(region.address, added);
        address
    }

    /// The program frees an allocation. `false` if none begins there, or if the program has freed it before.
    pub(super) fn mark_freed(&mut self, address: u64) -> bool {
        let region = self.regions.range_mut(..=address).next_back();
        let allocation = region.and_then(|(_, region)| region.used.get_mut(&address));
        allocation.is_some_and(|one| !std::mem::replace(&mut one.is_freed, true))
    }

    /// Returns `None` if no allocation begins there, and otherwise the region to release, if it is empty now.
    pub(super) fn release(&mut self, address: u64) -> Option<Option<Range>> {
        let (base, region) = self.regions.range_mut(..=address).next_back()?;
        let base = *base;
        let released = region.used.remove(&address)?;
        region.leave_hole(address, released.bytes);
        if !region.used.is_empty() {
            return Some(None);
        }
        let bytes = region.bytes;
        self.regions.remove(&base);
        self.shared.remove(&base);
        Some(Some(Range {
            address: base,
            bytes,
        }))
    }

    /// The addresses of the allocations in a region.
    pub(super) fn allocations(&self, region: u64) -> impl Iterator<Item = u64> {
        let region = self.regions.get(&region).into_iter();
        region.flat_map(|region| region.used.keys().copied())
    }

    /// The allocation in which an address lies.
    pub(super) fn find(&self, address: u64) -> Option<Range> {
        let (_, region) = self.regions.range(..=address).next_back()?;
        let (start, found) = region.used.range(..=address).next_back()?;
        let found = Range {
            address: *start,
            bytes: found.bytes,
        };
        found.contains(address).then_some(found)
    }
}

impl Region {
    /// Places an allocation in the first hole that is large enough.
    fn place(&mut self, bytes: u64) -> Option<u64> {
        let bytes = in_units(bytes);
        let (address, _) = self.holes.iter().find(|(_, room)| **room >= bytes)?;
        let address = *address;
        self.take(address, bytes);
        Some(address)
    }

    /// Takes an allocation out of the hole in which it lies.
    fn take(&mut self, address: u64, bytes: u64) {
        let hole = self.holes.range(..=address).next_back();
        let (start, room) = hole.map_or((address, bytes), |(start, room)| (*start, *room));
        self.holes.remove(&start);
        if address > start {
            self.holes.insert(start, address - start);
        }
        let end = start + room;
        if end > address + bytes {
            self.holes.insert(address + bytes, end - address - bytes);
        }
        let taken = Allocation {
            bytes,
            is_freed: false,
        };
        self.used.insert(address, taken);
    }

    fn leave_hole(&mut self, mut address: u64, mut bytes: u64) {
        if let Some(next) = self.holes.remove(&(address + bytes)) {
            bytes += next;
        }
        if let Some((before, room)) = self.holes.range(..address).next_back()
            && before + room == address
        {
            (address, bytes) = (*before, room + bytes);
        }
        self.holes.insert(address, bytes);
    }
}

/// More than any GPU has if `bytes` cannot be rounded up.
fn in_granules(bytes: u64) -> u64 {
    let granules = bytes.checked_next_multiple_of(GRANULE_BYTES);
    granules.unwrap_or(u64::MAX)
}

fn in_units(bytes: u64) -> u64 {
    bytes.max(1).next_multiple_of(ALIGNMENT)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn allocate(heap: &mut Heap<u64>, bytes: u64, owner: u64, next: &mut u64) -> u64 {
        heap.place(bytes, owner).unwrap_or_else(|| {
            let region = Range {
                address: *next,
                bytes: heap.region_for(bytes, owner),
            };
            *next += region.bytes + GRANULE_BYTES;
            heap.add(region, bytes, owner)
        })
    }

    proptest! {
        #[test]
        fn allocations_never_overlap_and_leave_nothing_behind(
            steps in prop::collection::vec((any::<bool>(), 1_u64..5 << 20, any::<prop::sample::Index>()), 1..200),
        ) {
            let (mut heap, mut next) = (Heap::empty(), 1 << 40);
            let mut live: Vec<(u64, u64)> = Vec::new();
            for (frees, bytes, which) in steps {
                // Small allocations are the difficult case.
                let bytes = if bytes % 3 == 0 { bytes } else { bytes >> 8 };
                if frees && !live.is_empty() {
                    let (address, before) = live.swap_remove(which.index(live.len()));
                    if heap.room(address) == heap.room_for(bytes) {
                        heap.renew(address, bytes);
                        live.push((address, bytes));
                        continue;
                    }
                    prop_assert!(heap.room(address) >= before);
                    prop_assert!(heap.release(address).is_some());
                    prop_assert!(heap.release(address).is_none(), "it was freed twice");
                    continue;
                }
                let address = allocate(&mut heap, bytes, bytes % 2, &mut next);
                prop_assert_eq!(address % ALIGNMENT, 0);
                for (other, room) in &live {
                    prop_assert!(address + bytes <= *other || other + room <= address);
                }
                let found = heap.find(address + bytes.saturating_sub(1)).map(|range| range.address);
                prop_assert_eq!(found, Some(address));
                live.push((address, bytes));
            }
            for (address, _) in live {
                prop_assert!(heap.release(address).is_some());
            }
            prop_assert!(heap.regions.is_empty());
        }
    }

    #[test]
    fn owners_share_no_region() {
        let (mut heap, mut next) = (Heap::empty(), 1 << 40);
        let [first, second] = [0, 1].map(|owner| allocate(&mut heap, 512, owner, &mut next));
        assert!(heap.release(first).flatten().is_some());
        assert!(heap.release(second).flatten().is_some());
    }

    #[test]
    fn memory_is_freed_once_for_each_time_that_it_is_taken() {
        let (mut heap, mut next) = (Heap::empty(), 1 << 40);
        let address = allocate(&mut heap, 512, 0, &mut next);
        for _ in 0..2 {
            assert!(heap.mark_freed(address));
            assert!(!heap.mark_freed(address) && !heap.mark_freed(address + 256));
            heap.renew(address, 512);
        }
    }

    #[test]
    fn holes_grow_together() {
        let (mut heap, mut next) = (Heap::empty(), 1 << 40);
        let first = allocate(&mut heap, 512, 0, &mut next);
        let others = [512, 512, 512].map(|bytes| allocate(&mut heap, bytes, 0, &mut next));
        for address in [others[0], others[2], others[1]] {
            assert_eq!(heap.release(address), Some(None));
        }
        assert_eq!(allocate(&mut heap, 1536, 0, &mut next), first + 512);
        assert_eq!(
            heap.find(first + 511).map(|range| range.address),
            Some(first)
        );
        assert_eq!(heap.find(first + 4096), None);
    }
}
