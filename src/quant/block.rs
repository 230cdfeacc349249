//! What all block formats share: the [`Block`] trait, the little-endian fields of a block, and the loops over a row.
//!
//! Every block struct has alignment 1 (16-bit fields are byte pairs), so a row may start at any byte of a file and a
//! cast from bytes never fails on alignment.

use bytemuck::{Pod, Zeroable};

/// The longest block of any format, in weights. Every block length divides it.
pub const MAX_BLOCK_LEN: usize = 256;

/// Partial sums of [`Format::dot_row`](super::Format::dot_row).
pub const DOT_LANES: usize = 16;

/// A block: `LEN` weights that share scales. The struct is the layout in the file, byte for byte.
pub trait Block: Pod {
    /// Weights in a block.
    const LEN: usize;

    /// Makes the block that approximates `LEN` weights; `None` for formats that are only read. All encoders round to
    /// the nearest step of a scale taken from the extreme values: good enough for tests and conversions of small
    /// files, without the searches of a real quantiser. Weights must be finite.
    const ENCODE: Option<fn(&[f32]) -> Self> = None;

    /// Writes the `LEN` weights of the block to `out`. This is the specification of the format: the f32 operations
    /// and their order are part of it, and every other path is tested against its bits.
    fn decode(&self, out: &mut [f32]);
}

/// An IEEE half precision number as stored in a file (little endian).
#[repr(transparent)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Pod, Zeroable)]
pub struct F16Le(pub [u8; 2]);

impl F16Le {
    #[inline]
    pub fn to_f32(self) -> f32 {
        f16_bits_to_f32(u16::from_le_bytes(self.0))
    }

    /// Rounds to nearest, ties to even; too large becomes infinite.
    pub fn from_f32(value: f32) -> F16Le {
        F16Le(half::f16::from_f32(value).to_bits().to_le_bytes())
    }
}

/// A 16-bit unsigned number as stored in a file (little endian).
#[repr(transparent)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Pod, Zeroable)]
pub struct U16Le(pub [u8; 2]);

impl U16Le {
    #[inline]
    pub fn get(self) -> u16 {
        u16::from_le_bytes(self.0)
    }
}

/// Half to single precision, exact; a signalling NaN becomes quiet. Written without table and without feature
/// detection so that loops over it vectorise; subnormal halves go through an integer, so the result does not depend on
/// a thread's "denormals are zero" setting.
#[inline]
pub fn f16_bits_to_f32(half: u16) -> f32 {
    let sign = (u32::from(half) & 0x8000) << 16;
    let magnitude = u32::from(half) & 0x7fff;
    let normal = (magnitude << 13) + (112 << 23);
    let subnormal = (magnitude as f32 * (1.0 / 16_777_216.0)).to_bits();
    let special = (magnitude << 13) | 0x7f80_0000 | if magnitude > 0x7c00 { 1 << 22 } else { 0 };
    let bits = match magnitude {
        0..0x0400 => subnormal,
        0x0400..0x7c00 => normal,
        _ => special,
    };
    f32::from_bits(sign | bits)
}

/// The low (`half` = 0) or high (`half` = 1) four bits of a byte.
#[inline]
pub(super) fn nibble(byte: u8, half: usize) -> u8 {
    (byte >> (4 * half)) & 0x0f
}

/// The largest absolute value.
pub(super) fn abs_max(values: &[f32]) -> f32 {
    values.iter().fold(0.0, |max, value| value.abs().max(max))
}

/// The value of the largest magnitude, with its sign; the first of equals. 0 for no values.
pub(super) fn extreme(values: &[f32]) -> f32 {
    values.iter().fold(
        0.0,
        |max: f32, &value| if value.abs() > max.abs() { value } else { max },
    )
}

/// The smallest and the largest value.
pub(super) fn min_max(values: &[f32]) -> (f32, f32) {
    let start = (f32::INFINITY, f32::NEG_INFINITY);
    values
        .iter()
        .fold(start, |(min, max), &value| (min.min(value), max.max(value)))
}

/// `1 / value`, or 0 where that is infinite: a block of zeros, or of numbers too small to count, gets the codes of zero.
pub(super) fn inverse(value: f32) -> f32 {
    let inverse = 1.0 / value;
    if inverse.is_finite() { inverse } else { 0.0 }
}

