// Codes of weights as f16.
#include "common/halves.wgsl"
#include "common/codes16.wgsl"

fn halves4(word: u32) -> vec4<f16> {
    return vec4<f16>(unpack4xI8(word));
}

fn halves16(row: u32, part: u32, left: u32) -> Halves {
    let w = codes16(row, part);
    let a = halves4(w.codes.x);
    let b = halves4(w.codes.y);
    let c = halves4(w.codes.z);
    let d = halves4(w.codes.w);
    return Halves(array<vec2<f16>, 8>(a.xy, a.zw, b.xy, b.zw, c.xy, c.zw, d.xy, d.zw), vec2<f32>(w.scale, w.offset));
}
