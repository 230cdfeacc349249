// Stores keys and values as blocks, encoded as in src/quant/legacy.rs: a thread has a block of keys and one of values.
#include "common/work.wgsl"
#include "common/rows.wgsl"
#include "common/cache_blocks.wgsl"

// Two bytes at an even address: others may be writing the other half of the word.
fn put_half(address: u32, value: u32) {
    let shift = (address & 2u) * 8u;
    atomicAnd(&state[address >> 2u], ~(0xffffu << shift));
    atomicOr(&state[address >> 2u], (value & 0xffffu) << shift);
}

fn put_scale(block: u32, scale: f32) {
    put_half(block, pack2x16float(vec2<f32>(scale, 0.0)));
}

// Element `i` of the block of a head that begins at column `first`; zeros past the head.
fn element(at: u32, first: u32, i: u32) -> f32 {
    return select(0.0, work_f32(at + min(first + i, args.dim - 1u)), first + i < args.dim);
}

// 0 where the scale is too small to have an inverse.
fn inverse_of(scale: f32) -> f32 {
    return select(1.0 / scale, 0.0, abs(scale) < 3.0e-39);
}

// To the nearest whole number, halves away from 0.
fn nearest(value: f32) -> i32 {
    let whole = trunc(value);
    let rest = value - whole;
    return i32(whole) + select(0, 1, rest >= 0.5) - select(0, 1, rest <= -0.5);
}

fn store_bytes(block: u32, at: u32, first: u32) {
    var most = 0.0;
    for (var i = 0u; i < CACHE_BLOCK; i++) {
        most = max(most, abs(element(at, first, i)));
    }
    let scale = most / 127.0;
    let inverse = inverse_of(scale);
    put_scale(block, scale);
    for (var i = 0u; i < CACHE_BLOCK; i += 2u) {
        let low = nearest(element(at, first, i) * inverse);
        let high = nearest(element(at, first, i + 1u) * inverse);
        put_half(block + 2u + i, (bitcast<u32>(low) & 255u) | (bitcast<u32>(high) << 8u));
    }
}

fn nibble(value: f32, inverse: f32) -> u32 {
    return u32(clamp(value * inverse + 8.5, 0.0, 15.0));
}

// Two codes: an element and the one sixteen columns on.
fn nibbles(at: u32, first: u32, i: u32, inverse: f32) -> u32 {
    return nibble(element(at, first, i), inverse) | (nibble(element(at, first, i + 16u), inverse) << 4u);
}

fn store_nibbles(block: u32, at: u32, first: u32) {
    // The element that is furthest from 0, the first of equals.
    var furthest = 0.0;
    for (var i = 0u; i < CACHE_BLOCK; i++) {
        let value = element(at, first, i);
        furthest = select(furthest, value, abs(value) > abs(furthest));
    }
    let scale = furthest / -8.0;
    let inverse = inverse_of(scale);
    put_scale(block, scale);
    for (var i = 0u; i < 16u; i += 2u) {
        put_half(block + 2u + i, nibbles(at, first, i, inverse) | (nibbles(at, first, i + 1u, inverse) << 8u));
    }
}

@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let block = group.x * THREADS + thread;
    let kv_head = block / blocks_of_head();
    if (kv_head >= args.kv_heads) {
        return;
    }
    let slot = row_word(group.y, ROW_SLOT);
    let cell = row_word(group.y, ROW_INDEX);
    let of_head = block % blocks_of_head();
    let first = of_head * CACHE_BLOCK;
    let k = args.k_at + group.y * args.k_stride + kv_head * args.dim;
    let v = args.v_at + group.y * args.v_stride + kv_head * args.dim;
    let key = key_place(slot, kv_head, cell) + of_head * KEY_BLOCK_BYTES;
    let value = value_place(slot, kv_head, cell) + of_head * VALUE_BLOCK_BYTES;
    if (KEYS_HAVE_4_BITS) {
        store_nibbles(key, k, first);
    } else {
        store_bytes(key, k, first);
    }
    if (VALUES_HAVE_4_BITS) {
        store_nibbles(value, v, first);
    } else {
        store_bytes(value, v, first);
    }
}
