// Functions in float32 that give the same bits on every card: additions, products, divisions and square roots are those of
// IEEE 754, nothing is fused but what is written as `fma`.
#pragma once

constexpr float LOG2_E = 1.44269504f;

DEVICE float min_float(float a, float b) { return a < b ? a : b; }

/// e^x to about 1 ulp: 2^n * e^r with |r| <= ln(2)/2.
DEVICE float exp_float(float x) {
    if (!(x > -104.0f)) return x < 0.0f ? 0.0f : x;  // NaN stays NaN
    if (x > 88.73f) return bits_to_float(0x7f800000u);
    const float n = round_to_even(x * LOG2_E);
    const float r = fma(n, -1.42860677e-6f, fma(n, -0.693145752f, x));
    float p = 1.98756915e-4f;
    p = fma(p, r, 1.39819995e-3f);
    p = fma(p, r, 8.33345191e-3f);
    p = fma(p, r, 4.16657962e-2f);
    p = fma(p, r, 1.66666657e-1f);
    p = fma(p, r, 0.5f);
    const float y = fma(p, r * r, r) + 1.0f;
    // In two steps, so that results below the normal range come out right.
    const int whole = static_cast<int>(n), half = whole / 2;
    return y * bits_to_float(static_cast<u32>(half + 127) << 23) * bits_to_float(static_cast<u32>(whole - half + 127) << 23);
}

/// ln(1 + y) for y >= 0.
DEVICE float log1p_float(float y) {
    const float u = 1.0f + y;
    if (u == 1.0f) return y;
    // u = m * 2^k with m in [sqrt(1/2), sqrt(2)); the rounding of 1 + y is put right by `rest`.
    u32 bits = float_to_bits(u);
    bits += 0x3f800000u - 0x3f3504f3u;
    const int k = static_cast<int>(bits >> 23) - 127;
    const float m = bits_to_float((bits & 0x007fffffu) + 0x3f3504f3u);
    const float rest = k < 24 ? (y - (u - 1.0f)) / u : 0.0f;
    const float f = m - 1.0f, s = f / (2.0f + f), z = s * s;
    float p = 0.153846154f;
    p = fma(p, z, 0.181818182f);
    p = fma(p, z, 0.222222222f);
    p = fma(p, z, 0.285714286f);
    p = fma(p, z, 0.4f);
    p = fma(p, z, 0.666666667f);
    const float log_m = fma(s * z, p, 2.0f * s);
    const float kf = static_cast<float>(k);
    return fma(kf, 0.693145752f, fma(kf, 1.42860677e-6f, log_m + rest));
}

DEVICE float sigmoid(float x) { return 1.0f / (1.0f + exp_float(-x)); }
DEVICE float silu(float x) { return x / (1.0f + exp_float(-x)); }
DEVICE float softplus(float x) { return x > 20.0f ? x : log1p_float(exp_float(x)); }

DEVICE float tanh_float(float x) {
    const float a = abs_float(x);
    if (a < 0.3f) {
        // Near zero the quotient below would lose digits: a series.
        const float z = x * x;
        float p = -0.00886323553f;
        p = fma(p, z, 0.0218694885f);
        p = fma(p, z, -0.0539682540f);
        p = fma(p, z, 0.133333333f);
        p = fma(p, z, -0.333333333f);
        return fma(x * z, p, x);
    }
    const float e = exp_float(-2.0f * a), t = (1.0f - e) / (1.0f + e);
    return x < 0.0f ? -t : t;
}

DEVICE float gelu_tanh(float x) { return 0.5f * x * (1.0f + tanh_float(0.797884561f * (x + 0.044715f * x * x * x))); }
