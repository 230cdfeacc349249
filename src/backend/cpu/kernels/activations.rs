//! Activations in whole numbers: what the quantised products take as their right side.

use super::layout::{ACT_GROUP, SUPER, position, superblocks};
use super::simd::Simd;
use bytemuck::{Pod, Zeroable};

/// How finely activations are rounded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rounding {
    /// To one byte: a step is 1/127 of the largest of 32 values.
    Bits8,
    /// To two bytes, `128 * q + fine`: a step is 1/16256 of it. The products cost about half as much again.
    Bits15,
}

impl Rounding {
    pub fn name(self) -> &'static str {
        match self {
            Rounding::Bits8 => "8-bit",
            Rounding::Bits15 => "15-bit",
        }
    }

    /// What `q` counts for in steps.
    pub(super) fn coarse(self) -> i32 {
        match self {
            Rounding::Bits8 => 1,
            Rounding::Bits15 => 1 << FINE_BITS,
        }
    }

    /// Steps from zero to the largest value.
    pub(super) fn steps(self) -> f32 {
        127.0 * self.coarse() as f32
    }

    pub(super) fn is_fine(self) -> bool {
        self == Rounding::Bits15
    }
}

/// Bits of the second byte. Seven leave room for the 16-bit additions of AVX2.
pub(super) const FINE_BITS: u32 = 7;

/// Rows of activations, [`blocks_per_row`] blocks each, and how they were rounded.
#[derive(Clone, Copy)]
pub struct Acts<'a> {
    pub blocks: &'a [ActBlock],
    pub rounding: Rounding,
}

/// 256 activations of one row in the order of [`super::layout`], each `q * scale`, or `(128 * q + fine) * scale` where they
/// are rounded to 15 bits. A row of `k` activations is [`blocks_per_row`]`(k)` of these; what is past `k` is zero.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C, align(64))]
pub struct ActBlock {
    pub(super) q: [i8; SUPER],
    /// Only looked at where activations are rounded to 15 bits.
    pub(super) fine: [i8; SUPER],
    /// The scale of each lane (activations share one by 32, so each stands twice).
    pub(super) scale: [f32; 16],
    /// Minus the sum of the 16 values of each lane, in steps: undoes the offset that makes weights unsigned.
    pub(super) neg_sum: [i32; 16],
    /// Scale times sum of the values of each lane: goes with the minimum of formats that have one.
    pub(super) scaled_sum: [f32; 16],
}

const _: () = assert!(size_of::<ActBlock>() == 704);

/// Blocks that hold a row of `k` activations.
pub const fn blocks_per_row(k: usize) -> usize {
    superblocks(k)
}

/// Bytes of a buffer of `rows` quantised rows of `k` activations, for the planner. It must be aligned to 64.
pub const fn bytes_for(rows: usize, k: usize) -> usize {
    rows * blocks_per_row(k) * size_of::<ActBlock>()
}

/// Rounds one row to whole numbers with a scale for every 32 activations. Rows are independent: threads may share the
/// work by splitting the buffer with `chunks_mut(blocks_per_row(k))`.
///
/// # Panics
/// If `out` is not exactly `blocks_per_row(x.len())` long.
pub fn quantize_row(simd: Simd, rounding: Rounding, x: &[f32], out: &mut [ActBlock]) {
    assert_eq!(out.len(), blocks_per_row(x.len()), "blocks for a row of {}", x.len());
    let (whole, rest) = x.as_chunks::<SUPER>();
    for (x, out) in whole.iter().zip(out.iter_mut()) {
        quantize_block(simd, rounding, x, out);
    }
    if !rest.is_empty() {
        let mut padded = [0.0; SUPER];
        padded[..rest.len()].copy_from_slice(rest);
        quantize_block(simd, rounding, &padded, &mut out[whole.len()]);
    }
}

/// Quantises `rows` rows of `k` that stand `stride` floats apart.
pub fn quantize_rows(simd: Simd, rounding: Rounding, x: &[f32], k: usize, stride: usize, out: &mut [ActBlock]) {
    if k == 0 {
        return;
    }
    for (row, out) in out.chunks_exact_mut(blocks_per_row(k)).enumerate() {
        quantize_row(simd, rounding, &x[row * stride..][..k], out);
    }
}

/// The values that a quantised row stands for.
pub fn dequantize_row(acts: Acts<'_>, out: &mut [f32]) {
    for (i, out) in out.iter_mut().enumerate() {
        let block = &acts.blocks[i / SUPER];
        let at = position(i % SUPER);
        *out = block.steps(acts.rounding, at) as f32 * block.scale[at % 64 / 4];
    }
}

