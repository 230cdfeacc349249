//! Q2_K to Q6_K: super-blocks of 256 weights. One or two half precision scales for the whole, small integer scales for
//! groups of 16 or 32 weights.

use bytemuck::{Pod, Zeroable};

use super::block::{Block, F16Le, extreme, inverse, min_max, nibble};

const LEN: usize = 256;

/// `w = (d * s) * q - dmin * m`, `q` in 0..4; for each of 16 groups of 16 weights `s` (low) and `m` (high nibble of
/// `scales[group]`).
///
/// Weight `128 h + 32 n + l` (`n` in 0..4, `l` in 0..32) is bits `2 n` and up of byte `32 h + l`.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
pub struct BlockQ2K {
    pub scales: [u8; 16],
    pub qs: [u8; 64],
    pub d: F16Le,
    pub dmin: F16Le,
}

/// `w = (d * (s - 32)) * q`, `q` in -4..4; 16 groups of 16 weights with 6-bit scales `s`.
///
/// The low two bits of `q` lie as in [`BlockQ2K`]; bit `weight / 32` of `hmask[weight % 32]` is the third, and *clear*
/// means minus 4. Scale `g`: low four bits in nibble `g / 8` of `scales[g % 8]`, high two bits are bits `2 (g / 4)` and
/// up of `scales[8 + g % 4]`.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
pub struct BlockQ3K {
    pub hmask: [u8; 32],
    pub qs: [u8; 64],
    pub scales: [u8; 12],
    pub d: F16Le,
}

/// `w = (d * s) * q - dmin * m`, `q` in 0..16; 8 groups of 32 weights with 6-bit `s` and `m` (see [`scale_and_min`]).
///
/// Weight `64 h + 32 n + l` (`n` in 0..2, `l` in 0..32) is nibble `n` of byte `32 h + l`.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
pub struct BlockQ4K {
    pub d: F16Le,
    pub dmin: F16Le,
    pub scales: [u8; 12],
    pub qs: [u8; 128],
}

/// As [`BlockQ4K`] with `q` in 0..32: bit `group` of `qh[l]` is the fifth bit of weight `32 group + l`.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
pub struct BlockQ5K {
    pub d: F16Le,
    pub dmin: F16Le,
    pub scales: [u8; 12],
    pub qh: [u8; 32],
    pub qs: [u8; 128],
}

/// `w = (d * s) * (q - 32)`, `q` in 0..64; 16 groups of 16 weights with signed 8-bit scales `s`.
///
/// Weight `128 h + 32 n + l` (`n` in 0..4, `l` in 0..32): low four bits are nibble `n / 2` of
/// `ql[64 h + 32 (n % 2) + l]`, high two bits are bits `2 n` and up of `qh[32 h + l]`.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
pub struct BlockQ6K {
    pub ql: [u8; 128],
    pub qh: [u8; 64],
    pub scales: [i8; 16],
    pub d: F16Le,
}

/// The 6-bit scale and minimum of `group` (0..8) from the 12 packed bytes of Q4_K and Q5_K.
///
/// Groups 0..4: scale and minimum are the low six bits of `packed[group]` and `packed[group + 4]`. Groups 4..8: their low
/// four bits are the low and the high nibble of `packed[group + 4]`, their high two bits the top two bits of
/// `packed[group - 4]` and `packed[group]`.
#[inline]
pub fn scale_and_min(packed: &[u8; 12], group: usize) -> (u8, u8) {
    if group < 4 {
        return (packed[group] & 63, packed[group + 4] & 63);
    }
    let low = packed[group + 4];
    ((low & 0x0f) | (packed[group - 4] >> 6) << 4, (low >> 4) | (packed[group] >> 6) << 4)
}

/// The inverse of [`scale_and_min`] for all groups; values must be below 64.
fn pack_scales_and_mins(scales: &[u8; 8], mins: &[u8; 8]) -> [u8; 12] {
    let mut packed = [0; 12];
    for group in 0..4 {
        packed[group] = scales[group] | (scales[group + 4] >> 4) << 6;
        packed[group + 4] = mins[group] | (mins[group + 4] >> 4) << 6;
        packed[group + 8] = (scales[group + 4] & 0x0f) | mins[group + 4] << 4;
    }
    packed
}

