//! The one list of block formats. A new format is one line in it and a file with its [`Block`].

use std::fmt;

use super::block::{self, Block};
use super::{QuantError, float, fp4, iquants, kquants, legacy, q2_0, ternary};

/// From the blocks of a row to its weights.
pub type DecodeFn = fn(&[u8], &mut [f32]);
/// From the weights of a row to its blocks.
pub type EncodeFn = fn(&[f32], &mut [u8]);
/// From the blocks of a row and an input vector to their dot product.
pub type DotFn = fn(&[u8], &[f32]) -> f32;

/// What a reader, a planner or a kernel must know of a block format.
#[derive(Debug, Clone, Copy)]
pub struct FormatInfo {
    pub format: Format,
    /// The name used in file names and reports, e.g. `Q4_K`.
    pub name: &'static str,
    /// The tensor type number in a GGUF file.
    pub ggml_type: u32,
    /// Weights in a block.
    pub block_len: usize,
    /// Bytes of a block.
    pub block_bytes: usize,
    /// Blocks to weights; panics if the lengths do not belong together. Use [`Format::decode_row`] for lengths that
    /// were not checked before.
    pub decode: DecodeFn,
    /// Weights to blocks, for the formats that can be written (see [`Block::ENCODE`]); panics as `decode`. The checked
    /// form is [`Format::encode_row`].
    pub encode: Option<EncodeFn>,
    /// See [`Format::dot_row`].
    pub dot: DotFn,
}

macro_rules! formats {
    ($($variant:ident $name:literal $ggml_type:literal $block_len:literal $block_bytes:literal $block:ty;)*) => {
        #[allow(non_camel_case_types)]
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Format { $($variant),* }

        /// Every block format, in the order of [`Format`].
        pub const FORMATS: &[FormatInfo] = &[$(FormatInfo {
            format: Format::$variant,
            name: $name,
            ggml_type: $ggml_type,
            block_len: $block_len,
            block_bytes: $block_bytes,
            decode: block::decode_blocks::<$block>,
            encode: match <$block as Block>::ENCODE {
                Some(_) => Some(block::encode_blocks::<$block>),
                None => None,
            },
            dot: block::dot_blocks::<$block>,
        }),*];

        $(const _: () = {
            assert!(size_of::<$block>() == $block_bytes, concat!("bytes of a block of ", $name));
            assert!(align_of::<$block>() == 1, concat!("alignment of a block of ", $name));
            assert!(<$block as Block>::LEN == $block_len, concat!("weights of a block of ", $name));
            assert!(block::MAX_BLOCK_LEN.is_multiple_of($block_len), concat!("MAX_BLOCK_LEN and ", $name));
        };)*
    };
}

formats! {
    F32     "F32"      0   1   4  float::BlockF32;
    F16     "F16"      1   1   2  float::BlockF16;
    BF16    "BF16"    30   1   2  float::BlockBF16;
    Q8_0    "Q8_0"     8  32  34  legacy::BlockQ8_0;
    Q4_0    "Q4_0"     2  32  18  legacy::BlockQ4_0;
    Q4_1    "Q4_1"     3  32  20  legacy::BlockQ4_1;
    Q5_0    "Q5_0"     6  32  22  legacy::BlockQ5_0;
    Q5_1    "Q5_1"     7  32  24  legacy::BlockQ5_1;
    Q2_K    "Q2_K"    10 256  84  kquants::BlockQ2K;
    Q3_K    "Q3_K"    11 256 110  kquants::BlockQ3K;
    Q4_K    "Q4_K"    12 256 144  kquants::BlockQ4K;
    Q5_K    "Q5_K"    13 256 176  kquants::BlockQ5K;
    Q6_K    "Q6_K"    14 256 210  kquants::BlockQ6K;
    IQ1_S   "IQ1_S"   19 256  50  iquants::BlockIQ1S;
    IQ1_M   "IQ1_M"   29 256  56  iquants::BlockIQ1M;
    IQ2_XXS "IQ2_XXS" 16 256  66  iquants::BlockIQ2XXS;
    IQ2_XS  "IQ2_XS"  17 256  74  iquants::BlockIQ2XS;
    IQ2_S   "IQ2_S"   22 256  82  iquants::BlockIQ2S;
    IQ3_XXS "IQ3_XXS" 18 256  98  iquants::BlockIQ3XXS;
    IQ3_S   "IQ3_S"   21 256 110  iquants::BlockIQ3S;
    IQ4_NL  "IQ4_NL"  20  32  18  iquants::BlockIQ4NL;
    IQ4_XS  "IQ4_XS"  23 256 136  iquants::BlockIQ4XS;
    Q2_0    "Q2_0"    42  64  18  q2_0::BlockQ2_0;
    MXFP4   "MXFP4"   39  32  17  fp4::BlockMXFP4;
    NVFP4   "NVFP4"   40  64  36  fp4::BlockNVFP4;
    TQ1_0   "TQ1_0"   34 256  54  ternary::BlockTQ1_0;
    TQ2_0   "TQ2_0"   35 256  66  ternary::BlockTQ2_0;
}

