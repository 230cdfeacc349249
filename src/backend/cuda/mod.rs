//! NVIDIA cards, through CUDA's driver interface. Nothing but the display driver need be installed: its library is opened at run
//! time, and kernels come compiled with this program.

mod driver;
mod functions;
mod images;

pub use driver::CudaDriver;
pub use images::IMAGES;

use super::device::{DeviceFinder, Vendor};

/// The NVIDIA cards of this PC.
pub static FINDER: DeviceFinder = DeviceFinder::new(Vendor::Nvidia, IMAGES, || Ok(CudaDriver::open()?));
