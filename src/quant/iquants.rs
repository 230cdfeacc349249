//! IQ1_S to IQ4_XS: codebook formats. Groups of 4 or 8 weights are one entry of a grid (see [`super::iq_grids`]), with
//! signs apart; IQ4 maps single nibbles through a table of 16 values.

use bytemuck::{Pod, Zeroable};

use super::block::{Block, F16Le, U16Le, extreme, inverse, nibble};
use super::iq_grids::{
    IQ1S_GRID, IQ2S_GRID, IQ2XS_GRID, IQ2XXS_GRID, IQ3S_GRID, IQ3XXS_GRID, IQ4_VALUES, KSIGNS,
    SIGN_BYTES,
};
use super::legacy::{nibbles, pack_nibbles};

const LEN: usize = 256;

/// What is added to (or, with the sign bit, taken from) the -1, 0, 1 of the grid in IQ1_S and IQ1_M.
pub const IQ1_DELTA: f32 = 0.125;

/// 2.0625 bits: `w = ((d * (0.5 + s)) * 0.25) * grid * sign`, 8 groups of 32 weights.
///
/// Group: four bytes are indices into [`IQ2XXS_GRID`] (8 weights each), then a little-endian `u32`: bits `7 l..7 l + 7`
/// index [`KSIGNS`] for the `l`th eight weights, the top four bits are `s`.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
pub struct BlockIQ2XXS {
    pub d: F16Le,
    pub qs: [[[u8; 4]; 2]; 8],
}

/// 2.3125 bits: `w = ((d * (0.5 + s)) * 0.25) * grid * sign`.
///
/// `qs[i]` gives 8 weights: the low 9 bits index [`IQ2XS_GRID`], the high 7 [`KSIGNS`]. 16 weights share a scale `s`:
/// nibble `i / 2 % 2` of `scales[i / 4]`.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
pub struct BlockIQ2XS {
    pub d: F16Le,
    pub qs: [U16Le; 32],
    pub scales: [u8; 8],
}

/// 2.5625 bits: as [`BlockIQ2XS`], with 10-bit indices into [`IQ2S_GRID`] and a free sign for each weight.
///
/// Eight weights `i`: index `qs[i]` plus bits `2 (i % 4)` and up of `qh[i / 4]` as bits 8 and 9; bit `j` of `signs[i]` is
/// the sign of the `j`th.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
pub struct BlockIQ2S {
    pub d: F16Le,
    pub qs: [u8; 32],
    pub signs: [u8; 32],
    pub qh: [u8; 8],
    pub scales: [u8; 8],
}

/// 3.0625 bits: `w = ((d * (0.5 + s)) * 0.5) * grid * sign`, 8 groups of 32 weights.
///
/// `qs[i]` indexes [`IQ3XXS_GRID`] (4 weights). `signs_and_scale[group]` is a little-endian `u32` as in [`BlockIQ2XXS`].
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
pub struct BlockIQ3XXS {
    pub d: F16Le,
    pub qs: [u8; 64],
    pub signs_and_scale: [[u8; 4]; 8],
}

/// 3.4375 bits: `w = (d * (1 + 2 s)) * grid * sign`, 8 groups of 32 weights with `s` = nibble `group % 2` of
/// `scales[group / 2]`.
///
/// Four weights `i`: index into [`IQ3S_GRID`] `qs[i]` plus bit `i % 8` of `qh[i / 8]` as bit 8; signs as in
/// [`BlockIQ2S`].
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
pub struct BlockIQ3S {
    pub d: F16Le,
    pub qs: [u8; 64],
    pub qh: [u8; 8],
    pub signs: [u8; 32],
    pub scales: [u8; 4],
}

/// 1.5625 bits: `w = (d * (2 s + 1)) * (grid ± 0.125)`, 8 groups of 32 weights.
///
/// `qh[group]`: bits `3 l..3 l + 3` are bits 8 to 10 of the index into [`IQ1S_GRID`] of the `l`th eight weights (low bits
/// `qs[4 group + l]`), bits 12 to 14 are `s`, bit 15 means minus.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
pub struct BlockIQ1S {
    pub d: F16Le,
    pub qs: [u8; 32],
    pub qh: [U16Le; 8],
}

/// 1.75 bits: as [`BlockIQ1S`], with a scale for 16 and a delta sign for 8 weights.
///
/// Eight weights `i`: nibble `i % 2` of `qh[i / 2]` has bits 8 to 10 of the index and (bit 3) the sign of the delta.
/// 16 weights `g`: `s` is bits `3 (g % 4)` and up of `scales[g / 4]`. The top nibbles of the four `scales` are `d`, the
/// first being its lowest four bits.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
pub struct BlockIQ1M {
    pub qs: [u8; 32],
    pub qh: [u8; 16],
    pub scales: [U16Le; 4],
}

