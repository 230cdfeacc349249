//! RAM of experts that cards copy from without a detour: pinned when all other memory has been taken, slice by slice, up to what was
//! planned or to the first refusal. What is not pinned is copied all the same, through the devices' own staging memory.

use std::ops::Range;

use super::Experts;
use crate::backend::Backend;
use crate::units::HumanBytes;

/// Bytes that are pinned at once: a refusal costs no more than that.
pub const PIN_SLICE_BYTES: u64 = 1 << 30;

/// Two pieces never share a page.
const PAGE_BYTES: u64 = 4096;

#[derive(Debug, Clone, Copy)]
pub struct PinOptions {
    pub slice_bytes: u64,
    /// Of all devices together.
    pub most_bytes: u64,
}

impl Default for PinOptions {
    fn default() -> PinOptions {
        PinOptions { slice_bytes: PIN_SLICE_BYTES, most_bytes: u64::MAX }
    }
}

/// The slices of a stretch of memory; they begin and end with pages.
fn slices(stretch: Range<u64>, slice_bytes: u64) -> impl Iterator<Item = Range<u64>> {
    let (start, end) = (stretch.start.next_multiple_of(PAGE_BYTES), stretch.end / PAGE_BYTES * PAGE_BYTES);
    let step = slice_bytes.next_multiple_of(PAGE_BYTES).max(PAGE_BYTES);
    (start..end).step_by(step as usize).map(move |at| at..(at + step).min(end))
}

impl Experts {
    /// Pins RAM for the devices that copy from it. Device `i` is that of stage `i`. A refusal is no error: it is told in the notices.
    pub fn pin(&mut self, devices: &[&mut dyn Backend]) {
        let PinOptions { slice_bytes, most_bytes } = self.options.pin;
        for (stage, device) in devices.iter().enumerate() {
            let (Some(pinner), Some(stretch)) = (device.pinner(), self.ram_of(stage)) else { continue };
            for slice in slices(stretch, slice_bytes) {
                let len_bytes = slice.end - slice.start;
                if self.pinned_bytes + len_bytes > most_bytes {
                    return;
                }
                if let Err(reason) = self.host.pin(slice, pinner.as_ref()) {
                    let (pinned, id) = (HumanBytes(self.pinned_bytes), &device.facts().id);
                    self.notices.push(format!(
                        "{pinned} of experts in RAM are pinned, then {id} was refused more ({reason}); the others are copied by a detour"
                    ));
                    return;
                }
                self.pinned_bytes += len_bytes;
            }
        }
    }

    /// Where the experts of a stage's layers lie in RAM.
    fn ram_of(&self, stage: usize) -> Option<Range<u64>> {
        let layers = self.of_stage[stage].clone().filter(|i| !self.residency[*i].ram.is_empty());
        let ranges = layers.map(|i| {
            let last = self.host.slab_slice(i, self.residency[i].ram.len() as u32 - 1);
            self.host.slab_slice(i, 0).offset_bytes..last.offset_bytes + last.len_bytes
        });
        ranges.reduce(|all, own| all.start.min(own.start)..all.end.max(own.end))
    }

    /// Bytes of RAM that devices copy from without a detour.
    pub fn pinned_bytes(&self) -> u64 {
        self.pinned_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_are_whole_pages_and_share_none() {
        let of = |stretch, slice_bytes| slices(stretch, slice_bytes).map(|s| (s.start, s.end)).collect::<Vec<_>>();
        assert_eq!(of(0..10_000, 4096), [(0, 4096), (4096, 8192)]);
        assert_eq!(of(100..20_000, 8192), [(4096, 12_288), (12_288, 16_384)]);
        assert_eq!(of(100..20_000, 1 << 30), [(4096, 16_384)]);
        assert_eq!(of(100..5000, 1 << 30), []);
        assert_eq!(of(0..8192, 1), [(0, 4096), (4096, 8192)]);
    }
}
