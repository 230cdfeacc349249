#include "common/work.wgsl"
#include "sum"
#include "common/functions.wgsl"

fn vector_at(at: u32) -> f32 {
    return bitcast<f32>(w2[at]);
}

fn rms_scale(thread: u32, squares: f32) -> f32 {
    return 1.0 / sqrt(workgroup_sum(thread, squares) / f32(args.width) + args.eps);
}

@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let first = group.x * args.width;
    let x = args.x_at + group.y * args.x_stride + first;
    let key = args.key_at + group.y * args.key_stride + first;
    let value = args.value_at + group.y * args.value_stride;
    var squares = vec2<f32>(0.0);
    for (var i = thread; i < args.width; i += THREADS) {
        let v = vec2<f32>(work_f32(x + i), work_f32(key + i));
        squares += v * v;
    }
    let x_scale = rms_scale(thread, squares.x);
    let key_scale = rms_scale(thread, squares.y);
    var products = 0.0;
    for (var i = thread; i < args.width; i += THREADS) {
        let query = work_f32(x + i) * x_scale * vector_at(args.norm_query_at + first + i);
        products += query * (work_f32(key + i) * key_scale * vector_at(args.norm_key_at + first + i));
    }
    let score = workgroup_sum(thread, products) / sqrt(f32(args.width));
    let gate = sigmoid(sign(score) * sqrt(max(abs(score), 1e-6)));
    var gated_squares = 0.0;
    for (var i = thread; i < args.width; i += THREADS) {
        let gated = gate * work_f32(value + i);
        gated_squares += gated * gated;
    }
    let scale = rms_scale(thread, gated_squares);
    for (var i = thread; i < args.width; i += THREADS) {
        let gated = gate * work_f32(value + i);
        set_work(args.gated_at + group.y * args.gated_stride + first + i, gated);
        let normed = gated * scale * vector_at(args.norm_conv_at + first + i);
        set_work(args.normed_at + group.y * args.normed_stride + first + i, normed);
    }
}
