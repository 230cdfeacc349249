//! MXFP4 and NVFP4: 4-bit floating point weights (E2M1) with a small floating point scale.
//!
//! Codes are looked up in [`E2M1_DOUBLED`], which holds twice the value so that it is an integer; the scales are halved
//! to match.

use bytemuck::{Pod, Zeroable};

use super::block::{Block, abs_max};
use super::legacy::{nibbles, pack_nibbles};

/// Twice the value of the sixteen E2M1 codes: sign bit, two exponent bits, one mantissa bit. Code 8 ("-0") is 0.
pub const E2M1_DOUBLED: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

/// OCP microscaling format: 32 weights, `w = (2^(e - 127) / 2) * E2M1_DOUBLED[q]`.
///
/// Nibbles as in Q4_0: byte `j` holds weight `j` (low) and `j + 16` (high). `e` = 255 is NaN in the OCP text, but here,
/// as in ggml, 2^128.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
pub struct BlockMXFP4 {
    pub e: u8,
    pub qs: [u8; 16],
}

/// 64 weights in four groups of 16, each with its own unsigned E4M3 scale: `w = (d / 2) * E2M1_DOUBLED[q]`.
///
/// Group `s` has the scale byte `d[s]` and the bytes `qs[8 s..8 s + 8]`: byte `j` of them holds weights `16 s + j` (low)
/// and `16 s + j + 8` (high). A model may have one more scale per tensor; that is a tensor of its own, not part of
/// the block.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
pub struct BlockNVFP4 {
    pub d: [u8; 4],
    pub qs: [u8; 32],
}

/// Half of the power of two 2^(e - 127): subnormal for `e` below 2.
#[inline]
pub fn e8m0_half_to_f32(e: u8) -> f32 {
    f32::from_bits(match e {
        0 => 0x0020_0000,
        1 => 0x0040_0000,
        _ => (u32::from(e) - 1) << 23,
    })
}

/// Half of an E4M3 number (bias 7) whose sign bit is ignored. 0x7f, NaN in E4M3, is 0.
#[inline]
pub fn ue4m3_half_to_f32(bits: u8) -> f32 {
    let exponent = u32::from(bits >> 3) & 0x0f;
    let mantissa = u32::from(bits) & 0x07;
    match (bits, exponent) {
        (0x7f, _) => 0.0,
        (_, 0) => mantissa as f32 * (1.0 / 1024.0),
        _ => f32::from_bits((exponent + 127 - 8) << 23 | mantissa << 20),
    }
}

impl Block for BlockMXFP4 {
    const LEN: usize = 32;
    /// The power of two that brings the largest magnitude into [4, 8), two binades above 1, where E2M1 ends (at 6).
    const ENCODE: Option<fn(&[f32]) -> Self> = Some(|weights| {
        let biased_exponent = abs_max(weights).to_bits() >> 23;
        let e = biased_exponent.saturating_sub(2) as u8;
        let scale = e8m0_half_to_f32(e);
        let codes = std::array::from_fn(|j| nearest_e2m1(weights[j], scale));
        BlockMXFP4 {
            e,
            qs: pack_nibbles(&codes),
        }
    });

    #[inline]
    fn decode(&self, out: &mut [f32]) {
        let d = e8m0_half_to_f32(self.e);
        for (out, &q) in out.iter_mut().zip(&nibbles(&self.qs)) {
            *out = d * f32::from(E2M1_DOUBLED[usize::from(q)]);
        }
    }
}

impl Block for BlockNVFP4 {
    const LEN: usize = 64;
    const ENCODE: Option<fn(&[f32]) -> Self> = Some(|weights| {
        let mut block = BlockNVFP4 {
            d: [0; 4],
            qs: [0; 32],
        };
        for (s, weights) in weights.chunks_exact(16).enumerate() {
            block.d[s] = nearest_ue4m3(abs_max(weights) / 6.0);
            let scale = ue4m3_half_to_f32(block.d[s]);
            for j in 0..8 {
                let (low, high) = (
                    nearest_e2m1(weights[j], scale),
                    nearest_e2m1(weights[j + 8], scale),
                );
                block.qs[8 * s + j] = low | high << 4;
            }
        }
        block
    });

    #[inline]
    fn decode(&self, out: &mut [f32]) {
        for (s, out) in out.chunks_exact_mut(16).enumerate() {
            let d = ue4m3_half_to_f32(self.d[s]);
            let (low, high) = out.split_at_mut(8);
            for ((low, high), byte) in low.iter_mut().zip(high).zip(&self.qs[8 * s..]) {
                *low = d * f32::from(E2M1_DOUBLED[usize::from(byte & 0x0f)]);
                *high = d * f32::from(E2M1_DOUBLED[usize::from(byte >> 4)]);
            }
        }
    }
}

/// The code whose value times `scale` is nearest to `weight`; the first of equals.
fn nearest_e2m1(weight: f32, scale: f32) -> u8 {
    let error = |code: u8| (scale * f32::from(E2M1_DOUBLED[usize::from(code)]) - weight).abs();
    (0..16).fold(0, |best, code| {
        if error(code) < error(best) {
            code
        } else {
            best
        }
    })
}

/// The E4M3 number nearest to `value`, at least 0 and at most 448 (0x7e); the smaller of equals.
fn nearest_ue4m3(value: f32) -> u8 {
    let error = |bits: u8| (2.0 * ue4m3_half_to_f32(bits) - value).abs();
    (0..0x7f).fold(0, |best, bits| {
        if error(bits) < error(best) {
            bits
        } else {
            best
        }
    })
}
