//! The portable GPU backend: WGSL kernels through wgpu, on Vulkan, Direct3D 12 and Metal.
//!
//! - [`instance`]: finds cards ([`WebGpuFinder`]) and what they have; `memory`: what the Vulkan driver says of memory.
//! - `device`: one opened device with its health: errors are caught, never panics.
//! - `arena`: arenas as few buffers within the device's limits; copies to and from them.
//! - [`Tuning`]: what kernels are made for, by what an adapter is.
//! - [`shader`]: composes kernels from the files in `shaders/`; `pipelines`: compiles them when a program is prepared;
//!   `kept`: compiled kernels that the driver lets us keep between starts.
//! - `trial`: which of the matrix kernels that a card can run are the fastest on it.
//! - `prepare`: a lowered program with its bind groups; `backend`: the [`Backend`](super::Backend) itself;
//!   `timing`: how long single kernels take.
//!
//! A run writes one small block of parameters, records the launches of its segment into one pass, and submits it once. Bind
//! groups, pipelines and buffers exist since `prepare`.

mod arena;
mod backend;
mod device;
mod instance;
mod kept;
mod memory;
mod pipelines;
mod prepare;
pub mod shader;
mod timing;
mod trial;
mod tuning;

pub use backend::WebGpuBackend;
pub use instance::{DX12, METAL, VULKAN, WebGpuFinder};
pub use timing::LaunchTime;
pub use trial::{Tried, fastest};
pub use tuning::{BROADCAST_THREADS, KERNEL_SETS, Tile, Tuning};
