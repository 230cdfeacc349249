const BLOCK_LEN: u32 = 32u;
const BLOCK_BYTES: u32 = 128u;
const HAS_TAIL: bool = true;

fn decode16(block: u32, part: u32) -> Sixteen {
    let i = (block >> 2u) + 16u * part;
    return Sixteen(
        bitcast<vec4<f32>>(vec4<u32>(weight_word(i), weight_word(i + 1u), weight_word(i + 2u), weight_word(i + 3u))),
        bitcast<vec4<f32>>(vec4<u32>(weight_word(i + 4u), weight_word(i + 5u), weight_word(i + 6u), weight_word(i + 7u))),
        bitcast<vec4<f32>>(vec4<u32>(weight_word(i + 8u), weight_word(i + 9u), weight_word(i + 10u), weight_word(i + 11u))),
        bitcast<vec4<f32>>(vec4<u32>(weight_word(i + 12u), weight_word(i + 13u), weight_word(i + 14u), weight_word(i + 15u))),
    );
}
