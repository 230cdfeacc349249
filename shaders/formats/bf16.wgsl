const BLOCK_LEN: u32 = 32u;
const BLOCK_BYTES: u32 = 64u;
const HAS_TAIL: bool = true;

fn upper_halves(a: u32, b: u32) -> vec4<f32> {
    return bitcast<vec4<f32>>(vec4<u32>(a << 16u, a & 0xffff0000u, b << 16u, b & 0xffff0000u));
}

fn decode16(block: u32, part: u32) -> Sixteen {
    let low = words4_at(block + 32u * part);
    let high = words4_at(block + 32u * part + 16u);
    return Sixteen(
        upper_halves(low.x, low.y),
        upper_halves(low.z, low.w),
        upper_halves(high.x, high.y),
        upper_halves(high.z, high.w),
    );
}
