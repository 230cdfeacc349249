// Products of decoded weights with float32 activations: a tile of TILE_OUTS outputs and TILE_ROWS rows a workgroup, of which each
// thread has OUTS and BATCH. A kernel that includes this defines, for rows and outputs counted from the tile's first, `x_place(n)`, the
// word of a row's first input in the work arena, and `row_place(o)` and `second_place(o)`, the byte addresses of an output's weights
// in the two matrices.

#include "common/work.wgsl"
#include "common/bytes.wgsl"

// Which of two weight operands bytes come from.
var<private> from_second: bool = false;

// Partial products, [row][output]: of the first matrix and of the second.
var<private> sums: array<f32, BATCH * OUTS>;
var<private> second_sums: array<f32, BATCH * OUTS>;

fn work4(i: u32) -> vec4<f32> {
    return bitcast<vec4<f32>>(vec4<u32>(work[i], work[i + 1u], work[i + 2u], work[i + 3u]));
}

// The first `left` of four or sixteen values, then zeros.
fn kept4(v: vec4<f32>, left: u32) -> vec4<f32> {
    return select(vec4<f32>(0.0), v, vec4<u32>(left) > vec4<u32>(0u, 1u, 2u, 3u));
}

fn kept16(v: Sixteen, left: u32) -> Sixteen {
    return Sixteen(kept4(v.a, left), kept4(v.b, max(left, 4u) - 4u), kept4(v.c, max(left, 8u) - 8u), kept4(v.d, max(left, 12u) - 12u));
}

#include "sharing"
