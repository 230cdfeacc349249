//! The order in which 256 weights, or 256 activations, stand in vector registers.
//!
//! A *superblock* is 256 values in 16 groups of 16. It is held as four 64-byte vectors. Lane `l` (four bytes) of vector
//! `j` holds values `4j..4j+4` of group `GROUP_OF_LANE[l]`. So every lane belongs to one group: four byte dot products
//! added into one register give all 16 group sums, and one multiplication by a 16-lane vector of scales finishes them.
//!
//! The order of the lanes is the one that a 4×4 transposition by `punpck` instructions leaves, within 256 bits (so it
//! serves AVX2 as well). Two groups that share 32 values are lanes `n` and `n + 4` of a half.

/// Values in a superblock.
pub const SUPER: usize = 256;
/// Values in a group of activations that share a scale.
pub const ACT_GROUP: usize = 32;

/// The group of 16 values that a lane holds.
#[cfg(any(target_arch = "x86_64", test))]
pub const GROUP_OF_LANE: [usize; 16] = [0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15];

/// The lane that holds a group of 16 values.
pub const LANE_OF_GROUP: [usize; 16] = [0, 4, 1, 5, 2, 6, 3, 7, 8, 12, 9, 13, 10, 14, 11, 15];

/// Where value `i` of a superblock stands among its 256 bytes.
pub const fn position(i: usize) -> usize {
    let (group, j, byte) = (i / 16, (i % 16) / 4, i % 4);
    64 * j + 4 * LANE_OF_GROUP[group] + byte
}

/// Superblocks that hold a row of `k` values; the last may be partial.
pub const fn superblocks(k: usize) -> usize {
    k.div_ceil(SUPER)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_are_a_permutation_and_lanes_invert_groups() {
        let mut seen = [false; SUPER];
        for i in 0..SUPER {
            assert!(!std::mem::replace(&mut seen[position(i)], true));
        }
        for lane in 0..16 {
            assert_eq!(LANE_OF_GROUP[GROUP_OF_LANE[lane]], lane);
        }
    }
}
