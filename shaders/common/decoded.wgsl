// Weights as floats, exactly as the specification of their format rounds.
fn decoded4(word: u32, scale: f32, offset: f32) -> vec4<f32> {
    if (HAS_OFFSET) {
        return scale * signed_bytes_f32(word) + vec4<f32>(offset);
    }
    return scale * signed_bytes_f32(word);
}

fn decoded(w: Coded) -> Sixteen {
    return Sixteen(
        decoded4(w.codes.x, w.scale, w.offset),
        decoded4(w.codes.y, w.scale, w.offset),
        decoded4(w.codes.z, w.scale, w.offset),
        decoded4(w.codes.w, w.scale, w.offset),
    );
}

fn decode16(block: u32, part: u32) -> Sixteen {
    return decoded(coded16(block, part));
}
