//! Products: with few rows of activations weights are unpacked in registers, with many to scratch memory first.

use super::super::activations::ActBlock;
use super::super::job::Job;
use super::super::layout::{SUPER, superblocks};
use super::Unpack;
use super::blocks::transpose;
use crate::backend::cpu::kernels::each::each;
use std::arch::x86_64::*;

/// How far ahead of the weights in use to ask for memory.
const PREFETCH_BYTES: usize = 1024;
/// Rows times superblocks of weights that are unpacked at a time.
const PANEL_BLOCKS: usize = 128;
/// Activation rows that share a pass over the unpacked weights.
const WINDOW: usize = 4;

/// An unpacked superblock in the order of the layout.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(super) struct PanelBlock {
    q: [[__m256i; 4]; 2],
    scale: [__m256; 2],
    min: [__m256; 2],
}

/// Bytes of scratch, aligned to 64, that [`matmul`] needs.
pub(in super::super) const SCRATCH_BYTES: usize = PANEL_BLOCKS * size_of::<PanelBlock>();

/// # Safety
/// The machine has the features of the level; `job` is checked and has at most 8 tokens.
pub(in super::super) unsafe fn matvec<U: Unpack>(job: &Job) {
    // SAFETY: passed on.
    unsafe {
        match job.tokens.len() {
            0 => {}
            1 => window::<U, 1>(job, 0),
            2 => window::<U, 2>(job, 0),
            3 | 4 => window::<U, 4>(job, 0),
            _ => window::<U, 8>(job, 0),
        }
    }
}

/// # Safety
/// The machine has the features of the level, `job` is checked, and `scratch` is `SCRATCH_BYTES` of memory aligned to
/// 64, initialised, and used by no one else.
#[target_feature(enable = "avx2,fma,f16c")]
pub(in super::super) unsafe fn matmul<U: Unpack>(job: &Job, scratch: *mut u8) {
    let blocks = superblocks(job.k);
    let panel_rows = PANEL_BLOCKS / blocks;
    if panel_rows == 0 {
        // Rows longer than the scratch.
        for first in (0..job.tokens.len()).step_by(8) {
            // SAFETY: passed on.
            unsafe { window::<U, 8>(job, first) };
        }
        return;
    }
    let panel = scratch.cast::<PanelBlock>();
    let mut row = job.rows.start;
    while row < job.rows.end {
        let count = panel_rows.min(job.rows.end - row);
        // SAFETY: the panel holds `panel_rows` rows; tokens and rows are in the output.
        unsafe {
            for r in 0..count {
                unpack_row::<U>(job, row + r, panel.add(r * blocks));
            }
            for first in (0..job.tokens.len()).step_by(WINDOW) {
                let (acts, tokens) = rows_of::<WINDOW>(job, first);
                for r in 0..count {
                    let mut sums = [_mm256_setzero_ps(); WINDOW];
                    for b in 0..blocks {
                        accumulate::<U, WINDOW>(&*panel.add(r * blocks + b), &acts, b, &mut sums);
                    }
                    for (t, &sum) in sums.iter().enumerate().take(tokens) {
                        *job.out.at(first + t, row + r) = horizontal_sum(sum);
                    }
                }
            }
        }
        row += count;
    }
}

/// The activations of `T` tokens from `first`, and how many there are; if fewer, the last stands in.
fn rows_of<const T: usize>(job: &Job, first: usize) -> ([*const ActBlock; T], usize) {
    let count = (job.tokens.len() - first).min(T);
    (std::array::from_fn(|t| job.act_row(first + t.min(count - 1)).as_ptr()), count)
}

/// # Safety
/// As for [`matvec`]; `first` is below the number of tokens.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn window<U: Unpack, const T: usize>(job: &Job, first: usize) {
    let (acts, count) = rows_of::<T>(job, first);
    let blocks = superblocks(job.k);
    for row in job.rows.clone() {
        let bytes = job.weight_row(row);
        let mut sums = [_mm256_setzero_ps(); T];
        for b in 0..blocks {
            // SAFETY: rows of activations have `blocks` blocks.
            unsafe {
                let w = unpack_block::<U>(&bytes[b * U::BYTES..]);
                accumulate::<U, T>(&w, &acts, b, &mut sums);
            }
        }
        for (t, &sum) in sums.iter().enumerate().take(count) {
            // SAFETY: the job is checked.
            unsafe { *job.out.at(first + t, row) = horizontal_sum(sum) };
        }
    }
}

/// # Safety
/// `out` has room for the superblocks of a row.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn unpack_row<U: Unpack>(job: &Job, row: usize, out: *mut PanelBlock) {
    let bytes = job.weight_row(row);
    for b in 0..superblocks(job.k) {
        // SAFETY: see above.
        unsafe { *out.add(b) = unpack_block::<U>(&bytes[b * U::BYTES..]) };
    }
}

