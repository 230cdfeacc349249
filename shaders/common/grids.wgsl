// Codebooks of the IQ and FP4 formats; their places are constants that the host adds.

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
        scale * bytes_f32(tables[first]) * signs4(signs.x),
        scale * bytes_f32(tables[first + 1u]) * signs4(signs.x >> 4u),
        scale * bytes_f32(tables[second]) * signs4(signs.y),
        scale * bytes_f32(tables[second + 1u]) * signs4(signs.y >> 4u),
    );
}

// Four grid entries of four bytes, with sixteen signs.
fn signed_fours(places: vec4<u32>, signs: u32, scale: f32) -> Sixteen {
    return Sixteen(
        scale * bytes_f32(tables[places.x]) * signs4(signs),
        scale * bytes_f32(tables[places.y]) * signs4(signs >> 4u),
        scale * bytes_f32(tables[places.z]) * signs4(signs >> 8u),
        scale * bytes_f32(tables[places.w]) * signs4(signs >> 12u),
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

fn table4(at: u32, codes: u32) -> vec4<f32> {
    let q = unpack4xU8(codes);
    return vec4<f32>(
        bitcast<f32>(tables[at + q.x]),
        bitcast<f32>(tables[at + q.y]),
        bitcast<f32>(tables[at + q.z]),
        bitcast<f32>(tables[at + q.w]),
    );
}

// Sixteen codes through a table of sixteen floats.
fn table16(at: u32, codes: vec4<u32>, scale: f32) -> Sixteen {
    return Sixteen(
        scale * table4(at, codes.x),
        scale * table4(at, codes.y),
        scale * table4(at, codes.z),
        scale * table4(at, codes.w),
    );
}
