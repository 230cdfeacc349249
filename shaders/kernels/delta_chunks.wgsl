// The delta rule for prompts: a workgroup works through the rows of a sequence in chunks, for CHUNK_CHANNELS value channels of a head.
// What a row adds to the state depends on what the rows before it in its chunk added; that triangular system is solved for a chunk at
// once, and the state, which threads hold, is read and written once a chunk:
//
//   A[i][j] = beta[i] (k[i] . k[j]) e^(G[i] - G[j]), j < i        G[i]: sum of the decays of the chunk up to row i
//   (I + A) u = beta (v - e^G (K S))                              S: the state before the chunk
//   out[i] = e^G[i] (q[i] S) + sum over j <= i of (q[i] . k[j]) e^(G[i] - G[j]) u[j]
//   S = e^G[last] S + sum over j of e^(G[last] - G[j]) k[j] u[j]
//
// (Yang et al., Parallelizing Linear Transformers with the Delta Rule, 2024; with the decay of Gated Delta Networks.)
#include "common/work.wgsl"
#include "common/rows.wgsl"

const L2_EPS: f32 = 1e-6;
// A row's keys in quads; threads of one channel have a share of them each, CHUNK_QUADS.
const KEY_QUADS: u32 = MAX_CHUNK_KEYS / 4u;
const SHARES: u32 = THREADS / CHUNK_CHANNELS;
// Where queries begin behind keys.
const QUERIES: u32 = CHUNK_ROWS * KEY_QUADS;

// Keys, then queries, [row][quad], as they come. Rows past the chunk's end, and keys past those of a head, are zeros.
var<workgroup> chunk: array<vec4<f32>, 2u * QUERIES>;
// What makes keys and queries of length 1, and queries 1 / sqrt(key_dim).
var<workgroup> lengths: array<f32, 2u * CHUNK_ROWS>;
// Products of rows with each share of the state, [share][row][channel].
var<workgroup> partials: array<f32, SHARES * CHUNK_ROWS * CHUNK_CHANNELS>;
// Values; then the right side of the system; then u, what each row adds. [row][channel]
var<workgroup> values: array<f32, CHUNK_ROWS * CHUNK_CHANNELS>;
var<workgroup> among_keys: array<f32, CHUNK_ROWS * CHUNK_ROWS>;
var<workgroup> among_queries: array<f32, CHUNK_ROWS * CHUNK_ROWS>;
var<workgroup> decay_sums: array<f32, CHUNK_ROWS>;
var<workgroup> betas: array<f32, CHUNK_ROWS>;
// This thread's share of its channel's state.
var<private> kept: array<vec4<f32>, CHUNK_QUADS>;

// Rows `first` to `first + count` of the window, which go on from one state.
struct Chunk {
    first: u32,
    count: u32,
    read: u32,
    write: u32,
    // The rows after it go on from what threads hold, and nobody needs the state between.
    superseded: bool,
}

fn next_chunk(first: u32, end: u32) -> Chunk {
    var version = row_word(first, ROW_STATE_WRITE);
    var here = Chunk(first, 0u, row_word(first, ROW_STATE_READ), version, true);
    while (here.superseded && here.count < CHUNK_ROWS) {
        here.count++;
        let next = first + here.count;
        if (next >= end) {
            here.superseded = false;
        } else {
            here.superseded = row_word(next, ROW_STATE_READ) == version && row_word(next, ROW_STATE_WRITE) == version;
        }
    }
    return here;
}

fn quad_at(at: u32) -> vec4<f32> {
    return bitcast<vec4<f32>>(vec4<u32>(work[at], work[at + 1u], work[at + 2u], work[at + 3u]));
}

