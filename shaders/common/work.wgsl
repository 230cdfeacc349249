// Floats and ids in the work arena.

fn work_f32(i: u32) -> f32 {
    return bitcast<f32>(work[i]);
}

fn set_work(i: u32, value: f32) {
    work[i] = bitcast<u32>(value);
}
