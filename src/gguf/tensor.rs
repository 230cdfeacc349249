//! What the file says of a tensor.

use crate::quant::Format;

/// A tensor of a model: where it lies and how it is stored. All fields were checked when the file was opened, so sizes
/// and offsets can be used without further checks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorInfo {
    pub name: String,
    /// Sizes of the dimensions, the fastest one first (the order of the file). 1 to 4, none of them zero.
    pub shape: Vec<u64>,
    pub format: Format,
    /// Index of the file that holds it, in [`ModelFiles::files`](super::ModelFiles::files).
    pub shard: usize,
    /// Where the data begins, in bytes from the start of that file.
    pub offset: u64,
    /// Length of the data in bytes.
    pub bytes: u64,
}

impl TensorInfo {
    /// Weights in a row: the size of the fastest dimension.
    pub fn row_len(&self) -> u64 {
        self.shape.first().copied().unwrap_or(0)
    }

    /// Number of rows, over all other dimensions.
    pub fn rows(&self) -> u64 {
        self.shape.iter().skip(1).product()
    }

    /// Bytes of a row. Rows follow each other without gaps.
    pub fn row_bytes(&self) -> u64 {
        self.bytes / self.rows().max(1)
    }

    /// Number of weights.
    pub fn elements(&self) -> u64 {
        self.shape.iter().product()
    }
}

/// What a tensor type number that this program does not read is known as, so that an error can say it.
pub(super) fn foreign_type_name(number: u32) -> &'static str {
    match number {
        4 => "Q4_2, long removed from ggml",
        5 => "Q4_3, long removed from ggml",
        9 => "Q8_1, meant for activations",
        15 => "Q8_K, meant for activations",
        24 => "I8",
        25 => "I16",
        26 => "I32",
        27 => "I64",
        28 => "F64",
        31 => "Q4_0_4_4, removed from ggml",
        32 => "Q4_0_4_8, removed from ggml",
        33 => "Q4_0_8_8, removed from ggml",
        36 => "IQ4_NL_4_4 of ggml, removed, or I2_S of BitNet",
        37 => "IQ4_NL_4_8, removed from ggml",
        38 => "IQ4_NL_8_8, removed from ggml",
        41 => "Q1_0",
        133 => "Q6_0 of ik_llama.cpp",
        134 => "IQ1_BN of ik_llama.cpp",
        135 => "IQ2_BN of ik_llama.cpp",
        137 => "IQ2_K of ik_llama.cpp",
        138 => "IQ3_K of ik_llama.cpp",
        139 => "IQ4_K of ik_llama.cpp",
        140 => "IQ5_K of ik_llama.cpp",
        141 => "IQ6_K of ik_llama.cpp",
        144 => "IQ4_KS of ik_llama.cpp",
        145 => "IQ2_KS of ik_llama.cpp",
        146 => "IQ4_KSS of ik_llama.cpp",
        152 => "IQ5_KS of ik_llama.cpp",
        153 => "IQ2_KT of ik_llama.cpp",
        154 => "IQ3_KT of ik_llama.cpp",
        155 => "IQ4_KT of ik_llama.cpp",
        156 => "IQ3_KS of ik_llama.cpp",
        157 => "IQ2_KL of ik_llama.cpp",
        158 => "IQ1_KT of ik_llama.cpp",
        _ => "not a known type",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_type_is_both_supported_and_foreign() {
        for number in 0..300 {
            let known_foreign = foreign_type_name(number) != "not a known type";
            assert!(!(known_foreign && Format::from_ggml_type(number).is_some()), "type {number}");
        }
    }

    #[test]
    fn rows_are_counted_over_all_but_the_first_dimension() {
        let tensor =
            TensorInfo { name: "t".into(), shape: vec![64, 3, 5], format: Format::Q8_0, shard: 0, offset: 0, bytes: 2 * 34 * 15 };
        assert_eq!((tensor.row_len(), tensor.rows(), tensor.row_bytes(), tensor.elements()), (64, 15, 68, 960));
    }
}
