//! Vectorised products of quantised weights.
//!
//! Weights keep the bytes of the file. Activations are rounded to 8 bits, with a scale for every 32
//! ([`quantize_row`]). [`product`] multiplies some rows of a matrix with some rows of activations: with few activation
//! rows each row of weights is unpacked once in registers; with many, panels of weights are unpacked to scratch memory
//! and multiplied in tiles. Every sum of a group of weights is an exact integer, so the levels ([`Simd`]) and the two
//! shapes differ only in the order of f32 additions.
//!
//! Nothing here allocates, starts threads, or knows a model. A thread calls with its own range of rows and its own
//! [`Scratch`]. To add a format: an unpacker in `avx2/` and in `avx512/`, and a line in `table.rs`.

mod activations;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "x86_64")]
mod each;
pub mod floats;
mod job;
mod layout;
mod product;
mod scalar;
mod simd;
mod table;

pub use activations::{ActBlock, blocks_per_row, bytes_for, dequantize_row, quantize_row, quantize_rows};
pub use job::{OutView, Tokens};
pub use product::{Scratch, ScratchBlock, Weights, product};
pub use simd::Simd;
pub use table::is_float;
