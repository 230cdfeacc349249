#include "common/cache_blocks.wgsl"

// For even addresses.
fn cache_word(address: u32) -> u32 {
    let i = address >> 2u;
    if ((address & 2u) == 0u) {
        return state[i];
    }
    return (state[i] >> 16u) | (state[i + 1u] << 16u);
}

fn cache_scale(block: u32) -> f32 {
    return unpack2x16float(state[block >> 2u] >> ((block & 2u) * 8u)).x;
}

fn query4(i: u32) -> vec4<f32> {
    return vec4<f32>(query[i], query[i + 1u], query[i + 2u], query[i + 3u]);
}

fn key_product(place: u32) -> f32 {
    var sum = 0.0;
    for (var b = 0u; b < blocks_of_head(); b++) {
        let block = place + b * KEY_BLOCK_BYTES;
        let first = b * CACHE_BLOCK;
        var codes = 0.0;
        if (KEYS_HAVE_4_BITS) {
            for (var i = 0u; i < 16u; i += 4u) {
                let word = cache_word(block + 2u + i);
                let low = vec4<f32>(unpack4xU8(word & 0x0f0f0f0fu)) - vec4<f32>(8.0);
                let high = vec4<f32>(unpack4xU8((word >> 4u) & 0x0f0f0f0fu)) - vec4<f32>(8.0);
                codes += dot(low, query4(first + i)) + dot(high, query4(first + 16u + i));
            }
        } else {
            for (var i = 0u; i < CACHE_BLOCK; i += 4u) {
                codes += dot(vec4<f32>(unpack4xI8(cache_word(block + 2u + i))), query4(first + i));
            }
        }
        sum += cache_scale(block) * codes;
    }
    return sum;
}

fn cached_value(place: u32, i: u32) -> f32 {
    let block = place + i / CACHE_BLOCK * VALUE_BLOCK_BYTES;
    let at = i % CACHE_BLOCK;
    if (VALUES_HAVE_4_BITS) {
        let byte = block + 2u + at % 16u;
        let code = (state[byte >> 2u] >> ((byte & 3u) * 8u + at / 16u * 4u)) & 15u;
        return cache_scale(block) * (f32(code) - 8.0);
    }
    let byte = block + 2u + at;
    return cache_scale(block) * f32(bitcast<i32>(state[byte >> 2u] << (24u - (byte & 3u) * 8u)) >> 24u);
}