/// The first superblock of `bytes`; if there is only part of one, the rest is weights of value 0.
///
/// # Safety
/// The machine has the features of the level.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn unpack_block<U: Unpack>(bytes: &[u8]) -> PanelBlock {
    let w = if bytes.len() >= U::BYTES {
        for line in 0..U::BYTES.div_ceil(64) {
            // Prefetching is harmless.
            _mm_prefetch::<_MM_HINT_T0>(bytes.as_ptr().wrapping_add(PREFETCH_BYTES + 64 * line).cast());
        }
        // SAFETY: `BYTES` are there.
        unsafe { U::unpack(bytes.as_ptr()) }
    } else {
        let mut padded = [0u8; SUPER + 64];
        padded[..bytes.len()].copy_from_slice(bytes);
        // SAFETY: no format needs more than 8 * 34 bytes.
        unsafe { U::unpack(padded.as_ptr()) }
    };
    PanelBlock { q: transpose(w.q), scale: w.scale, min: w.min }
}

/// # Safety
/// Every pointer of `acts` has more than `b` blocks.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn accumulate<U: Unpack, const T: usize>(w: &PanelBlock, acts: &[*const ActBlock; T], b: usize, sums: &mut [__m256; T]) {
    for half in 0..2 {
        for (t, sum) in sums.iter_mut().enumerate() {
            // SAFETY: the block is there, and its arrays are aligned to 64.
            unsafe {
                let act = acts[t].add(b);
                let part = 8 * half;
                let start = match U::SHIFT {
                    Some(shift) if U::MAX < 128 => {
                        let neg_sum = (&raw const (*act).neg_sum).cast::<i32>().add(part);
                        _mm256_sll_epi32(_mm256_load_si256(neg_sum.cast()), _mm_cvtsi32_si128(shift as i32))
                    }
                    _ => _mm256_setzero_si256(),
                };
                let a = (&raw const (*act).q).cast::<__m256i>().add(half);
                let dots = _mm256_cvtepi32_ps(dots::<U>(&w.q[half], a, start));
                let scale = _mm256_load_ps((&raw const (*act).scale).cast::<f32>().add(part));
                *sum = _mm256_fmadd_ps(dots, _mm256_mul_ps(w.scale[half], scale), *sum);
                if U::MINS {
                    let scaled_sum = _mm256_load_ps((&raw const (*act).scaled_sum).cast::<f32>().add(part));
                    *sum = _mm256_fmadd_ps(w.min[half], scaled_sum, *sum);
                }
            }
        }
    }
}

/// `start` plus the sums of products of the lanes of four vectors. `vpmaddubsw` adds pairs of products in 16 bits, so
/// as many pairs are added there as the largest weight allows; above 127 the weights take the sign of the activations.
///
/// # Safety
/// `a` has seven aligned vectors: those of the other half lie between.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn dots<U: Unpack>(w: &[__m256i; 4], a: *const __m256i, start: __m256i) -> __m256i {
    // SAFETY: see above.
    let a: [__m256i; 4] = each!(4, |j| unsafe { _mm256_load_si256(a.add(2 * j)) });
    let ones = _mm256_set1_epi16(1);
    let products: [__m256i; 4] = each!(4, |j| {
        if U::MAX < 128 {
            _mm256_maddubs_epi16(w[j], a[j])
        } else {
            // |w| is at most 128 and |a| at most 127, so two products fit.
            let w = _mm256_xor_si256(w[j], _mm256_set1_epi8(-128));
            _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(a[j], w))
        }
    });
    let [p, q, r, s] = products;
    let wide = |x| _mm256_madd_epi16(x, ones);
    let sum = match U::MAX {
        0..=32 => wide(_mm256_add_epi16(_mm256_add_epi16(p, q), _mm256_add_epi16(r, s))),
        33..=64 => _mm256_add_epi32(wide(_mm256_add_epi16(p, q)), wide(_mm256_add_epi16(r, s))),
        _ => _mm256_add_epi32(_mm256_add_epi32(wide(p), wide(q)), _mm256_add_epi32(wide(r), wide(s))),
    };
    _mm256_add_epi32(start, sum)
}

#[inline]
#[target_feature(enable = "avx2")]
fn horizontal_sum(x: __m256) -> f32 {
    let x = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps::<1>(x));
    let x = _mm_add_ps(x, _mm_movehl_ps(x, x));
    _mm_cvtss_f32(_mm_add_ss(x, _mm_movehdup_ps(x)))
}
