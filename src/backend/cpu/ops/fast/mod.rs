//! Kernels of the fast mode: vector units, 8-bit activations for quantised weights.

pub mod attention;
mod blocks;
pub mod delta;
pub mod matmul;
pub mod moe;
mod product;
pub mod window;

pub use product::Style;
