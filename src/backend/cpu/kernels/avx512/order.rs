//! The order in which a product adds its terms. It is the same for every number of tokens, so that a row of activations
//! gets the same bits alone and in any window.
//!
//! A row is cut into stretches of [`STRETCH`] superblocks. Within a stretch, every place of a group in its superblock (8
//! places of 32 weights; 16 of 16 weights where those have scales of their own) has an accumulator of its own, to which
//! the superblocks are added one after the other. The accumulators of a stretch are added in pairs (see [`sum_lanes`]),
//! the stretches from first to last.
//!
//! The matrix-vector kernels hold the accumulators of one token in the lanes of a register; the matrix kernels hold one
//! accumulator of many tokens and go through the places in the order of [`Leaf`].

use std::arch::x86_64::*;

/// Superblocks of a stretch.
pub(super) const STRETCH: usize = 8;

/// Groups of 32 weights in the order in which [`sum_lanes`] adds their places in pairs.
pub(super) const GROUP_OF_SLOT: [usize; 8] = [0, 4, 2, 6, 1, 5, 3, 7];

/// Where a group of 32 stands in [`GROUP_OF_SLOT`].
pub(super) const SLOT_OF_GROUP: [usize; 8] = {
    let mut slots = [0; 8];
    let mut slot = 0;
    while slot < 8 {
        slots[GROUP_OF_SLOT[slot]] = slot;
        slot += 1;
    }
    slots
};

/// A place: the slot of its 32 weights, and which 16 of them (0 where all are one group).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Leaf {
    pub slot: usize,
    pub half: usize,
}

impl Leaf {
    pub const fn count(by_16: bool) -> usize {
        if by_16 { 16 } else { 8 }
    }

    /// Leaves `2n` and `2n + 1` are added first, then the pairs `2n` and `2n + 1`, and so on.
    #[inline]
    pub const fn new(number: usize, by_16: bool) -> Leaf {
        if by_16 { Leaf { slot: number / 4 * 2 + number % 2, half: number / 2 % 2 } } else { Leaf { slot: number, half: 0 } }
    }

    /// The group of 32.
    #[inline]
    pub const fn group(self) -> usize {
        GROUP_OF_SLOT[self.slot]
    }

    /// The lane of the layout that holds the place.
    #[inline]
    pub const fn lane(self) -> usize {
        8 * (self.group() / 4) + self.group() % 4 + 4 * self.half
    }
}

/// The integer sums of groups of 16 to those of groups of 32, in the lanes of both.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn add_pairs(x: __m512i) -> __m512i {
    _mm512_add_epi32(x, _mm512_shuffle_i32x4::<0b10_11_00_01>(x, x))
}

/// The same for floats.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn add_pairs_ps(x: __m512) -> __m512 {
    _mm512_add_ps(x, _mm512_shuffle_f32x4::<0b10_11_00_01>(x, x))
}

/// The sum of the places: halves of 256 bits first, then, `by_16`, quarters, then the even and the odd places of the four
/// that are left. If groups are of 32, each stands in two lanes and is added once.
#[inline]
#[target_feature(enable = "avx512f,avx512dq")]
pub(super) fn sum_lanes(x: __m512, by_16: bool) -> f32 {
    let x = _mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps::<1>(x));
    let low = _mm256_castps256_ps128(x);
    let x = if by_16 { _mm_add_ps(low, _mm256_extractf128_ps::<1>(x)) } else { low };
    let x = _mm_add_ps(x, _mm_movehl_ps(x, x));
    _mm_cvtss_f32(_mm_add_ss(x, _mm_movehdup_ps(x)))
}

#[cfg(test)]
mod tests {
    use super::super::super::layout::LANE_OF_GROUP;
    use super::*;

    #[test]
    fn leaves_are_all_places() {
        for by_16 in [false, true] {
            let mut lanes: Vec<usize> = (0..Leaf::count(by_16)).map(|i| Leaf::new(i, by_16).lane()).collect();
            lanes.sort_unstable();
            let groups = if by_16 { (0..16).collect() } else { (0..8).map(|g| 2 * g).collect::<Vec<usize>>() };
            let mut expected: Vec<usize> = groups.into_iter().map(|group| LANE_OF_GROUP[group]).collect();
            expected.sort_unstable();
            assert_eq!(lanes, expected);
        }
    }

    #[test]
    fn leaves_are_in_the_order_of_the_sum() {
        if !is_x86_feature_detected!("avx512dq") {
            return;
        }
        // Powers of a large base show every order of additions but the right one.
        let values: [f32; 16] = std::array::from_fn(|lane| (lane as f32 + 1.1).powi(lane as i32 - 7));
        for by_16 in [false, true] {
            let at = |i: usize| values[Leaf::new(i, by_16).lane()];
            let mut tree: Vec<f32> = (0..Leaf::count(by_16)).map(at).collect();
            while tree.len() > 1 {
                tree = tree.chunks(2).map(|pair| pair[0] + pair[1]).collect();
            }
            // SAFETY: the machine has the features.
            let sum = unsafe { sum_lanes(_mm512_loadu_ps(values.as_ptr()), by_16) };
            assert_eq!(sum, tree[0]);
        }
    }
}
