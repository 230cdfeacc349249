//! Every op against a naive formula in double precision, on both modes of the CPU with several thread counts, and on the GPU
//! kernels: WGSL through the software Vulkan driver where there is one, CUDA and HIP through simulated drivers (see `rig`).

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
#[cfg(all(target_os = "linux", target_arch = "x86_64"))] // where simulated drivers run
#[path = "../sim_support/mod.rs"]
mod sim_support;
#[path = "../common/skip.rs"]
mod skip;
mod windows;
