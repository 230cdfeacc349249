// Codebooks of the IQ formats; their places are constants that the host adds.

@group(0) @binding(TABLES_BINDING) var<storage, read> tables: array<u32>;

// Signs of eight weights from seven bits: an even number of minus signs.
fn sign_bits(seven: u32) -> u32 {
    let bits = seven & 127u;
    return bits | ((countOneBits(bits) & 1u) << 7u);
}

// Two grid entries of eight bytes, with eight signs each.
fn signed_grid16(at: u32, indices: vec2<u32>, signs: vec2<u32>, scale: f32) -> Coded {
    let first = at + 2u * indices.x;
    let second = at + 2u * indices.y;
    let words = vec4<u32>(
        flipped4(tables[first], signs.x),
        flipped4(tables[first + 1u], signs.x >> 4u),
        flipped4(tables[second], signs.y),
        flipped4(tables[second + 1u], signs.y >> 4u),
    );
    return Coded(words, scale, 0.0);
}

// Four grid entries of four bytes, with sixteen signs.
fn signed_fours(places: vec4<u32>, signs: u32, scale: f32) -> Coded {
    let words = vec4<u32>(
        flipped4(tables[places.x], signs),
        flipped4(tables[places.y], signs >> 4u),
        flipped4(tables[places.z], signs >> 8u),
        flipped4(tables[places.w], signs >> 12u),
    );
    return Coded(words, scale, 0.0);
}

// Two entries of the grid of IQ1, whose bytes are -1, 0 and 1, shifted by an eighth up or down: in eighths.
fn shifted_grid16(indices: vec2<u32>, scale: f32, down: vec2<bool>) -> Coded {
    let first = IQ1S_AT + 2u * indices.x;
    let second = IQ1S_AT + 2u * indices.y;
    let words = vec4<u32>(tables[first], tables[first + 1u], tables[second], tables[second + 1u]);
    // Bytes from 0 to 2, then eight times as much, less 7 or 9.
    let signs = vec4<u32>(0x80808080u);
    let eighths = (((words ^ signs) + vec4<u32>(0x01010101u)) ^ signs) * vec4<u32>(8u);
    let less = select(vec2<u32>(0x07070707u), vec2<u32>(0x09090909u), down);
    return Coded(((eighths | signs) - less.xxyy) ^ signs, 0.125 * scale, 0.0);
}
