//! What a device has, as far as lowering must know.

use crate::program::KvFormat;

/// How activations meet quantised weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activations {
    /// Weights are decoded to float32 and multiplied with float32 activations.
    Float,
    /// Activations are rounded to 15 bits in two bytes (`128 * high + low` steps of 1/16256 of the largest of 32 values), so
    /// that sums of a group are exact integers.
    TwoBytes,
    /// As [`Activations::TwoBytes`] in windows of many rows, as [`Activations::Float`] in those of a few.
    TwoBytesOfMany,
}

/// Sizes of the pieces that a device's kernels work on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tiles {
    /// Outputs of a workgroup of `mat_vec` and `expert_vec`.
    pub vector_outs: u32,
    /// Outputs and window rows of a workgroup of `mat_mul` and `expert_mul`.
    pub matrix_outs: u32,
    pub matrix_rows: u32,
    /// Most parts that share the cells of one row, in programs of few rows.
    pub attention_splits: u32,
    /// Value channels of a workgroup of `delta_rule`.
    pub delta_channels: u32,
    /// Value channels of a workgroup of `delta_chunks`; 0 where there is no such kernel.
    pub delta_chunk_channels: u32,
}

/// Most that a device's kernels have room for, in registers or in the memory of a workgroup; `u32::MAX` for no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Room {
    /// Elements of a head of attention.
    pub head_dim: u32,
    /// Key channels of a head of the delta rule.
    pub delta_keys: u32,
    /// The same in `delta_chunks`, which takes multiples of 4; other heads use `delta_rule`.
    pub delta_chunk_keys: u32,
    /// Elements of a key of the indexer.
    pub index_keys: u32,
    /// Experts of a layer, in the router and where choices are sorted.
    pub experts: u32,
}

/// What lowering must know of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Target {
    /// Largest piece of a buffer that a kernel can see; `u64::MAX` where kernels take pointers.
    pub max_binding_bytes: u64,
    /// Arenas are cut into buffers of this size; no window crosses a cut, except for the first bytes after it, which the buffer
    /// before repeats (see `cut_overlap_bytes`). `u64::MAX` for one buffer an arena.
    pub cut_bytes: u64,
    /// Bytes after a cut of the weights that the buffer before holds too.
    pub cut_overlap_bytes: u64,
    /// Largest extent of a grid in x, and in y and z.
    pub max_groups_x: u32,
    pub max_groups_yz: u32,
    pub activations: Activations,
    /// How keys and values can be cached.
    pub caches: &'static [KvFormat],
    pub tiles: Tiles,
    pub room: Room,
}
