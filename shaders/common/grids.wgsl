// Codebooks of the IQ formats; their places are constants that the host adds.

@group(0) @binding(TABLES_BINDING) var<storage, read> tables: array<u32>;

// Signs of eight weights from seven bits: an even number of minus signs.
fn sign_bits(seven: u32) -> u32 {
    let bits = seven & 127u;
    return bits | ((countOneBits(bits) & 1u) << 7u);
}

// Two grid entries of eight bytes, with eight signs each.
fn signed_grid16(at: u32, indices: vec2<u32>, signs: vec2<u32>, scale: f32) -> Sixteen {
    let first = at + 2u * indices.x;
    let second = at + 2u * indices.y;
    return Sixteen(
        flipped4(scale * bytes_f32(tables[first]), signs.x),
        flipped4(scale * bytes_f32(tables[first + 1u]), signs.x >> 4u),
        flipped4(scale * bytes_f32(tables[second]), signs.y),
        flipped4(scale * bytes_f32(tables[second + 1u]), signs.y >> 4u),
    );
}

// Four grid entries of four bytes, with sixteen signs.
fn signed_fours(places: vec4<u32>, signs: u32, scale: f32) -> Sixteen {
    return Sixteen(
        flipped4(scale * bytes_f32(tables[places.x]), signs),
        flipped4(scale * bytes_f32(tables[places.y]), signs >> 4u),
        flipped4(scale * bytes_f32(tables[places.z]), signs >> 8u),
        flipped4(scale * bytes_f32(tables[places.w]), signs >> 12u),
    );
}

// Two entries of the grid of IQ1, shifted by their deltas.
fn shifted_grid16(indices: vec2<u32>, scale: f32, delta: vec2<f32>) -> Sixteen {
    let first = IQ1S_AT + 2u * indices.x;
    let second = IQ1S_AT + 2u * indices.y;
    return Sixteen(
        scale * (signed_bytes_f32(tables[first]) + vec4<f32>(delta.x)),
        scale * (signed_bytes_f32(tables[first + 1u]) + vec4<f32>(delta.x)),
        scale * (signed_bytes_f32(tables[second]) + vec4<f32>(delta.y)),
        scale * (signed_bytes_f32(tables[second + 1u]) + vec4<f32>(delta.y)),
    );
}
