//! What lowering must know of these cards. The kernels' sizes are those of `kernels-cuda/prelude.h` (groups of a block),
//! `products/matrix.h` (tiles) and of the constants `MAX_...` in `ops/`.

use crate::backend::gpu::{Activations, Room, Target, Tiles};
use crate::program::KvFormat;

/// Kernels take pointers, so there is nothing to cut; the same sizes serve all cards.
pub fn target() -> Target {
    Target {
        max_binding_bytes: u64::MAX,
        cut_bytes: u64::MAX,
        cut_overlap_bytes: 0,
        max_groups_x: i32::MAX as u32,
        max_groups_yz: 65_535,
        activations: Activations::TwoBytes,
        caches: &KvFormat::ALL,
        tiles: Tiles {
            vector_outs: 4,
            matrix_outs: 64,
            matrix_rows: 32,
            attention_splits: 8,
            delta_channels: 4,
            delta_chunk_channels: 32,
        },
        room: Room { head_dim: 512, delta_keys: 256, delta_chunk_keys: 128, index_keys: 1024, experts: 4096 },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rooms_are_those_of_the_kernels() {
        let Room { head_dim, delta_keys, delta_chunk_keys, index_keys, experts } = target().room;
        for (source, name, most) in [
            (include_str!("../../../kernels-cuda/ops/attention.h"), "MAX_HEAD_DIM", head_dim),
            (include_str!("../../../kernels-cuda/ops/recurrent.h"), "MAX_DELTA_KEYS", delta_keys),
            (include_str!("../../../kernels-cuda/ops/delta_chunks.h"), "MAX_CHUNK_KEYS", delta_chunk_keys),
            (include_str!("../../../kernels-cuda/ops/indexer.h"), "MAX_KEY_DIM", index_keys),
            (include_str!("../../../kernels-cuda/ops/experts.h"), "MAX_EXPERTS", experts),
        ] {
            let declared = format!("constexpr u32 {name} = {most}");
            let end = source.split_once(&declared).and_then(|(_, rest)| rest.chars().next());
            assert!(matches!(end, Some(';' | ',')), "{declared}");
        }
    }
}
