//! AMD cards, through the HIP runtime: `libamdhip64` of ROCm on Linux, the display driver's `amdhip64` on Windows. Its library is
//! opened at run time, and kernels come compiled with this program.

mod driver;
mod functions;
mod properties;

pub use driver::HipDriver;
