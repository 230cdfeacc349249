// Rounds 32 values to 15 bits in two bytes: a thread each 32.

#include "common/work.wgsl"

@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let block = group.x * (THREADS / 32u) + thread / 32u;
    if (thread % 32u != 0u || 32u * block >= args.width) {
        return;
    }
    let x = args.x_at + group.y * args.x_stride + 32u * block;
    var top = 0.0;
    for (var i = 0u; i < 32u; i++) {
        top = max(top, abs(work_f32(x + i)));
    }
    let scale = top / 16256.0;
    let inverse = select(0.0, 16256.0 / top, top > 0.0);
    let q = args.q_at + group.y * args.q_stride + 20u * block;
    var totals = vec2<i32>(0, 0);
    for (var word = 0u; word < 8u; word++) {
        var high = 0u;
        var low = 0u;
        for (var byte = 0u; byte < 4u; byte++) {
            let steps = i32(round(work_f32(x + 4u * word + byte) * inverse));
            // 128 * coarse + fine, both of a signed byte.
            let coarse = (steps + 64) >> 7u;
            high |= (u32(coarse) & 255u) << (8u * byte);
            low |= (u32(steps - 128 * coarse) & 255u) << (8u * byte);
            totals[word / 4u] += steps;
        }
        scratch[q + word] = high;
        scratch[q + 8u + word] = low;
    }
    scratch[q + 16u] = bitcast<u32>(scale);
    scratch[q + 17u] = u32(totals.x);
    scratch[q + 18u] = u32(totals.y);
    scratch[q + 19u] = 0u;
}
