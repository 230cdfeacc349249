// Softmax over the experts, then the best one after the other; of equals the lower.

#include "common/work.wgsl"
#include "sum"



var<workgroup> p: array<f32, MAX_EXPERTS>;
var<workgroup> best_p: array<f32, THREADS>;
var<workgroup> best_id: array<u32, THREADS>;

// Whether a value stands before another in the order of choice. NaN loses to everything.
fn before(a: f32, a_id: u32, b: f32, b_id: u32) -> bool {
    return a > b || (a == b && a_id < b_id);
}

// The best expert left, for all threads.
fn best(thread: u32) -> u32 {
    var top = -1.0e38;
    var id = NONE;
    for (var e = thread; e < args.experts; e += THREADS) {
        if (before(p[e], e, top, id)) {
            top = p[e];
            id = e;
        }
    }
    best_p[thread] = top;
    best_id[thread] = id;
    workgroupBarrier();
    for (var half = THREADS / 2u; half > 0u; half /= 2u) {
        if (thread < half && before(best_p[thread + half], best_id[thread + half], best_p[thread], best_id[thread])) {
            best_p[thread] = best_p[thread + half];
            best_id[thread] = best_id[thread + half];
        }
        workgroupBarrier();
    }
    // Garbage in still gives numbers of experts.
    let chosen = min(best_id[0], args.experts - 1u);
    workgroupBarrier();
    return chosen;
}

fn largest(thread: u32) -> f32 {
    var top = -3.0e38;
    for (var e = thread; e < args.experts; e += THREADS) {
        top = max(top, p[e]);
    }
    best_p[thread] = top;
    workgroupBarrier();
    for (var half = THREADS / 2u; half > 0u; half /= 2u) {
        if (thread < half) {
            best_p[thread] = max(best_p[thread], best_p[thread + half]);
        }
        workgroupBarrier();
    }
    let result = best_p[0];
    workgroupBarrier();
    return result;
}

@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let row = group.y;
    for (var e = thread; e < args.experts; e += THREADS) {
        p[e] = work_f32(args.logits_at + row * args.logits_stride + e);
    }
    workgroupBarrier();
    let top = largest(thread);
    var mine = 0.0;
    for (var e = thread; e < args.experts; e += THREADS) {
        p[e] = exp(p[e] - top);
        mine += p[e];
    }
    let total = workgroup_sum(thread, mine);
    for (var e = thread; e < args.experts; e += THREADS) {
        p[e] /= total;
    }
    workgroupBarrier();
    var chosen_sum = 0.0;
    for (var j = 0u; j < args.used; j++) {
        let id = best(thread);
        let weight = p[id];
        chosen_sum += weight;
        workgroupBarrier();
        if (thread == 0u) {
            work[args.ids_at + row * args.ids_stride + j] = id;
            set_work(args.weights_at + row * args.weights_stride + j, weight);
            p[id] = -2.0;
        }
        workgroupBarrier();
    }
    if (thread == 0u && args.normalise == 1u) {
        for (var j = 0u; j < args.used; j++) {
            let place = args.weights_at + row * args.weights_stride + j;
            set_work(place, work_f32(place) / max(chosen_sum, 1.0 / 16384.0));
        }
    }
}
