//! The one table from format to kernels.

use super::job::Job;
use super::scalar;
use super::simd::Simd;
use crate::quant::Format;

/// Activation rows, at most, that the matrix-vector kernels take in one pass over the weights.
#[cfg(target_arch = "x86_64")]
const WINDOW_MAX: usize = 8;

#[cfg(target_arch = "x86_64")]
type Kernel = unsafe fn(&Job);
#[cfg(target_arch = "x86_64")]
type KernelWithScratch = unsafe fn(&Job, *mut u8);

/// The kernels of a format. Their contract: the machine has the level, and the job is checked.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy)]
struct Kernels {
    avx2_matvec: Kernel,
    avx2_matmul: KernelWithScratch,
    avx512_matvec: Kernel,
    avx512_matmul: KernelWithScratch,
}

/// Formats whose weights stay floats; see [`super::float`].
pub const fn is_float(format: Format) -> bool {
    matches!(format, Format::F32 | Format::F16 | Format::BF16)
}

#[cfg(target_arch = "x86_64")]
macro_rules! table {
    ($($format:ident $name:ident;)*) => {
        const fn kernels(format: Format) -> Option<Kernels> {
            use super::{avx2, avx512};
            match format {
                Format::F32 | Format::F16 | Format::BF16 => None,
                $(Format::$format => Some(Kernels {
                    avx2_matvec: avx2::matvec::<avx2::$name>,
                    avx2_matmul: avx2::matmul::<avx2::$name>,
                    avx512_matvec: avx512::matvec::<avx512::$name>,
                    avx512_matmul: avx512::matmul::<avx512::$name>,
                }),)*
            }
        }
    };
}

// No catch-all: a new format does not compile until it has kernels.
#[cfg(target_arch = "x86_64")]
table! {
    Q8_0 Q8_0;
    Q4_0 Q4_0;
    Q4_1 Q4_1;
    Q5_0 Q5_0;
    Q5_1 Q5_1;
    Q2_K Q2K;
    Q3_K Q3K;
    Q4_K Q4K;
    Q5_K Q5K;
    Q6_K Q6K;
    IQ1_S IQ1S;
    IQ1_M IQ1M;
    IQ2_XXS IQ2XXS;
    IQ2_XS IQ2XS;
    IQ2_S IQ2S;
    IQ3_XXS IQ3XXS;
    IQ3_S IQ3S;
    IQ4_NL IQ4NL;
    IQ4_XS IQ4XS;
    Q2_0 Q2_0;
    MXFP4 MXFP4;
    NVFP4 NVFP4;
    TQ1_0 TQ1_0;
    TQ2_0 TQ2_0;
}

/// Runs a checked product of a quantised format.
///
/// `scratch` is [`SCRATCH_BYTES`] of initialised memory aligned to 64.
#[cfg(target_arch = "x86_64")]
pub(super) fn run(simd: Simd, format: Format, job: &Job, scratch: *mut u8) {
    let (simd, Some(kernels)) = (simd.clamp_to_machine(), kernels(format)) else {
        return scalar::product(format, job);
    };
    let few = job.tokens.len() <= WINDOW_MAX;
    // SAFETY: the machine has the level; the job is checked; the scratch is large enough for every level.
    unsafe {
        match simd {
            Simd::Scalar => scalar::product(format, job),
            Simd::Avx2 if few => (kernels.avx2_matvec)(job),
            Simd::Avx2 => (kernels.avx2_matmul)(job, scratch),
            Simd::Avx512 if few => (kernels.avx512_matvec)(job),
            Simd::Avx512 => (kernels.avx512_matmul)(job, scratch),
        }
    }
}

#[cfg(not(target_arch = "x86_64"))]
pub(super) fn run(_simd: Simd, format: Format, job: &Job, _scratch: *mut u8) {
    scalar::product(format, job);
}

/// Scratch that any level needs, aligned to 64.
#[cfg(target_arch = "x86_64")]
pub(super) const SCRATCH_BYTES: usize = if super::avx512::SCRATCH_BYTES > super::avx2::SCRATCH_BYTES {
    super::avx512::SCRATCH_BYTES
} else {
    super::avx2::SCRATCH_BYTES
};
#[cfg(not(target_arch = "x86_64"))]
pub(super) const SCRATCH_BYTES: usize = 64;
