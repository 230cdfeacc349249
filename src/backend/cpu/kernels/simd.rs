//! Which vector instructions a call may use.

use std::fmt;
use std::sync::OnceLock;

/// A level of vector instructions, chosen once at start and passed to every kernel. Levels are ordered: a machine that
/// has one has all below it, so a test can force a lower one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Simd {
    /// Plain Rust, any processor. The reference that the others are tested against.
    Scalar,
    /// AVX2 with FMA and F16C (Haswell, Zen 1 and later).
    Avx2,
    /// AVX-512 with BW, DQ, VL, VNNI, VBMI and GFNI (Ice Lake, Zen 4 and later). Older AVX-512 parts use [`Simd::Avx2`].
    Avx512,
}

impl Simd {
    /// The best level of this machine.
    #[inline]
    pub fn detect() -> Simd {
        static BEST: OnceLock<Simd> = OnceLock::new();
        *BEST.get_or_init(|| *Simd::available().last().unwrap_or(&Simd::Scalar))
    }

    /// All levels this machine can run, lowest first.
    pub fn available() -> &'static [Simd] {
        const ALL: &[Simd] = &[Simd::Scalar, Simd::Avx2, Simd::Avx512];
        let count = if !has_avx2() {
            1
        } else if !has_avx512() {
            2
        } else {
            3
        };
        &ALL[..count]
    }

    /// This level, or the best one the machine has if it is lower. Kernels call it before they enter vector code.
    #[inline]
    pub(super) fn clamp_to_machine(self) -> Simd {
        self.min(Simd::detect())
    }
}

impl fmt::Display for Simd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Simd::Scalar => "scalar",
            Simd::Avx2 => "AVX2",
            Simd::Avx512 => "AVX-512 VNNI",
        })
    }
}

#[cfg(target_arch = "x86_64")]
fn has_avx2() -> bool {
    is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c")
}

#[cfg(target_arch = "x86_64")]
fn has_avx512() -> bool {
    is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512vl")
        && is_x86_feature_detected!("avx512vnni")
        && is_x86_feature_detected!("avx512vbmi")
        && is_x86_feature_detected!("gfni")
}

#[cfg(not(target_arch = "x86_64"))]
fn has_avx2() -> bool {
    false
}

#[cfg(not(target_arch = "x86_64"))]
fn has_avx512() -> bool {
    false
}
