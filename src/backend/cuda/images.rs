//! The kernels that come with this program.

use crate::backend::device::Image;

pub const IMAGES: &[Image] = &[];
