//! NVIDIA cards, through CUDA's driver interface. Nothing but the display driver need be installed: its library is opened at run
//! time, and kernels come compiled with this program.

mod driver;
mod functions;

pub use driver::CudaDriver;
