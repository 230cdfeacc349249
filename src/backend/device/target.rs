//! What lowering must know of these cards. The kernels' sizes are those of `kernels-cuda/tiles.h`.

use crate::backend::gpu::{Activations, Target, Tiles};

/// Kernels take pointers, so there is nothing to cut; the same sizes serve all cards.
pub fn target() -> Target {
    Target {
        max_binding_bytes: u64::MAX,
        cut_bytes: u64::MAX,
        cut_overlap_bytes: 0,
        max_groups_x: i32::MAX as u32,
        max_groups_yz: 65_535,
        activations: Activations::TwoBytes,
        tiles: Tiles {
            vector_outs: 4,
            matrix_outs: 64,
            matrix_rows: 32,
            attention_rows: 1,
            attention_splits: 8,
            delta_channels: 4,
        },
    }
}
