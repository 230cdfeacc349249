// Sums over a workgroup of THREADS, a power of two.

var<workgroup> sum_slots: array<f32, THREADS>;

fn workgroup_sum(thread: u32, value: f32) -> f32 {
    sum_slots[thread] = value;
    workgroupBarrier();
    for (var half = THREADS / 2u; half > 0u; half /= 2u) {
        if (thread < half) {
            sum_slots[thread] += sum_slots[thread + half];
        }
        workgroupBarrier();
    }
    let total = sum_slots[0];
    // The slots may be used again at once.
    workgroupBarrier();
    return total;
}
