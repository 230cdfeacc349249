//! The portable GPU backend: WGSL kernels through wgpu, on Vulkan, Direct3D 12 and Metal.
//!
//! - [`instance`]: finds cards ([`WebGpuFinder`]) and what they have; `memory`: what the Vulkan driver says of memory.
//! - `device`: one opened device with its health: errors are caught, never panics.
//! - `arena`: arenas as few buffers within the device's limits; copies to and from them.
//! - [`shader`]: composes kernels from the files in `shaders/`; `pipelines`: compiles them when a program is prepared.
//! - `prepare`: a lowered program with its bind groups; `backend`: the [`Backend`](super::Backend) itself.
//!
//! A run writes one small block of parameters, records the launches of its segment into one pass, and submits it once. Bind
//! groups, pipelines and buffers exist since `prepare`.

mod arena;
mod backend;
mod device;
mod instance;
mod memory;
mod pipelines;
mod prepare;
pub mod shader;

pub use backend::WebGpuBackend;
pub use instance::{DX12, METAL, VULKAN, WebGpuFinder};
pub use shader::Tuning;
