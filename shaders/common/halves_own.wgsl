// Weights that are f16 themselves.
#include "common/halves.wgsl"

const HAS_OFFSET: bool = false;

// The first `left` columns of a pair that begins with column `first`.
fn kept_pair(word: u32, first: u32, left: u32) -> vec2<f16> {
    let pair = vec2<f16>(unpack2x16float(word));
    return select(vec2<f16>(0.0h), pair, vec2<u32>(first, first + 1u) < vec2<u32>(left));
}

fn halves16(row: u32, part: u32, left: u32) -> Halves {
    let low = words4_at(row + 32u * part);
    let high = words4_at(row + 32u * part + 16u);
    let pairs = array<vec2<f16>, 8>(
        kept_pair(low.x, 0u, left),
        kept_pair(low.y, 2u, left),
        kept_pair(low.z, 4u, left),
        kept_pair(low.w, 6u, left),
        kept_pair(high.x, 8u, left),
        kept_pair(high.y, 10u, left),
        kept_pair(high.z, 12u, left),
        kept_pair(high.w, 14u, left),
    );
    return Halves(pairs, vec2<f32>(1.0, 0.0));
}
