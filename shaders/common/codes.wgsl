// Values of codes of four bits: tables of sixteen signed bytes, four to a word.

fn table4(values: vec4<u32>, codes: u32) -> vec4<f32> {
    let c = unpack4xU8(codes);
    let low = select(vec4<u32>(values.x), vec4<u32>(values.y), (c & vec4<u32>(4u)) != vec4<u32>(0u));
    let high = select(vec4<u32>(values.z), vec4<u32>(values.w), (c & vec4<u32>(4u)) != vec4<u32>(0u));
    let word = select(low, high, c >= vec4<u32>(8u));
    let shift = vec4<u32>(24u) - ((c & vec4<u32>(3u)) << vec4<u32>(3u));
    return vec4<f32>(bitcast<vec4<i32>>(word << shift) >> vec4<u32>(24u));
}

fn table16(values: vec4<u32>, codes: vec4<u32>, scale: f32) -> Sixteen {
    return Sixteen(
        scale * table4(values, codes.x),
        scale * table4(values, codes.y),
        scale * table4(values, codes.z),
        scale * table4(values, codes.w),
    );
}
