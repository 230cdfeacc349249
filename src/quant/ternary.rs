//! TQ1_0 and TQ2_0: 256 weights of -1, 0 or 1 with one scale (BitNet b1.58, TriLM).

use bytemuck::{Pod, Zeroable};

use super::block::{Block, F16Le, abs_max, inverse};

const LEN: usize = 256;

/// 1.6875 bits a weight: `w = d * (t - 1)` with base-3 digits `t`, five to a byte.
///
/// A byte `b` is the fraction `b / 256` whose first five base-3 digits are the weights: digit `n` is
/// `((b * 3^n mod 256) * 3) >> 8`. Weight order: digit `n` of `qs[m]` (`m < 32`) is weight `32 n + m`; digit `n` of
/// `qs[32 + m]` (`m < 16`) is weight `160 + 16 n + m`; digit `n < 4` of `qh[m]` is weight `240 + 4 n + m`.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
pub struct BlockTQ1_0 {
    pub qs: [u8; 48],
    pub qh: [u8; 4],
    pub d: F16Le,
}

/// 2.0625 bits a weight: `w = d * (q - 1)`, `q` in 0..4 (3 is not produced by encoders but decodes to `2 d`).
///
/// Weight `128 h + 32 n + m` is bits `2 n` and up of byte `32 h + m`.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
pub struct BlockTQ2_0 {
    pub qs: [u8; 64],
    pub d: F16Le,
}

/// 3^n, what a byte of [`BlockTQ1_0`] is multiplied with (modulo 256) to bring its digit `n` to the front.
pub const POWERS_OF_3: [u8; 5] = [1, 3, 9, 27, 81];

/// The byte groups of [`BlockTQ1_0`]: first weight, and for a group of `width` bytes its `digits`.
const TQ1_0_GROUPS: [Tq1Group; 3] = [
    Tq1Group { first_byte: 0, width: 32, digits: 5, first_weight: 0 },
    Tq1Group { first_byte: 32, width: 16, digits: 5, first_weight: 160 },
    Tq1Group { first_byte: 48, width: 4, digits: 4, first_weight: 240 },
];

struct Tq1Group {
    first_byte: usize,
    width: usize,
    digits: usize,
    first_weight: usize,
}

impl Block for BlockTQ1_0 {
    const LEN: usize = LEN;
    const ENCODE: Option<fn(&[f32]) -> Self> = Some(encode_tq1_0);

    #[inline]
    fn decode(&self, out: &mut [f32]) {
        let d = self.d.to_f32();
        let mut bytes = [0; 52];
        bytes[..48].copy_from_slice(&self.qs);
        bytes[48..].copy_from_slice(&self.qh);
        for group in TQ1_0_GROUPS {
            let bytes = &bytes[group.first_byte..][..group.width];
            let out = &mut out[group.first_weight..][..group.width * group.digits];
            for (out, power) in out.chunks_exact_mut(group.width).zip(POWERS_OF_3) {
                for (out, byte) in out.iter_mut().zip(bytes) {
                    let digit = (u16::from(byte.wrapping_mul(power)) * 3) >> 8;
                    *out = d * f32::from(digit as i8 - 1);
                }
            }
        }
    }
}

impl Block for BlockTQ2_0 {
    const LEN: usize = LEN;
    const ENCODE: Option<fn(&[f32]) -> Self> = Some(|weights| {
        let (d, digits) = ternary_codes(weights);
        let qs = std::array::from_fn(|byte| {
            let (h, m) = (byte / 32, byte % 32);
            (0..4).fold(0, |bits, n| bits | digits[128 * h + 32 * n + m] << (2 * n))
        });
        BlockTQ2_0 { qs, d }
    });

    #[inline]
    fn decode(&self, out: &mut [f32]) {
        let d = self.d.to_f32();
        for (out, bytes) in out.chunks_exact_mut(128).zip(self.qs.chunks_exact(32)) {
            for (n, out) in out.chunks_exact_mut(32).enumerate() {
                for (out, byte) in out.iter_mut().zip(bytes) {
                    *out = d * f32::from(((byte >> (2 * n)) & 3) as i8 - 1);
                }
            }
        }
    }
}

/// Scale (the largest magnitude) and codes 0, 1, 2 for -1, 0, 1.
fn ternary_codes(weights: &[f32]) -> (F16Le, [u8; LEN]) {
    let d = abs_max(weights);
    let inverse = inverse(d);
    let code = |j: usize| ((weights[j] * inverse).round() as i8 + 1) as u8;
    (F16Le::from_f32(d), std::array::from_fn(code))
}

/// The five digits of a byte are a number below 243; the byte is that number as a fraction of 256, rounded up.
fn encode_tq1_0(weights: &[f32]) -> BlockTQ1_0 {
    let (d, digits) = ternary_codes(weights);
    let mut bytes = [0; 52];
    for group in TQ1_0_GROUPS {
        for m in 0..group.width {
            let digit = |n: usize| match n < group.digits {
                true => u16::from(digits[group.first_weight + group.width * n + m]),
                false => 0,
            };
            let number = (0..5).fold(0, |number, n| 3 * number + digit(n));
            bytes[group.first_byte + m] = (number * 256).div_ceil(243) as u8;
        }
    }
    let mut block = BlockTQ1_0 { qs: [0; 48], qh: [0; 4], d };
    block.qs.copy_from_slice(&bytes[..48]);
    block.qh.copy_from_slice(&bytes[48..]);
    block
}