fn load_chunk(thread: u32, here: Chunk, head: u32, channel: u32) {
    let key_head = head % args.key_heads;
    let quads = args.key_dim / 4u;
    for (var i = thread; i < QUERIES; i += THREADS) {
        let row = i / KEY_QUADS;
        let quad = i % KEY_QUADS;
        let there = row < here.count && quad < quads;
        let number = here.first + min(row, here.count - 1u);
        let column = 4u * min(quad, quads - 1u);
        let k = quad_at(args.k_at + number * args.k_stride + key_head * args.k_head_stride + column);
        let q = quad_at(args.q_at + number * args.q_stride + key_head * args.q_head_stride + column);
        chunk[i] = select(vec4<f32>(0.0), k, there);
        chunk[QUERIES + i] = select(vec4<f32>(0.0), q, there);
    }
    for (var row = thread / CHUNK_CHANNELS; row < CHUNK_ROWS; row += SHARES) {
        let number = here.first + min(row, here.count - 1u);
        let at = args.v_at + number * args.v_stride + head * args.v_head_stride + min(channel, args.value_dim - 1u);
        values[row * CHUNK_CHANNELS + thread % CHUNK_CHANNELS] = select(0.0, work_f32(at), row < here.count);
    }
    if (thread < CHUNK_ROWS) {
        var sum = 0.0;
        for (var i = 0u; i <= min(thread, here.count - 1u); i++) {
            sum += work_f32(args.decay_at + (here.first + i) * args.decay_stride + head);
        }
        decay_sums[thread] = sum;
        let number = here.first + min(thread, here.count - 1u);
        betas[thread] = select(0.0, work_f32(args.beta_at + number * args.beta_stride + head), thread < here.count);
    }
    workgroupBarrier();
    for (var row = thread; row < 2u * CHUNK_ROWS; row += THREADS) {
        var squares = vec4<f32>(0.0);
        for (var quad = 0u; quad < quads; quad++) {
            let x = chunk[row * KEY_QUADS + quad];
            squares += x * x;
        }
        let length = 1.0 / sqrt((squares.x + squares.y) + (squares.z + squares.w) + L2_EPS);
        lengths[row] = select(length, length / sqrt(f32(args.key_dim)), row >= CHUNK_ROWS);
    }
    workgroupBarrier();
}

// How much of each earlier row a row sees, in its key (A) and in its query.
fn weigh_pairs(thread: u32) {
    for (var pair = thread; pair < CHUNK_ROWS * CHUNK_ROWS; pair += THREADS) {
        let i = pair / CHUNK_ROWS;
        let j = pair % CHUNK_ROWS;
        var of_key = vec4<f32>(0.0);
        var of_query = vec4<f32>(0.0);
        var faded = 0.0;
        // Later rows are not seen.
        if (j <= i) {
            faded = exp(decay_sums[i] - decay_sums[j]) * lengths[j];
            for (var quad = 0u; quad < args.key_dim / 4u; quad++) {
                let seen = chunk[j * KEY_QUADS + quad];
                of_key = fma(chunk[i * KEY_QUADS + quad], seen, of_key);
                of_query = fma(chunk[QUERIES + i * KEY_QUADS + quad], seen, of_query);
            }
        }
        let key = (of_key.x + of_key.y) + (of_key.z + of_key.w);
        let query = (of_query.x + of_query.y) + (of_query.z + of_query.w);
        among_keys[pair] = select(0.0, betas[i] * key * faded * lengths[i], j < i);
        among_queries[pair] = query * faded * lengths[CHUNK_ROWS + i];
    }
}

fn set_partial(thread: u32, row: u32, sum: vec4<f32>) {
    let place = (thread / CHUNK_CHANNELS * CHUNK_ROWS + row) * CHUNK_CHANNELS + thread % CHUNK_CHANNELS;
    partials[place] = (sum.x + sum.y) + (sum.z + sum.w);
}

// A row's product with the whole state.
fn state_product(lane: u32, row: u32) -> f32 {
    var sum = 0.0;
    for (var share = 0u; share < SHARES; share++) {
        sum += partials[(share * CHUNK_ROWS + row) * CHUNK_CHANNELS + lane];
    }
    return sum;
}

// The right side of the triangular system, in place of the values.
fn correct_values(thread: u32) {
    let lane = thread % CHUNK_CHANNELS;
    for (var row = thread / CHUNK_CHANNELS; row < CHUNK_ROWS; row += SHARES) {
        let place = row * CHUNK_CHANNELS + lane;
        let seen = exp(decay_sums[row]) * lengths[row] * state_product(lane, row);
        values[place] = betas[row] * (values[place] - seen);
    }
}

