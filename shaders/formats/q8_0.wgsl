const BLOCK_LEN: u32 = 32u;
const BLOCK_BYTES: u32 = 34u;
const HAS_TAIL: bool = false;

fn decode16(block: u32, part: u32) -> Sixteen {
    let d = half_at(block);
    let q = words4_at(block + 2u + 16u * part);
    return Sixteen(
        d * signed_bytes_f32(q.x),
        d * signed_bytes_f32(q.y),
        d * signed_bytes_f32(q.z),
        d * signed_bytes_f32(q.w),
    );
}