/// 4.5 bits, 32 weights: `w = d * IQ4_VALUES[q]`, nibbles as in Q4_0.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
pub struct BlockIQ4NL {
    pub d: F16Le,
    pub qs: [u8; 16],
}

/// 4.25 bits, 256 weights: `w = (d * (s - 32)) * IQ4_VALUES[q]`, 8 groups of 32 weights.
///
/// `s`: low four bits are nibble `group % 2` of `scales_l[group / 2]`, high two bits are bits `2 group` and up of
/// `scales_h`. Nibbles of a group's 16 bytes as in Q4_0.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
pub struct BlockIQ4XS {
    pub d: F16Le,
    pub scales_h: U16Le,
    pub scales_l: [u8; 4],
    pub qs: [u8; 128],
}

impl BlockIQ1M {
    /// The scale of the block, collected from the top nibbles.
    #[inline]
    pub fn d(&self) -> f32 {
        let [a, b, c, d] = self.scales.map(|scale| scale.get() >> 12);
        super::block::f16_bits_to_f32(a | b << 4 | c << 8 | d << 12)
    }
}

/// `out[j] = scale * grid[j] * sign[j]` for the 4 or 8 bytes of a grid entry; bit `j` of `signs` set means minus.
#[inline]
fn signed_grid(out: &mut [f32], scale: f32, grid: &[u8], signs: u8) {
    let signs = SIGN_BYTES[usize::from(signs)].to_le_bytes();
    for ((out, &value), sign) in out.iter_mut().zip(grid).zip(signs) {
        *out = scale * f32::from(value) * f32::from(sign as i8);
    }
}

/// `out[j] = scale * (grid[j] + delta)` for the 8 signed bytes of an entry of [`IQ1S_GRID`].
#[inline]
fn shifted_grid(out: &mut [f32], scale: f32, index: usize, delta: f32) {
    for (out, value) in out.iter_mut().zip(IQ1S_GRID[index].to_le_bytes()) {
        *out = scale * (f32::from(value as i8) + delta);
    }
}

/// The scale of IQ2 formats from its four bits.
#[inline]
fn iq2_scale(d: f32, code: u8) -> f32 {
    d * (0.5 + f32::from(code)) * 0.25
}

impl Block for BlockIQ2XXS {
    const LEN: usize = LEN;

    #[inline]
    fn decode(&self, out: &mut [f32]) {
        let d = self.d.to_f32();
        for ([indices, signs_and_scale], out) in self.qs.iter().zip(out.chunks_exact_mut(32)) {
            let signs_and_scale = u32::from_le_bytes(*signs_and_scale);
            let scale = iq2_scale(d, (signs_and_scale >> 28) as u8);
            for (l, out) in out.chunks_exact_mut(8).enumerate() {
                let grid = IQ2XXS_GRID[usize::from(indices[l])].to_le_bytes();
                let signs = KSIGNS[(signs_and_scale >> (7 * l)) as usize & 127];
                signed_grid(out, scale, &grid, signs);
            }
        }
    }
}

impl Block for BlockIQ2XS {
    const LEN: usize = LEN;

    #[inline]
    fn decode(&self, out: &mut [f32]) {
        let d = self.d.to_f32();
        for (i, out) in out.chunks_exact_mut(8).enumerate() {
            let scale = iq2_scale(d, nibble(self.scales[i / 4], i / 2 % 2));
            let q = usize::from(self.qs[i].get());
            signed_grid(
                out,
                scale,
                &IQ2XS_GRID[q & 511].to_le_bytes(),
                KSIGNS[q >> 9],
            );
        }
    }
}

impl Block for BlockIQ2S {
    const LEN: usize = LEN;

    #[inline]
    fn decode(&self, out: &mut [f32]) {
        let d = self.d.to_f32();
        for (i, out) in out.chunks_exact_mut(8).enumerate() {
            let scale = iq2_scale(d, nibble(self.scales[i / 4], i / 2 % 2));
            let high = (self.qh[i / 4] >> (2 * (i % 4))) & 3;
            let index = usize::from(self.qs[i]) | usize::from(high) << 8;
            signed_grid(out, scale, &IQ2S_GRID[index].to_le_bytes(), self.signs[i]);
        }
    }
}

impl Block for BlockIQ3XXS {
    const LEN: usize = LEN;

    #[inline]
    fn decode(&self, out: &mut [f32]) {
        let d = self.d.to_f32();
        for (group, out) in out.chunks_exact_mut(32).enumerate() {
            let signs_and_scale = u32::from_le_bytes(self.signs_and_scale[group]);
            let scale = d * (0.5 + (signs_and_scale >> 28) as f32) * 0.5;
            for (l, out) in out.chunks_exact_mut(8).enumerate() {
                let signs = KSIGNS[(signs_and_scale >> (7 * l)) as usize & 127];
                let indices = &self.qs[8 * group + 2 * l..][..2];
                for (half, out) in out.chunks_exact_mut(4).enumerate() {
                    let grid = IQ3XXS_GRID[usize::from(indices[half])].to_le_bytes();
                    signed_grid(out, scale, &grid, signs >> (4 * half));
                }
            }
        }
    }
}