/// Decodes a row of blocks.
///
/// # Panics
/// If `bytes` is not a whole number of blocks or `out` is not exactly their weights.
pub(super) fn decode_blocks<B: Block>(bytes: &[u8], out: &mut [f32]) {
    let blocks: &[B] = bytemuck::cast_slice(bytes);
    assert_eq!(blocks.len() * B::LEN, out.len(), "weights of the row");
    for (block, out) in blocks.iter().zip(out.chunks_exact_mut(B::LEN)) {
        block.decode(out);
    }
}

/// Encodes a row of weights as blocks.
///
/// # Panics
/// If the format has no encoder, `bytes` is not a whole number of blocks, or `weights` is not exactly their weights.
pub(super) fn encode_blocks<B: Block>(weights: &[f32], bytes: &mut [u8]) {
    let encode = B::ENCODE.expect("the table lists this function for formats with an encoder only");
    let blocks: &mut [B] = bytemuck::cast_slice_mut(bytes);
    assert_eq!(blocks.len() * B::LEN, weights.len(), "weights of the row");
    for (block, weights) in blocks.iter_mut().zip(weights.chunks_exact(B::LEN)) {
        *block = encode(weights);
    }
}

/// Dot product of a row of blocks with `x`: see [`Format::dot_row`](super::Format::dot_row) for the order of sums.
///
/// # Panics
/// If `bytes` is not a whole number of blocks or `x` is not exactly as long as their weights.
pub(super) fn dot_blocks<B: Block>(bytes: &[u8], x: &[f32]) -> f32 {
    let blocks: &[B] = bytemuck::cast_slice(bytes);
    assert_eq!(blocks.len() * B::LEN, x.len(), "weights of the row");
    let mut lanes = [0.0f32; DOT_LANES];
    let mut weights = [0.0f32; MAX_BLOCK_LEN];
    for (blocks, x) in blocks
        .chunks(MAX_BLOCK_LEN / B::LEN)
        .zip(x.chunks(MAX_BLOCK_LEN))
    {
        let weights = &mut weights[..x.len()];
        for (block, out) in blocks.iter().zip(weights.chunks_exact_mut(B::LEN)) {
            block.decode(out);
        }
        add_products(&mut lanes, weights, x);
    }
    sum_lanes(lanes)
}

/// `lanes[i % DOT_LANES] += weights[i] * x[i]`, in the order of `i`.
#[inline]
fn add_products(lanes: &mut [f32; DOT_LANES], weights: &[f32], x: &[f32]) {
    let (weight_groups, weight_rest) = weights.as_chunks::<DOT_LANES>();
    let (x_groups, x_rest) = x.as_chunks::<DOT_LANES>();
    for (weights, x) in weight_groups.iter().zip(x_groups) {
        for lane in 0..DOT_LANES {
            lanes[lane] += weights[lane] * x[lane];
        }
    }
    for ((lane, weight), x) in lanes.iter_mut().zip(weight_rest).zip(x_rest) {
        *lane += weight * x;
    }
}

/// Adds the lanes as a balanced tree: 16 → 8 → 4 → 2 → 1, lane `i` with lane `i + half`.
fn sum_lanes(mut lanes: [f32; DOT_LANES]) -> f32 {
    let mut half = DOT_LANES / 2;
    while half > 0 {
        for lane in 0..half {
            lanes[lane] += lanes[lane + half];
        }
        half /= 2;
    }
    lanes[0]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_half_converts_like_the_half_crate() {
        for bits in 0..=u16::MAX {
            let expected = half::f16::from_bits(bits).to_f32();
            assert_eq!(
                f16_bits_to_f32(bits).to_bits(),
                expected.to_bits(),
                "half {bits:#06x}"
            );
            if !expected.is_nan() {
                assert_eq!(F16Le::from_f32(expected).0, bits.to_le_bytes());
            }
        }
    }

    #[test]
    fn lanes_are_added_as_a_tree() {
        let lanes = std::array::from_fn(|i| i as f32);
        assert_eq!(sum_lanes(lanes), 120.0);
        let mut lanes = [0.0; DOT_LANES];
        (lanes[0], lanes[8], lanes[1], lanes[9]) = (1e30, -1e30, 1.0, 2.0);
        assert_eq!(sum_lanes(lanes), 3.0);
    }
}
