// Weights as bytes. Blocks begin at any byte, so words are put together from two.

fn word_at(address: u32) -> u32 {
    let i = address >> 2u;
    let shift = (address & 3u) * 8u;
    return (weight_word(i) >> shift) | ((weight_word(i + 1u) << (31u - shift)) << 1u);
}

// Four words from a word on.
fn aligned4(i: u32) -> vec4<u32> {
    return vec4<u32>(weight_word(i), weight_word(i + 1u), weight_word(i + 2u), weight_word(i + 3u));
}

fn words4_at(address: u32) -> vec4<u32> {
    let i = address >> 2u;
    let shift = (address & 3u) * 8u;
    let low = aligned4(i);
    let high = vec4<u32>(low.yzw, weight_word(i + 4u));
    return (low >> vec4<u32>(shift)) | ((high << vec4<u32>(31u - shift)) << vec4<u32>(1u));
}

fn words2_at(address: u32) -> vec2<u32> {
    return vec2<u32>(word_at(address), word_at(address + 4u));
}

fn byte_at(address: u32) -> u32 {
    return (weight_word(address >> 2u) >> ((address & 3u) * 8u)) & 0xffu;
}

// For even addresses.
fn half_word_at(address: u32) -> u32 {
    return (weight_word(address >> 2u) >> ((address & 2u) * 8u)) & 0xffffu;
}

fn half_at(address: u32) -> f32 {
    return unpack2x16float(half_word_at(address)).x;
}

// Sixteen neighbouring weights.
struct Sixteen {
    a: vec4<f32>,
    b: vec4<f32>,
    c: vec4<f32>,
    d: vec4<f32>,
}

struct ThirtyTwo {
    low: Sixteen,
    high: Sixteen,
}

fn signed_bytes_f32(word: u32) -> vec4<f32> {
    return vec4<f32>(unpack4xI8(word));
}

// Four bits of a word, each in bit 0 of a byte.
fn spread4(bits: u32) -> u32 {
    return (bits & 1u) | ((bits & 2u) << 7u) | ((bits & 4u) << 14u) | ((bits & 8u) << 21u);
}

// Four signed bytes, none of them 0, negated where a bit is set.
fn flipped4(word: u32, bits: u32) -> u32 {
    let ones = spread4(bits);
    return (word ^ (ones * 0xffu)) + ones;
}

// Sixteen neighbouring weights, `scale * code + offset`: codes are signed bytes, four to a word. Formats without minima have no
// offset (HAS_OFFSET).
struct Coded {
    codes: vec4<u32>,
    scale: f32,
    offset: f32,
}

fn affine16(codes: vec4<u32>, scale: f32, offset: f32) -> Coded {
    return Coded(codes, scale, offset);
}

// Codes from 0 to 127, less a number that all four bytes of `zeros` hold.
fn centred16(codes: vec4<u32>, scale: f32, zeros: u32) -> Coded {
    let signs = vec4<u32>(0x80808080u);
    return Coded(((codes | signs) - vec4<u32>(zeros)) ^ signs, scale, 0.0);
}

fn nibbles4(words: vec4<u32>, half: u32) -> vec4<u32> {
    return (words >> vec4<u32>(4u * half)) & vec4<u32>(0x0f0f0f0fu);
}
