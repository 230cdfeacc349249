//! Block formats of weights. One table lists them all; one file per family of formats holds the block layout and the
//! scalar decode, which is the specification that every other path is tested against.
//!
//! A row of a tensor is a whole number of blocks: little-endian structs of alignment 1, one after another. Start at
//! [`Format`] for work on rows; kernels that know their format use the block structs and the tables of [`iq_grids`].

mod block;
pub mod float;
pub mod fp4;
pub mod iq_grids;
pub mod iquants;
pub mod kquants;
pub mod legacy;
pub mod q2_0;
mod table;
pub mod ternary;

pub use block::{Block, DOT_LANES, F16Le, MAX_BLOCK_LEN, U16Le, f16_bits_to_f32};
pub use table::{DecodeFn, DotFn, EncodeFn, FORMATS, Format, FormatInfo};

/// Why a row could not be decoded or encoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum QuantError {
    #[error("{format}: {weights} weights are not a whole number of blocks of {block_len}")]
    PartialBlock {
        format: Format,
        weights: usize,
        block_len: usize,
    },
    #[error("{format}: a row of {weights} weights has {expected} bytes, not {bytes}")]
    RowBytes {
        format: Format,
        weights: usize,
        bytes: usize,
        expected: u64,
    },
    #[error("{format} can be read but not written")]
    NoEncoder { format: Format },
}
