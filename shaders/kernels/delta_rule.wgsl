// One workgroup works through the rows of a sequence for THREADS value channels of a head; a thread holds a channel's row of
// the state, in workgroup memory where it fits.

#include "common/work.wgsl"
#include "sum"
#include "common/rows.wgsl"

const HELD_KEYS: u32 = 128u;
const L2_EPS: f32 = 1e-6;

var<workgroup> held: array<f32, HELD_KEYS * THREADS>;
var<workgroup> keys: array<f32, MAX_KEY_DIM>;
var<workgroup> queries: array<f32, MAX_KEY_DIM>;

fn head_place(slot: u32, version: u32, head: u32) -> u32 {
    let index = version * args.heads + head;
    return args.state_at + slot * args.slot_stride + index * args.key_dim * args.value_dim;
}

@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let tiles = (args.value_dim + THREADS - 1u) / THREADS;
    let head = group.x / tiles;
    let channel = group.x % tiles * THREADS + thread;
    let mine = channel < args.value_dim;
    let key_head = head % args.key_heads;
    let span = run[RUN_SPANS_AT] + group.y * SPAN_WORDS;
    let first_row = run[span + SPAN_FIRST_ROW];
    let rows = run[span + SPAN_ROWS];
    let slot = run[span + SPAN_SLOT];
    let fits = args.key_dim <= HELD_KEYS;
    var version = NONE;
    for (var row = first_row; row < first_row + rows; row++) {
        let read = row_word(row, ROW_STATE_READ);
        let write = row_word(row, ROW_STATE_WRITE);
        let source = head_place(slot, read, head) + min(channel, args.value_dim - 1u) * args.key_dim;
        let to = head_place(slot, write, head) + min(channel, args.value_dim - 1u) * args.key_dim;
        let q_at = args.q_at + row * args.q_stride + key_head * args.q_head_stride;
        let k_at = args.k_at + row * args.k_stride + key_head * args.k_head_stride;
        var squares = vec2<f32>(0.0);
        for (var i = thread; i < args.key_dim; i += THREADS) {
            let qk = vec2<f32>(work_f32(q_at + i), work_f32(k_at + i));
            queries[i] = qk.x;
            keys[i] = qk.y;
            squares += qk * qk;
        }
        let q_scale = 1.0 / sqrt(workgroup_sum(thread, squares.x) + L2_EPS) / sqrt(f32(args.key_dim));
        let k_scale = 1.0 / sqrt(workgroup_sum(thread, squares.y) + L2_EPS);
        if (mine) {
            let decay = exp(work_f32(args.decay_at + row * args.decay_stride + head));
            let beta = work_f32(args.beta_at + row * args.beta_stride + head);
            // What was written for the row before is still held.
            let fresh = !fits || version != read;
            version = write;
            var memory = 0.0;
            for (var i = 0u; i < args.key_dim; i++) {
                var s: f32;
                if (fresh) {
                    s = bitcast<f32>(state[source + i]) * decay;
                } else {
                    s = held[i * THREADS + thread] * decay;
                }
                memory += s * keys[i];
                if (fits) {
                    held[i * THREADS + thread] = s;
                } else {
                    state[to + i] = bitcast<u32>(s);
                }
            }
            let v = work_f32(args.v_at + row * args.v_stride + head * args.v_head_stride + channel);
            let correction = (v - memory * k_scale) * beta * k_scale;
            var out = 0.0;
            // The next row needs the state in memory only where its version changes or the sequence ends.
            var store = !fits || row + 1u == first_row + rows;
            if (!store) {
                store = row_word(row + 1u, ROW_STATE_WRITE) != write;
            }
            for (var i = 0u; i < args.key_dim; i++) {
                var s: f32;
                if (fits) {
                    s = held[i * THREADS + thread];
                } else {
                    s = bitcast<f32>(state[to + i]);
                }
                s += keys[i] * correction;
                out += s * queries[i];
                if (fits) {
                    held[i * THREADS + thread] = s;
                }
                if (store) {
                    state[to + i] = bitcast<u32>(s);
                }
            }
            set_work(args.out_at + row * args.out_stride + head * args.value_dim + channel, out * q_scale);
        }
        workgroupBarrier();
    }
}
