// Scalar functions that kernels share, as exact as float32 allows.

fn sigmoid(x: f32) -> f32 {
    return 1.0 / (1.0 + exp(-x));
}

fn silu(x: f32) -> f32 {
    return x / (1.0 + exp(-x));
}

fn gelu_tanh(x: f32) -> f32 {
    let y = 0.7978846 * (x + 0.044715 * x * x * x);
    let tanh_y = 1.0 - 2.0 / (exp(2.0 * y) + 1.0);
    return 0.5 * x * (1.0 + tanh_y);
}

fn softplus(x: f32) -> f32 {
    if (x > 20.0) {
        return x;
    }
    let e = exp(x);
    // A series where 1 + e would lose the digits of e.
    let series = e * (1.0 - e * (0.5 - e * (1.0 / 3.0 - e * 0.25)));
    return select(log(1.0 + e), series, e < 0.01);
}

fn activate(activation: u32, gate: f32, up: f32) -> f32 {
    if (activation == ACTIVATION_SILU) {
        return silu(gate) * up;
    }
    return gelu_tanh(gate) * up;
}
