//! The one list of block formats.

use std::fmt;

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
}

macro_rules! formats {
    ($($variant:ident $name:literal $ggml_type:literal $block_len:literal $block_bytes:literal;)*) => {
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
        }),*];
    };
}

formats! {
    F32     "F32"      0   1   4;
    F16     "F16"      1   1   2;
    BF16    "BF16"    30   1   2;
    Q8_0    "Q8_0"     8  32  34;
    Q4_0    "Q4_0"     2  32  18;
    Q4_1    "Q4_1"     3  32  20;
    Q5_0    "Q5_0"     6  32  22;
    Q5_1    "Q5_1"     7  32  24;
    Q2_K    "Q2_K"    10 256  84;
    Q3_K    "Q3_K"    11 256 110;
    Q4_K    "Q4_K"    12 256 144;
    Q5_K    "Q5_K"    13 256 176;
    Q6_K    "Q6_K"    14 256 210;
    IQ1_S   "IQ1_S"   19 256  50;
    IQ1_M   "IQ1_M"   29 256  56;
    IQ2_XXS "IQ2_XXS" 16 256  66;
    IQ2_XS  "IQ2_XS"  17 256  74;
    IQ2_S   "IQ2_S"   22 256  82;
    IQ3_XXS "IQ3_XXS" 18 256  98;
    IQ3_S   "IQ3_S"   21 256 110;
    IQ4_NL  "IQ4_NL"  20  32  18;
    IQ4_XS  "IQ4_XS"  23 256 136;
    Q2_0    "Q2_0"    42  64  18;
    MXFP4   "MXFP4"   39  32  17;
    NVFP4   "NVFP4"   40  64  36;
    TQ1_0   "TQ1_0"   34 256  54;
    TQ2_0   "TQ2_0"   35 256  66;
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
        if len % info.block_len as u64 != 0 {
            return None;
        }
        (len / info.block_len as u64).checked_mul(info.block_bytes as u64)
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
