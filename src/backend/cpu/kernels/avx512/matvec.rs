//! Products with few rows of activations (decoding): every row of weights is unpacked once, in registers.

use super::super::job::Job;
use super::super::layout::{GROUP_OF_LANE, SUPER, superblocks};
use super::blocks::load;
use super::order::{STRETCH, add_pairs, add_pairs_ps, sum_lanes};
use super::{Super, Unpack};
use crate::backend::cpu::kernels::activations::{ActBlock, FINE_BITS};
use std::arch::x86_64::*;

/// Activations of this size are read again for every row from the first cache.
const CACHE_BYTES: usize = 30 * 1024;

/// How far ahead of the weights in use to ask for memory.
const PREFETCH_BYTES: usize = 3072;

/// # Safety
/// The machine has the features of the level; `job` is checked and has at most 8 tokens.
pub(in super::super) unsafe fn matvec<U: Unpack>(job: &Job) {
    if job.tokens.is_empty() {
        return;
    }
    // Two rows at a time share the loads of activations, but one row after the other is what memory gives fastest.
    let acts_bytes = job.tokens.len() * size_of_val(job.act_row(0));
    let pairs = acts_bytes > CACHE_BYTES;
    // SAFETY: passed on.
    unsafe {
        match (job.tokens.len(), pairs) {
            (1, _) => window::<U, 1, 1>(job),
            (2, _) => window::<U, 1, 2>(job),
            (3, _) => window::<U, 1, 3>(job),
            (4, false) => window::<U, 1, 4>(job),
            (4, true) => window::<U, 2, 4>(job),
            (5 | 6, false) => window::<U, 1, 6>(job),
            (5 | 6, true) => window::<U, 2, 6>(job),
            (_, false) => window::<U, 1, 8>(job),
            (_, true) => window::<U, 2, 8>(job),
        }
    }
}

/// At most `T` tokens, `R` rows at a time. Where there are fewer tokens or rows, the last is computed more than once.
///
/// # Safety
/// As for [`matvec`].
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,gfni,f16c,fma")]
unsafe fn window<U: Unpack, const R: usize, const T: usize>(job: &Job) {
    let count = job.tokens.len();
    let acts: [*const ActBlock; T] = std::array::from_fn(|t| job.act_row(t.min(count - 1)).as_ptr());
    let fine = job.acts.rounding.is_fine();
    let (whole, blocks) = (job.k / SUPER, superblocks(job.k));
    // Rows taken together must not leave out the ones after them.
    let ahead_bytes = PREFETCH_BYTES.max(if R > 1 { R * job.row_bytes } else { 0 });
    for row in job.rows.clone().step_by(R) {
        let rows: [usize; R] = std::array::from_fn(|r| (row + r).min(job.rows.end - 1));
        let starts: [*const u8; R] = std::array::from_fn(|r| job.weight_row(rows[r]).as_ptr());
        let mut totals = [[0.0; T]; R];
        // SAFETY: a row has `whole` times `BYTES` bytes and perhaps a part, and activations have a block for each.
        // Prefetching is harmless.
        unsafe {
            for first in (0..blocks).step_by(STRETCH) {
                let end = (first + STRETCH).min(blocks);
                let mut sums = [[_mm512_setzero_ps(); T]; R];
                for b in first..end.min(whole) {
                    let mut w = [Super::zero(); R];
                    for r in 0..R {
                        let p = starts[r].add(b * U::BYTES);
                        for line in 0..U::BYTES.div_ceil(64) {
                            let ahead = p.wrapping_add(ahead_bytes + 64 * line);
                            _mm_prefetch::<_MM_HINT_T0>(ahead.cast());
                        }
                        w[r] = U::unpack(p);
                    }
                    accumulate::<U, R, T>(&w, &acts, b, fine, &mut sums);
                }
                if end > whole {
                    let mut w = [Super::zero(); R];
                    for r in 0..R {
                        w[r] = last::<U>(job, rows[r]);
                    }
                    accumulate::<U, R, T>(&w, &acts, whole, fine, &mut sums);
                }
                for r in 0..R {
                    for t in 0..T {
                        let sum = sum_lanes(sums[r][t], U::BY_16);
                        totals[r][t] = if first == 0 { sum } else { totals[r][t] + sum };
                    }
                }
            }
            for (row, totals) in rows.into_iter().zip(&totals) {
                for (t, &total) in totals.iter().enumerate().take(count) {
                    *job.out.at(t, row) = total;
                }
            }
        }
    }
}

