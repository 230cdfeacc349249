//! Q4_0, Q4_1, Q5_0, Q5_1, Q8_0: 32 weights, one scale, sometimes one minimum.
//!
//! In the 4- and 5-bit formats byte `j` of `qs` holds weight `j` in its low and weight `j + 16` in its high nibble; bit
//! `j` of the 32-bit little-endian `qh` is the fifth bit of weight `j`.

use bytemuck::{Pod, Zeroable};

use super::block::{Block, F16Le, abs_max, extreme, inverse, min_max};

const LEN: usize = 32;

/// `w = d * (q - 8)`, `q` in 0..16.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
pub struct BlockQ4_0 {
    pub d: F16Le,
    pub qs: [u8; 16],
}

/// `w = d * q + m`, `q` in 0..16.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
pub struct BlockQ4_1 {
    pub d: F16Le,
    pub m: F16Le,
    pub qs: [u8; 16],
}

/// `w = d * (q - 16)`, `q` in 0..32.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
pub struct BlockQ5_0 {
    pub d: F16Le,
    pub qh: [u8; 4],
    pub qs: [u8; 16],
}

/// `w = d * q + m`, `q` in 0..32.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
pub struct BlockQ5_1 {
    pub d: F16Le,
    pub m: F16Le,
    pub qh: [u8; 4],
    pub qs: [u8; 16],
}

/// `w = d * q`, `q` in -128..128.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
pub struct BlockQ8_0 {
    pub d: F16Le,
    pub qs: [i8; 32],
}

impl Block for BlockQ4_0 {
    const LEN: usize = LEN;
    const ENCODE: Option<fn(&[f32]) -> Self> = Some(|weights| {
        let (d, q) = symmetric_codes(weights, 8);
        BlockQ4_0 {
            d,
            qs: pack_nibbles(&q),
        }
    });

    #[inline]
    fn decode(&self, out: &mut [f32]) {
        let d = self.d.to_f32();
        for (out, &q) in out.iter_mut().zip(&nibbles(&self.qs)) {
            *out = d * f32::from(q as i8 - 8);
        }
    }
}

impl Block for BlockQ4_1 {
    const LEN: usize = LEN;
    const ENCODE: Option<fn(&[f32]) -> Self> = Some(|weights| {
        let (d, m, q) = affine_codes(weights, 15);
        BlockQ4_1 {
            d,
            m,
            qs: pack_nibbles(&q),
        }
    });

    #[inline]
    fn decode(&self, out: &mut [f32]) {
        let (d, m) = (self.d.to_f32(), self.m.to_f32());
        for (out, &q) in out.iter_mut().zip(&nibbles(&self.qs)) {
            *out = d * f32::from(q) + m;
        }
    }
}

impl Block for BlockQ5_0 {
    const LEN: usize = LEN;
    const ENCODE: Option<fn(&[f32]) -> Self> = Some(|weights| {
        let (d, q) = symmetric_codes(weights, 16);
        BlockQ5_0 {
            d,
            qh: pack_fifth_bits(&q),
            qs: pack_nibbles(&q),
        }
    });

    #[inline]
    fn decode(&self, out: &mut [f32]) {
        let d = self.d.to_f32();
        for (out, &q) in out.iter_mut().zip(&five_bits(self.qh, &self.qs)) {
            *out = d * f32::from(q as i8 - 16);
        }
    }
}

impl Block for BlockQ5_1 {
    const LEN: usize = LEN;
    const ENCODE: Option<fn(&[f32]) -> Self> = Some(|weights| {
        let (d, m, q) = affine_codes(weights, 31);
        BlockQ5_1 {
            d,
            m,
            qh: pack_fifth_bits(&q),
            qs: pack_nibbles(&q),
        }
    });

    #[inline]
    fn decode(&self, out: &mut [f32]) {
        let (d, m) = (self.d.to_f32(), self.m.to_f32());
        for (out, &q) in out.iter_mut().zip(&five_bits(self.qh, &self.qs)) {
            *out = d * f32::from(q) + m;
        }
    }
}

impl Block for BlockQ8_0 {
    const LEN: usize = LEN;
    const ENCODE: Option<fn(&[f32]) -> Self> = Some(|weights| {
        let d = abs_max(weights) / 127.0;
        let inverse = inverse(d);
        let qs = std::array::from_fn(|j| (weights[j] * inverse).round() as i8);
        BlockQ8_0 {
            d: F16Le::from_f32(d),
            qs,
        }
    });

    #[inline]
    fn decode(&self, out: &mut [f32]) {
        let d = self.d.to_f32();
        for (out, &q) in out.iter_mut().zip(&self.qs) {
            *out = d * f32::from(q);
        }
    }
}

/// The 32 nibbles of a block in the order of the weights.
#[inline]
pub(super) fn nibbles(qs: &[u8; 16]) -> [u8; 32] {
    let mut q = [0; 32];
    let (low, high) = q.split_at_mut(16);
    for ((low, high), byte) in low.iter_mut().zip(high).zip(qs) {
        *low = byte & 0x0f;
        *high = byte >> 4;
    }
    q
}

/// The inverse of [`nibbles`]; bits above the fourth are dropped.
pub(super) fn pack_nibbles(q: &[u8; 32]) -> [u8; 16] {
    std::array::from_fn(|j| (q[j] & 0x0f) | (q[j + 16] << 4))
}

#[inline]
fn five_bits(qh: [u8; 4], qs: &[u8; 16]) -> [u8; 32] {
    let high = u32::from_le_bytes(qh);
    let low = nibbles(qs);
    std::array::from_fn(|j| low[j] | (((high >> j) & 1) << 4) as u8)
}

fn pack_fifth_bits(q: &[u8; 32]) -> [u8; 4] {
    let bits = q
        .iter()
        .enumerate()
        .fold(0, |bits, (j, &q)| bits | ((u32::from(q) >> 4) & 1) << j);
    bits.to_le_bytes()
}

/// Scale and codes of `w = d * (q - zero)`, `q` in `0..2 * zero`: the weight of largest magnitude gets code 0, so the
/// scale's sign is the opposite of its sign and the range is used on the side where it is longer.
fn symmetric_codes(weights: &[f32], zero: u8) -> (F16Le, [u8; 32]) {
    let d = extreme(weights) / -f32::from(zero);
    let inverse = inverse(d);
    let last = 2 * zero - 1;
    let offset = f32::from(zero) + 0.5;
    (
        F16Le::from_f32(d),
        std::array::from_fn(|j| ((weights[j] * inverse + offset) as u8).min(last)),
    )
}

/// Scale, minimum and codes of `w = d * q + m`, `q` in `0..=last`.
fn affine_codes(weights: &[f32], last: u8) -> (F16Le, F16Le, [u8; 32]) {
    let (min, max) = min_max(weights);
    let d = (max - min) / f32::from(last);
    let inverse = inverse(d);
    let q = std::array::from_fn(|j| (((weights[j] - min) * inverse + 0.5) as u8).min(last));
    (F16Le::from_f32(d), F16Le::from_f32(min), q)
}
