//! Q2_0: 64 weights of 2 bits with one scale.

use bytemuck::{Pod, Zeroable};

use super::block::{Block, F16Le, abs_max, inverse};

/// `w = (q - 1) * d`, `q` in 0..4: the steps are -d, 0, d, 2d. Weight `j` is bits `2 * (j % 4)` and up of byte `j / 4`
/// (four neighbours share a byte, unlike the other formats).
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
pub struct BlockQ2_0 {
    pub d: F16Le,
    pub qs: [u8; 16],
}

impl Block for BlockQ2_0 {
    const LEN: usize = 64;
    /// The scale is the largest magnitude, so the code 3 (twice the scale) is never produced.
    const ENCODE: Option<fn(&[f32]) -> Self> = Some(|weights| {
        let d = abs_max(weights);
        let inverse = inverse(d);
        let code = |weight: f32| ((weight * inverse).round() as i8 + 1) as u8;
        let qs = std::array::from_fn(|j| {
            let four = &weights[4 * j..4 * j + 4];
            four.iter().rev().fold(0, |byte, &weight| byte << 2 | code(weight))
        });
        BlockQ2_0 { d: F16Le::from_f32(d), qs }
    });

    #[inline]
    fn decode(&self, out: &mut [f32]) {
        let d = self.d.to_f32();
        for (four, &byte) in out.chunks_exact_mut(4).zip(&self.qs) {
            for (k, out) in four.iter_mut().enumerate() {
                *out = f32::from(((byte >> (2 * k)) & 3) as i8 - 1) * d;
            }
        }
    }
}