impl Format {
    pub fn info(self) -> &'static FormatInfo {
        &FORMATS[self as usize]
    }

    pub fn from_ggml_type(ggml_type: u32) -> Option<Format> {
        FORMATS
            .iter()
            .find(|info| info.ggml_type == ggml_type)
            .map(|info| info.format)
    }

    pub fn name(self) -> &'static str {
        self.info().name
    }

    /// Bytes of a row of `len` weights, or `None` if `len` is not a whole number of blocks (or overflows).
    pub fn row_bytes(self, len: u64) -> Option<u64> {
        let info = self.info();
        if !len.is_multiple_of(info.block_len as u64) {
            return None;
        }
        (len / info.block_len as u64).checked_mul(info.block_bytes as u64)
    }

    /// Decodes a row: `bytes` must be exactly the blocks of `out.len()` weights.
    ///
    /// The f32 operations and their order are those of the reference package `gguf`, so the results are equal bit for
    /// bit on every machine.
    pub fn decode_row(&self, bytes: &[u8], out: &mut [f32]) -> Result<(), QuantError> {
        self.check_row(bytes.len(), out.len())?;
        (self.info().decode)(bytes, out);
        Ok(())
    }

    /// Encodes a row by rounding to the nearest step: see [`Block::ENCODE`]. `bytes` must be exactly the blocks of
    /// `weights.len()` weights.
    pub fn encode_row(&self, weights: &[f32], bytes: &mut [u8]) -> Result<(), QuantError> {
        let encode = self
            .info()
            .encode
            .ok_or(QuantError::NoEncoder { format: *self })?;
        self.check_row(bytes.len(), weights.len())?;
        encode(weights, bytes);
        Ok(())
    }

    /// Dot product of a row of blocks with `x`, without rounding `x`: the reference mode of the CPU backend.
    ///
    /// Weights are decoded as by [`Format::decode_row`]. Product `i` is rounded to f32 and added, in the order of `i`, to
    /// partial sum `i % 16`; the 16 sums are then added as a tree (`s[i] += s[i + 8]`, then 4, 2, 1). The order depends on
    /// nothing but the length, so all formats and machines agree.
    ///
    /// # Panics
    /// If `row` is not exactly the blocks of `x.len()` weights: shapes are checked when a program is made.
    pub fn dot_row(&self, row: &[u8], x: &[f32]) -> f32 {
        (self.info().dot)(row, x)
    }

    fn check_row(self, bytes: usize, weights: usize) -> Result<(), QuantError> {
        let info = self.info();
        match self.row_bytes(weights as u64) {
            None => Err(QuantError::PartialBlock {
                format: self,
                weights,
                block_len: info.block_len,
            }),
            Some(expected) if expected != bytes as u64 => Err(QuantError::RowBytes {
                format: self,
                weights,
                bytes,
                expected,
            }),
            Some(_) => Ok(()),
        }
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_in_the_order_of_the_enum_and_type_numbers_are_unique() {
        for (i, info) in FORMATS.iter().enumerate() {
            assert_eq!(info.format as usize, i);
            assert_eq!(Format::from_ggml_type(info.ggml_type), Some(info.format));
        }
    }
}
