//! F32, F16 and BF16: plain numbers, "blocks" of one weight.

use bytemuck::{Pod, Zeroable};

use super::block::{Block, F16Le};

/// A little-endian IEEE single precision number.
#[repr(transparent)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
pub struct BlockF32(pub [u8; 4]);

impl Block for BlockF32 {
    const LEN: usize = 1;
    const ENCODE: Option<fn(&[f32]) -> Self> = Some(|weights| BlockF32(weights[0].to_le_bytes()));

    #[inline]
    fn decode(&self, out: &mut [f32]) {
        out[0] = f32::from_le_bytes(self.0);
    }
}

/// A little-endian IEEE half precision number.
#[repr(transparent)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
pub struct BlockF16(pub F16Le);

impl Block for BlockF16 {
    const LEN: usize = 1;
    const ENCODE: Option<fn(&[f32]) -> Self> = Some(|weights| BlockF16(F16Le::from_f32(weights[0])));

    #[inline]
    fn decode(&self, out: &mut [f32]) {
        out[0] = self.0.to_f32();
    }
}

/// The upper 16 bits of a single precision number, little endian.
#[repr(transparent)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
pub struct BlockBF16(pub [u8; 2]);

impl Block for BlockBF16 {
    const LEN: usize = 1;
    /// Rounds to nearest, ties to even.
    const ENCODE: Option<fn(&[f32]) -> Self> =
        Some(|weights| BlockBF16(half::bf16::from_f32(weights[0]).to_bits().to_le_bytes()));

    #[inline]
    fn decode(&self, out: &mut [f32]) {
        out[0] = f32::from_bits(u32::from(u16::from_le_bytes(self.0)) << 16);
    }
}
