//! One kernel call: the kernel's two parameters, and its shape.

use std::ffi::c_void;

use bytemuck::{Pod, Zeroable};

use super::{DriverError, Function, LaunchShape, Stream};
use crate::backend::gpu::{Args, Operand};

/// Threads of a block, of every kernel.
const BLOCK_THREADS: u32 = 128;

/// First parameter of every kernel: where the windows of its operands begin, in the order of [`Operand::ALL`]; 0 for none.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct Operands {
    pub at: [u64; Operand::ALL.len()],
}

/// Puts a kernel on a stream.
///
/// # Safety
/// The kernel takes operands and these arguments by value, which the driver copies now and does not change. What the arguments
/// let it touch lies inside the operands' memory, and that is alive until the stream has passed.
pub unsafe fn start(
    stream: &Stream,
    function: &Function,
    grid: [u32; 3],
    operands: &Operands,
    args: &Args,
) -> Result<(), DriverError> {
    let shape = LaunchShape { grid, block: [BLOCK_THREADS, 1, 1] };
    let mut arguments = [(&raw const *operands).cast_mut().cast::<c_void>(), args.words().as_ptr().cast_mut().cast()];
    // SAFETY: the caller's.
    unsafe { stream.launch(function, shape, &mut arguments) }
}
