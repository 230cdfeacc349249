//! The AVX2 level: weights are unpacked to unsigned bytes in natural order, transposed to the order of the layout, and
//! multiplied with `vpmaddubsw`.
//!
//! Every function here is compiled for AVX2, FMA and F16C and may only be called on a machine that has them; that is the
//! whole safety contract unless a function says more.

mod blocks;
mod iquants;
mod kquants;
mod matmul;
mod quantize;

pub(super) use blocks::{MXFP4, NVFP4, Q2_0, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, TQ1_0, TQ2_0};
pub(super) use iquants::{IQ1M, IQ1S, IQ2S, IQ2XS, IQ2XXS, IQ3S, IQ3XXS, IQ4NL, IQ4XS};
pub(super) use kquants::{Q2K, Q3K, Q4K, Q5K, Q6K};
pub(super) use matmul::{SCRATCH_BYTES, matmul, matvec};
pub(super) use quantize::quantize_block;

use std::arch::x86_64::*;

/// 256 weights, `scale * (q - offset) + min`, in natural order: 32 weights a vector.
#[derive(Clone, Copy)]
pub(super) struct Super {
    pub q: [__m256i; 8],
    /// The scales of the lanes of both halves of the layout.
    pub scale: [__m256; 2],
    /// What is added to the weights; only looked at if [`Unpack::MINS`].
    pub min: [__m256; 2],
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
    /// The largest `q`.
    const MAX: u8;

    /// # Safety
    /// `p..p + BYTES` is readable, and the machine has the features of the level.
    unsafe fn unpack(p: *const u8) -> Super;
}

/// `unpack! { Name, bytes, shift, mins, max, |p| body }`: an unpacker type. `body` gives a [`Super`].
macro_rules! unpack {
    ($name:ident, $bytes:expr, shift: $shift:expr, mins: $mins:expr, max: $max:expr, |$p:ident| $body:block) => {
        pub(in super::super) struct $name;

        // SAFETY: every load of the body is inside its block; the test of all formats runs against guard pages.
        unsafe impl Unpack for $name {
            const BYTES: usize = $bytes;
            const SHIFT: Option<u32> = $shift;
            const MINS: bool = $mins;
            const MAX: u8 = $max;

            #[inline]
            #[target_feature(enable = "avx2,fma,f16c")]
            unsafe fn unpack($p: *const u8) -> Super {
                // SAFETY: the caller vouches for `p` and the features.
                unsafe { $body }
            }
        }
    };
}
use unpack;
