// Rounds rows of inputs for products of codes. A thread has four columns: a word of high bytes and one of low bytes.
#include "common/work.wgsl"
#include "common/rounded.wgsl"

// Threads that share a scale, and a sum.
const SCALE_THREADS: u32 = 8u;
const SUM_THREADS: u32 = 4u;

var<workgroup> largest: array<f32, THREADS>;
var<workgroup> steps_of: array<i32, THREADS>;

@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let word = group.x * THREADS + thread;
    let there = 4u * word < args.width;
    let at = args.x_at + group.y * args.x_stride + min(4u * word, args.width - 4u);
    let x = bitcast<vec4<f32>>(vec4<u32>(work[at], work[at + 1u], work[at + 2u], work[at + 3u]));
    let size = abs(x);
    largest[thread] = max(max(size.x, size.y), max(size.z, size.w));
    workgroupBarrier();
    var most = 0.0;
    for (var i = 0u; i < SCALE_THREADS; i++) {
        most = max(most, largest[thread / SCALE_THREADS * SCALE_THREADS + i]);
    }
    var steps = vec4<i32>(0);
    // Inputs too small to invert their scale count as zeros.
    if (most > ROUNDED_STEPS * 3.0e-39) {
        steps = vec4<i32>(clamp(round(x * (ROUNDED_STEPS / most)), vec4<f32>(-ROUNDED_STEPS), vec4<f32>(ROUNDED_STEPS)));
    }
    steps_of[thread] = (steps.x + steps.y) + (steps.z + steps.w);
    workgroupBarrier();
    if (!there) {
        return;
    }
    let high = (steps + vec4<i32>(64)) >> vec4<u32>(7u);
    let q = args.q_at + group.y * args.q_stride + word / SCALE_THREADS * ROUNDED_WORDS;
    let mine = thread % SCALE_THREADS;
    scratch[q + mine] = pack4xI8(high);
    scratch[q + ROUNDED_LOW + mine] = pack4xI8(steps - high * 128);
    if (mine == 0u) {
        scratch[q + ROUNDED_SCALE] = bitcast<u32>(most / ROUNDED_STEPS);
    }
    if (mine % SUM_THREADS == 0u) {
        let sum = (steps_of[thread] + steps_of[thread + 1u]) + (steps_of[thread + 2u] + steps_of[thread + 3u]);
        scratch[q + ROUNDED_SUMS + mine / SUM_THREADS] = bitcast<u32>(f32(sum));
    }
}
