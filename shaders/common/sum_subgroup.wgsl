// Sums over a workgroup of THREADS, whole subgroups of SUBGROUP.

var<workgroup> sum_slots: array<f32, THREADS / SUBGROUP>;

fn workgroup_sum(thread: u32, value: f32) -> f32 {
    let mine = subgroupAdd(value);
    if (THREADS == SUBGROUP) {
        return mine;
    }
    if (thread % SUBGROUP == 0u) {
        sum_slots[thread / SUBGROUP] = mine;
    }
    workgroupBarrier();
    var total = 0.0;
    for (var i = 0u; i < THREADS / SUBGROUP; i++) {
        total += sum_slots[i];
    }
    // The slots may be used again at once.
    workgroupBarrier();
    return total;
}
