const BLOCK_LEN: u32 = 32u;
const BLOCK_BYTES: u32 = 34u;
const HAS_TAIL: bool = false;
const HAS_OFFSET: bool = false;

// The scale, then the codes, which begin with the upper half of a word or with the next.
fn decode32(block: u32, pair: u32) -> ThirtyTwo {
    let i = block >> 2u;
    let a = aligned4(i);
    let b = aligned4(i + 4u);
    let upper = vec4<bool>((block & 2u) != 0u);
    let d = unpack2x16float(select(a.x, a.x >> 16u, upper.x)).x;
    let a_next = vec4<u32>(a.yzw, b.x);
    let b_next = vec4<u32>(b.yzw, weight_word(i + 8u));
    let half = vec4<u32>(16u);
    let p = select((a >> half) | (a_next << half), a_next, upper);
    let q = select((b >> half) | (b_next << half), b_next, upper);
    return ThirtyTwo(decoded(Coded(p, d, 0.0)), decoded(Coded(q, d, 0.0)));
}

fn coded16(block: u32, part: u32) -> Coded {
    return Coded(words4_at(block + 2u + 16u * part), half_at(block), 0.0);
}
