//! Memory that the program creates without an address, and maps itself: PyTorch's expandable segments, and all
//! memory of JAX.
//!
//! A piece is a region like any other, at addresses that the program does not know. Where the program maps the piece,
//! the region gets a view. So the memory moves as usual, and with it what is behind all its views.

use super::{
    super::{
        heap::{GRANULE_BYTES, Range},
        sys::driver::{self, Access, Code, Context, INVALID_VALUE, Properties, SUCCESS},
    },
    Regions,
    region::{Region, first_error},
};
use std::collections::BTreeMap;

/// The upper bits of handles. The driver's own handles are neither such pointers nor such large numbers.
const MARK: u64 = 0xBA70 << 48;

#[derive(Debug)]
pub(in super::super) struct Pieces {
    last: u64,
    by_handle: BTreeMap<u64, Piece>,
    /// The handle of each view's piece, by the view's address.
    views: BTreeMap<u64, u64>,
    /// Handles of pieces that may be unused since a recent change.
    loose: Vec<u64>,
    /// The size of all that stay on the GPU.
    fixed_bytes: u64,
}

#[derive(Debug)]
struct Piece {
    /// Of its region.
    address: u64,
    properties: Properties,
    /// How often its handle must be released.
    holds: u32,
    /// Its region, once the region's context has ended. It stays on the GPU then.
    fixed: Option<Region>,
}

/// Whether a handle is that of a piece, perhaps of one that no longer exists.
pub(in super::super) fn is_handle(handle: u64) -> bool {
    handle >> 48 == MARK >> 48
}

impl Pieces {
    pub(super) const fn new() -> Self {
        Self {
            last: MARK,
            by_handle: BTreeMap::new(),
            views: BTreeMap::new(),
            loose: Vec::new(),
            fixed_bytes: 0,
        }
    }

    /// Makes an allocation of a whole region a piece, and returns its handle.
    pub(in super::super) fn add(&mut self, address: u64, properties: Properties) -> u64 {
        self.last += 1;
        let piece = Piece {
            address,
            properties,
            holds: 1,
            fixed: None,
        };
        self.by_handle.insert(self.last, piece);
        self.last
    }

    pub(in super::super) fn properties(&self, handle: u64) -> Result<Properties, Code> {
        Ok(self.held(handle)?.properties)
    }

    fn held(&self, handle: u64) -> Result<&Piece, Code> {
        let piece = self.by_handle.get(&handle);
        piece.filter(|piece| piece.holds > 0).ok_or(INVALID_VALUE)
    }

    /// Another hold on the piece behind an address, whose handle is returned.
    pub(in super::super) fn hold_at(&mut self, regions: &Regions, address: u64) -> Option<u64> {
        let (_, handle) = self.view_at(regions, address)?;
        self.by_handle.get_mut(&handle)?.holds += 1;
        Some(handle)
    }

    /// Ends one hold on a piece.
    pub(in super::super) fn release(&mut self, handle: u64) -> Result<(), Code> {
        match self.by_handle.get_mut(&handle) {
            Some(piece) if piece.holds > 0 => piece.holds -= 1,
            _ => return Err(INVALID_VALUE),
        }
        self.loose.push(handle);
        Ok(())
    }

    /// The regions of pieces that are neither held nor mapped any more.
    pub(super) fn take_unused(&mut self, regions: &Regions) -> Vec<u64> {
        let mut unused = Vec::new();
        for handle in std::mem::take(&mut self.loose) {
            let is_mapped = self.region(regions, handle).is_some_and(Region::has_views);
            let is_held = (self.by_handle.get(&handle)).is_none_or(|piece| piece.holds > 0);
            if is_mapped || is_held {
                continue;
            }
            match self.by_handle.remove(&handle) {
                Some(Piece {
                    fixed: Some(region),
                    ..
                }) => {
                    self.fixed_bytes -= region.bytes();
                    region.release();
                }
                piece => unused.extend(piece.map(|piece| piece.address)),
            }
        }
        unused
    }

    /// Maps a whole piece at addresses of the program.
    pub(in super::super) fn map(
        &mut self,
        regions: &mut Regions,
        handle: u64,
        range: Range,
    ) -> Result<(), Code> {
        self.held(handle)?;
        let is_free = !self.has_views_in(regions, range);
        let region = self.region_mut(regions, handle).ok_or(INVALID_VALUE)?;
        // The driver checks these only for memory that is on the GPU.
        let is_aligned = range.address.is_multiple_of(GRANULE_BYTES);
        if !is_free || !is_aligned || range.bytes != region.bytes() {
            return Err(INVALID_VALUE);
        }
        region.show(range.address)?;
        self.views.insert(range.address, handle);
        Ok(())
    }

