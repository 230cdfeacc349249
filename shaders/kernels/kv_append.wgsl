#include "common/work.wgsl"
#include "common/rows.wgsl"
#include "common/cache_floats.wgsl"

@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let column = group.x * THREADS + thread;
    if (column >= args.kv_heads * args.dim) {
        return;
    }
    let slot = row_word(group.y, ROW_SLOT);
    let cell = row_word(group.y, ROW_INDEX);
    let i = column % args.dim;
    let k = args.k_at + group.y * args.k_stride + column;
    let v = args.v_at + group.y * args.v_stride + column;
    let k_place = key_place(slot, column / args.dim, cell);
    let v_place = value_place(slot, column / args.dim, cell);
    if (!CACHE_F16) {
        state[k_place + i] = work[k];
        state[v_place + i] = work[v];
    } else if (i % 2u == 0u) {
        state[k_place + i / 2u] = pack2x16float(vec2<f32>(work_f32(k), work_f32(k + 1u)));
        state[v_place + i / 2u] = pack2x16float(vec2<f32>(work_f32(v), work_f32(v + 1u)));
    }
}