/// The signed scale (-32..32) of `group` (0..16) from the 12 packed bytes of Q3_K.
#[inline]
pub fn q3k_scale(packed: &[u8; 12], group: usize) -> i8 {
    let low = nibble(packed[group % 8], group / 8);
    let high = (packed[8 + group % 4] >> (2 * (group / 4))) & 3;
    (low | high << 4) as i8 - 32
}

impl Block for BlockQ2K {
    const LEN: usize = LEN;

    #[inline]
    fn decode(&self, out: &mut [f32]) {
        let (d, dmin) = (self.d.to_f32(), self.dmin.to_f32());
        for (group, out) in out.chunks_exact_mut(16).enumerate() {
            let scale = d * f32::from(self.scales[group] & 0x0f);
            let min = dmin * f32::from(self.scales[group] >> 4);
            let (bytes, shift) = two_bit_place(&self.qs, group);
            for (out, byte) in out.iter_mut().zip(bytes) {
                *out = scale * f32::from((byte >> shift) & 3) - min;
            }
        }
    }
}

impl Block for BlockQ3K {
    const LEN: usize = LEN;

    #[inline]
    fn decode(&self, out: &mut [f32]) {
        let d = self.d.to_f32();
        for (group, out) in out.chunks_exact_mut(16).enumerate() {
            let scale = d * f32::from(q3k_scale(&self.scales, group));
            let (bytes, shift) = two_bit_place(&self.qs, group);
            let high = &self.hmask[16 * (group % 2)..][..16];
            for ((out, byte), high) in out.iter_mut().zip(bytes).zip(high) {
                let third = (high >> (group / 2)) & 1;
                let q = ((byte >> shift) & 3 | third << 2) as i8 - 4;
                *out = scale * f32::from(q);
            }
        }
    }
}

/// The 16 bytes and the shift of the two-bit codes of `group` (0..16) in Q2_K and Q3_K.
#[inline]
fn two_bit_place(qs: &[u8; 64], group: usize) -> (&[u8], usize) {
    (&qs[32 * (group / 8) + 16 * (group % 2)..][..16], 2 * (group % 8 / 2))
}

impl Block for BlockQ4K {
    const LEN: usize = LEN;
    const ENCODE: Option<fn(&[f32]) -> Self> = Some(encode_q4_k);

    #[inline]
    fn decode(&self, out: &mut [f32]) {
        let (d, dmin) = (self.d.to_f32(), self.dmin.to_f32());
        for (group, out) in out.chunks_exact_mut(32).enumerate() {
            let (scale, min) = scale_and_min(&self.scales, group);
            let (scale, min) = (d * f32::from(scale), dmin * f32::from(min));
            let bytes = &self.qs[32 * (group / 2)..][..32];
            for (out, &byte) in out.iter_mut().zip(bytes) {
                *out = scale * f32::from(nibble(byte, group % 2)) - min;
            }
        }
    }
}

impl Block for BlockQ5K {
    const LEN: usize = LEN;

    #[inline]
    fn decode(&self, out: &mut [f32]) {
        let (d, dmin) = (self.d.to_f32(), self.dmin.to_f32());
        for (group, out) in out.chunks_exact_mut(32).enumerate() {
            let (scale, min) = scale_and_min(&self.scales, group);
            let (scale, min) = (d * f32::from(scale), dmin * f32::from(min));
            let bytes = &self.qs[32 * (group / 2)..][..32];
            for ((out, &byte), high) in out.iter_mut().zip(bytes).zip(&self.qh) {
                let q = nibble(byte, group % 2) | ((high >> group) & 1) << 4;
                *out = scale * f32::from(q) - min;
            }
        }
    }
}

impl Block for BlockQ6K {
    const LEN: usize = LEN;
    const ENCODE: Option<fn(&[f32]) -> Self> = Some(encode_q6_k);

