// Softmax attention of one head of one row over a part of its cells, THREADS cells at a time, with a running maximum.

#include "common/work.wgsl"
#include "common/rows.wgsl"
#include "common/functions.wgsl"
#include "cache"

const LOWEST: f32 = -3.0e38;
// Elements of a head that a thread adds up.
const ELEMENTS: u32 = MAX_HEAD_DIM / THREADS;

var<workgroup> query: array<f32, MAX_HEAD_DIM>;
var<workgroup> scores: array<f32, THREADS>;
var<workgroup> weights: array<f32, THREADS>;
var<workgroup> cells: array<u32, THREADS>;

// The cells of a row in order: all of a window, or those of the chosen blocks and the open tail.
struct Cells {
    count: u32,
    first: u32,
    end: u32,
    // Cells of chosen blocks, and the list of them.
    chosen: u32,
    blocks_at: u32,
}

fn cells_of(row: u32) -> Cells {
    let end = row_word(row, ROW_INDEX) + 1u;
    var first = 0u;
    if (args.window != NONE) {
        first = max(end, args.window) - args.window;
    }
    if (args.selection_at == NONE) {
        return Cells(end - first, first, end, 0u, 0u);
    }
    let list = args.selection_at + row * args.selection_stride;
    let chosen = work[list] * args.ratio;
    return Cells(chosen + end % args.ratio, first, end, chosen, list + 1u);
}

fn cell_at(c: Cells, i: u32) -> u32 {
    if (args.selection_at == NONE) {
        return c.first + i;
    }
    if (i < c.chosen) {
        return work[c.blocks_at + i / args.ratio] * args.ratio + i % args.ratio;
    }
    return c.end / args.ratio * args.ratio + (i - c.chosen);
}

@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let head = group.x;
    let row = group.y;
    let slot = row_word(row, ROW_SLOT);
    let kv_head = head / (args.heads / args.kv_heads);
    let c = cells_of(row);
    // Parts are as even as whole tiles allow.
    let share = (c.count + args.splits - 1u) / args.splits;
    let begin = min(group.z * share, c.count);
    let finish = min(begin + share, c.count);
    let query_at = args.q_at + row * args.q_stride + head * args.q_head_stride;
    // Cells may have more elements than a head, which are zeros.
    for (var i = thread; i < MAX_HEAD_DIM; i += THREADS) {
        query[i] = select(0.0, work_f32(query_at + min(i, args.dim - 1u)) * args.scale, i < args.dim);
    }
    workgroupBarrier();
    var top = LOWEST;
    var sum = 0.0;
    var out: array<f32, ELEMENTS>;
    for (var e = 0u; e < ELEMENTS; e++) {
        out[e] = 0.0;
    }
    let keys = key_place(slot, kv_head, 0u);
    let values = value_place(slot, kv_head, 0u);
    for (var tile = begin; tile < finish; tile += THREADS) {
        var score = LOWEST;
        var cell = 0u;
        if (tile + thread < finish) {
            cell = cell_at(c, tile + thread);
            if (cell >= c.first) {
                score = key_product(keys + cell * key_step());
            }
        }
        scores[thread] = score;
        cells[thread] = cell;
        workgroupBarrier();
        let here = min(THREADS, finish - tile);
        var new_top = top;
        for (var j = 0u; j < here; j++) {
            new_top = max(new_top, scores[j]);
        }
        // A cell outside the window weighs nothing, even where no other has been seen.
        weights[thread] = select(exp(score - new_top), 0.0, score <= LOWEST);
        workgroupBarrier();
        let fade = select(exp(top - new_top), 0.0, top <= LOWEST);
        top = new_top;
        sum *= fade;
        for (var e = 0u; e < ELEMENTS; e++) {
            out[e] *= fade;
        }
        for (var j = 0u; j < here; j++) {
            let weight = weights[j];
            sum += weight;
            let value = values + cells[j] * value_step();
            for (var e = 0u; e < ELEMENTS; e++) {
                let i = thread + e * THREADS;
                if (i < args.dim) {
                    out[e] += weight * cached_value(value, i);
                }
            }
        }
        workgroupBarrier();
    }
    store(row, head, group.z, thread, top, sum, &out);
}

fn store(row: u32, head: u32, split: u32, thread: u32, top: f32, sum: f32, out: ptr<function, array<f32, ELEMENTS>>) {
    let partial = args.partial_at + ((row * args.heads + head) * args.splits + split) * (args.dim + 2u);
    if (args.splits > 1u && thread == 0u) {
        scratch[partial] = bitcast<u32>(top);
        scratch[partial + 1u] = bitcast<u32>(sum);
    }
    for (var e = 0u; e < ELEMENTS; e++) {
        let i = thread + e * THREADS;
        if (i < args.dim) {
            if (args.splits > 1u) {
                scratch[partial + 2u + i] = bitcast<u32>((*out)[e]);
            } else {
                var value = (*out)[e] / sum;
                if (args.gate_at != NONE) {
                    value *= sigmoid(work_f32(args.gate_at + row * args.gate_stride + head * args.gate_head_stride + i));
                }
                set_work(args.out_at + row * args.out_stride + head * args.out_head_stride + i, value);
            }
        }
    }
}
