// Sixteen neighbouring weights as pairs of f16, with their scale and offset.
struct Halves {
    pairs: array<vec2<f16>, 8>,
    scales: vec2<f32>,
}
