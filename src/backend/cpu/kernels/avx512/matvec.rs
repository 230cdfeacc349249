//! Products with few rows of activations (decoding): every row of weights is unpacked once, in registers.

use super::super::job::Job;
use super::super::layout::{SUPER, superblocks};
use super::{Super, Unpack};
use crate::backend::cpu::kernels::activations::ActBlock;
use std::arch::x86_64::*;

/// How far ahead of the weights in use to ask for memory.
const PREFETCH_BYTES: usize = 1024;

/// # Safety
/// The machine has the features of the level; `job` is checked and has at most 8 tokens.
pub(in super::super) unsafe fn matvec<U: Unpack>(job: &Job) {
    // SAFETY: passed on.
    unsafe {
        match job.tokens.len() {
            0 => {}
            1 => window::<U, 1>(job),
            2 => window::<U, 2>(job),
            3 => window::<U, 3>(job),
            4 => window::<U, 4>(job),
            5 | 6 => window::<U, 6>(job),
            _ => window::<U, 8>(job),
        }
    }
}

/// At most `T` tokens; if fewer, the last is computed more than once.
///
/// # Safety
/// As for [`matvec`].
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,gfni,f16c,fma")]
unsafe fn window<U: Unpack, const T: usize>(job: &Job) {
    let count = job.tokens.len();
    let acts: [*const ActBlock; T] =
        std::array::from_fn(|t| job.act_row(t.min(count - 1)).as_ptr());
    let blocks = superblocks(job.k);
    let whole = job.k / SUPER;
    for row in job.rows.clone() {
        let bytes = job.weight_row(row);
        let mut sums = [_mm512_setzero_ps(); T];
        // SAFETY: a row has `whole` times `BYTES` bytes, and activations `blocks` blocks. Prefetching is harmless.
        unsafe {
            let mut p = bytes.as_ptr();
            for b in 0..whole {
                for line in 0..U::BYTES.div_ceil(64) {
                    _mm_prefetch::<_MM_HINT_T0>(p.wrapping_add(PREFETCH_BYTES + 64 * line).cast());
                }
                accumulate::<U, T>(U::unpack(p), &acts, b, &mut sums);
                p = p.add(U::BYTES);
            }
            if whole < blocks {
                let rest = Padded::new(&bytes[whole * U::BYTES..]);
                accumulate::<U, T>(U::unpack(rest.0.as_ptr()), &acts, whole, &mut sums);
            }
            for (t, &sum) in sums.iter().enumerate().take(count) {
                *job.out.at(t, row) = _mm512_reduce_add_ps(sum);
            }
        }
    }
}

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
unsafe fn accumulate<U: Unpack, const T: usize>(
    w: Super,
    acts: &[*const ActBlock; T],
    b: usize,
    sums: &mut [__m512; T],
) {
    for (t, sum) in sums.iter_mut().enumerate() {
        // SAFETY: the block is there, and its arrays are aligned to 64.
        unsafe {
            let act = acts[t].add(b);
            let q = |j: usize| _mm512_load_si512((&raw const (*act).q).cast::<__m512i>().add(j));
            let mut dots = match U::SHIFT {
                Some(0) => _mm512_load_si512((&raw const (*act).neg_sum).cast()),
                Some(shift) => {
                    let neg_sum = _mm512_load_si512((&raw const (*act).neg_sum).cast());
                    _mm512_sll_epi32(neg_sum, _mm_cvtsi32_si128(shift as i32))
                }
                None => _mm512_setzero_si512(),
            };
            for (j, &w) in w.q.iter().enumerate() {
                dots = _mm512_dpbusd_epi32(dots, w, q(j));
            }
            let scale = _mm512_mul_ps(w.scale, _mm512_load_ps((&raw const (*act).scale).cast()));
            *sum = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dots), scale, *sum);
            if U::MINS {
                *sum = _mm512_fmadd_ps(
                    w.min,
                    _mm512_load_ps((&raw const (*act).scaled_sum).cast()),
                    *sum,
                );
            }
        }
    }
}