    #[inline]
    fn decode(&self, out: &mut [f32]) {
        let d = self.d.to_f32();
        for (group, out) in out.chunks_exact_mut(16).enumerate() {
            let scale = d * f32::from(self.scales[group]);
            let (half, quarter, start) = (group / 8, group % 8 / 2, 16 * (group % 2));
            let low = &self.ql[64 * half + 32 * (quarter % 2) + start..][..16];
            let high = &self.qh[32 * half + start..][..16];
            for ((out, &low), high) in out.iter_mut().zip(low).zip(high) {
                let q = nibble(low, quarter / 2) | ((high >> (2 * quarter)) & 3) << 4;
                *out = scale * f32::from(q as i8 - 32);
            }
        }
    }
}

/// Each group's scale spans its range and its minimum reaches down to it (a minimum above 0 counts as 0); both are
/// rounded to 1/63 of the largest of the block, then the codes are rounded with the scales as they will be read.
fn encode_q4_k(weights: &[f32]) -> BlockQ4K {
    let mut scales = [0.0f32; 8];
    let mut mins = [0.0f32; 8];
    for (group, weights) in weights.chunks_exact(32).enumerate() {
        let (min, max) = min_max(weights);
        mins[group] = -min.min(0.0);
        scales[group] = (max.max(0.0) + mins[group]) / 15.0;
    }
    let (d, scale_codes) = six_bit_codes(&scales);
    let (dmin, min_codes) = six_bit_codes(&mins);
    let packed = pack_scales_and_mins(&scale_codes, &min_codes);
    let mut block = BlockQ4K { d, dmin, scales: packed, qs: [0; 128] };
    for (group, weights) in weights.chunks_exact(32).enumerate() {
        let inverse = inverse(d.to_f32() * f32::from(scale_codes[group]));
        let min = dmin.to_f32() * f32::from(min_codes[group]);
        for (l, weight) in weights.iter().enumerate() {
            let q = ((weight + min) * inverse).round().clamp(0.0, 15.0) as u8;
            block.qs[32 * (group / 2) + l] |= q << (4 * (group % 2));
        }
    }
    block
}

/// Values (none negative) as 6-bit multiples of a common step.
fn six_bit_codes(values: &[f32; 8]) -> (F16Le, [u8; 8]) {
    let step = F16Le::from_f32(extreme(values) / 63.0);
    let inverse = inverse(step.to_f32());
    (step, values.map(|value| (value * inverse).round().min(63.0) as u8))
}

/// Each group's scale gives its extreme weight the code -32; scales are rounded to 1/128 of the largest of the block.
fn encode_q6_k(weights: &[f32]) -> BlockQ6K {
    let mut scales = [0.0f32; 16];
    for (scale, weights) in scales.iter_mut().zip(weights.chunks_exact(16)) {
        *scale = extreme(weights) / -32.0;
    }
    let d = F16Le::from_f32(extreme(&scales) / -128.0);
    let inverse_d = inverse(d.to_f32());
    let scales = scales.map(|scale| (scale * inverse_d).round() as i8);
    let mut block = BlockQ6K { ql: [0; 128], qh: [0; 64], scales, d };
    for (group, weights) in weights.chunks_exact(16).enumerate() {
        let inverse = inverse(d.to_f32() * f32::from(scales[group]));
        let (half, quarter, start) = (group / 8, group % 8 / 2, 16 * (group % 2));
        for (l, weight) in weights.iter().enumerate() {
            let q = ((weight * inverse).round().clamp(-32.0, 31.0) + 32.0) as u8;
            block.ql[64 * half + 32 * (quarter % 2) + start + l] |= (q & 0x0f) << (4 * (quarter / 2));
            block.qh[32 * half + start + l] |= (q >> 4) << (2 * quarter);
        }
    }
    block
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn six_bit_scales_and_minima_survive_packing() {
        for value in 0..64u8 {
            let scales = std::array::from_fn(|group| (value + 7 * group as u8) % 64);
            let mins = std::array::from_fn(|group| (63 - value + 11 * group as u8) % 64);
            let packed = pack_scales_and_mins(&scales, &mins);
            for group in 0..8 {
                assert_eq!(scale_and_min(&packed, group), (scales[group], mins[group]));
            }
        }
    }
}
