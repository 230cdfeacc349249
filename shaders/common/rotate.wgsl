// Rotary embedding of one pair of elements: angles are computed by the host.

fn pair_places(pairing: u32, pairs: u32, pair: u32) -> vec2<u32> {
    if (pairing == PAIRING_HALF) {
        return vec2<u32>(pair, pair + pairs);
    }
    return vec2<u32>(2u * pair, 2u * pair + 1u);
}

fn turned(ab: vec2<f32>, angles_at: u32, pairs: u32, pair: u32) -> vec2<f32> {
    let cosine = bitcast<f32>(run[angles_at + pair]);
    let sine = bitcast<f32>(run[angles_at + pairs + pair]);
    return vec2<f32>(ab.x * cosine - ab.y * sine, ab.y * cosine + ab.x * sine);
}