impl ActBlock {
    /// The value at a place, in steps.
    pub(super) fn steps(&self, rounding: Rounding, at: usize) -> i32 {
        let fine = if rounding.is_fine() { i32::from(self.fine[at]) } else { 0 };
        i32::from(self.q[at]) * rounding.coarse() + fine
    }
}

fn quantize_block(simd: Simd, rounding: Rounding, x: &[f32; SUPER], out: &mut ActBlock) {
    match simd.clamp_to_machine() {
        // SAFETY: the machine has the instructions of the level.
        #[cfg(target_arch = "x86_64")]
        Simd::Avx512 => unsafe { super::avx512::quantize_block(x, rounding, out) },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        Simd::Avx2 => unsafe { super::avx2::quantize_block(x, rounding, out) },
        _ => quantize_block_scalar(x, rounding, out),
    }
}

/// Every level computes exactly this: the scale is the largest magnitude over the steps, values round to the nearest step,
/// ties to even.
fn quantize_block_scalar(x: &[f32; SUPER], rounding: Rounding, out: &mut ActBlock) {
    let steps = rounding.steps();
    for (g, x) in x.as_chunks::<ACT_GROUP>().0.iter().enumerate() {
        let max = x.iter().fold(0.0f32, |max, x| max.max(x.abs()));
        let scale = max / steps;
        let inverse = inverse_scale(steps, max);
        for (half, x) in x.as_chunks::<16>().0.iter().enumerate() {
            let mut sum = 0;
            for (i, x) in x.iter().enumerate() {
                let value = (x * inverse).round_ties_even().clamp(-steps, steps) as i32;
                let at = position(32 * g + 16 * half + i);
                if rounding.is_fine() {
                    let coarse = (value + (1 << (FINE_BITS - 1))) >> FINE_BITS;
                    out.q[at] = coarse as i8;
                    out.fine[at] = (value - (coarse << FINE_BITS)) as i8;
                } else {
                    out.q[at] = value as i8;
                }
                sum += value;
            }
            let lane = position(32 * g + 16 * half) / 4;
            out.scale[lane] = scale;
            out.neg_sum[lane] = -sum;
            out.scaled_sum[lane] = scale * sum as f32;
        }
    }
}

/// Steps over the largest magnitude; 0 where that is too small to invert (all values then round to 0).
pub(super) fn inverse_scale(steps: f32, max: f32) -> f32 {
    let inverse = steps / max;
    if inverse.is_finite() { inverse } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOTH: [Rounding; 2] = [Rounding::Bits8, Rounding::Bits15];

    fn sample(len: usize) -> Vec<f32> {
        let mut state = 7u32;
        (0..len)
            .map(|i| {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (state >> 8) as f32 / (1 << 23) as f32 * (1 + i / 40) as f32 - 1.0
            })
            .collect()
    }

    #[test]
    fn a_row_survives_within_half_a_step() {
        for (k, rounding) in [32, 160, 256, 576, 640, 1024].into_iter().flat_map(|k| BOTH.map(|rounding| (k, rounding))) {
            let x = sample(k);
            let mut blocks = vec![ActBlock::zeroed(); blocks_per_row(k)];
            quantize_row(Simd::Scalar, rounding, &x, &mut blocks);
            let mut back = vec![0.0; k];
            dequantize_row(Acts { blocks: &blocks, rounding }, &mut back);
            for (x, back) in x.as_chunks::<32>().0.iter().zip(back.as_chunks::<32>().0) {
                let step = x.iter().fold(0.0f32, |max, x| max.max(x.abs())) / rounding.steps();
                assert!(x.iter().zip(back).all(|(x, back)| (x - back).abs() <= step * 0.51));
            }
        }
    }

    #[test]
    fn all_levels_give_the_same_bytes() {
        let mut rows = vec![sample(576), sample(1024), vec![0.0; 300], vec![1e-42; 256], vec![-3.0e38; 64]];
        rows.push((0..256).map(|i| if i % 3 == 0 { -0.5 } else { 126.5 + i as f32 }).collect());
        for (x, rounding) in rows.iter().flat_map(|x| BOTH.map(|rounding| (x, rounding))) {
            let mut expected = vec![ActBlock::zeroed(); blocks_per_row(x.len())];
            quantize_row(Simd::Scalar, rounding, x, &mut expected);
            for &simd in Simd::available() {
                let mut blocks = vec![ActBlock::zeroed(); blocks_per_row(x.len())];
                quantize_row(simd, rounding, x, &mut blocks);
                let (got, want): (&[u8], &[u8]) = (bytemuck::cast_slice(&blocks), bytemuck::cast_slice(&expected));
                assert!(got == want, "{simd} {rounding:?} differs from scalar for a row of {}", x.len());
            }
        }
    }
}
