// What all products share: the dot product of a matrix row with rows of activations, and what becomes of it.
#pragma once
#include "../rounded.h"

/// Where a row of activations begins: rounded words for quantised weights, floats for plain ones.
template <bool FLOATS>
struct InputElement {
    using Type = u32;
};
template <>
struct InputElement<true> {
    using Type = float;
};
template <class F>
using InputOf = const typename InputElement<F::FLOATS>::Type*;

constexpr u32 ONES = 0x01010101u;

/// Eight weights times eight activations; `words` are those of the 32 that they belong to.
template <class F>
DEVICE float octet_dot(const Octet& w, const u32* words, u32 part) {
    // Two words of high bytes, two of low ones.
    const Words4 x = reinterpret_cast<const Words4*>(words)[part];
    const int h = dot_bytes(w.q[1], x.y, dot_bytes(w.q[0], x.x, 0));
    const int l = dot_bytes(w.q[1], x.w, dot_bytes(w.q[0], x.z, 0));
    float sum = w.scale * static_cast<float>(128 * h + l);
    if constexpr (F::OFFSET) {
        const int hs = dot_bytes(ONES, x.y, dot_bytes(ONES, x.x, 0));
        const int ls = dot_bytes(ONES, x.w, dot_bytes(ONES, x.z, 0));
        sum = fma(w.offset, static_cast<float>(128 * hs + ls), sum);
    }
    return sum * bits_to_float(words[16]);
}

/// Adds this lane's share of a matrix row times `BATCH` rows of activations. The order of additions depends on nothing but
/// the row's length.
template <class F, u32 BATCH>
DEVICE void multiply_row(const u8* row, u32 cols, const InputOf<F> (&x)[BATCH], float (&sums)[BATCH]) {
    if constexpr (F::FLOATS) {
        for (u32 i = lane(); i < cols; i += LANES) {
            const float weight = F::weight(row, i);
            UNROLL
            for (u32 b = 0; b < BATCH; b++) sums[b] = fma(weight, x[b][i], sums[b]);
        }
    } else {
        for (u32 o = lane(); o < cols / 8; o += LANES) {
            const Octet weights = F::octet(row, o);
            UNROLL
            for (u32 b = 0; b < BATCH; b++) sums[b] += octet_dot<F>(weights, x[b] + o / 4 * ROUNDED_WORDS, o % 4);
        }
    }
}

DEVICE float activate(u32 activation, float gate, float up) {
    return (activation == ACTIVATION_SILU ? silu(gate) : gelu_tanh(gate)) * up;
}

DEVICE float factor(const Operands& at, u32 where, u32 index) { return where == NONE ? 1.0f : w2_floats(at)[where + index]; }

/// Scale, activation, bias and epilogue of output `o` of a row, then the store.
DEVICE void finish_product(const Operands& at, const MatArgs& a, u32 row, u32 o, float product, bool gated, float up_product) {
    float value = product * factor(at, a.scale_at, 0);
    if (gated) {
        value = activate(a.activation, value, up_product * factor(at, a.up_scale_at, 0));
    } else if (a.up_at != NONE) {
        value = activate(a.activation, value, scratch_floats(at)[row_at(a.up_at, row, a.up_stride) + o]);
    }
    if (a.bias_at != NONE) value += w2_floats(at)[a.bias_at + o];
    float* out = (a.out_in_scratch ? scratch_floats(at) : work_floats(at)) + row_at(a.out_at, row, a.out_stride) + o;
    switch (a.epilogue) {
        case EPILOGUE_SILU:
        case EPILOGUE_SIGMOID: {
            const float scaled = value * a.epilogue_scale;
            value = (a.epilogue == EPILOGUE_SILU ? scaled : a.epilogue_factor) / (1.0f + exp_float(-scaled));
            break;
        }
        case EPILOGUE_DECAY: value = w2_floats(at)[a.a_at + o] * softplus(value + w2_floats(at)[a.dt_at + o]); break;
        case EPILOGUE_ACCUMULATE: value += *out; break;
        default: break;
    }
    *out = value;
}

/// A row of activations of a product.
template <class F>
DEVICE InputOf<F> input_row(const Operands& at, const MatArgs& a, u32 row) {
    if constexpr (F::FLOATS) return work_floats(at) + row_at(a.x_at, row, a.x_stride);
    else return scratch_words(at) + row_at(a.q_at, row, a.q_stride);
}

/// One choice of an expert.
struct Pair {
    u32 row, choice;
};

/// Activations of a pair.
template <class F>
DEVICE InputOf<F> input_pair(const Operands& at, const ExpertArgs& a, Pair p) {
    if constexpr (F::FLOATS) return work_floats(at) + row_at(a.x_at, p.row, a.x_stride) + p.choice * a.x_pair_stride;
    else return scratch_words(at) + row_at(a.q_at, p.row, a.q_stride) + p.choice * (a.x_pair_stride / 32) * ROUNDED_WORDS;
}

/// The slot of an expert among those of this launch, or NONE.
DEVICE u32 slot_of(const Operands& at, const ExpertArgs& a, u32 expert) {
    if (expert >= a.experts) return NONE;
    const u32 slot = a.table_at == NONE ? expert : state_words(at)[a.table_at + expert];
    return slot == NONE || slot - a.first_slot >= a.slots ? NONE : slot - a.first_slot;
}

/// First row of an expert's matrix.
DEVICE const u8* slot_rows(const Operands& at, const ExpertArgs& a, u32 first_units, u32 slot, u32 row_offset) {
    const u64 units = first_units + static_cast<u64>(slot) * a.slot_stride_units;
    return w0_bytes(at) + units * 256 + static_cast<u64>(row_offset) * a.row_bytes;
}

DEVICE void finish_pair(const Operands& at, const ExpertArgs& a, u32 expert, Pair p, u32 o, float product, bool gated, float up) {
    float value = product * factor(at, a.scale_at, expert);
    if (gated) {
        value = activate(a.activation, value, up * factor(at, a.up_scale_at, expert));
    } else if (a.up_at != NONE) {
        value = activate(a.activation, value, scratch_floats(at)[row_at(a.up_at, p.row * a.used + p.choice, a.outs) + o]);
    }
    float* out = a.out_in_scratch ? scratch_floats(at) : work_floats(at);
    out[row_at(a.out_at, p.row, a.out_stride) + p.choice * a.out_pair_stride + o] = value;
}