    /// The program has given up these addresses, and with them what it has mapped there.
    pub(in super::super) fn forget_views_in(&mut self, regions: &mut Regions, range: Range) {
        for (part, handle) in self.parts_of(regions, range) {
            if let Some(handle) = handle
                && let Some(region) = self.region_mut(regions, handle)
            {
                // The driver may have unmapped it already.
                let _ = region.hide(part.address);
                self.views.remove(&part.address);
                self.loose.push(handle);
            }
        }
    }

    /// Unmaps what the program has mapped in this range, which may be memory of the driver, too.
    pub(in super::super) fn unmap(
        &mut self,
        regions: &mut Regions,
        range: Range,
    ) -> Result<(), Code> {
        let parts = self.parts_of(regions, range);
        let is_whole = |(part, handle): &(Range, Option<u64>)| match handle {
            Some(handle) => self.view_at(regions, part.address) == Some((*part, *handle)),
            None => true,
        };
        if !parts.iter().all(is_whole) {
            return Err(INVALID_VALUE);
        }
        let mut code = SUCCESS;
        for (part, handle) in parts {
            let region = handle.and_then(|handle| self.region_mut(regions, handle));
            let unmapped = match region {
                Some(region) => region.hide(part.address),
                None => driver::unmap(part),
            };
            code = first_error(code, unmapped);
            self.views.remove(&part.address);
            self.loose.extend(handle);
        }
        driver::as_result(code)
    }

    /// Permits access to what the program has mapped in this range, which may be memory of the driver, too.
    pub(in super::super) fn permit(
        &mut self,
        regions: &mut Regions,
        range: Range,
        access: &[Access],
    ) -> Result<(), Code> {
        let mut code = SUCCESS;
        for (part, handle) in self.parts_of(regions, range) {
            let region = handle.and_then(|handle| self.region_mut(regions, handle));
            let permitted = match region {
                Some(region) => region.permit(part, access),
                None => driver::set_access(part, access),
            };
            code = first_error(code, permitted);
        }
        driver::as_result(code)
    }

    /// Whether any view lies in this range.
    pub(in super::super) fn has_views_in(&self, regions: &Regions, range: Range) -> bool {
        let mut parts = self.parts_of(regions, range).into_iter();
        parts.any(|(_, handle)| handle.is_some())
    }

    /// The view in which an address lies, and the handle of its piece.
    pub(super) fn view_at(&self, regions: &Regions, address: u64) -> Option<(Range, u64)> {
        let (start, handle) = self.views.range(..=address).next_back()?;
        let view = Range {
            address: *start,
            bytes: self.region(regions, *handle)?.bytes(),
        };
        view.contains(address).then_some((view, *handle))
    }

    /// Divides a range into parts of views, with the handles of their pieces, and the parts between them.
    fn parts_of(&self, regions: &Regions, range: Range) -> Vec<(Range, Option<u64>)> {
        let (mut parts, mut address) = (Vec::new(), range.address);
        let end = range.address.saturating_add(range.bytes);
        while address < end {
            let (until, handle) = match self.view_at(regions, address) {
                Some((view, handle)) => (view.address + view.bytes, Some(handle)),
                None => {
                    let next = self.views.range(address + 1..).next();
                    (next.map_or(end, |(start, _)| *start), None)
                }
            };
            let bytes = until.min(end) - address;
            parts.push((Range { address, bytes }, handle));
            address += bytes;
        }
        parts
    }

    fn region<'a>(&'a self, regions: &'a Regions, handle: u64) -> Option<&'a Region> {
        let piece = self.by_handle.get(&handle)?;
        piece.fixed.as_ref().or_else(|| regions.get(&piece.address))
    }

    fn region_mut<'a>(
        &'a mut self,
        regions: &'a mut Regions,
        handle: u64,
    ) -> Option<&'a mut Region> {
        let Piece { fixed, address, .. } = self.by_handle.get_mut(&handle)?;
        fixed.as_mut().or_else(|| regions.get_mut(address))
    }

    // ---- contexts

    /// The pieces whose regions are in this context.
    pub(super) fn in_context(&self, regions: &Regions, context: Context) -> Vec<u64> {
        let addresses = self.by_handle.values().map(|piece| piece.address);
        let is_in_it = |address: &u64| {
            regions
                .get(address)
                .is_some_and(|one| one.context == context)
        };
        addresses.filter(is_in_it).collect()
    }

    /// The context of a piece's region has ended. Pieces belong to no context, so they are not freed with it, but nothing
    /// can move them any more.
    pub(super) fn fix(&mut self, address: u64, region: Region) {
        let mut pieces = self.by_handle.values_mut();
        if let Some(piece) = pieces.find(|piece| piece.address == address) {
            self.fixed_bytes += region.bytes();
            piece.fixed = Some(region);
        }
    }

    pub(super) fn fixed_bytes(&self) -> u64 {
        self.fixed_bytes
    }
}
