//! Activations in 8 bits: what the quantised products take as their right side.

use super::layout::{ACT_GROUP, SUPER, position, superblocks};
use super::simd::Simd;
use bytemuck::{Pod, Zeroable};

/// 256 activations of one row, each `q * scale`, in the order of [`super::layout`]. A row of `k` activations is
/// [`blocks_per_row`]`(k)` of these; what is past `k` is zero.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C, align(64))]
pub struct ActBlock {
    pub(super) q: [i8; SUPER],
    /// The scale of each lane (activations share one by 32, so each stands twice).
    pub(super) scale: [f32; 16],
    /// Minus the sum of the 16 `q` of each lane: undoes the offset that makes weights unsigned.
    pub(super) neg_sum: [i32; 16],
    /// Scale times sum of `q` of each lane: goes with the minimum of formats that have one.
    pub(super) scaled_sum: [f32; 16],
}

const _: () = assert!(size_of::<ActBlock>() == 448);

/// Blocks that hold a row of `k` activations.
pub const fn blocks_per_row(k: usize) -> usize {
    superblocks(k)
}

/// Bytes of a buffer of `rows` quantised rows of `k` activations, for the planner. It must be aligned to 64.
pub const fn bytes_for(rows: usize, k: usize) -> usize {
    rows * blocks_per_row(k) * size_of::<ActBlock>()
}

/// Quantises one row to 8 bits with a scale for every 32 activations. Rows are independent: threads may share the
/// work by splitting the buffer with `chunks_mut(blocks_per_row(k))`.
///
/// # Panics
/// If `out` is not exactly `blocks_per_row(x.len())` long.
pub fn quantize_row(simd: Simd, x: &[f32], out: &mut [ActBlock]) {
    assert_eq!(out.len(), blocks_per_row(x.len()), "blocks for a row of {}", x.len());
    let (whole, rest) = x.as_chunks::<SUPER>();
    for (x, out) in whole.iter().zip(out.iter_mut()) {
        quantize_block(simd, x, out);
    }
    if !rest.is_empty() {
        let mut padded = [0.0; SUPER];
        padded[..rest.len()].copy_from_slice(rest);
        quantize_block(simd, &padded, &mut out[whole.len()]);
    }
}

/// Quantises `rows` rows of `k` that stand `stride` floats apart.
pub fn quantize_rows(simd: Simd, x: &[f32], k: usize, stride: usize, out: &mut [ActBlock]) {
    if k == 0 {
        return;
    }
    for (row, out) in out.chunks_exact_mut(blocks_per_row(k)).enumerate() {
        quantize_row(simd, &x[row * stride..][..k], out);
    }
}

/// The values that a quantised row stands for.
pub fn dequantize_row(blocks: &[ActBlock], out: &mut [f32]) {
    for (i, out) in out.iter_mut().enumerate() {
        let block = &blocks[i / SUPER];
        let at = position(i % SUPER);
        *out = f32::from(block.q[at]) * block.scale[at % 64 / 4];
    }
}

fn quantize_block(simd: Simd, x: &[f32; SUPER], out: &mut ActBlock) {
    match simd.clamp_to_machine() {
        // SAFETY: the machine has the instructions of the level.
        #[cfg(target_arch = "x86_64")]
        Simd::Avx512 => unsafe { super::avx512::quantize_block(x, out) },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        Simd::Avx2 => unsafe { super::avx2::quantize_block(x, out) },
        _ => quantize_block_scalar(x, out),
    }
}

/// Every level computes exactly this: the scale is the largest magnitude over 127, values round to the nearest step,
/// ties to even.
fn quantize_block_scalar(x: &[f32; SUPER], out: &mut ActBlock) {
    for (g, x) in x.as_chunks::<ACT_GROUP>().0.iter().enumerate() {
        let max = x.iter().fold(0.0f32, |max, x| max.max(x.abs()));
        let scale = max / 127.0;
        let inverse = inverse_scale(max);
        for (half, x) in x.as_chunks::<16>().0.iter().enumerate() {
            let mut sum = 0;
            for (i, x) in x.iter().enumerate() {
                let q = (x * inverse).round_ties_even().clamp(-127.0, 127.0) as i8;
                out.q[position(32 * g + 16 * half + i)] = q;
                sum += i32::from(q);
            }
            let lane = position(32 * g + 16 * half) / 4;
            out.scale[lane] = scale;
            out.neg_sum[lane] = -sum;
            out.scaled_sum[lane] = scale * sum as f32;
        }
    }
}

/// 127 over the largest magnitude; 0 where that is too small to invert (all values then round to 0).
pub(super) fn inverse_scale(max: f32) -> f32 {
    let inverse = 127.0 / max;
    if inverse.is_finite() { inverse } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        for k in [32, 160, 256, 576, 640, 1024] {
            let x = sample(k);
            let mut blocks = vec![ActBlock::zeroed(); blocks_per_row(k)];
            quantize_row(Simd::Scalar, &x, &mut blocks);
            let mut back = vec![0.0; k];
            dequantize_row(&blocks, &mut back);
            for (x, back) in x.as_chunks::<32>().0.iter().zip(back.as_chunks::<32>().0) {
                let step = x.iter().fold(0.0f32, |max, x| max.max(x.abs())) / 127.0;
                assert!(x.iter().zip(back).all(|(x, back)| (x - back).abs() <= step * 0.5001));
            }
        }
    }

    #[test]
    fn all_levels_give_the_same_bytes() {
        let mut rows = vec![sample(576), sample(1024), vec![0.0; 300], vec![1e-42; 256], vec![-3.0e38; 64]];
        rows.push((0..256).map(|i| if i % 3 == 0 { -0.5 } else { 126.5 + i as f32 }).collect());
        for x in rows {
            let mut expected = vec![ActBlock::zeroed(); blocks_per_row(x.len())];
            quantize_row(Simd::Scalar, &x, &mut expected);
            for &simd in Simd::available() {
                let mut blocks = vec![ActBlock::zeroed(); blocks_per_row(x.len())];
                quantize_row(simd, &x, &mut blocks);
                let (got, want): (&[u8], &[u8]) = (bytemuck::cast_slice(&blocks), bytemuck::cast_slice(&expected));
                assert!(got == want, "{simd} differs from scalar for a row of {}", x.len());
            }
        }
    }
}
