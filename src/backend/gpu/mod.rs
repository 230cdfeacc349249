//! What all GPU backends share: a program is lowered to kernel calls, once, when it is prepared. No driver is known here.
//!
//! - [`args`]: one argument struct for each kernel, 32-bit words only.
//! - [`kernels`]: the table of kernels, their operands and kinds.
//! - [`launch`]: what a lowered program consists of: [`Launch`]es with [`Window`]s of memory and grids that depend on counts.
//! - [`run_block`]: everything that changes from run to run, in one small block.
//! - [`lower()`]: from a program to launches. Sizes all scratch exactly; nothing is allocated later.
//! - [`join`]: several launches of a step as one, for backends that pay for each.
//! - [`source`]: the same structs as text, for WGSL and C.
//!
//! **Addresses.** Arenas may be larger than 32-bit offsets can say, and some devices show kernels only windows of a buffer.
//! So a launch names a 256-byte aligned [`Window`] for each operand, which a backend resolves (a pointer, or a binding), and its
//! arguments count words (weights: bytes) from there. Matrices and pools of experts that do not fit a window are cut into
//! several launches.
//!
//! **Calling convention.** `kernel(operands, args)`, both structs by value: the addresses of run block, `w0`, `w1`, `w2`, state,
//! work and scratch (0 where a launch has none), then the kernel's own arguments. Workgroups of as many threads as the backend chooses for a kernel, grid as the launch
//! says. Launches of a run are ordered: each sees what the ones before wrote.
//!
//! **Experts.** Where not all experts of a layer are held, their weights are found through a table expert → slot in the state
//! arena. Choices of experts without a slot are left alone.
//!
//! **Rounded activations.** `quantise` writes 20 words for 32 values `128 * high + low` in steps of a scale: high and low bytes in
//! 16 words, the scale (f32), the sums of the first and of the last 16 values in steps (f32), and one unused. The order of the
//! bytes is the kernels' own.

pub mod args;
pub mod join;
pub mod kernels;
pub mod launch;
mod lower;
pub mod run_block;
pub mod source;
mod target;

pub use args::{Args, NONE};
pub use kernels::{KERNELS, Kernel, KernelInfo, Operand};
pub use launch::{Count, Counts, Extent, Launch, Lowered, Region, Variant, Window};
pub use lower::{lower, supports};
pub use run_block::{RunBlock, RunLayout};
pub use target::{Activations, Room, Target, Tiles};
