//! Every op against a naive formula in double precision, on both modes of the CPU with several thread counts, and on the GPU
//! kernels through the software Vulkan driver where there is one (see `rig`).

mod attention;
#[path = "../common/blocks.rs"]
mod blocks;
mod engine;
mod experts;
mod formats;
#[path = "../common/gpu.rs"]
mod gpu;
mod recurrent;
mod rig;
mod rowwise;
mod windows;
