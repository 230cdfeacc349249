// Values of codes of four bits: tables of sixteen signed bytes, four to a word.
fn table4(values: vec4<u32>, codes: u32) -> u32 {
    let c = unpack4xU8(codes);
    let low = select(vec4<u32>(values.x), vec4<u32>(values.y), (c & vec4<u32>(4u)) != vec4<u32>(0u));
    let high = select(vec4<u32>(values.z), vec4<u32>(values.w), (c & vec4<u32>(4u)) != vec4<u32>(0u));
    let bytes = (select(low, high, c >= vec4<u32>(8u)) >> ((c & vec4<u32>(3u)) << vec4<u32>(3u))) & vec4<u32>(255u);
    return bytes.x | (bytes.y << 8u) | (bytes.z << 16u) | (bytes.w << 24u);
}

fn table16(values: vec4<u32>, codes: vec4<u32>, scale: f32) -> Coded {
    let words = vec4<u32>(table4(values, codes.x), table4(values, codes.y), table4(values, codes.z), table4(values, codes.w));
    return Coded(words, scale, 0.0);
}
