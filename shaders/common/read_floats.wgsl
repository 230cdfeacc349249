#include "common/cache_floats.wgsl"

fn key_product(place: u32) -> f32 {
    var sum = 0.0;
    if (CACHE_F16) {
        for (var i = 0u; i < args.dim; i += 2u) {
            let pair = unpack2x16float(state[place + i / 2u]);
            sum += query[i] * pair.x + query[i + 1u] * pair.y;
        }
    } else {
        for (var i = 0u; i < args.dim; i++) {
            sum += query[i] * bitcast<f32>(state[place + i]);
        }
    }
    return sum;
}

fn cached_value(place: u32, i: u32) -> f32 {
    if (CACHE_F16) {
        let pair = unpack2x16float(state[place + i / 2u]);
        return select(pair.x, pair.y, i % 2u == 1u);
    }
    return bitcast<f32>(state[place + i]);
}
