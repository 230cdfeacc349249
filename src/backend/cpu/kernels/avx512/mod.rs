//! The AVX-512 level: weights are unpacked to unsigned bytes in registers (see [`Unpack`]), multiplied with
//! `vpdpbusd`, and finished in f32.
//!
//! Every function here is compiled for the features of [`super::Simd::Avx512`] and may only be called on a machine
//! that has them; that is the whole safety contract unless a function says more.

mod blocks;
mod fp4;
mod iq1;
mod iq2;
mod iq3;
mod iq4;
mod kquants;
mod lookup;
mod matmul;
mod matvec;
mod order;
mod quantize;
mod ternary;

pub(super) use blocks::{Q2_0, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0};
pub(super) use fp4::{MXFP4, NVFP4};
pub(super) use iq1::{IQ1M, IQ1S};
pub(super) use iq2::{IQ2S, IQ2XS, IQ2XXS};
pub(super) use iq3::{IQ3S, IQ3XXS};
pub(super) use iq4::{IQ4NL, IQ4XS};
pub(super) use kquants::{Q2K, Q3K, Q4K, Q5K, Q6K};
pub(super) use matmul::{SCRATCH_BYTES, matmul};
pub(super) use matvec::matvec;
pub(super) use quantize::quantize_block;
pub(super) use ternary::{TQ1_0, TQ2_0};

use std::arch::x86_64::*;

/// 256 weights, `scale * (q - offset) + min`, in the order of [`super::layout`].
#[derive(Clone, Copy)]
pub(super) struct Super {
    pub q: [__m512i; 4],
    /// The scale of each lane.
    pub scale: __m512,
    /// What is added to the weights of each lane; only looked at if [`Unpack::MINS`].
    pub min: __m512,
}

impl Super {
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn zero() -> Super {
        Super { q: [_mm512_setzero_si512(); 4], scale: _mm512_setzero_ps(), min: _mm512_setzero_ps() }
    }
}

/// How a format stores 256 weights.
///
/// # Safety
/// `BYTES` is the size of 256 weights in the file, and `unpack` reads no byte outside `p..p + BYTES`.
pub(super) unsafe trait Unpack {
    const BYTES: usize;
    /// The offset of `q` is `1 << SHIFT`; `None` if `q` needs no offset.
    const SHIFT: Option<u32>;
    /// Whether the weights have minimums.
    const MINS: bool;
    /// Whether each 16 weights have a scale of their own; else pairs of groups (32 weights) share one.
    const BY_16: bool;

    /// # Safety
    /// `p..p + BYTES` is readable, and the machine has the features of the level.
    unsafe fn unpack(p: *const u8) -> Super;
}

/// `unpack! { Name, bytes, shift, mins, by_16, |p| body }`: an unpacker type. `body` gives a [`Super`].
macro_rules! unpack {
    ($(#[$doc:meta])* $name:ident, $bytes:expr, shift: $shift:expr, mins: $mins:expr, by_16: $by_16:expr, |$p:ident| $body:block) => {
        $(#[$doc])*
        pub(in super::super) struct $name;

        // SAFETY: every load of the body is inside its block; the test of all formats runs against guard pages.
        unsafe impl Unpack for $name {
            const BYTES: usize = $bytes;
            const SHIFT: Option<u32> = $shift;
            const MINS: bool = $mins;
            const BY_16: bool = $by_16;

            #[inline]
            #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,gfni,f16c,fma")]
            unsafe fn unpack($p: *const u8) -> Super {
                // SAFETY: the caller vouches for `p` and the features.
                unsafe { $body }
            }
        }
    };
}
use unpack;
