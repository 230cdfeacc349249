//! AMD cards, through the HIP runtime: `libamdhip64` of ROCm on Linux, the display driver's `amdhip64` on Windows. Its library is
//! opened at run time, and kernels come compiled with this program.

mod driver;
mod functions;
mod images;
mod properties;

pub use driver::HipDriver;
pub use images::IMAGES;

use super::device::{DeviceFinder, Vendor};

/// The AMD cards of this PC that HIP drives.
pub static FINDER: DeviceFinder = DeviceFinder::new(Vendor::Amd, IMAGES, || Ok(HipDriver::open()?));