impl Block for BlockIQ3S {
    const LEN: usize = LEN;

    #[inline]
    fn decode(&self, out: &mut [f32]) {
        let d = self.d.to_f32();
        for (i, out) in out.chunks_exact_mut(4).enumerate() {
            let group = i / 8;
            let scale = d * f32::from(1 + 2 * nibble(self.scales[group / 2], group % 2));
            let high = (self.qh[group] >> (i % 8)) & 1;
            let index = usize::from(self.qs[i]) | usize::from(high) << 8;
            let signs = nibble(self.signs[i / 2], i % 2);
            signed_grid(out, scale, &IQ3S_GRID[index].to_le_bytes(), signs);
        }
    }
}

impl Block for BlockIQ1S {
    const LEN: usize = LEN;

    #[inline]
    fn decode(&self, out: &mut [f32]) {
        let d = self.d.to_f32();
        for (group, out) in out.chunks_exact_mut(32).enumerate() {
            let qh = self.qh[group].get();
            let scale = d * f32::from(2 * ((qh >> 12) & 7) + 1);
            let delta = if qh & 0x8000 == 0 {
                IQ1_DELTA
            } else {
                -IQ1_DELTA
            };
            for (l, out) in out.chunks_exact_mut(8).enumerate() {
                let high = usize::from((qh >> (3 * l)) & 7);
                shifted_grid(
                    out,
                    scale,
                    usize::from(self.qs[4 * group + l]) | high << 8,
                    delta,
                );
            }
        }
    }
}

impl Block for BlockIQ1M {
    const LEN: usize = LEN;

    #[inline]
    fn decode(&self, out: &mut [f32]) {
        let d = self.d();
        for (i, out) in out.chunks_exact_mut(8).enumerate() {
            let sixteen = i / 2;
            let code = (self.scales[sixteen / 4].get() >> (3 * (sixteen % 4))) & 7;
            let scale = d * f32::from(2 * code + 1);
            let high = nibble(self.qh[sixteen], i % 2);
            let delta = if high & 8 == 0 { IQ1_DELTA } else { -IQ1_DELTA };
            shifted_grid(
                out,
                scale,
                usize::from(self.qs[i]) | usize::from(high & 7) << 8,
                delta,
            );
        }
    }
}

impl Block for BlockIQ4NL {
    const LEN: usize = 32;
    /// The weight of largest magnitude gets the most negative value of the table.
    const ENCODE: Option<fn(&[f32]) -> Self> = Some(|weights| {
        let d = F16Le::from_f32(extreme(weights) / f32::from(IQ4_VALUES[0]));
        let inverse = inverse(d.to_f32());
        let codes = std::array::from_fn(|j| nearest_iq4(weights[j] * inverse));
        BlockIQ4NL {
            d,
            qs: pack_nibbles(&codes),
        }
    });

    #[inline]
    fn decode(&self, out: &mut [f32]) {
        let d = self.d.to_f32();
        for (out, &q) in out.iter_mut().zip(&nibbles(&self.qs)) {
            *out = d * f32::from(IQ4_VALUES[usize::from(q)]);
        }
    }
}

impl Block for BlockIQ4XS {
    const LEN: usize = LEN;

    #[inline]
    fn decode(&self, out: &mut [f32]) {
        let d = self.d.to_f32();
        let (groups, _) = self.qs.as_chunks::<16>();
        for (group, (out, qs)) in out.chunks_exact_mut(32).zip(groups).enumerate() {
            let scale = d * f32::from(self.scale(group));
            for (out, &q) in out.iter_mut().zip(&nibbles(qs)) {
                *out = scale * f32::from(IQ4_VALUES[usize::from(q)]);
            }
        }
    }
}

impl BlockIQ4XS {
    /// The signed scale (-32..32) of `group` (0..8).
    #[inline]
    pub fn scale(&self, group: usize) -> i8 {
        let low = nibble(self.scales_l[group / 2], group % 2);
        let high = (self.scales_h.get() >> (2 * group)) as u8 & 3;
        (low | high << 4) as i8 - 32
    }
}

/// The code whose value is nearest; the first of equals.
fn nearest_iq4(value: f32) -> u8 {
    let error = |code: u8| (f32::from(IQ4_VALUES[usize::from(code)]) - value).abs();
    (0..16).fold(0, |best, code| {
        if error(code) < error(best) {
            code
        } else {
            best
        }
    })
}
