const BLOCK_LEN: u32 = 256u;
const BLOCK_BYTES: u32 = 176u;
const HAS_TAIL: bool = false;
const HAS_OFFSET: bool = true;

// Six-bit scale and minimum of a group of 32.
fn scale_and_min(packed: u32, group: u32) -> vec2<f32> {
    if (group < 4u) {
        return vec2<f32>(f32(byte_at(packed + group) & 63u), f32(byte_at(packed + group + 4u) & 63u));
    }
    let low = byte_at(packed + group + 4u);
    let scale = (low & 15u) | ((byte_at(packed + group - 4u) >> 6u) << 4u);
    let least = (low >> 4u) | ((byte_at(packed + group) >> 6u) << 4u);
    return vec2<f32>(f32(scale), f32(least));
}

fn coded16(block: u32, part: u32) -> Coded {
    let group = part / 2u;
    let packed = scale_and_min(block + 4u, group);
    let codes = nibbles4(words4_at(block + 48u + 32u * (group / 2u) + 16u * (part % 2u)), group % 2u);
    let high = (words4_at(block + 16u + 16u * (part % 2u)) >> vec4<u32>(group)) & vec4<u32>(0x01010101u);
    let scale = half_at(block) * packed.x;
    return affine16(codes | (high << vec4<u32>(4u)), scale, -(half_at(block + 2u) * packed.y));
}
