// The best blocks of a row. Scores are not negative, so their bits are ordered as they are: the score of the last block that
// is taken is found byte by byte, from counts.

#include "common/rows.wgsl"

var<workgroup> counts: array<atomic<u32>, 256>;
var<workgroup> chosen_byte: u32;
var<workgroup> before_byte: u32;
var<workgroup> offsets: array<u32, THREADS>;
var<workgroup> equals: array<u32, THREADS>;

fn score_at(row: u32, block: u32) -> u32 {
    return scratch[args.scores_at + row * args.scores_stride + block];
}

// The bits of the budget-th largest score, and how many blocks with these very bits are taken.
fn threshold(row: u32, complete: u32, thread: u32) -> vec2<u32> {
    var prefix = 0u;
    var mask = 0u;
    var wanted = args.budget;
    for (var round = 0u; round < 4u; round++) {
        let shift = 24u - 8u * round;
        for (var i = thread; i < 256u; i += THREADS) {
            atomicStore(&counts[i], 0u);
        }
        workgroupBarrier();
        for (var block = thread; block < complete; block += THREADS) {
            let score = score_at(row, block);
            if ((score & mask) == prefix) {
                atomicAdd(&counts[(score >> shift) & 255u], 1u);
            }
        }
        workgroupBarrier();
        if (thread == 0u) {
            var above = 0u;
            var byte = 255u;
            while (byte > 0u && above + atomicLoad(&counts[byte]) < wanted) {
                above += atomicLoad(&counts[byte]);
                byte -= 1u;
            }
            chosen_byte = byte;
            before_byte = above;
        }
        workgroupBarrier();
        prefix |= chosen_byte << shift;
        mask |= 255u << shift;
        wanted -= before_byte;
        workgroupBarrier();
    }
    return vec2<u32>(prefix, wanted);
}

// Exclusive sums over the workgroup of what is larger and what is equal.
fn sums_before(thread: u32, larger: u32, same: u32) -> vec4<u32> {
    offsets[thread] = larger;
    equals[thread] = same;
    workgroupBarrier();
    for (var step = 1u; step < THREADS; step *= 2u) {
        var add = vec2<u32>(0u);
        if (thread >= step) {
            add = vec2<u32>(offsets[thread - step], equals[thread - step]);
        }
        workgroupBarrier();
        offsets[thread] += add.x;
        equals[thread] += add.y;
        workgroupBarrier();
    }
    let result = vec4<u32>(offsets[thread] - larger, equals[thread] - same, offsets[THREADS - 1u], equals[THREADS - 1u]);
    workgroupBarrier();
    return result;
}

@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let row = args.first_row + group.y;
    let out = args.out_at + row * args.out_stride;
    let complete = (row_word(row, ROW_INDEX) + 1u) / args.ratio;
    let chosen = min(complete, args.budget);
    for (var i = thread; i < args.budget; i += THREADS) {
        // All blocks where the budget allows; the unused rest is 0.
        work[out + 1u + i] = select(0u, i, complete <= args.budget && i < complete);
    }
    if (thread == 0u) {
        work[out] = chosen;
    }
    if (complete <= args.budget) {
        return;
    }
    let limit = threshold(group.y, complete, thread);
    storageBarrier();
    var larger_before = 0u;
    var equal_before = 0u;
    for (var first = 0u; first < complete; first += THREADS) {
        let block = first + thread;
        var larger = 0u;
        var same = 0u;
        if (block < complete) {
            let score = score_at(group.y, block);
            larger = select(0u, 1u, score > limit.x);
            same = select(0u, 1u, score == limit.x);
        }
        let sums = sums_before(thread, larger, same);
        let equal_rank = equal_before + sums.y;
        if (larger == 1u || (same == 1u && equal_rank < limit.y)) {
            let place = larger_before + sums.x + min(equal_rank, limit.y);
            work[out + 1u + place] = block;
        }
        larger_before += sums.z;
        equal_before += sums.w;
    }
}