/// The partial superblock at the end of a row, with scales of 0 past its end.
///
/// # Safety
/// The machine has the features of the level; the row is in the job and has one.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,gfni,f16c,fma")]
unsafe fn last<U: Unpack>(job: &Job, row: usize) -> Super {
    let whole_bytes = job.k / SUPER * U::BYTES;
    let bytes = &job.weights[row * job.row_bytes + whole_bytes..];
    // SAFETY: passed on; in place only if the rows after this one have enough bytes.
    unsafe {
        if bytes.len() < U::BYTES {
            return U::unpack(Padded::new(&bytes[..job.row_bytes - whole_bytes]).0.as_ptr());
        }
        let mut w = U::unpack(bytes.as_ptr());
        let groups = job.k % SUPER / 16;
        let places = _mm512_cmplt_epi32_mask(load(&GROUP_NUMBERS), _mm512_set1_epi32(groups as i32));
        w.scale = _mm512_maskz_mov_ps(places, w.scale);
        w.min = _mm512_maskz_mov_ps(places, w.min);
        w
    }
}

/// The group of 16 in every lane.
const GROUP_NUMBERS: [i32; 16] = {
    let mut numbers = [0; 16];
    let mut lane = 0;
    while lane < 16 {
        numbers[lane] = GROUP_OF_LANE[lane] as i32;
        lane += 1;
    }
    numbers
};

/// The bytes of a partial superblock, followed by zeros, which stand for weights of value 0 in every format.
#[repr(C, align(64))]
pub(super) struct Padded(pub [u8; 320]);

impl Padded {
    #[inline]
    pub fn new(bytes: &[u8]) -> Padded {
        let mut padded = Padded([0; 320]);
        padded.0[..bytes.len()].copy_from_slice(bytes);
        padded
    }
}

/// # Safety
/// Every pointer of `acts` has more than `b` blocks.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,gfni,f16c,fma")]
unsafe fn accumulate<U: Unpack, const R: usize, const T: usize>(
    w: &[Super; R],
    acts: &[*const ActBlock; T],
    b: usize,
    fine: bool,
    sums: &mut [[__m512; T]; R],
) {
    for t in 0..T {
        // SAFETY: the block is there, and its arrays are aligned to 64.
        unsafe {
            let act = acts[t].add(b);
            let q = (&raw const (*act).q).cast::<__m512i>();
            let start = match U::SHIFT {
                Some(shift) => {
                    let neg_sum = _mm512_load_si512((&raw const (*act).neg_sum).cast());
                    _mm512_sll_epi32(neg_sum, _mm_cvtsi32_si128(shift as i32))
                }
                None => _mm512_setzero_si512(),
            };
            let act_scale = _mm512_load_ps((&raw const (*act).scale).cast());
            let mut dots = [if fine { _mm512_setzero_si512() } else { start }; R];
            for j in 0..4 {
                let q = _mm512_load_si512(q.add(j));
                for r in 0..R {
                    dots[r] = _mm512_dpbusd_epi32(dots[r], w[r].q[j], q);
                }
            }
            if fine {
                for dots in &mut dots {
                    *dots = _mm512_add_epi32(_mm512_slli_epi32::<FINE_BITS>(*dots), start);
                }
                let q = (&raw const (*act).fine).cast::<__m512i>();
                for j in 0..4 {
                    let q = _mm512_load_si512(q.add(j));
                    for r in 0..R {
                        dots[r] = _mm512_dpbusd_epi32(dots[r], w[r].q[j], q);
                    }
                }
            }
            for r in 0..R {
                let dots = if U::BY_16 { dots[r] } else { add_pairs(dots[r]) };
                let scale = _mm512_mul_ps(w[r].scale, act_scale);
                sums[r][t] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dots), scale, sums[r][t]);
            }
            if U::MINS {
                let scaled_sum = _mm512_load_ps((&raw const (*act).scaled_sum).cast());
                let scaled_sum = if U::BY_16 { scaled_sum } else { add_pairs_ps(scaled_sum) };
                for r in 0..R {
                    sums[r][t] = _mm512_fmadd_ps(w[r].min, scaled_sum, sums[r][t]);
                }
            }
        }
    }
}
