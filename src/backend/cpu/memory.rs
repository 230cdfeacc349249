//! Anonymous mappings that begin at a multiple of 2 MiB, so that huge pages can back all of them.

use std::ops::Range;

use memmap2::MmapMut;

use crate::backend::{Pinned, Pinner};

/// Huge pages of x86-64 and of aarch64 with 4 KiB pages.
const HUGE_PAGE_BYTES: usize = 2 << 20;

/// Zeroed memory of fixed size and place. The system takes real pages when they are touched first.
#[derive(Debug)]
pub struct Mapping {
    // Dropped before the memory goes.
    pins: Vec<Pinned>,
    map: MmapMut,
    skip: usize,
    len: usize,
}

impl Mapping {
    /// Maps `len` bytes; the reason in words if the system refuses.
    pub fn new(len: u64, huge_pages: bool) -> Result<Mapping, String> {
        let len = usize::try_from(len).map_err(|_| "more than this machine can address".to_string())?;
        let with_slack = len.checked_add(HUGE_PAGE_BYTES).ok_or("more than this machine can address")?;
        let map = MmapMut::map_anon(with_slack).map_err(|e| e.to_string())?;
        let skip = map.as_ptr().align_offset(HUGE_PAGE_BYTES);
        if skip > HUGE_PAGE_BYTES {
            return Err("the mapping cannot be aligned".into());
        }
        // Huge pages only change speed: a refusal (switched off, other system) is not an error.
        #[cfg(target_os = "linux")]
        if huge_pages && len >= HUGE_PAGE_BYTES {
            let _ = map.advise_range(memmap2::Advice::HugePage, skip, len);
        }
        #[cfg(not(target_os = "linux"))]
        let _ = huge_pages;
        Ok(Mapping { pins: vec![], map, skip, len })
    }

    /// Lets the system take the pages from the memory of several nodes in turn, so that threads of all of them read equally fast.
    /// Before the first touch.
    #[cfg(target_os = "linux")]
    pub fn spread(&self, nodes: &[usize]) -> Result<(), String> {
        let mask = node_mask(nodes);
        let bits = mask.len() * libc::c_ulong::BITS as usize;
        // SAFETY: the range is that of the mapping, the mask has as many bits as are told (one more, by the kernel's count).
        let outcome = unsafe {
            libc::syscall(libc::SYS_mbind, self.map.as_ptr(), self.map.len(), libc::MPOL_INTERLEAVE, mask.as_ptr(), bits + 1, 0)
        };
        if outcome == 0 { Ok(()) } else { Err(std::io::Error::last_os_error().to_string()) }
    }

    #[cfg(not(target_os = "linux"))]
    pub fn spread(&self, _nodes: &[usize]) -> Result<(), String> {
        Err("not on this system".into())
    }

    pub fn len(&self) -> usize {
        self.len
    }

    #[cfg(test)]
    pub fn bytes(&self) -> &[u8] {
        &self.map[self.skip..self.skip + self.len]
    }

    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.map[self.skip..self.skip + self.len]
    }

    /// Pins a piece for a device for as long as the memory lives; the reason in words if that is refused.
    pub fn pin(&mut self, piece: Range<usize>, pinner: &dyn Pinner) -> Result<(), String> {
        let bytes = self.bytes_mut().get_mut(piece).ok_or("it lies outside the memory")?;
        // SAFETY: the mapping keeps its place, and drops the pin before it is unmapped.
        let pinned = unsafe { pinner.pin(bytes)? };
        self.pins.push(pinned);
        Ok(())
    }
}

/// A bit for each node.
#[cfg(target_os = "linux")]
fn node_mask(nodes: &[usize]) -> Vec<libc::c_ulong> {
    let bits = libc::c_ulong::BITS as usize;
    let mut mask = vec![0; nodes.iter().max().map_or(1, |node| node / bits + 1)];
    nodes.iter().for_each(|node| mask[node / bits] |= 1 << (node % bits));
    mask
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(target_os = "linux")]
    fn pages_are_spread_over_nodes_or_the_reason_is_told() {
        assert_eq!(node_mask(&[0, 2]), [0b101]);
        assert_eq!(node_mask(&[1, 64]), [0b10, 1]);
        let mut mapping = Mapping::new(1 << 20, false).unwrap();
        // A container may forbid it; a node that is not there is an error anywhere.
        if let Err(reason) = mapping.spread(&[0]) {
            assert!(!reason.is_empty());
        }
        assert!(mapping.spread(&[1023]).is_err());
        mapping.bytes_mut().fill(3);
        assert!(mapping.bytes().iter().all(|b| *b == 3));
    }

    #[test]
    fn mappings_are_zeroed_and_aligned() {
        for len in [0, 1, 4096, 5 << 20] {
            let mapping = Mapping::new(len, true).unwrap();
            assert_eq!(mapping.bytes().len() as u64, len);
            assert_eq!(mapping.bytes().as_ptr() as usize % HUGE_PAGE_BYTES, 0);
            assert!(mapping.bytes().iter().all(|b| *b == 0));
        }
    }

    #[test]
    fn too_much_is_an_error() {
        assert!(Mapping::new(u64::MAX, false).is_err());
        assert!(Mapping::new(1 << 60, false).is_err());
    }
}
