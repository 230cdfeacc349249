const BLOCK_LEN: u32 = 32u;
const BLOCK_BYTES: u32 = 64u;
const HAS_TAIL: bool = true;

fn decode16(block: u32, part: u32) -> Sixteen {
    let low = words4_at(block + 32u * part);
    let high = words4_at(block + 32u * part + 16u);
    return Sixteen(
        vec4<f32>(unpack2x16float(low.x), unpack2x16float(low.y)),
        vec4<f32>(unpack2x16float(low.z), unpack2x16float(low.w)),
        vec4<f32>(unpack2x16float(high.x), unpack2x16float(high.y)),
        vec4<f32>(unpack2x16float(high.z), unpack2x16float(high.w)),
    );
}
