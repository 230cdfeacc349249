const BLOCK_LEN: u32 = 256u;
const BLOCK_BYTES: u32 = 144u;
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

fn decode32(block: u32, pair: u32) -> ThirtyTwo {
    let packed = scale_and_min(block + 4u, pair);
    let i = (block >> 2u) + 4u + 8u * (pair / 2u);
    let d = unpack2x16float(weight_word(block >> 2u));
    let scale = d.x * packed.x;
    let least = -(d.y * packed.y);
    return ThirtyTwo(
        decoded(affine16(nibbles4(aligned4(i), pair % 2u), scale, least)),
        decoded(affine16(nibbles4(aligned4(i + 4u), pair % 2u), scale, least)),
    );
}

fn coded16(block: u32, part: u32) -> Coded {
    let group = part / 2u;
    let packed = scale_and_min(block + 4u, group);
    let codes = nibbles4(words4_at(block + 16u + 32u * (group / 2u) + 16u * (part % 2u)), group % 2u);
    return affine16(codes, half_at(block) * packed.x, -(half_at(block + 2u) * packed.y));
}