// Solves the system for this thread's channel.
fn solve_chunk(lane: u32) {
    for (var i = 1u; i < CHUNK_ROWS; i++) {
        var sum = values[i * CHUNK_CHANNELS + lane];
        for (var j = 0u; j < i; j++) {
            sum = fma(-among_keys[i * CHUNK_ROWS + j], values[j * CHUNK_CHANNELS + lane], sum);
        }
        values[i * CHUNK_CHANNELS + lane] = sum;
    }
}

fn store_outputs(thread: u32, here: Chunk, head: u32, channel: u32) {
    let lane = thread % CHUNK_CHANNELS;
    for (var i = thread / CHUNK_CHANNELS; i < here.count; i += SHARES) {
        var sum = exp(decay_sums[i]) * lengths[CHUNK_ROWS + i] * state_product(lane, i);
        for (var j = 0u; j <= i; j++) {
            sum = fma(among_queries[i * CHUNK_ROWS + j], values[j * CHUNK_CHANNELS + lane], sum);
        }
        if (channel < args.value_dim) {
            set_work(args.out_at + (here.first + i) * args.out_stride + head * args.value_dim + channel, sum);
        }
    }
}

fn update_state(thread: u32, count: u32) {
    let end = decay_sums[count - 1u];
    let fading = vec4<f32>(exp(end));
#repeat e CHUNK_QUADS
    kept[$e] *= fading;
#end
    for (var row = 0u; row < count; row++) {
        let added = exp(end - decay_sums[row]) * lengths[row] * values[row * CHUNK_CHANNELS + thread % CHUNK_CHANNELS];
        add_to_state(thread, row, added);
    }
}

#include "chunk"

@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let tiles = (args.value_dim + CHUNK_CHANNELS - 1u) / CHUNK_CHANNELS;
    let head = group.x / tiles;
    let channel = group.x % tiles * CHUNK_CHANNELS + thread % CHUNK_CHANNELS;
    let span = run[RUN_SPANS_AT] + group.y * SPAN_WORDS;
    let end = run[span + SPAN_FIRST_ROW] + run[span + SPAN_ROWS];
    let slot = run[span + SPAN_SLOT];
    // Of this thread's share, the quads that exist.
    let before = thread / CHUNK_CHANNELS * CHUNK_QUADS;
    let existing = select(0u, max(args.key_dim / 4u, before) - before, channel < args.value_dim);
    let share = args.state_at + slot * args.slot_stride + 4u * before;
    var held = NONE;
    var first = run[span + SPAN_FIRST_ROW];
    while (first < end) {
        let here = next_chunk(first, end);
        if (here.read != held) {
            let source = share + ((here.read * args.heads + head) * args.value_dim + channel) * args.key_dim;
#repeat e CHUNK_QUADS
            kept[$e] = vec4<f32>(0.0);
            if ($eu < existing) {
                let at$e = source + 4u * $eu;
                kept[$e] = bitcast<vec4<f32>>(vec4<u32>(state[at$e], state[at$e + 1u], state[at$e + 2u], state[at$e + 3u]));
            }
#end
        }
        load_chunk(thread, here, head, channel);
        weigh_pairs(thread);
        multiply_state(thread, 0u);
        workgroupBarrier();
        correct_values(thread);
        workgroupBarrier();
        if (thread < CHUNK_CHANNELS) {
            solve_chunk(thread);
        }
        multiply_state(thread, QUERIES);
        workgroupBarrier();
        store_outputs(thread, here, head, channel);
        update_state(thread, here.count);
        if (!here.superseded) {
            let to = share + ((here.write * args.heads + head) * args.value_dim + channel) * args.key_dim;
#repeat e CHUNK_QUADS
            if ($eu < existing) {
                state[to + 4u * $eu] = bitcast<u32>(kept[$e].x);
                state[to + 4u * $eu + 1u] = bitcast<u32>(kept[$e].y);
                state[to + 4u * $eu + 2u] = bitcast<u32>(kept[$e].z);
                state[to + 4u * $eu + 3u] = bitcast<u32>(kept[$e].w);
            }
#end
        }
        held = here.write;
        first += here.count;
        // The next chunk takes the place of this one.
        workgroupBarrier();
    }
}
