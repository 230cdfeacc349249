// One thread a block.

#include "common/work.wgsl"
#include "common/rows.wgsl"

@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let row = args.first_row + group.y;
    let block = group.x * THREADS + thread;
    let complete = (row_word(row, ROW_INDEX) + 1u) / args.ratio;
    if (block >= complete || complete <= args.budget) {
        return;
    }
    let key = args.state_at + row_word(row, ROW_SLOT) * args.slot_stride + (args.cells + block) * args.dim;
    let query = args.query_at + row * args.query_stride;
    var score = 0.0;
    for (var head = 0u; head < args.heads; head++) {
        var product = 0.0;
        for (var i = 0u; i < args.dim; i++) {
            product += work_f32(query + head * args.head_stride + i) * bitcast<f32>(state[key + i]);
        }
        score += max(product, 0.0);
    }
    scratch[args.scores_at + group.y * args.scores_stride + block] = bitcast<u32>(score);
}
