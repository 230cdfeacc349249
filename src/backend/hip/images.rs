//! The kernels that come with this program, made by `kernels-cuda/build`.

use crate::backend::device::Images;

pub const IMAGES: Images = Images::Packed(include_bytes!("../../../kernels-hip/images.bin"));
